"""Real processes with security on: a device's message reaches an application, and nobody else gets in."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from any_disk import ANY_DISK
from devices import Device
from processes import SERVICES, Stack, end_all, free_port, wait_until
from security import ADMIN_SECRET, KEYS, READER_SECRET, SECRET, SERVICE_SECRET, Authority, write_keys
from tested_engine import own_server_flags
from tps_rows import read_tps

from holdmq.cli.up_ports import addresses
from holdmq.client import (
    Consumer,
    Message,
    Producer,
    Security,
    SharedConsumer,
    SyncAdmin,
    SyncProducer,
    SyncPullConsumer,
)
from holdmq.config.model import Config
from holdmq.config.sources import load
from holdmq.credentials.access_keys import AccessKey, load_keys
from holdmq.credentials.permissions import Role
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError
from holdmq.rpc.auth import ServerSecurity
from spark_streaming.tables import TPS_1S, table_path

StackMaker = Callable[..., Stack]
EPOCH = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
TOPIC = "orders"
UP = ["registry", "broker", "gateway", "console"]


class Secured:
    """A stack with access keys, TLS and client certificates, and credentials for it."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "certs")
        server = self.authority.issue("server")
        service = self.authority.issue("service-client", ("service-client",))
        self.keys_file = Path(write_keys(directory / "keys.toml"))
        self.stack = Stack(
            directory,
            {
                "security.keys_file": self.keys_file,
                "security.tls_cert": server.cert,
                "security.tls_key": server.key,
                "security.tls_client_ca": self.authority.ca,
                "security.require_client_certificate": "true",
                "client.tls_ca": self.authority.ca,
                "client.tls_cert": service.cert,
                "client.tls_key": service.key,
            },
        )
        self.registries = [self.stack.registry]

    def by_certificate(self, name: str) -> Security:
        return Security(tls_ca=self.authority.ca, **self.authority.client(name))  # type: ignore[arg-type]

    def by_key(self, access_key: str, secret: str) -> Security:
        """An access key; the certificate opens TLS, the key says who it is."""
        own = self.authority.client("anybody")
        return Security(access_key, secret, tls_ca=self.authority.ca, **own)  # type: ignore[arg-type]


@contextmanager
def started(directory: Path, *services: str) -> Iterator[Secured]:
    secured = Secured(directory)
    try:
        secured.stack.start_all(services)
        yield secured
    finally:
        end_all([secured.stack])


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with started(tmp_path_factory.mktemp("secured"), "registry", "broker") as secured:
        yield secured


def read(consumer: SyncPullConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    wait_until(
        lambda: bodies.extend(m.body for m in consumer.poll(hold_ms=500)) or len(bodies) >= count,
        f"{count} messages",
    )
    return bodies


def test_a_devices_message_goes_through_everything_over_tls_with_client_certificates(
    tmp_path: Path,
) -> None:
    with started(tmp_path, *SERVICES) as secured:
        device = Device(secured.stack.mqtt_port, "dev", f"{TOPIC}/1")
        wait_until(device.connect, "the gateway takes a device")
        device.publish(10)
        wait_until(lambda: device.receive() or not device.waits, "ten PUBACKs")
        with SyncPullConsumer(
            secured.registries, security=secured.by_certificate("orders-client")
        ) as consumer:
            consumer.assign([TOPIC], "earliest")
            assert sorted(read(consumer, 10)) == sorted(f"dev:{n}".encode() for n in range(1, 11))
        device.close()
        with SyncAdmin(secured.registries, security=secured.by_key("admin", ADMIN_SECRET)) as admin:

            def who_is_there() -> dict[str, object]:
                connections = admin.connections()["broker-0"]
                assert isinstance(connections, list), connections
                return {row.role: row.state["principal"] for row in connections}

            wanted = {"gateway": "service", "console": "admin"}
            wait_until(lambda: who_is_there() == wanted, "the consumer is gone, the others are there")
        for name in ("registry", "broker", "gateway"):
            assert SECRET not in secured.stack.log(name)
            assert SERVICE_SECRET not in secured.stack.log(name)


def test_each_principal_may_do_what_its_entry_says(secured: Secured) -> None:
    with SyncAdmin(secured.registries, security=secured.by_key("admin", ADMIN_SECRET)) as admin:
        admin.create_topic(TOPIC)
        admin.create_topic("billing")
    orders = secured.by_key("orders", SECRET)
    with SyncProducer(secured.registries, security=orders) as producer:
        producer.send(Message(TOPIC, b"mine"))
        with pytest.raises(HoldMQError, match="'orders' may not produce to topic 'billing'") as caught:
            producer.send(Message("billing", b"not mine"))
        assert caught.value.code == Code.NOT_PERMITTED
        producer.send(Message(TOPIC, b"still mine"))
    with SyncPullConsumer(secured.registries, security=orders) as consumer:
        consumer.assign([TOPIC], "earliest")
        assert sorted(read(consumer, 2)) == [b"mine", b"still mine"]
        with pytest.raises(HoldMQError, match="may not consume from topic 'billing'"):
            consumer.assign(["billing"], "earliest")
    with (
        SyncAdmin(secured.registries, security=orders) as admin,
        pytest.raises(RemoteError, match="role admin"),
    ):
        admin.create_topic("another")
    assert secured.stack.metric("broker", "holdmq_rpc_not_permitted_total") >= 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "client.tls_cert"),
        ({"access_key": "orders", "secret": "w" * 40}, "client.tls_cert"),
    ],
)
def test_who_shows_no_certificate_does_not_get_in(
    secured: Secured, fields: dict[str, str], reason: str
) -> None:
    security = Security(tls_ca=secured.authority.ca, **fields)  # type: ignore[arg-type]
    with (
        SyncAdmin(secured.registries, security=security) as admin,
        pytest.raises(TransportError, match=reason),
    ):
        admin.cluster()
    with SyncAdmin(secured.registries) as admin, pytest.raises(TransportError, match="use TLS"):
        admin.cluster()


