"""amqtt's plug-ins as they are shipped: password file, JWT, HTTP, certificate, anonymous, topic ACL."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from access_files import password_file, written
from aiohttp import web
from amqtt.contrib.cert import generate_device_csr, generate_root_creds, generate_server_csr, sign_csr
from amqtt.plugins.authentication import DeprecatedSHA512CryptHasher
from cryptography.hazmat.primitives import serialization
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from gateway.access.checking import check_access
from holdmq.config.access import AccessSection
from holdmq.config.model import Config
from holdmq.credentials.password_hash import hash_password
from holdmq.errors import ConfigError
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Connect, Publish, encode

Start = Callable[..., Awaitable[Any]]
KEY = "a key of thirty-two bytes, at least, for HS256"


def plugin(class_path: str, **options: Any) -> dict[str, Any]:
    return {"class_path": f"amqtt.{class_path}", "options": options}


async def test_the_password_file_plugin(start_worker: Start, tmp_path: Path) -> None:
    path = password_file(tmp_path / "passwd", ada="secret")
    running = await start_worker(
        access={"plugins": [plugin("plugins.authentication.FileAuthPlugin", password_file=path)]}
    )
    await running.client("c1", MQTT_5, username="ada", password=b"secret")
    assert running.worker.clients.session("c1").principal == "ada"
    for name, word in (("ada", b"no"), ("eve", b"secret"), ("ada", b"\xff")):
        refused = await running.client("c2", MQTT_5, username=name, password=word, refused=True)
        assert refused.connack.reason_code == 0x86
    assert (await running.client("c3", MQTT_3_1_1, refused=True)).connack.reason_code == 0x86


def test_what_holdmq_passwd_writes_is_what_the_plugin_reads() -> None:
    hasher = PasswordHash((Argon2Hasher(), DeprecatedSHA512CryptHasher()))
    assert hasher.verify("secret", hash_password(b"secret"))
    assert not hasher.verify("other", hash_password(b"secret"))


def token(user: str, **claims: Any) -> bytes:
    return jwt.encode({"user": user, "exp": time.time() + 60, **claims}, KEY, algorithm="HS256").encode()


async def test_the_jwt_plugins_admit_and_say_what_may_be_done(start_worker: Start) -> None:
    claims = {"publish_claim": "pub", "subscribe_claim": "filters", "receive_claim": "rec"}
    running = await start_worker(
        access={
            "plugins": [
                plugin("contrib.jwt.UserAuthJwtPlugin", secret_key=KEY, user_claim="user"),
                plugin("contrib.jwt.TopicAuthJwtPlugin", secret_key=KEY, **claims),
            ]
        }
    )
    good = token("ada", pub=["a/+"], filters=["b/#"])
    client = await running.client("c1", MQTT_5, username="ada", password=good)
    assert (await client.subscribe("b/1", "c/1")).reason_codes == [1, 0x87]
    client.send(Publish("a/1", b"1", 1, packet_id=1), Publish("c/1", b"2", 1, packet_id=2))
    answers = [await client.next(), await client.next()]
    assert answers[0].packet_ids == [1]
    assert answers[1].reason_code == 0x87
    for name, word in (
        ("eve", good),
        ("ada", good + b"x"),
        ("ada", jwt.encode({"user": "ada", "exp": 1}, KEY, algorithm="HS256").encode()),
    ):
        refused = await running.client("c2", MQTT_5, username=name, password=word, refused=True)
        assert refused.connack.reason_code == 0x86


@pytest.fixture
async def http_server() -> AsyncIterator[Any]:
    """A server that knows ada, and lets her publish to a/…"""
    asked: list[tuple[str, dict[str, Any]]] = []

    async def user(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(("user", body))
        return web.json_response({"ok": (body["username"], body["password"]) == ("ada", "secret")})

    async def acl(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(("acl", body))
        return web.json_response({"ok": body["topic"].startswith({2: "a/", 4: "b/"}[body["acc"]])})

    app = web.Application()
    app.add_routes([web.post("/user", user), web.post("/acl", acl)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    yield type("Served", (), {"port": port, "asked": asked, "runner": runner})
    await runner.cleanup()


def over_http(port: int) -> dict[str, Any]:
    options = {"host": "127.0.0.1", "port": port, "request_method": "post", "timeout": 2}
    return {
        "plugins": [
            plugin("contrib.http.UserAuthHttpPlugin", **options),
            plugin("contrib.http.TopicAuthHttpPlugin", **options),
        ]
    }


async def test_the_http_plugins_ask_a_server_once_for_each_answer(
    start_worker: Start, http_server: Any
) -> None:
    running = await start_worker(access=over_http(http_server.port))
    for _ in range(2):
        client = await running.client("c1", MQTT_5, username="ada", password=b"secret")
        assert (await client.subscribe("b/1", "c/1")).reason_codes == [1, 0x87]
        client.send(*[Publish(t, b"x", 1, packet_id=n) for n, t in enumerate(("a/1", "c/1", "a/1"), 1)])
        codes = [getattr(await client.next(), "reason_code", 0) for _ in range(3)]
        assert codes == [0, 0x87, 0]
    assert [kind for kind, _ in http_server.asked].count("user") == 1
    topics = sorted((body["topic"], body["acc"]) for kind, body in http_server.asked if kind == "acl")
    assert topics == [("a/1", 2), ("b/1", 4), ("c/1", 2), ("c/1", 4)]
    refused = await running.client("c1", MQTT_5, username="ada", password=b"no", refused=True)
    assert refused.connack.reason_code == 0x86


async def test_a_server_that_is_gone_is_no_answer(start_worker: Start, http_server: Any) -> None:
    running = await start_worker(access=over_http(http_server.port))
    await running.client("c1", MQTT_5, username="ada", password=b"secret")
    await http_server.runner.cleanup()
    refused = await running.client("c2", MQTT_5, username="ada", password=b"secret", refused=True)
    assert refused.connack.reason_code == 0x88
    assert running.worker.counters.access_failures_total == 1
    # Who was answered before comes in all the same.
    await running.client("c1", MQTT_5, username="ada", password=b"secret")


class Devices:
    """An authority as amqtt's scripts make it, and what it signed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key, self._cert = generate_root_creds("DE", "B", "B", "test", "root")
        self.ca = self._write("ca.pem", self._cert.public_bytes(serialization.Encoding.PEM))

    def _write(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return str(path)

    def _signed(self, name: str, key: Any, csr: Any) -> tuple[str, str]:
        cert = sign_csr(csr, self._key, self._cert)
        raw = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        return (
            self._write(f"{name}.pem", cert.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}-key.pem", raw),
        )

    def server(self) -> tuple[str, str]:
        return self._signed("server", *generate_server_csr("DE", "test", "localhost"))

    def device(self, device_id: str, domain: str = "test.example") -> tuple[str, str]:
        uri, dns = f"spiffe://{domain}/device/{device_id}", f"{device_id}.local"
        return self._signed(device_id, *generate_device_csr("DE", "test", f"cn-{device_id}", uri, dns))


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Devices:
    return Devices(tmp_path_factory.mktemp("devices"))


async def connack_over_tls(
    running: Any, devices: Devices, pair: tuple[str, str] | None, client_id: str
) -> bytes:
    context = ssl.create_default_context(cafile=devices.ca)
    context.check_hostname = False
    if pair is not None:
        context.load_cert_chain(*pair)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", running.port, ssl=context, server_hostname="localhost"
    )
    running.clients.append(type("Open", (), {"writer": writer}))
    writer.write(encode(Connect(client_id=client_id), 4))
    return await asyncio.wait_for(reader.readexactly(4), 40)


