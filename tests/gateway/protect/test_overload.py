"""A worker that has too much to do: driven there by a watermark, it refuses, reads less, and recovers."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.protect.core.overload import LAG, NORMAL, PAUSING, REFUSING
from gateway.protect.overload import PAUSED_S, memory_watermark
from holdmq.config.model import GatewaySection
from holdmq.mqtt import MQTT_5, Publish
from holdmq.service.memory import memory_limit

Start = Callable[..., Awaitable[Any]]


@pytest.fixture
def start(start_worker: Start) -> Start:
    """Start a worker that looks at itself only when told so: its own looks would lie between a test's."""

    async def run(**settings: Any) -> Any:
        running = await start_worker(**settings)
        running.worker.clock._next_second = math.inf
        return running

    return run


def too_large(running: Any) -> None:
    """Have a worker be over its memory from now on."""
    running.worker.overload._core.memory_limit_bytes = 1


def look(worker: Any, now: float) -> None:
    worker.overload.each_second(now)


def watch(worker: Any, seconds: float, level: int) -> float:
    """Let the watch take samples until the level is there; return the time then."""
    now = worker.now() + seconds
    for _ in range(20):
        look(worker, now)
        if worker.overload.level == level:
            return float(now)
        now += 1
    raise AssertionError(f"level {worker.overload.level}, not {level}")


async def test_over_its_memory_a_worker_refuses_who_comes_and_serves_who_is_in(start: Start) -> None:
    running = await start()
    there = await running.client("there", MQTT_5)
    too_large(running)
    watch(running.worker, 0, REFUSING)
    refused = await running.client("new", MQTT_5, refused=True)
    assert refused.connack.reason_code == 0x97
    assert (await running.client("old", refused=True)).connack.reason_code == 0x88  # code 3
    there.send(Publish("a/b", b"x", 1, packet_id=1))
    assert await there.acked(1) == [1]
    assert running.worker.counters.overload_refused_total == 2
    assert running.worker.counters.overload_level == REFUSING
    assert running.worker.counters.memory_bytes > 1 << 20


async def test_it_recovers_by_itself(start: Start) -> None:
    running = await start()
    too_large(running)
    now = watch(running.worker, 0, PAUSING)
    running.worker.overload._core.memory_limit_bytes = 1 << 60
    watch(running.worker, now - running.worker.now(), NORMAL)
    await running.client("new")
    assert running.worker.counters.overload_total == 1
    assert running.worker.counters.overload_level == NORMAL
    assert running.worker.metering.meter is None


async def test_a_loop_that_lags_says_that_it_is_busy(start: Start) -> None:
    running = await start(overload_lag_ms=100)
    for second in range(2):
        running.worker.overload._core._least_lag_s = None
        running.worker.overload.tick(0.2)
        look(running.worker, running.worker.now() + second)
    assert (running.worker.overload.level, running.worker.overload.cause) == (REFUSING, LAG)
    refused = await running.client("new", MQTT_5, refused=True)
    assert refused.connack.reason_code == 0x89
    assert "loop lag" in refused.connack.properties.reason_string


async def test_then_who_sends_most_is_not_read_for_a_while_and_loses_nothing(start: Start) -> None:
    running = await start()
    loud, quiet = await running.client("loud"), await running.client("quiet")
    too_large(running)
    now = watch(running.worker, 0, PAUSING)
    for client, size in ((loud, 5000), (quiet, 10)):
        client.send(Publish("a/b", b"x" * size, 1, packet_id=1))
        assert await client.acked(1) == [1]
    look(running.worker, now + 1)
    assert running.worker.counters.overload_paused == 1
    loud.send(Publish("a/b", b"later", 1, packet_id=2))
    quiet.send(Publish("a/b", b"now", 1, packet_id=2))
    assert await quiet.acked(1) == [2]
    assert running.broker.bodies[-1] == b"now"
    look(running.worker, now + 1 + PAUSED_S)
    assert await loud.acked(1) == [2]


async def test_brokers_that_stay_busy_count_and_one_that_is_away_does_not(start: Start) -> None:
    running = await start()
    (link,) = running.worker.links.values()
    link.producer._attempts = 1  # refused once, and not yet accepted again
    now = running.worker.now()
    for second in range(8):
        look(running.worker, now + second)
    assert running.worker.overload.level == REFUSING
    link.producer.is_connected = False
    assert running.worker.overload._busy_s(now + 9) == 0.0
    link.producer.is_connected = True


async def test_who_leaves_while_it_is_paused_is_forgotten(start: Start) -> None:
    running = await start()
    client = await running.client("loud")
    too_large(running)
    now = watch(running.worker, 0, PAUSING)
    client.send(Publish("a/b", b"x", 1, packet_id=1))
    await client.acked(1)
    look(running.worker, now + 1)
    assert running.worker.overload._paused
    (shell,) = running.worker.reception.connections
    shell.transport.abort()
    await running.until(lambda: not running.worker.overload._paused)


def test_the_watermark_is_a_share_of_what_there_is_unless_it_is_told() -> None:
    assert memory_watermark(GatewaySection(overload_memory_bytes=123), 4) == 123
    assert memory_watermark(GatewaySection(), 4) == memory_limit() * 4 // 5 // 4
