"""Turns of catch-up readers: the last session of one rests in it while its client is full."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdmq.mqtt import PubAck, Publish

Start = Callable[..., Awaitable[Any]]


async def lagging(running: Any, client_id: str, messages: int, topic: str = "a/b") -> Any:
    """A subscriber that has acknowledged nothing of so many messages."""
    client = await running.client(client_id)
    await client.subscribe(f"{topic.partition('/')[0]}/#")
    publisher = await running.client(f"publisher of {client_id}")
    publisher.send(*[Publish(topic, b"%d" % n, 1, packet_id=n + 1) for n in range(messages)])
    await publisher.acked(messages)
    session = running.worker.session(client_id)
    await running.until(lambda: session.outbound.lag is not None)
    return client


async def take(client: Any, count: int) -> list[bytes]:
    got = []
    for _ in range(count):
        message = await client.next()
        got.append(message.payload)
        client.send(PubAck(message.packet_id))
    return got


def opened(running: Any) -> int:
    return sum(1 for each in running.broker.opened if each.reader_id)


async def test_a_session_goes_on_from_what_was_read_for_it(start_worker: Start) -> None:
    running = await start_worker(inflight_max=8)
    client = await lagging(running, "s", 500)
    assert await take(client, 500) == [b"%d" % n for n in range(500)]
    assert opened(running) == 1
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)
    assert running.worker.catchup.readers == 0


async def test_who_rests_for_long_gives_its_reader_up_and_gets_another(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker(inflight_max=4)
    client = await lagging(running, "s", 60)
    assert await take(client, 8) == [b"%d" % n for n in range(8)]
    await running.until(lambda: running.worker.catchup._resting)
    assert running.worker.catchup.readers == 1
    running.worker.catchup.each_second(running.worker.now() + 60)
    assert running.worker.catchup.readers == 0
    assert await take(client, 52) == [b"%d" % n for n in range(8, 60)]
    assert opened(running) == 2


async def test_who_waits_for_a_reader_gets_that_of_one_who_rests(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.catchup.CATCHUP_READERS_MAX", 1)
    running = await start_worker(inflight_max=4)
    silent = await lagging(running, "silent", 40)
    await take(silent, 4)
    await running.until(lambda: running.worker.catchup._resting)
    reading = await lagging(running, "reading", 40, "other/b")
    assert await take(reading, 40) == [b"%d" % n for n in range(40)]
    assert await take(silent, 36) == [b"%d" % n for n in range(4, 40)]


async def test_a_connection_that_ends_while_it_rests_leaves_no_reader(start_worker: Start) -> None:
    running = await start_worker(inflight_max=4)
    client = await lagging(running, "s", 60)
    await take(client, 4)
    await running.until(lambda: running.worker.catchup._resting)
    client.writer.close()
    await running.until(lambda: running.worker.counters.sessions == 1)
    running.worker.catchup.each_second(running.worker.now() + 60)
    assert running.worker.catchup.readers == 0
    assert not running.worker.catchup._resting


async def test_a_broker_that_goes_while_a_session_rests_loses_nothing(start_worker: Start) -> None:
    running = await start_worker(inflight_max=4)
    client = await lagging(running, "s", 60)
    got = await take(client, 8)
    await running.until(lambda: running.worker.catchup._resting)
    for connection in list(running.broker.server.connections):
        connection.close()
    await running.until(lambda: running.worker.links["b0"].connection is None)
    got += await take(client, 52)
    assert got == [b"%d" % n for n in range(60)]
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)


async def test_sessions_far_back_that_come_together_share_a_reader(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.catchup.FAR_BYTES", -1)
    monkeypatch.setattr("gateway.catchup.MANY_SESSIONS", 2)
    running = await start_worker(inflight_max=4)
    clients = [await running.client(f"s{n}") for n in range(5)]
    for client in clients:
        await client.subscribe("a/#")
    publisher = await running.client("p")
    publisher.send(*[Publish("a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(8)])
    await publisher.acked(8)
    await running.until(lambda: running.worker.counters.lagging_sessions == 5)
    for client in clients:
        await take(client, 4)
    assert opened(running) == 0  # they are waited for
    for client in clients:
        assert await take(client, 4) == [b"%d" % n for n in range(4, 8)]
    assert opened(running) == 1
    assert running.worker.catchup.shared == 5
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)