def test_a_wrong_key_does_not_get_in_and_a_deleted_one_is_thrown_out(tmp_path: Path) -> None:
    with started(tmp_path, "registry", "broker") as secured:
        wrong = secured.by_key("orders", "w" * 40)
        with (
            SyncProducer(secured.registries, security=wrong) as producer,
            pytest.raises(HoldMQError, match="unknown or its secret is wrong"),
        ):
            producer.send(Message(TOPIC, b"x"), timeout_s=60)
        orders = secured.by_key("orders", SECRET)
        with SyncProducer(secured.registries, security=orders) as producer:
            producer.send(Message(TOPIC, b"before"))
            without = re.sub(r"\[keys.orders\].*?(?=\[keys.service\])", "", KEYS, flags=re.DOTALL)
            write_keys(secured.keys_file, without)
            for name in ("registry", "broker"):
                secured.stack.processes[name].send_signal(signal.SIGHUP)
            wait_until(
                lambda: "access keys were read again" in secured.stack.log("broker"),
                "the broker reads its keys",
            )
            with pytest.raises(HoldMQError):
                producer.send(Message(TOPIC, b"after"), timeout_s=3)
        with SyncAdmin(secured.registries, security=secured.by_key("admin", ADMIN_SECRET)) as admin:
            assert isinstance(admin.connections()["broker-0"], list), "others are not concerned"


def secret_in(path: Path, secret: str) -> Path:
    path.write_text(secret + "\n", encoding="utf-8")
    path.chmod(0o600)
    return path


