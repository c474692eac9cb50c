"""Who a worker lets in: bounds, rates and bans over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.protect import gate
from gateway.protect.core.flapping import Ban
from holdmq.mqtt import MQTT_3_1_1, MQTT_5

Start = Callable[..., Awaitable[Any]]


async def test_an_address_with_as_many_connections_as_it_may_have_is_told_so(start_worker: Start) -> None:
    running = await start_worker(connections_per_address_max=2)
    first = await running.client("c1")
    await running.client("c2")
    refused = await running.client("c3", MQTT_5, refused=True)
    assert refused.connack.reason_code == 0x97
    assert "connections_per_address_max" in refused.connack.properties.reason_string
    assert running.worker.counters.refused["quota_exceeded"] == 1
    await first.close()
    await refused.close()
    await running.until(lambda: running.worker.counters.connections == 1)
    await running.client("c4")


async def test_an_address_far_beyond_its_bound_is_not_listened_to(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "ADDRESS_OVER", 0)
    running = await start_worker(connections_per_address_max=1)
    await running.client("c1")
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    with contextlib.suppress(ConnectionError):
        assert await reader.read(1) == b""
    writer.close()
    assert running.worker.counters.refused["connections_per_address_max"] == 1


async def test_addresses_without_connections_are_forgotten(start_worker: Start) -> None:
    running = await start_worker(connections_per_address_max=5)
    client = await running.client("c1")
    await running.until(lambda: running.worker.counters.addresses == 1)
    await client.close()
    await running.until(lambda: running.worker.counters.addresses == 0)


async def test_behind_a_proxy_the_client_s_address_counts_and_not_the_proxy_s(start_worker: Start) -> None:
    proxied = {"proxy": True, "proxy_networks": ["127.0.0.0/8"]}
    running = await start_worker(proxied, connections_per_address_max=1)

    async def come(address: str, client_id: str, *, refused: bool = False) -> Any:
        header = f"PROXY TCP4 {address} 127.0.0.1 1000 1883\r\n".encode()
        return await running.client(client_id, MQTT_5, refused=refused, before=header)

    await come("10.0.0.1", "c1")
    second = await come("10.0.0.2", "c2")
    assert (await come("10.0.0.1", "c3", refused=True)).connack.reason_code == 0x97
    await second.close()
    await running.until(lambda: len(running.worker.gate._addresses) == 1)
    await come("10.0.0.2", "c4")


async def test_connections_that_come_too_fast_are_refused_for_a_moment(start_worker: Start) -> None:
    running = await start_worker(connect_rate_max=1)
    rate = running.worker.gate._rate
    rate.rate = 0.0  # no second passes
    await running.client("c1")
    assert (await running.client("c2", MQTT_5, refused=True)).connack.reason_code == 0x9F
    assert (await running.client("c3", refused=True)).connack.reason_code == 0x88  # code 3
    assert running.worker.counters.refused["connection_rate_exceeded"] == 2
    rate.rate, rate._at = 1.0, rate._at - 1
    await running.client("c4")


@pytest.mark.parametrize(("version", "code"), [(MQTT_5, 0x8A), (MQTT_3_1_1, 0x87)])
async def test_a_client_that_connects_again_and_again_is_banned_for_a_while(
    start_worker: Start, version: int, code: int
) -> None:
    running = await start_worker(flapping_connects_max=2, flapping_ban_s=100)
    for _ in range(2):
        await (await running.client("c1", version)).close()
    for _ in range(2):
        banned = await running.client("c1", version, refused=True)
        assert banned.connack.reason_code == code
    await running.client("another", version)
    assert running.worker.counters.bans_total == 1
    assert running.worker.counters.refused["banned"] == 2
    await running.until(lambda: running.worker.counters.bans == 1)
    (ban,) = running.worker.gate.bans.all()
    assert ban.connects == 3
    running.worker.gate.bans.add(Ban(ban.key, running.worker.now(), 3))
    await running.client("c1", version)


async def test_who_was_banned_elsewhere_is_not_let_in_here_either(start_worker: Start) -> None:
    running = await start_worker()
    key = ("c1", b"\x7f\0\0\1")
    running.worker.gate.bans.add(Ban(key, running.worker.now() + 100, 9))
    assert (await running.client("c1", MQTT_5, refused=True)).connack.reason_code == 0x8A
    running.worker.gate.bans.lift("c1")
    await running.client("c1", MQTT_5)


@pytest.mark.parametrize(
    ("reference", "is_final", "code"),
    [("", False, 0x89), ("", True, 0x89), ("other:1883", False, 0x9C), ("other:1883", True, 0x9D)],
)
async def test_who_comes_while_a_worker_drains_is_sent_elsewhere(
    start_worker: Start, reference: str, is_final: bool, code: int
) -> None:
    running = await start_worker(server_reference=reference, drain_is_final=is_final)
    running.worker.gate.is_draining = True
    refused = await running.client("c1", MQTT_5, refused=True)
    assert refused.connack.reason_code == code
    assert refused.connack.properties.server_reference == (reference or None)
    await running.worker.draining.drain()
