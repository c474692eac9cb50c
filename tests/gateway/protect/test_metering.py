from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Disconnect, Publish
from holdmq.wire.quota_headers import USER, QuotaChangedRequest, QuotaRow

Start = Callable[..., Awaitable[Any]]


def numbered(first: int, count: int, payload: bytes = b"x") -> list[Publish]:
    return [Publish("a/b", payload, 1, packet_id=n) for n in range(first, first + count)]


async def test_a_client_over_its_rate_is_not_read_for_the_time_owed_and_loses_nothing(
    start_worker: Start,
) -> None:
    running = await start_worker(publish_rate_max=10)
    client = await running.client("c1")
    began = asyncio.get_running_loop().time()
    client.send(*numbered(1, 15))
    assert await client.acked(15) == list(range(1, 16))
    (shell,) = running.worker.reception.connections
    assert running.worker.counters.rate_paused_total == 1
    client.send(*numbered(16, 1))
    assert await client.acked(1) == [16]
    assert asyncio.get_running_loop().time() - began >= 0.5
    assert shell.transport is not None


async def test_bytes_count_as_well(start_worker: Start) -> None:
    running = await start_worker(publish_bytes_rate_max=1000)
    client = await running.client("c1")
    client.send(*numbered(1, 1, b"x" * 1200))
    assert await client.acked(1) == [1]
    assert running.worker.counters.rate_paused_total == 1


async def test_while_a_client_waits_for_its_rate_it_does_not_count_as_silent(start_worker: Start) -> None:
    running = await start_worker(publish_rate_max=1)
    client = await running.client("c1", keep_alive=60)
    client.send(*numbered(1, 9))
    await client.acked(9)
    (session,) = running.worker.clients.sessions()
    assert session.is_held
    assert session.handle_deadline(session.heard_at + 120) == []


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_who_sends_more_than_it_could_wait_for_is_closed(start_worker: Start, version: int) -> None:
    running = await start_worker(publish_rate_max=1)
    client = await running.client("c1", version)
    client.send(*numbered(1, 50))
    if version == MQTT_5:
        farewell = await client.next()
        assert isinstance(farewell, Disconnect)
        assert farewell.reason_code == 0x96
    with pytest.raises(EOFError):
        await client.next()
    assert running.worker.counters.refused["message_rate"] == 1
    assert not running.broker.log


async def test_what_came_with_connect_counts_too(start_worker: Start) -> None:
    running = await start_worker(publish_rate_max=1)
    client = await running.client("c1", MQTT_5, behind=numbered(1, 50))
    assert (await client.next()).reason_code == 0x96


async def test_clients_that_only_listen_have_no_rate(start_worker: Start) -> None:
    running = await start_worker(publish_rate_max=1, publish_bytes_rate_max=1)
    client = await running.client("c1")
    await client.subscribe("a/#")
    assert running.worker.counters.rate_paused_total == 0
    assert not running.worker.metering.meter._paces


async def test_nothing_is_kept_of_who_is_gone_nor_measured_without_a_rate(
    start_worker: Start,
) -> None:
    running = await start_worker(publish_rate_max=100)
    client = await running.client("c1")
    client.send(*numbered(1, 1))
    await client.acked(1)
    assert len(running.worker.metering.meter._paces) == 1
    await client.close()
    await running.until(lambda: not running.worker.metering.meter._paces)
    assert (await start_worker()).worker.metering.meter is None


async def test_who_has_no_quota_is_not_measured_for_those_that_have_one(start_worker: Start) -> None:
    running = await start_worker()
    metering = running.worker.metering
    quotas = metering._quotas
    for name in ("loud", "quiet"):
        await running.client(name)
    of = {shell.session.client_id: shell for shell in running.worker.reception.connections}
    of["loud"].session.principal = "loud"
    of["quiet"].session.principal = "quiet"
    rates = QuotaRow(USER, "loud", publish_rate=5, changed_ms=1)

    def told(changed: QuotaChangedRequest) -> None:
        connection = next(iter(quotas._brokers))
        quotas._changed(SimpleNamespace(connection=connection, header=lambda _: changed))
        metering.tick(0.0)

    told(QuotaChangedRequest([rates], []))
    assert metering.meter.measures(of["loud"])
    assert not metering.meter.measures(of["quiet"])
    told(QuotaChangedRequest([QuotaRow(USER, "*", publish_rate=5, changed_ms=2)], []))
    assert metering.meter.measures(of["quiet"])
    told(QuotaChangedRequest([], [rates]))
    assert metering.meter.measures(of["loud"])  # the quota of everybody is its own now
