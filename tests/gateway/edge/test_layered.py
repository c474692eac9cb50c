"""Connections over TLS and UNIX sockets, against a worker in this process."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from listener_clients import (
    CONNACK,
    CONNECT,
    PING,
    PONG,
    client_context,
    connect,
    refused,
    rest_of,
    the_connection,
)
from security import Authority

from gateway.edge import layered
from gateway.ground.peer import Peer
from holdmq.mqtt import MQTT_5, Connect, Disconnect, Publish, Will, encode
from holdmq.record.codec import decode_host, decode_record

Start = Callable[..., Awaitable[Any]]


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
    shell = the_connection(running)
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


async def test_a_handshake_may_come_byte_by_byte_and_the_end_is_said_in_tls(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client_context(authority)
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")

    async def done(step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)
                data = await asyncio.wait_for(reader.read(1 << 16), 40)
                if data:
                    incoming.write(data)
                else:
                    incoming.write_eof()

    await done(client.do_handshake)
    client.write(CONNECT)
    assert await done(lambda: client.read(100)) == CONNACK
    client.write(encode(Disconnect(), 4))
    assert await done(lambda: client.read(100)) == b""  # without close_notify this would raise


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
    shell = the_connection(running)
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
        assert the_connection(running).peer.certificate is None
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
    assert running.worker.listeners[0].handshakes == 0


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
    await running.until(lambda: running.worker.listeners[0].handshakes == 0)


async def test_handshakes_at_a_time_are_bounded(
    start_worker: Start, server_tls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layered, "HANDSHAKES_MAX", 1)
    running = await start_worker({"kind": "tls", **server_tls})
    _, first = await connect(running)
    first.write(b"\x16")
    await running.until(lambda: running.worker.listeners[0].handshakes == 1)
    reader, second = await connect(running)
    second.write(b"\x16")
    assert await rest_of(reader) == b""
    await running.until(refused(running, "tls_handshakes_max"))
    first.close()
    await running.until(lambda: running.worker.listeners[0].handshakes == 0)


async def test_new_certificates_are_for_new_connections_and_open_ones_go_on(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any]
) -> None:
    running = await start_worker({"kind": "tls", **server_tls})
    reader, writer = await connect(running, ssl=client_context(authority), server_hostname="localhost")
    before = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(CONNECT)
    assert await reader.readexactly(4) == CONNACK
    authority.issue("gateway")
    (listener,) = running.worker.listeners
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
    await running.worker.draining.drain()
    said = await rest_of(reader)
    assert said[:1] == b"\xe0"
    assert said[2] == 0x8B


# UNIX sockets


async def test_a_client_of_a_unix_socket_is_known_by_its_user(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    running = await start_worker({"kind": "unix", "path": str(path)})
    reader, writer = await asyncio.open_unix_connection(path)
    running.clients.append(type("Open", (), {"writer": writer}))
    writer.write(CONNECT + encode(Publish("a/b", b"x", 1, packet_id=7), 4))
    assert await reader.readexactly(8) == CONNACK + b"\x40\x02\x00\x07"
    (shell,) = running.worker.reception.connections
    assert shell.peer == Peer("default", "", 0, uid=os.getuid())
    assert shell.peer.log_fields()["peer"] == f"unix, user {os.getuid()}"
    assert shell.unsent_bytes() == 0
    assert decode_host(decode_record(running.broker.log[0]).born_host) == ("0.0.0.0", 0)
