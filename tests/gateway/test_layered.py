"""Connections through TLS, WebSocket and PROXY headers, against a worker in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from security import Authority
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from gateway import layered, worker
from gateway.layered import LayeredShell
from gateway.peer import Peer
from holdmq.mqtt import MQTT_5, Connect, Disconnect, Publish, Will, encode
from holdmq.record import decode_host, decode_record

Start = Callable[..., Awaitable[Any]]
CONNECT = encode(Connect(client_id="c"), 4)
CONNACK = b"\x20\x02\x00\x00"
PING, PONG = b"\xc0\x00", b"\xd0\x00"
LOCAL = ["127.0.0.0/8"]
PROXY_V1 = b"PROXY TCP4 203.0.113.7 10.0.0.5 40000 1883\r\n"
PROXY_V2 = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11"
    + struct.pack(">H", 12)
    + bytes([203, 0, 113, 7, 10, 0, 0, 5])
    + struct.pack(">HH", 40000, 1883)
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server_tls(authority: Authority) -> dict[str, Any]:
    files = authority.issue("gateway")
    return {"tls_cert": str(files.cert), "tls_key": str(files.key)}


def client_context(authority: Authority, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if name:
        own = authority.client(name)
        context.load_cert_chain(own["tls_cert"], own["tls_key"])
    return context


async def connect(running: Any, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, **kwargs)
    running.clients.append(type("Open", (), {"writer": writer}))
    return reader, writer


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Everything until the end of the connection."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 10)
    return b""


def the_shell(running: Any) -> LayeredShell:
    (shell,) = running.worker._shells
    assert isinstance(shell, LayeredShell)
    return shell


def refused(running: Any, reason: str) -> Callable[[], bool]:
    """Whether exactly one connection was refused for this reason, here and at its listener."""
    counters = running.worker.counters

    def holds() -> bool:
        (listener,) = running.worker._listeners
        return bool(counters.refused[reason] == 1 and listener.refused == {reason: 1})

    return holds


# TLS


async def test_a_session_over_tls_is_a_session(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running, ssl=client_context(authority), server_hostname="localhost")
    tls = writer.get_extra_info("ssl_object")
    assert tls.version() == "TLSv1.3"
    big = bytes(range(256)) * 3000
    writer.write(CONNECT + encode(Publish("a/b", big, 1, packet_id=7), 4) + PING)
    assert await reader.readexactly(4 + 2) == CONNACK + PONG
    assert await reader.readexactly(4) == b"\x40\x02\x00\x07"
    assert running.broker.bodies == [big]
    shell = the_shell(running)
    assert shell.peer.certificate is None
    assert shell.ssl_object is not None
    assert shell.listener.handshakes == 0
    writer.write(b"\xe0\x00")
    assert await reader.read() == b""


async def test_much_at_once_goes_both_ways_over_tls(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running, ssl=client_context(authority), server_hostname="localhost")
    writer.write(CONNECT + PING * 50_000)
    assert await reader.readexactly(4 + 100_000) == CONNACK + PONG * 50_000


async def test_a_handshake_may_come_byte_by_byte(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    steps = [client.do_handshake, lambda: client.write(CONNECT), lambda: steps.append(client.read(4))]
    for step in steps[:3]:
        while True:
            try:
                step()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)
                incoming.write(await asyncio.wait_for(reader.read(1 << 16), 10))
    assert steps[3] == CONNACK


async def test_a_client_certificate_is_there_for_authentication(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker(
        {"kind": "tls", **server_tls, "tls_client_ca": authority.ca, "require_client_certificate": True}
    )
    context = client_context(authority, "device-7")
    reader, writer = await connect(running, ssl=context, server_hostname="localhost")
    writer.write(CONNECT)
    assert await reader.readexactly(4) == CONNACK
    shell = the_shell(running)
    certificate = shell.peer.certificate
    assert certificate is not None
    assert certificate.common_name == "device-7"
    assert certificate.names[0] == "device-7"
    assert "CN=device-7" in certificate.subject
    assert shell.ssl_object is not None
    assert shell.ssl_object.getpeercert(binary_form=True)
    assert shell.peer.log_fields()["certificate"] == certificate.subject


@pytest.mark.parametrize(
    ("listener", "sentence"),
    [
        ({"require_client_certificate": True}, "the client showed no certificate"),
        ({}, ""),
    ],
)
async def test_who_shows_no_certificate_is_refused_if_one_is_required(
    start_worker: Start,
    authority: Authority,
    server_tls: dict[str, Any],
    listener: dict[str, Any],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    running = await start_worker({"kind": "tls", **server_tls, "tls_client_ca": authority.ca, **listener})
    reader, writer = await connect(running, ssl=client_context(authority), server_hostname="localhost")
    writer.write(CONNECT)
    if not sentence:
        assert await reader.readexactly(4) == CONNACK
        assert the_shell(running).peer.certificate is None
        return
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
        await reader.read()
    await running.until(refused(running, "tls_handshake"))
    assert sentence in capsys.readouterr().out


async def test_a_certificate_of_another_authority_is_refused(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any], tmp_path: Path
) -> None:
    running = await start_worker({"kind": "tls", **server_tls, "tls_client_ca": authority.ca})
    stranger = Authority(tmp_path).client("device-7")
    context = client_context(authority)
    context.load_cert_chain(stranger["tls_cert"], stranger["tls_key"])
    reader, writer = await connect(running, ssl=context, server_hostname="localhost")
    writer.write(CONNECT)
    with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca|certificate.unknown"):
        await reader.read()
    await running.until(refused(running, "tls_handshake"))


@pytest.mark.parametrize(
    "data", [CONNECT, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", bytes(300)]
)
async def test_plain_bytes_at_a_tls_listener_are_refused(
    start_worker: Start, server_tls: dict[str, Any], data: bytes
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running)
    writer.write(data)
    await rest_of(reader)
    await running.until(refused(running, "tls_handshake"))
    assert running.worker._listeners[0].handshakes == 0


async def test_tls_1_1_is_refused(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running)
    # A ClientHello of TLS 1.1 as OpenSSL's own clients do not send it any more.
    hello = b"\x03\x02" + bytes(32) + b"\x00" + b"\x00\x02\x00\x2f" + b"\x01\x00"
    handshake = b"\x01" + len(hello).to_bytes(3, "big") + hello
    writer.write(b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + handshake)
    assert (await rest_of(reader))[:3] == b"\x15\x03\x02"  # an alert
    await running.until(refused(running, "tls_handshake"))
    assert "no TLS version from 1.2 on" in capsys.readouterr().out


async def test_a_record_that_was_changed_on_its_way_ends_the_connection_and_sends_the_will(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running, ssl=client_context(authority), server_hostname="localhost")
    writer.write(encode(Connect(client_id="c", will=Will("w/c", b"gone", 1)), 4))
    assert await reader.readexactly(4) == CONNACK
    raw = writer.get_extra_info("socket")
    with socket.socket(fileno=os.dup(raw.fileno())) as own:
        own.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    await running.until(refused(running, "tls_record"))
    await running.until(lambda: running.broker.bodies == [b"gone"])


async def test_half_a_handshake_ends_with_the_time_for_a_connect(
    start_worker: Start, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls}, unauthenticated_s=0.3)
    reader, writer = await connect(running)
    writer.write(b"\x16\x03\x01\x02\x00\x01")
    assert await rest_of(reader) == b""
    await running.until(refused(running, "unauthenticated"))
    await running.until(lambda: running.worker._listeners[0].handshakes == 0)


async def test_handshakes_at_a_time_are_bounded(
    start_worker: Start, server_tls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layered, "HANDSHAKES_MAX", 1)
    running = await start_worker({"kind": "tls", **server_tls})
    _, first = await connect(running)
    first.write(b"\x16")
    await running.until(lambda: running.worker._listeners[0].handshakes == 1)
    reader, second = await connect(running)
    second.write(b"\x16")
    assert await rest_of(reader) == b""
    await running.until(refused(running, "tls_handshakes_max"))
    first.close()
    await running.until(lambda: running.worker._listeners[0].handshakes == 0)


async def test_new_certificates_are_for_new_connections_and_open_ones_go_on(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running, ssl=client_context(authority), server_hostname="localhost")
    before = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(CONNECT)
    assert await reader.readexactly(4) == CONNACK
    authority.issue("gateway")
    (listener,) = running.worker._listeners
    signature = listener.tls_signature
    running.worker.reload()
    await running.until(lambda: listener.tls_signature != signature)
    _, other = await connect(running, ssl=client_context(authority), server_hostname="localhost")
    assert other.get_extra_info("ssl_object").getpeercert(binary_form=True) != before
    writer.write(PING)
    assert await reader.readexactly(2) == PONG


async def test_draining_says_goodbye_in_tls(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running, ssl=client_context(authority), server_hostname="localhost")
    writer.write(encode(Connect(client_id="c", version=MQTT_5), MQTT_5))
    await reader.read(100)
    await running.worker._drain()
    said = await rest_of(reader)
    assert said[:1] == b"\xe0"
    assert said[2] == 0x8B


# WebSocket


class WebClient:
    """A WebSocket client on `websockets`' own sans-IO protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self.reader = reader
        self.writer = writer
        self.protocol = ClientProtocol(parse_uri(f"ws://gw{path}"), subprotocols=[Subprotocol("mqtt")])
        self.events: list[Any] = []

    @classmethod
    async def open(cls, running: Any, path: str = "/mqtt", **kwargs: Any) -> WebClient:
        client = cls(*await connect(running, **kwargs), path)
        client.protocol.send_request(client.protocol.connect())
        client.flush()
        assert isinstance(await client.next(), Response)
        return client

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self.writer.write(data)

    def send(self, data: bytes) -> None:
        self.protocol.send_binary(data)
        self.flush()

    async def next(self) -> Any:
        while not self.events:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 10)
            if data:
                self.protocol.receive_data(data)
            else:
                self.protocol.receive_eof()
            self.events += self.protocol.events_received()
            if not data and not self.events:
                raise EOFError
        return self.events.pop(0)

    async def message(self) -> bytes:
        frame = await self.next()
        assert isinstance(frame, Frame)
        assert frame.opcode is Opcode.BINARY
        return bytes(frame.data)