def settings_of(secured: Secured, more: Mapping[str, object] | None = None) -> list[str]:
    """What tells a command where the registry is, with a certificate of its own."""
    own = secured.authority.issue("cli", ("cli",))
    settings = {
        "client.registries": secured.stack.registry,
        "client.tls_ca": secured.authority.ca,
        "client.tls_cert": own.cert,
        "client.tls_key": own.key,
        **(more or {}),
    }
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def test_the_command_line_takes_credentials_from_a_file(secured: Secured, tmp_path: Path) -> None:
    secret_file = secret_in(tmp_path / "admin.secret", ADMIN_SECRET)
    command = [sys.executable, "-m", "holdmq.cli", "topic", "create", "made", "--json", *settings_of(secured)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert refused.returncode == 1
    assert "UNAUTHENTICATED" in refused.stderr
    named = [*command, "--set", "client.access_key=admin", "--set", f"client.secret_file={secret_file}"]
    made = subprocess.run(named, capture_output=True, text=True, timeout=100, check=True)
    assert json.loads(made.stdout)[0]["topic"] == "made"


@pytest.mark.parametrize(
    ("mqtt_filter", "topics"),
    # A wildcard is refused for the topic that answers first, of all that other tests made, too.
    [("invoices/#", "invoices"), ("#", r"\w+"), ("+/1", r"\w+")],
)
def test_sub_says_which_topic_it_may_not_read(
    secured: Secured, tmp_path: Path, mqtt_filter: str, topics: str
) -> None:
    with SyncProducer(secured.registries, security=secured.by_key("service", SERVICE_SECRET)) as producer:
        producer.send(Message("invoices", b"x"), timeout_s=60)
    secret_file = secret_in(tmp_path / "orders.secret", SECRET)
    credentials = {"client.access_key": "orders", "client.secret_file": secret_file}
    command = [sys.executable, "-m", "holdmq.cli", "sub", mqtt_filter, *settings_of(secured, credentials)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: NOT_PERMITTED"), refused.stderr
    assert re.search(f"'orders' may not .*'({topics})'", refused.stderr), refused.stderr
    assert "bug" not in refused.stderr


def test_the_commands_and_the_configuration_of_the_guide_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    commands, configuration = (
        re.search(rf"```{language}\n(.*?)```", guide, re.DOTALL) for language in ("bash", "toml")
    )
    assert commands is not None
    assert configuration is not None
    holdmq = f'holdmq() {{ "{sys.executable}" -m holdmq.cli "$@"; }}\nset -e\n'
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(["bash", "-c", holdmq + commands[1]], cwd=tmp_path, env=environ, check=True, timeout=200)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdmq.toml").write_text(configuration[1], encoding="utf-8")
    config = load(tmp_path / "holdmq.toml", ["broker.bind=0.0.0.0"], {})
    security = ServerSecurity.of(config, "broker")
    assert security.numbers()["access_keys"] == 5
    client = Security.of(config)
    assert client is not None
    assert client.context() is not None
    assert len(client.read_secret()) == 43


@pytest.mark.parametrize("service", ["registry", "broker"])
def test_a_service_that_others_can_reach_does_not_start_without_credentials(
    tmp_path: Path, service: str
) -> None:
    sets = {
        f"{service}.bind": "0.0.0.0",
        f"{service}.port": "0",
        f"{service}.admin_port": "0",
        "storage.data_dir": tmp_path / "store",
    }
    command = [sys.executable, "-m", "holdmq.cli", service]
    command += [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2
    assert f"{service}.bind is 0.0.0.0" in ended.stderr
    assert "security.keys_file" in ended.stderr
    assert not (tmp_path / "store").exists()


def test_a_broker_with_an_expired_certificate_does_not_start(tmp_path: Path) -> None:
    expired = Authority(tmp_path).issue("old", lifetime=dt.timedelta(days=-1))
    sets = {
        "broker.port": "0",
        "broker.admin_port": "0",
        "storage.data_dir": tmp_path / "store",
        "security.tls_cert": expired.cert,
        "security.tls_key": expired.key,
    }
    command = [sys.executable, "-m", "holdmq.cli", "broker"]
    command += [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2
    assert f"{expired.cert} is of no use: certificate has expired; renew it" in ended.stderr


async def test_members_of_groups_need_no_more_than_their_groups_and_topics(
    holdmq_stack: StackMaker, tmp_path: Path
) -> None:
    keys = write_keys(tmp_path / "keys.toml")
    stack = await asyncio.to_thread(
        holdmq_stack,
        ("registry", "broker"),
        **{
            "security.keys_file": keys,
            "client.access_key": "service",
            "client.secret": SERVICE_SECRET,
        },
    )
    security = Security("orders", SECRET)
    async with Producer([stack.registry], security=security) as producer:
        await producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(20)])
    done = asyncio.Event()
    seen: Counter[bytes] = Counter()

    def handle(message: Message) -> bool:
        seen[message.body] += 1
        if len(seen) == 20 and seen[b"7"] == 2:
            done.set()
        return message.body != b"7" or seen[b"7"] == 2  # once more, by way of %RETRY%orders-app

    async def handle_soon(message: Message) -> bool:
        return handle(message)

    async with Consumer(
        [stack.registry], "orders-app", handle_soon, [TOPIC], start="earliest", security=security
    ):
        async with asyncio.timeout(100):
            await done.wait()
    shared: set[bytes] = set()
    async with SharedConsumer(
        [stack.registry], "orders-shared", [TOPIC], start="earliest", security=security
    ) as consumer:
        async with asyncio.timeout(100):
            while len(shared) < 20:
                for delivered in await consumer.pull():
                    shared.add(delivered.body)
                    await consumer.ack(delivered)
    stranger = Consumer([stack.registry], "billing", handle_soon, [TOPIC], security=security)
    with pytest.raises(RemoteError, match="'orders' may not use group 'billing'"):
        await stranger.start()
    await stranger.close()
    assert stack.metric("broker", "holdmq_rpc_not_permitted_total") >= 1


@pytest.mark.timeout(900)
def test_statistics_and_console_read_with_a_key_whose_secret_is_in_the_environment(
    holdmq_stack: StackMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "certs")
    server = authority.issue("server")
    monkeypatch.setenv("HOLDMQ_CLIENT__SECRET", SERVICE_SECRET)
    port, admin_port = free_port(), free_port()
    stack = holdmq_stack(
        ("registry", "broker"),
        **{
            "security.keys_file": write_keys(tmp_path / "keys.toml"),
            "security.tls_cert": server.cert,
            "security.tls_key": server.key,
            "client.tls_ca": authority.ca,
            "client.access_key": "service",
            "console.port": port,
            "console.admin_port": admin_port,
        },
    )
    monkeypatch.setenv("HOLDMQ_CLIENT__SECRET", READER_SECRET)
    stack.set("client.access_key", "reader")
    for name in ("console", "stats"):
        stack.start(name, wait=False)
    with SyncProducer([stack.registry], security=Security("orders", SECRET, tls_ca=authority.ca)) as producer:
        producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(50)])
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=40) as client:

        def brokers() -> list[dict[str, Any]]:
            try:
                found: list[dict[str, Any]] = client.get("/api/v1/brokers").json().get("brokers", [])
            except httpx.TransportError:
                return []
            return found

        wait_until(lambda: [b["reachable"] for b in brokers()] == [True], "the console reaches the broker")
    wait_until(lambda: stack.http("stats", "/readyz")[0] == 200, "the JVM and the job start", 300)
    tables = table_path(stack.directory / "stats", TPS_1S)

    def counted() -> int:
        assert stack.processes["stats"].poll() is None, stack.log("stats")
        return sum(row.messages for row in read_tps(tables, EPOCH) if row.topic == TOPIC)

    wait_until(lambda: counted() == 50, "the job counts every message", 300)
    for name in ("stats", "console", "broker"):
        assert SERVICE_SECRET not in stack.log(name)
        assert READER_SECRET not in stack.log(name)


