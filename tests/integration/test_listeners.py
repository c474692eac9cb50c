"""The gateway's listeners as users meet them: real processes, other people's clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from guides import examples_of, run_console, run_python
from listener_clients import CONNACK, CONNECT, PROXY_V1, PROXY_V2
from processes import Stack, free_port, running_stack, wait_until
from security import Authority
from web_pages import CHROMIUM, FLAGS, LAUNCH_MS

from holdmq.service.admin import CONTROL_HEADER

KINDS = ("default", "tls", "devices", "web", "secure-web", "local")
PAGE = """port => new Promise(resolve => {
    const socket = new WebSocket(`ws://127.0.0.1:${port}/mqtt`, ['mqtt']);
    socket.binaryType = 'arraybuffer';
    socket.onerror = () => resolve('refused');
    socket.onopen = () => socket.send(new Uint8Array(
        [0x10, 13, 0, 4, 77, 81, 84, 84, 4, 2, 0, 60, 0, 1, 120]));
    socket.onmessage = event => resolve({
        protocol: socket.protocol,
        extensions: socket.extensions,
        received: Array.from(new Uint8Array(event.data)),
    });
})"""
"""A page without an origin of its own, which sends CONNECT and waits for the answer."""
FETCH = f"async path => (await fetch(path, {{headers: {{'{CONTROL_HEADER}': '1'}}}})).status"
"""As commands on this machine ask a control."""


class Gateway(NamedTuple):
    """A stack whose gateway has a listener of every kind."""

    stack: Stack
    authority: Authority
    ports: dict[str, int]
    path: str

    def tls_flags(self, name: str) -> list[str]:
        flags = ["--cafile", self.authority.ca]
        if name == "devices":
            own = self.authority.client("device-7")
            flags += ["--cert", own["tls_cert"], "--key", own["tls_key"]]
        return flags

    def context(self, name: str) -> ssl.SSLContext | None:
        if name not in ("tls", "devices", "secure-web"):
            return None
        context = ssl.create_default_context(cafile=self.authority.ca)
        if name == "devices":
            own = self.authority.client("device-7")
            context.load_cert_chain(own["tls_cert"], own["tls_key"])
        return context


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("listeners")
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    files = authority.issue("gateway")
    own = {"tls_cert": str(files.cert), "tls_key": str(files.key)}
    ports = {name: free_port() for name in (*KINDS[1:5], "pages", "proxy")}
    path = str(directory / "mqtt.sock")
    listeners: list[dict[str, Any]] = [
        {"name": "tls", "kind": "tls", **own},
        {
            "name": "devices",
            "kind": "tls",
            **own,
            "tls_client_ca": authority.ca,
            "require_client_certificate": True,
        },
        {"name": "web", "kind": "ws"},
        {"name": "secure-web", "kind": "wss", **own},
        {"name": "pages", "kind": "ws", "ws_origins": ["*"]},
        {"name": "proxy", "kind": "tcp", "proxy": True, "proxy_networks": ["127.0.0.0/8"]},
    ]
    for listener in listeners:
        listener["port"] = ports[listener["name"]]
    listeners.append({"name": "local", "kind": "unix", "path": path})
    settings = {
        "gateway.listeners": json.dumps(listeners),
        "gateway.allow_anonymous": "true",
        "gateway.tls_reload_interval_s": 60,
    }
    with running_stack(directory, **settings) as stack:
        ports["default"] = stack.mqtt_port
        yield Gateway(stack, authority, ports, path)
        assert "Traceback" not in stack.log("gateway")
        assert '"exception"' not in stack.log("gateway")


class PahoClient:
    """paho-mqtt on any of the listeners, connected and subscribed."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        import paho.mqtt.client as paho

        transport = {"web": "websockets", "secure-web": "websockets", "local": "unix"}.get(name, "tcp")
        self.got: list[bytes] = []
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=f"paho-{name}",
            transport=transport,  # type: ignore[arg-type]
        )
        context = gateway.context(name)
        if context is not None:
            self.client.tls_set_context(context)
        subscribed = threading.Event()
        self.client.on_message = lambda _c, _u, message: self.got.append(message.payload)
        self.client.on_connect = lambda client, *_: client.subscribe("all/#", 1)
        self.client.on_subscribe = lambda *_: subscribed.set()
        if name == "local":
            self.client.connect(gateway.path)
        else:
            self.client.connect("localhost", gateway.ports[name])
        self.client.loop_start()
        assert subscribed.wait(40), name

    def publish(self, payload: bytes) -> None:
        info = self.client.publish("all/x", payload, 1)
        info.wait_for_publish(60)
        assert info.is_published()

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.mqtt("MQTT-4.2-1")
def test_paho_talks_to_itself_through_every_kind_of_listener(gateway: Gateway) -> None:
    clients = {name: PahoClient(gateway, name) for name in KINDS}
    wanted = []
    for name, client in clients.items():
        for size in (0, 1000, 200_000):
            payload = name.encode() + b"!" * size
            wanted.append(payload)
            client.publish(payload)
    for name, client in clients.items():
        wait_until(lambda got=client.got: len(got) >= len(wanted), f"{name} has all messages")  # type: ignore[misc]
        assert sorted(client.got) == sorted(wanted), name
    area = 'holdmq_gateway_listener_connections{listener="%s"}'
    for name in KINDS:
        wait_until(lambda name=name: gateway.stack.metric("gateway", area % name) == 1, f"{name} is counted")  # type: ignore[misc]
    for client in clients.values():
        client.close()
    for name in KINDS:
        wait_until(lambda name=name: gateway.stack.metric("gateway", area % name) == 0, f"{name} is left")  # type: ignore[misc]