async def test_the_certificate_plugin_admits_the_device_of_its_certificate(
    start_worker: Start, devices: Devices
) -> None:
    cert, key = devices.server()
    listener = {"kind": "tls", "tls_cert": cert, "tls_key": key, "tls_client_ca": devices.ca}
    plugins = [plugin("contrib.cert.UserAuthCertPlugin", uri_domain="test.example")]
    running = await start_worker(listener, access={"plugins": plugins})
    own = devices.device("meter-1")
    assert await connack_over_tls(running, devices, own, "meter-1") == b"\x20\x02\x00\x00"
    assert running.worker.clients.session("meter-1").principal == "cn-meter-1"
    bad_credentials = b"\x20\x02\x00\x04"
    assert await connack_over_tls(running, devices, own, "meter-2") == bad_credentials
    assert await connack_over_tls(running, devices, None, "meter-1") == bad_credentials
    foreign = devices.device("meter-3", "other.example")
    assert await connack_over_tls(running, devices, foreign, "meter-3") == bad_credentials


async def test_a_verified_certificate_is_a_user_without_any_plugin(
    start_worker: Start, devices: Devices, tmp_path: Path
) -> None:
    cert, key = devices.server()
    listener = {"kind": "tls", "tls_cert": cert, "tls_key": key, "tls_client_ca": devices.ca}
    users = password_file(tmp_path / "passwd", ada="secret")
    tenants = written(tmp_path / "tenants", "cn-meter-8:acme\n")
    access = {"certificates": True, "password_file": users, "tenants_file": tenants}
    running = await start_worker(listener, access=access)
    for name, client_id in (("meter-9", "any"), ("meter-8", "$%acme/any")):
        pair = devices.device(name)
        assert await connack_over_tls(running, devices, pair, "any") == b"\x20\x02\x00\x00"
        assert running.worker.clients.session(client_id).principal == f"cn-{name}"
    assert await connack_over_tls(running, devices, None, "any") == b"\x20\x02\x00\x05"