def test_up_gives_each_service_a_key_of_its_own_with_the_least_role(tmp_path: Path) -> None:
    keys_file = Path(write_keys(tmp_path / "keys.toml"))
    data = tmp_path / "data"
    ports = {key: free_port() for key in addresses(Config(), UP)}
    settings = {**ports, "security.keys_file": keys_file, "log.format": "json", "gateway.workers": 1}
    settings["console.auth"] = "none"
    settings |= {f"storage.{name}": percent for name, percent in ANY_DISK.items()}
    command = [sys.executable, "-m", "holdmq.cli", "up", "--without", "stats", "--json", "--data", str(data)]
    command += own_server_flags()
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    # A secret for people's commands is in the way of nobody.
    environment = {**os.environ, "HOLDMQ_CLIENT__SECRET": ADMIN_SECRET, "HOLDMQ_CLIENT__ACCESS_KEY": "admin"}
    registry, console = ports["registry.port"], f"http://127.0.0.1:{ports['console.port']}"

    def principals() -> set[object]:
        httpx.get(f"{console}/api/v1/brokers", timeout=40)  # for which the console connects
        with SyncAdmin([f"127.0.0.1:{registry}"], security=Security("admin", ADMIN_SECRET)) as admin:
            connections = admin.connections()["broker-0"]
            assert isinstance(connections, list), connections
            return {row.state["principal"] for row in connections}

    made: dict[str, AccessKey] = {}
    for _ in range(2):
        with (tmp_path / "up.log").open("ab") as log:
            up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        try:
            assert up.stdout is not None
            assert json.loads(up.stdout.readline())["event"] == "ready", (tmp_path / "up.log").read_text()
            wait_until(lambda: principals() == {"up-gateway", "up-console", "admin"}, "each has its own key")
        finally:
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=100)
        assert up.returncode == 0
        keys = load_keys(keys_file)
        assert {name: key.roles for name, key in keys.items() if name.startswith("up-")} == {
            "up-broker": {Role.BROKER},
            "up-gateway": {Role.SERVICE},
            "up-console": {Role.ADMIN},
        }
        assert {"orders", "service", "admin"} <= set(keys), "the file's own keys stay"
        assert not made or keys == made, "a second start makes no new keys"
        made = keys
    for name in ("broker", "gateway", "console"):
        assert stat.S_IMODE((data / "keys" / f"{name}.secret").stat().st_mode) == 0o600
        assert made[f"up-{name}"].secret not in (tmp_path / "up.log").read_text()