@pytest.mark.parametrize("name", ["tls", "devices", "local"])
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquitto_s_clients_talk_over_tls_and_a_unix_socket(
    gateway: Gateway, name: str, version: str
) -> None:
    if name == "local":
        place = ["--unix", gateway.path]
    else:
        place = ["-h", "localhost", "-p", str(gateway.ports[name]), *gateway.tls_flags(name)]
    topic = f"mosquitto/{name}/{version}"
    subscriber = subprocess.Popen(
        [
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            *place,
            "-V",
            version,
            "-t",
            topic,
            "-q",
            "1",
            "-C",
            "3",
            "-W",
            "100",
            "-d",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert subscriber.stdout is not None
    lines: list[str] = []
    for line in subscriber.stdout:
        lines.append(line)
        if line.startswith("Subscribed"):
            break
    for qos in "012":
        done = subprocess.run(
            ["mosquitto_pub", *place, "-V", version, "-t", topic, "-m", f"qos {qos}", "-q", qos],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    with subscriber.stdout as rest:
        lines += rest.readlines()
    assert subscriber.wait(40) == 0, lines
    assert sorted(line.strip() for line in lines if line.startswith("qos")) == ["qos 0", "qos 1", "qos 2"]


@pytest.mark.parametrize("name", ["tls", "devices", "web", "secure-web"])
async def test_aiomqtt_talks_over_tls_and_websocket(gateway: Gateway, name: str) -> None:
    import aiomqtt

    transport: Any = "websockets" if "web" in name else "tcp"
    async with aiomqtt.Client(
        "localhost", gateway.ports[name], transport=transport, tls_context=gateway.context(name)
    ) as client:
        await client.subscribe(f"aiomqtt/{name}", qos=1)
        await client.publish(f"aiomqtt/{name}", b"x" * 5000, qos=2)
        async with asyncio.timeout(40):
            message = await anext(client.messages)
    assert message.payload == b"x" * 5000


async def test_gmqtt_over_tls_and_amqtts_client_over_websocket_talk_to_each_other(gateway: Gateway) -> None:
    from amqtt.client import MQTTClient
    from gmqtt import Client

    context = gateway.context("tls")
    secure = Client("gmqtt-tls")
    await secure.connect("localhost", gateway.ports["tls"], ssl=context)
    web = MQTTClient(client_id="amqtt-ws", config={"auto_reconnect": False})
    await web.connect(f"ws://localhost:{gateway.ports['web']}/mqtt")
    await web.subscribe([("mixed/#", 1)])
    secure.publish("mixed/1", b"from gmqtt", qos=1)
    message = await asyncio.wait_for(web.deliver_message(), 40)
    assert message is not None
    assert bytes(message.data) == b"from gmqtt"
    await web.disconnect()
    await secure.disconnect()


async def test_a_page_in_a_browser_connects_where_its_origin_may(gateway: Gateway) -> None:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=LAUNCH_MS)
        page = await browser.new_page()
        assert await page.evaluate(PAGE, gateway.ports["web"]) == "refused"
        answer = await page.evaluate(PAGE, gateway.ports["pages"])
        await browser.close()
    assert answer == {"protocol": "mqtt", "extensions": "", "received": list(CONNACK)}


async def test_a_page_whose_name_was_made_to_point_here_reaches_nothing(gateway: Gateway) -> None:
    """DNS rebinding as a browser sees it: page and port are one site, headers and answers the page's."""
    from playwright.async_api import async_playwright

    admin, web = gateway.stack.admin_ports["gateway"], gateway.ports["web"]
    rebound = [*FLAGS, "--host-resolver-rules=MAP evil.example 127.0.0.1"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=rebound, timeout=LAUNCH_MS)
        page = await browser.new_page()
        shown = await page.goto(f"http://evil.example:{admin}/none")
        assert shown is not None
        assert "security.hosts" in await page.inner_text("body")
        assert await page.evaluate("origin") == f"http://evil.example:{admin}"
        for path in ("/trace?client=x&seconds=600", "/bans", "/metrics"):
            assert await page.evaluate(FETCH, path) == 421, path
        await page.goto(f"http://evil.example:{web}/none")
        assert await page.evaluate("origin") == f"http://evil.example:{web}"
        assert await page.evaluate(PAGE.replace("127.0.0.1", "evil.example"), web) == "refused"
        # The same page under the address is one that may.
        await page.goto(f"http://127.0.0.1:{web}/none")
        answer = await page.evaluate(PAGE, web)
        await browser.close()
    assert answer["received"] == list(CONNACK)
    assert gateway.stack.metric("gateway", "holdmq_gateway_traces") == 0


def test_a_client_without_a_certificate_is_told_so_and_counted(gateway: Gateway) -> None:
    place = ["-h", "localhost", "-p", str(gateway.ports["devices"]), *gateway.tls_flags("tls")]
    done = subprocess.run(
        ["mosquitto_pub", *place, "-t", "x", "-m", "x"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    metric = 'holdmq_gateway_listener_refused_total{listener="devices",reason="tls_handshake"}'
    wait_until(lambda: gateway.stack.metric("gateway", metric) >= 1, metric)
    assert "the client showed no certificate" in gateway.stack.log("gateway")


@pytest.mark.parametrize("header", [PROXY_V1, PROXY_V2])
def test_a_proxy_tells_who_its_client_is(gateway: Gateway, header: bytes) -> None:
    with socket.create_connection(("127.0.0.1", gateway.ports["proxy"]), 60) as client:
        for byte in header:
            client.sendall(bytes([byte]))
        client.sendall(CONNECT)
        assert client.recv(4) == CONNACK
        client.sendall(b"\x00\x00")
        while client.recv(100):
            pass
    wait_until(
        lambda: (
            '"listener": "proxy", "peer": "203.0.113.7:40000", "through": "127.0.0.1:'
            in gateway.stack.log("gateway")
        ),
        "the log names the client and the proxy",
    )


def test_health_checks_that_are_gone_at_once_are_no_refusals(gateway: Gateway) -> None:
    accepted = 'holdmq_gateway_listener_accepted_total{listener="proxy"}'
    before = gateway.stack.metric("gateway", accepted)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", gateway.ports["proxy"]), 60) as check:
            check.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: gateway.stack.metric("gateway", accepted) >= before + 20, "all are counted")
    text = gateway.stack.http("gateway", "/metrics")[1]
    assert 'reason="proxy_untrusted"' not in text


def certificate_at(port: int) -> bytes:
    """The certificate that a listener shows now, DER."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain) as secure:
        return secure.getpeercert(binary_form=True) or b""


def test_sighup_brings_new_certificates_to_all_workers_and_drops_nobody(gateway: Gateway) -> None:
    client = PahoClient(gateway, "tls")
    before = certificate_at(gateway.ports["tls"])
    gateway.authority.issue("gateway")
    gateway.stack.processes["gateway"].send_signal(signal.SIGHUP)

    def is_new() -> bool:
        # The kernel chooses the worker: both have it when none of many shows the old one.
        return all(certificate_at(gateway.ports["tls"]) != before for _ in range(12))

    wait_until(is_new, "the new certificate")
    client.publish(b"still connected")
    wait_until(lambda: client.got == [b"still connected"], "the message came back")
    client.close()


def test_every_listener_has_its_numbers(gateway: Gateway) -> None:
    text = gateway.stack.http("gateway", "/metrics")[1]
    for name in (*KINDS, "proxy"):
        assert f'holdmq_gateway_listener_accepted_total{{listener="{name}"}}' in text
    expiry = 'holdmq_gateway_listener_certificate_expiry_seconds{listener="%s"}'
    assert gateway.stack.metric("gateway", expiry % "tls") > 1.7e9
    assert expiry % "web" not in text


# Starting and ending


def local_stack(holdmq_stack: Callable[..., Stack], path: Path, **settings: Any) -> Stack:
    listeners = [{"name": "local", "kind": "unix", "path": str(path), "mode": "0600"}]
    return holdmq_stack(
        **{"gateway.listeners": json.dumps(listeners), "gateway.default_listener": "false", **settings}
    )


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(40)
        client.connect(str(path))
        client.sendall(CONNECT)
        return client.recv(4) == CONNACK


def test_a_unix_socket_outlives_a_worker_and_a_gateway_that_are_killed(
    holdmq_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    path = tmp_path / "mqtt.sock"
    stack = local_stack(holdmq_stack, path, **{"gateway.workers": 1})
    assert connects(path)
    parent = stack.processes["gateway"].pid
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        os.kill(int(file.read().split()[0]), signal.SIGKILL)
    assert connects(path)  # its successor takes what waited
    stack.restart("gateway", signal.SIGKILL)
    assert connects(path)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", stack.mqtt_port), 5)
    assert stack.stop("gateway") == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("listener", "code", "sentence"),
    [
        (
            {"kind": "tls", "tls_cert": "absent.pem", "tls_key": "k"},
            2,
            "tls_cert of the listener 'x' is absent.pem",
        ),
        ({"kind": "unix", "path": "absent/mqtt.sock"}, 1, "its directory does not exist; create it"),
        ({"kind": "tls"}, 2, "needs tls_cert"),
    ],
)
def test_a_listener_that_cannot_be_is_one_sentence(
    holdmq_stack: Callable[..., Stack], listener: dict[str, Any], code: int, sentence: str
) -> None:
    stack = holdmq_stack(services=("registry",))
    port = {} if listener["kind"] == "unix" else {"port": free_port()}
    stack.set("gateway.listeners", json.dumps([{"name": "x", **listener, **port}]))
    stack.start("gateway", wait=False)
    assert stack.processes.pop("gateway").wait(40) == code
    log = stack.log("gateway")
    assert sentence in log
    assert "Traceback" not in log


# The guide


@pytest.mark.timeout(600)
def test_the_examples_of_listeners_md_run(holdmq_stack: Callable[..., Stack]) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    certificates, commands = examples_of("listeners.md", "console")
    (configuration,) = examples_of("listeners.md", "toml")
    (program,) = examples_of("listeners.md", "python")
    ports = {
        port: str(free_port()) for port in re.findall(r"^port = (\d+)", configuration.code, re.MULTILINE)
    }

    def moved(text: str) -> str:
        for port, own in ports.items():
            text = re.sub(rf"\b{port}\b", own, text)
        return text

    run_console(certificates, [], stack.directory)
    file = stack.directory / "holdmq.toml"
    file.write_text(moved(configuration.code))
    run_console(
        certificates._replace(
            code="$ holdmq config check --config holdmq.toml\nthe configuration is valid…\n"
        ),
        [],
        stack.directory,
    )
    os.environ["HOLDMQ_CONFIG"] = str(file)
    try:
        stack.start("gateway")
    finally:
        del os.environ["HOLDMQ_CONFIG"]
    run_console(commands._replace(code=moved(commands.code)), [], stack.directory)
    run_python(program._replace(code=moved(program.code)), stack.registry, stack.directory)
    accepted = 'holdmq_gateway_listener_accepted_total{listener="%s"}'
    for name in ("tls", "devices", "local", "web"):
        wait_until(lambda name=name: stack.metric("gateway", accepted % name) == 1, f"{name} was used")  # type: ignore[misc]
