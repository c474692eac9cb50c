"""Connections that begin with a PROXY header, against a worker in this process."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from listener_clients import (
    CONNACK,
    CONNECT,
    PROXY_V1,
    PROXY_V2,
    WebClient,
    client_context,
    connect,
    refused,
    rest_of,
    the_connection,
)
from security import Authority
from websockets.http11 import Response

from gateway.ground.peer import Peer
from holdmq.mqtt import Publish, encode
from holdmq.record.codec import decode_host, decode_record

Start = Callable[..., Awaitable[Any]]
LOCAL = ["127.0.0.0/8"]


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
    peer = the_connection(running).peer
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
    assert the_connection(running).peer == Peer("default", "127.0.0.1", own[1])


async def test_a_certificate_that_a_proxy_verified_is_there_for_authentication(start_worker: Start) -> None:
    running = await start_worker({"kind": "tcp", "proxy": True, "proxy_networks": LOCAL})
    reader, writer = await connect(running)
    name = b"\x22\x00\x08device-7"
    tlv = b"\x20" + struct.pack(">HBI", 5 + len(name), 0x07, 0) + name
    writer.write(PROXY_V2[:14] + struct.pack(">H", 12 + len(tlv)) + PROXY_V2[16:] + tlv + CONNECT)
    assert await reader.readexactly(4) == CONNACK
    certificate = the_connection(running).peer.certificate
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
    assert the_connection(running).peer.address == "203.0.113.7"


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
    await running.until(lambda: running.worker.listeners[0].accepted_total == 1)
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