@pytest.mark.parametrize("kind", ["ws", "wss"])
async def test_a_session_over_websocket_is_a_session(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any], kind: str
) -> None:
    tls = {"ssl": client_context(authority), "server_hostname": "localhost"} if kind == "wss" else {}
    running = await start_worker(
        {"kind": kind, "ws_path": "/devices", **(server_tls if kind == "wss" else {})}
    )
    client = await WebClient.open(running, "/devices", **tls)
    for at in range(0, len(CONNECT), 3):
        client.send(CONNECT[at : at + 3])
    assert await client.message() == CONNACK
    client.send(encode(Publish("a/b", b"x" * 100_000, 1, packet_id=7), 4) + PING)
    found = await client.message()
    while len(found) < 6:
        found += await client.message()
    assert found == PONG + b"\x40\x02\x00\x07"
    assert running.broker.bodies == [b"x" * 100_000]
    client.protocol.send_ping(b"?")
    client.flush()
    assert (await client.next()).opcode is Opcode.PONG
    client.protocol.send_close(1000, "bye")
    client.flush()
    assert (await client.next()).opcode is Opcode.CLOSE
    with pytest.raises(EOFError):
        await client.next()
    await running.until(lambda: running.worker.counters.connections == 0)
    assert not running.worker.counters.refused
    assert not running.worker._listeners[0].refused


