from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.observe import connection_log
from holdmq.mqtt import MQTT_5, Disconnect, Publish

Start = Callable[..., Awaitable[Any]]


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with capture_logs() as found:
        yield found


def said(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


async def test_a_connection_is_logged_when_it_begins_and_with_what_it_was_when_it_ends(
    start_worker: Start, lines: list[Any]
) -> None:
    running = await start_worker()
    client = await running.client("c1", MQTT_5, keep_alive=30)
    (connected,) = said(lines, "client connected")
    assert connected["client"] == "c1"
    assert connected["mqtt"] == "5"
    assert connected["keep_alive_s"] == 30
    assert connected["peer"].startswith("127.0.0.1:")
    client.send(Publish("a/b", b"x" * 10_000, 1, packet_id=1))
    await client.acked(1)
    client.send(Disconnect())
    await running.until(lambda: running.worker.counters.connections == 0)
    (left,) = said(lines, "client disconnected")
    assert left["client"] == "c1"
    assert left["why"] == "client disconnected"
    assert 0 <= left["duration_s"] < 60
    assert 10_000 < left["bytes_in"] < 10_200
    assert 0 < left["bytes_out"] < 200
    assert left["peer"] == connected["peer"]
    assert running.worker.counters.disconnects_total == 1


async def test_one_that_just_breaks_off_is_logged_with_its_bytes_as_well(
    start_worker: Start, lines: list[Any]
) -> None:
    running = await start_worker()
    client = await running.client("c1")
    client.send(Publish("a/b", b"x" * 10_000, 1, packet_id=1))
    await client.acked(1)
    peer = said(lines, "client connected")[0]["peer"]
    await client.close()
    await running.until(lambda: running.worker.counters.connections == 0)
    (left,) = said(lines, "client disconnected")
    assert left["why"] == "connection lost"
    assert left["bytes_in"] > 10_000
    assert left["peer"] == peer


async def test_what_the_gateway_closes_is_logged_with_why(start_worker: Start, lines: list[Any]) -> None:
    running = await start_worker()
    client = await running.client("c1", MQTT_5)
    client.writer.write(b"\xf0\x01\x99")
    await running.until(lambda: said(lines, "connection closed by the gateway"))
    (closed,) = said(lines, "connection closed by the gateway")
    assert closed["client"] == "c1"
    assert closed["reason"]
    assert closed["why"]
    assert closed["duration_s"] >= 0
    assert not said(lines, "client disconnected")


async def test_a_probe_that_says_nothing_is_not_logged(start_worker: Start, lines: list[Any]) -> None:
    running = await start_worker()
    client = await running.client("c1")
    await client.close()
    await running.until(lambda: said(lines, "client disconnected"))
    _, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.close()
    accepted = running.worker.listeners[0]
    await running.until(lambda: accepted.accepted_total == 2 and not accepted.connections)
    assert len(said(lines, "client disconnected")) == 1
    assert not said(lines, "connection closed by the gateway")


async def test_past_so_many_lines_a_second_only_their_number_is_said(
    start_worker: Start, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_log, "LINES_PER_S", 0)
    running = await start_worker()
    for n in range(3):
        await (await running.client(f"c{n}")).close()
    await running.until(lambda: running.worker.counters.connections_not_logged_total == 6)
    assert not said(lines, "client connected")
    assert not said(lines, "client disconnected")
    told = said(lines, "connections that were not logged")
    assert sum(line.get("connected", 0) for line in told) == 3
    assert sum(line.get("disconnected", 0) for line in told) == 3


async def test_switched_off_only_refusals_are_logged(start_worker: Start, lines: list[Any]) -> None:
    running = await start_worker(log_connections=False)
    await (await running.client("c1")).close()
    client = await running.client("c2", MQTT_5)
    client.writer.write(b"\xf0\x01\x99")
    await running.until(lambda: said(lines, "connection closed by the gateway"))
    assert not said(lines, "client connected")
    assert not said(lines, "client disconnected")