async def test_the_anonymous_plugin_admits_everybody_as_nobody(start_worker: Start, tmp_path: Path) -> None:
    path = password_file(tmp_path / "passwd", ada="secret")
    running = await start_worker(
        access={
            "plugins": [
                plugin("plugins.authentication.AnonymousAuthPlugin", allow_anonymous=True),
                plugin("plugins.authentication.FileAuthPlugin", password_file=path),
            ]
        }
    )
    await running.client("c1", MQTT_5)
    assert running.worker.clients.session("c1").principal == ""
    await running.client("c2", MQTT_5, username="ada", password=b"secret")
    assert running.worker.clients.session("c2").principal == "ada"
    await running.client("c3", MQTT_5, username="ada", password=b"no", refused=True)


@pytest.mark.filterwarnings("ignore:The 'acl' option is deprecated")
async def test_the_topic_acl_plugin_decides_on_publishes_and_filters(
    start_worker: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = password_file(tmp_path / "passwd", ada="secret")
    rules = {"publish_acl": {"ada": ["a/+"]}, "acl": {"ada": ["b/#"], "anonymous": ["open"]}}
    running = await start_worker(
        access={
            "password_file": path,
            "plugins": [plugin("plugins.topic_checking.TopicAccessControlListPlugin", **rules)],
        },
        allow_anonymous=True,
    )
    # The broker here knows no shares, and does not say so.
    monkeypatch.setattr("gateway.deliver.subscriptions.SUBACK_WAIT_S", 0.1)
    ada = await running.client("c1", MQTT_5, username="ada", password=b"secret")
    assert (await ada.subscribe("b/+/c", "a/1", "$share/g/b/x")).reason_codes[:2] == [1, 0x87]
    ada.send(Publish("a/1", b"1", 1, packet_id=1), Publish("b/1", b"2", 1, packet_id=2))
    assert [getattr(await ada.next(), "reason_code", 0) for _ in range(2)] == [0, 0x87]
    nobody = await running.client("c2", MQTT_5)
    assert (await nobody.subscribe("open", "b/1")).reason_codes == [1, 0x87]


async def test_taboo_topics_and_an_acl_file_must_both_agree(start_worker: Start, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite prohibited\ntopic readwrite top-secret/#\ntopic readwrite open/#\n")
    running = await start_worker(
        access={"acl_file": str(acl), "plugins": [plugin("plugins.topic_checking.TopicTabooPlugin")]},
        allow_anonymous=True,
    )
    client = await running.client("c1", MQTT_5)
    answer = await client.subscribe("prohibited", "open/1", "elsewhere", "top-secret/1")
    assert answer.reason_codes == [0x87, 1, 0x87, 1]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (
            {"class_path": "amqtt.nowhere.Plugin"},
            r"plugins\[0\] \(Plugin\): amqtt\.nowhere cannot be",
        ),
        ({"class_path": "amqtt.plugins.base.Missing"}, "has no class Missing"),
        ({"class_path": "amqtt.plugins.base.BasePlugin"}, "is no BaseAuthPlugin and no BaseTopicPlugin"),
        ({"class_path": "amqtt.plugins.base.Session"}, "is no BaseAuthPlugin and no BaseTopicPlugin"),
        ({"class_path": "odd_plugins.NoCoroutine"}, "its authenticate is no coroutine function"),
        (
            {"class_path": "amqtt.contrib.jwt.UserAuthJwtPlugin", "options": {"secret_key": KEY}},
            r'options do not fit: missing value for field "user_claim"',
        ),
        (
            {
                "class_path": "amqtt.contrib.jwt.UserAuthJwtPlugin",
                "options": {"secret_key": KEY, "user_claim": "u", "colour": 1},
            },
            "options do not fit: .*colour",
        ),
        ({"class_path": "amqtt.plugins.topic_checking.TopicTabooPlugin"}, "nobody could connect"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_before_anything_starts(settings: Any, what: str) -> None:
    config = Config(access=AccessSection(plugins=[settings]))
    with pytest.raises(ConfigError, match=what):
        check_access(config)


@pytest.mark.parametrize(
    ("count", "what"), [(2, "two access.plugins are named 'TopicTabooPlugin'"), (17, "at most 16")]
)
def test_plugins_are_few_and_have_names(count: int, what: str) -> None:
    plugins = [plugin("plugins.topic_checking.TopicTabooPlugin")] * count
    with pytest.raises(ConfigError, match=what):
        check_access(Config(access=AccessSection(plugins=plugins)))
