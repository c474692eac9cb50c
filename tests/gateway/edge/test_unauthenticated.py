"""What clients make a worker hold before they are admitted: counted, bounded, given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from listener_clients import CONNACK, CONNECT, PROXY_V2, WebClient, client_context, connect, rest_of
from security import Authority

from gateway.edge import layered
from gateway.ground.limits import CONNECT_MAX_BYTES
from holdmq.mqtt import MQTT_5, Connect, Publish, Will, encode
from holdmq.mqtt.fields import encode_varint

Start = Callable[..., Awaitable[Any]]

LARGEST = encode(
    Connect(
        client_id="large",
        version=MQTT_5,
        username="u" * 65_000,
        password=b"p" * 65_000,
        will=Will("w/" + "t" * 4_000, b"x" * 65_535, 1),
    ),
    MQTT_5,
)
"""About 200 KiB."""


def unfinished(size_bytes: int, sent_bytes: int) -> bytes:
    """A CONNECT that says it has so many bytes, and what came of it."""
    body = size_bytes - 4
    return (b"\x10" + encode_varint(body) + b"\0\4MQTT\5\2\0\0\0").ljust(sent_bytes, b"x")


async def test_a_connect_that_says_it_is_larger_than_any_is_refused_before_it_is_kept(
    start_worker: Start,
) -> None:
    running = await start_worker()
    reader, writer = await connect(running)
    writer.write(unfinished(CONNECT_MAX_BYTES + 1, 1_000))
    assert await rest_of(reader) == b""
    counters = running.worker.counters
    assert counters.refused == {"packet_too_large": 1}
    assert counters.bytes_in_total == 1_000
    await running.until(lambda: counters.connections == 0)
    assert counters.unauthenticated_bytes == 0


async def test_a_large_connect_is_taken_and_what_it_held_is_given_back(start_worker: Start) -> None:
    running = await start_worker()
    _, writer = await connect(running)
    for at in range(0, len(LARGEST), 50_000):
        writer.write(LARGEST[at : at + 50_000])
        if at + 50_000 < len(LARGEST):
            sent = at + 50_000
            await running.until(lambda sent=sent: running.worker.counters.unauthenticated_bytes == sent)
    await running.until(lambda: running.worker.clients.session("large") is not None)
    assert running.worker.counters.unauthenticated_bytes == 0
    assert len(running.worker.gate.unauthenticated) == 0


async def test_who_holds_most_is_cut_off_and_the_others_get_in(start_worker: Start) -> None:
    running = await start_worker(unauthenticated_max_bytes=1 << 20)
    counters = running.worker.counters
    honest_reader, honest = await connect(running)
    honest.write(CONNECT[:8])
    await running.until(lambda: counters.unauthenticated_bytes == 8)
    greedy = [await connect(running) for _ in range(8)]
    for _, writer in greedy:
        writer.write(unfinished(CONNECT_MAX_BYTES, 300_000))
        assert counters.unauthenticated_bytes <= 1 << 20
    # Somebody goes only when there is no room, which is never so with three of them.
    await running.until(lambda: counters.unauthenticated_bytes == 8 + 3 * 300_000)
    assert counters.refused == {"unauthenticated_max_bytes": 5}
    assert running.worker.listeners[0].refused == {"unauthenticated_max_bytes": 5}
    honest.write(CONNECT[8:])
    assert await asyncio.wait_for(honest_reader.readexactly(4), 40) == CONNACK
    for _, writer in greedy:
        writer.transport.abort()
    await running.until(lambda: counters.connections == 1)
    assert counters.unauthenticated_bytes == 0


async def test_after_connect_a_client_may_send_at_once_what_is_larger_than_a_connect(
    start_worker: Start,
) -> None:
    running = await start_worker()
    reader, writer = await connect(running)
    writer.write(CONNECT + encode(Publish("a/b", b"x" * 1_000_000, 1, packet_id=7), 4))
    assert await asyncio.wait_for(reader.readexactly(8), 40) == CONNACK + b"\x40\x02\x00\x07"
    assert running.worker.counters.unauthenticated_bytes == 0


@pytest.mark.parametrize("kind", ["ws", "wss"])
async def test_a_frame_is_held_up_to_the_bound_of_a_connect_and_counted(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any], kind: str
) -> None:
    tls = {"ssl": client_context(authority), "server_hostname": "localhost"} if kind == "wss" else {}
    running = await start_worker({"kind": kind, **(server_tls if kind == "wss" else {})})
    counters = running.worker.counters
    client = await WebClient.open(running, **tls)
    # A binary frame of 4 MiB that is masked with zeroes.
    client.writer.write(b"\x82\xff" + (4 << 20).to_bytes(8, "big") + bytes(4) + b"\x10" * 100_000)
    await running.until(lambda: counters.unauthenticated_bytes >= 100_000)
    assert counters.unauthenticated_bytes <= 100_000 + (16 << 10)
    client.writer.write(b"\x10" * (layered.BELOW_MAX_BYTES - 100_000 + (64 << 10)))
    await running.until(lambda: counters.refused["websocket_message_too_large"] == 1)
    await running.until(lambda: counters.connections == 0)
    assert counters.unauthenticated_bytes == 0


async def test_half_a_proxy_header_is_counted_until_it_is_whole(
    start_worker: Start, server_tls: dict[str, Any]
) -> None:
    proxied = {"proxy": True, "proxy_networks": ["127.0.0.0/8"]}
    running = await start_worker({"kind": "tls", **server_tls, **proxied})
    counters = running.worker.counters
    _, writer = await connect(running)
    writer.write(PROXY_V2[:-1])
    await running.until(lambda: counters.unauthenticated_bytes == len(PROXY_V2) - 1)
    writer.write(PROXY_V2[-1:])
    await running.until(lambda: counters.unauthenticated_bytes == 0)
    writer.transport.abort()
    await running.until(lambda: counters.connections == 0)
    assert len(running.worker.gate.unauthenticated) == 0