async def test_a_client_that_goes_without_disconnect_has_its_will_published(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(encode(Connect(client_id="c", will=Will("w/c", b"gone", 1)), 4))
    assert await client.message() == CONNACK
    client.protocol.send_close(1001, "")
    client.flush()
    await running.until(lambda: running.broker.bodies == [b"gone"])


async def test_after_disconnect_there_is_a_close_of_both_sides_and_no_will(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(encode(Connect(client_id="c", will=Will("w/c", b"gone", 1)), 4))
    assert await client.message() == CONNACK
    client.send(encode(Disconnect(), 4))
    close = await client.next()
    assert close.opcode is Opcode.CLOSE
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.NORMAL_CLOSURE
    client.flush()
    await running.until(lambda: running.worker.counters.connections == 0)
    assert not running.worker._lingering
    assert running.broker.bodies == []


async def test_who_is_refused_is_told_by_mqtt_and_by_the_close(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"}, allow_anonymous=False)
    client = await WebClient.open(running)
    client.send(CONNECT)
    assert await client.message() == b"\x20\x02\x00\x05"
    assert (await client.next()).opcode is Opcode.CLOSE
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.POLICY_VIOLATION
    assert client.protocol.close_rcvd.reason == "not_authorized"
    client.flush()
    await running.until(lambda: running.worker.counters.connections == 0)


async def test_a_text_frame_ends_the_connection_with_its_code_and_sends_the_will(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(encode(Connect(client_id="c", version=MQTT_5, will=Will("w/c", b"gone", 1)), MQTT_5))
    await client.message()
    client.protocol.send_text(b"hello")
    client.flush()
    assert (await client.next()).opcode is Opcode.CLOSE
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.UNSUPPORTED_DATA
    await running.until(refused(running, "websocket_text"))
    await running.until(lambda: running.broker.bodies == [b"gone"])


async def test_a_client_that_does_not_answer_our_close_is_cut_off(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LINGER_S", 0.0)
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(CONNECT + b"\xc1\x00")
    assert await client.message() == CONNACK
    await client.next()
    assert client.protocol.state is State.CLOSING
    await running.until(lambda: running.worker.counters.connections == 0)
    assert running.worker.counters.refused == {"malformed_packet": 1}


async def test_what_is_no_websocket_request_gets_an_http_answer(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    reader, writer = await connect(running)
    writer.write(b"GET / HTTP/1.1\r\nHost: gw\r\n\r\n")
    answer = await rest_of(reader)
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"the path is /mqtt" in answer
    await running.until(refused(running, "websocket_handshake"))


async def test_half_a_request_ends_with_the_time_for_a_connect(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"}, unauthenticated_s=0.3)
    reader, writer = await connect(running)
    writer.write(b"GET /mqtt HTTP/1.1\r\nHost: gw\r\n")
    assert await rest_of(reader) == b""
    await running.until(refused(running, "unauthenticated"))
    quiet = await WebClient.open(running)
    assert (await quiet.next()).opcode is Opcode.CLOSE


async def test_draining_says_goodbye_over_websocket(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(encode(Connect(client_id="c", version=MQTT_5), MQTT_5))
    await client.message()
    draining = asyncio.create_task(running.worker._drain())
    assert (await client.message())[0] == 0xE0
    assert (await client.next()).opcode is Opcode.CLOSE
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.GOING_AWAY
    client.flush()
    await draining
    assert running.worker.counters.connections == 0


async def test_mutated_frames_disturb_nobody(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"}, unauthenticated_s=1)
    steady = await WebClient.open(running)
    steady.send(encode(Connect(client_id="steady"), 4))
    assert await steady.message() == CONNACK
    rng = random.Random(3)
    for n in range(300):
        client = await WebClient.open(running)
        for part in (CONNECT, PING, encode(Publish("a/b", b"x", 1, packet_id=1), 4), PING):
            client.protocol.send_binary(part)
        data = bytearray(b"".join(client.protocol.data_to_send()))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            if rng.random() < 0.6:
                data[at] = rng.randrange(256)
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
        client.writer.write(bytes(data))
        if n % 2:
            client.writer.close()
    steady.send(PING)
    assert await steady.message() == PONG
    for client in running.clients[1:]:
        client.writer.close()
    await running.until(lambda: running.worker.counters.connections == 1)
    assert running.worker._listeners[0].connections == 1


# PROXY


@pytest.mark.parametrize("header", [PROXY_V1, PROXY_V2])
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_the_client_behind_a_proxy_is_the_peer(start_worker: Start, header: bytes, step: int) -> None:
    running = await start_worker({"kind": "tcp", "proxy": True, "proxy_networks": LOCAL})
    reader, writer = await connect(running)
    data = header + CONNECT + encode(Publish("a/b", b"x", 1, packet_id=7), 4)
    for at in range(0, len(data), step):
        writer.write(data[at : at + step])
        await asyncio.sleep(0)
    assert await reader.readexactly(8) == CONNACK + b"\x40\x02\x00\x07"
    peer = the_shell(running).peer
    through = writer.get_extra_info("sockname")
    assert peer == Peer("default", "203.0.113.7", 40000, f"127.0.0.1:{through[1]}")
    assert peer.log_fields() == {
        "listener": "default",
        "peer": "203.0.113.7:40000",
        "through": f"127.0.0.1:{through[1]}",
    }
    record = decode_record(running.broker.log[0])
    assert decode_host(record.born_host) == ("203.0.113.7", 40000)


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", PROXY_V2[:12] + b"\x20\x00\x00\x00"])
async def test_a_proxy_that_speaks_for_itself_is_the_peer(start_worker: Start, header: bytes) -> None:
    running = await start_worker({"kind": "tcp", "proxy": True, "proxy_networks": LOCAL})
    reader, writer = await connect(running)
    writer.write(header + CONNECT)
    assert await reader.readexactly(4) == CONNACK
    own = writer.get_extra_info("sockname")
    assert the_shell(running).peer == Peer("default", "127.0.0.1", own[1])


async def test_a_certificate_that_a_proxy_verified_is_there_for_authentication(start_worker: Start) -> None:
    running = await start_worker({"kind": "tcp", "proxy": True, "proxy_networks": LOCAL})
    reader, writer = await connect(running)
    name = b"\x22\x00\x08device-7"
    tlv = b"\x20" + struct.pack(">HBI", 5 + len(name), 0x07, 0) + name
    writer.write(PROXY_V2[:14] + struct.pack(">H", 12 + len(tlv)) + PROXY_V2[16:] + tlv + CONNECT)
    assert await reader.readexactly(4) == CONNACK
    certificate = the_shell(running).peer.certificate
    assert certificate is not None
    assert certificate == ("CN=device-7", "device-7", ("device-7",))


async def test_tls_and_websocket_begin_after_the_header(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "wss", "proxy": True, "proxy_networks": LOCAL, **server_tls})
    reader, writer = await connect(running)
    writer.write(PROXY_V2)
    await writer.start_tls(client_context(authority), server_hostname="localhost")
    client = WebClient(reader, writer, "/mqtt")
    client.protocol.send_request(client.protocol.connect())
    client.flush()
    assert isinstance(await client.next(), Response)
    client.send(CONNECT)
    assert await client.message() == CONNACK
    assert the_shell(running).peer.address == "203.0.113.7"


async def test_without_a_header_the_connection_is_refused(start_worker: Start) -> None:
    running = await start_worker({"kind": "tcp", "proxy": True, "proxy_networks": LOCAL})
    reader, writer = await connect(running)
    writer.write(CONNECT)
    assert await rest_of(reader) == b""
    await running.until(refused(running, "proxy_header"))


async def test_half_a_header_ends_with_the_time_for_a_connect(start_worker: Start) -> None:
    running = await start_worker(
        {"kind": "tcp", "proxy": True, "proxy_networks": LOCAL}, unauthenticated_s=0.3
    )
    reader, writer = await connect(running)
    writer.write(PROXY_V1[:-1])
    assert await rest_of(reader) == b""
    await running.until(refused(running, "unauthenticated"))


async def test_who_is_no_proxy_is_closed_and_counted(start_worker: Start) -> None:
    running = await start_worker({"kind": "tcp", "proxy": True, "proxy_networks": ["10.0.0.0/8", "::1/128"]})
    reader, writer = await connect(running)
    writer.write(PROXY_V1 + CONNECT)
    assert await rest_of(reader) == b""
    await running.until(refused(running, "proxy_untrusted"))


async def test_a_proxys_health_check_is_no_refusal(start_worker: Start) -> None:
    running = await start_worker({"kind": "tcp", "proxy": True, "proxy_networks": LOCAL})
    _, writer = await connect(running)
    writer.write(PROXY_V2[:12] + b"\x20\x00\x00\x00")
    await running.until(lambda: running.worker._listeners[0].accepted_total == 1)
    writer.close()
    await running.until(lambda: running.worker.counters.connections == 0)
    assert not running.worker.counters.refused


async def test_a_proxy_header_at_a_plain_listener_is_refused(start_worker: Start) -> None:
    running = await start_worker()
    reader, writer = await connect(running)
    writer.write(PROXY_V1 + CONNECT)
    await rest_of(reader)
    await running.until(lambda: running.worker.counters.connections == 0)
    assert running.worker.counters.connects_total == 0


# UNIX sockets


async def test_a_client_of_a_unix_socket_is_known_by_its_user(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    running = await start_worker({"kind": "unix", "path": str(path)})
    reader, writer = await asyncio.open_unix_connection(path)
    running.clients.append(type("Open", (), {"writer": writer}))
    writer.write(CONNECT + encode(Publish("a/b", b"x", 1, packet_id=7), 4))
    assert await reader.readexactly(8) == CONNACK + b"\x40\x02\x00\x07"
    (shell,) = running.worker._shells
    assert shell.peer == Peer("default", "", 0, uid=os.getuid())
    assert shell.peer.log_fields()["peer"] == f"unix, user {os.getuid()}"
    assert shell.unsent_bytes() == 0
    assert decode_host(decode_record(running.broker.log[0]).born_host) == ("0.0.0.0", 0)


async def test_connections_beyond_the_bound_are_counted_by_listener(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "CONNECTIONS_OVER", 0)
    running = await start_worker({"kind": "ws"}, connections_max=1)
    await WebClient.open(running)
    reader, _ = await connect(running)
    assert await rest_of(reader) == b""
    await running.until(refused(running, "connections_max"))
