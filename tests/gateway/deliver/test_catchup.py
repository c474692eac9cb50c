"""Turns of catch-up readers: the last session of one rests in it while its client is full."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdmq.mqtt import PubAck, Publish

Start = Callable[..., Awaitable[Any]]


@pytest.fixture(autouse=True)
def _rests_are_as_long_as_the_machine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.deliver.catchup.REST_S", 60.0)


async def lagging(running: Any, client_id: str, messages: int, topic: str = "a/b") -> Any:
    """A subscriber that has acknowledged nothing of so many messages."""
    client = await running.client(client_id)
    await client.subscribe(f"{topic.partition('/')[0]}/#")
    publisher = await running.client(f"publisher of {client_id}")
    publisher.send(*[Publish(topic, b"%d" % n, 1, packet_id=n + 1) for n in range(messages)])
    await publisher.acked(messages)
    session = running.worker.clients.session(client_id)
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


async def acknowledged(running: Any, waiting: Any, count: int) -> None:
    """Until so many sessions are in this queue, and nothing is in flight to any of them."""
    await running.until(
        lambda: len(waiting) == count and not any(session.outbound.inflight for session in waiting)
    )


async def send_together(running: Any, clients: list[Any], acks: list[list[PubAck]]) -> None:
    """Send these, and have all their sessions begin in one turn of the loop, whenever each was read."""
    catchup = running.worker.deliveries.past.catchup
    catchup._pump_due = True
    for client, own in zip(clients, acks, strict=True):
        client.send(*own)
    await acknowledged(running, catchup._queue, len(clients))
    catchup._pump()


async def test_a_session_goes_on_from_what_was_read_for_it(start_worker: Start) -> None:
    running = await start_worker(inflight_max=8)
    client = await lagging(running, "s", 500)
    assert await take(client, 500) == [b"%d" % n for n in range(500)]
    assert opened(running) == 1
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)
    assert running.worker.deliveries.past.catchup.readers == 0


async def test_who_does_not_read_takes_no_more_than_its_window_and_gets_everything_afterwards(
    start_worker: Start,
) -> None:
    running = await start_worker(inflight_max=8)
    silent, *reading = [await running.client(name) for name in ("silent", "a reader", "another")]
    for client in (silent, *reading):
        await client.subscribe("a/#")
    publisher = await running.client("publisher")
    publisher.send(*[Publish("a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(300)])
    everything = [b"%d" % n for n in range(300)]
    for client in reading:
        assert await take(client, 300) == everything
    await running.until(lambda: running.worker.counters.lagging_sessions == 1)
    session = running.worker.clients.session("silent")
    assert len(session.outbound.inflight) == 8
    assert session.connection.transport.get_write_buffer_size() == 0
    assert running.worker.deliveries.past.catchup.readers == 0
    assert await take(silent, 300) == everything
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)


@pytest.mark.parametrize("step", [500, 2])
async def test_sessions_that_become_ready_in_one_turn_share_a_reader(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("gateway.deliver.catchup.DELIVERED_PER_STEP", step)
    running = await start_worker(inflight_max=4)
    clients = [await lagging(running, f"s{n}", 12) for n in range(3)]
    acks = [[PubAck((await client.next()).packet_id) for _ in range(4)] for client in clients]
    await send_together(running, clients, acks)
    everything = [b"%d" % n for n in range(12)]
    for at, client in enumerate(clients):
        # The first ones got what the publishers of the others sent, too.
        count = len(clients) - at
        assert await take(client, 12 * count - 4) == (everything * count)[4:]
    assert running.worker.deliveries.past.catchup.shared >= 3


async def test_who_leaves_a_reader_in_the_middle_of_an_answer_gets_nothing_of_it_twice(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.deliver.catchup.DELIVERED_PER_STEP", 3)
    running = await start_worker(inflight_max=16)
    clients = [await running.client(f"s{n}") for n in range(2)]
    for client in clients:
        await client.subscribe("a/#")
    publisher = await running.client("p")
    publisher.send(*[Publish("a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(24)])
    await publisher.acked(24)
    await running.until(lambda: running.worker.counters.lagging_sessions == 2)
    catchup = running.worker.deliveries.past.catchup
    go_on, lag = catchup._go_on, running.worker.clients.session("s0").outbound.lag
    steps = []

    def changed(turn: Any) -> None:
        if not steps:
            lag.filters_added += 1
        steps.append(turn)
        go_on(turn)

    monkeypatch.setattr(catchup, "_go_on", changed)
    acks = [[PubAck((await client.next()).packet_id) for _ in range(16)] for client in clients]
    await send_together(running, clients, acks)
    for client in clients:
        assert await take(client, 8) == [b"%d" % n for n in range(16, 24)]
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)
    assert steps
    publisher.send(Publish("a/b", b"behind it", 1, packet_id=99))
    for client in clients:
        assert await take(client, 1) == [b"behind it"]


async def test_who_caught_up_further_than_the_live_feed_is_live_as_soon_as_that_is_there(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker(inflight_max=4)
    # Every session is looked at now and then, too.
    monkeypatch.setattr(running.worker.persistent, "_looked_at", lambda _now, _count: iter(()))
    client = await lagging(running, "s", 8)
    other = await running.client("other")
    await other.subscribe("other/#")
    publisher = await running.client("p")
    publisher.send(Publish("nobodys/topic", b"", 1, packet_id=1))
    await publisher.acked(1)
    await take(client, 8)
    lag = running.worker.clients.session("s").outbound.lag
    await running.until(lambda: lag.floor_at("b0") is not None)
    link = running.worker.links["b0"]
    assert lag.floor_at("b0") > link.reader.position
    publisher.send(Publish("other/x", b"", 1, packet_id=2))
    await other.next()
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)
    assert running.worker.clients.session("s").outbound.lag is None


async def test_who_rests_for_long_gives_its_reader_up_and_gets_another(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker(inflight_max=4)
    client = await lagging(running, "s", 60)
    assert await take(client, 8) == [b"%d" % n for n in range(8)]
    await running.until(lambda: running.worker.deliveries.past.catchup._resting)
    assert running.worker.deliveries.past.catchup.readers == 1
    running.worker.deliveries.past.catchup.each_second(running.worker.now() + 60)
    assert running.worker.deliveries.past.catchup.readers == 0
    assert await take(client, 52) == [b"%d" % n for n in range(8, 60)]
    assert opened(running) == 2


async def test_who_waits_for_a_reader_gets_that_of_one_who_rests(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.deliver.catchup.CATCHUP_READERS_MAX", 1)
    running = await start_worker(inflight_max=4)
    silent = await lagging(running, "silent", 40)
    await take(silent, 4)
    await running.until(lambda: running.worker.deliveries.past.catchup._resting)
    reading = await lagging(running, "reading", 40, "other/b")
    assert await take(reading, 40) == [b"%d" % n for n in range(40)]
    assert await take(silent, 36) == [b"%d" % n for n in range(4, 40)]


async def test_a_connection_that_ends_while_it_rests_leaves_no_reader(start_worker: Start) -> None:
    running = await start_worker(inflight_max=4)
    client = await lagging(running, "s", 60)
    await take(client, 4)
    await running.until(lambda: running.worker.deliveries.past.catchup._resting)
    client.writer.close()
    await running.until(lambda: running.worker.counters.sessions == 1)
    running.worker.deliveries.past.catchup.each_second(running.worker.now() + 60)
    assert running.worker.deliveries.past.catchup.readers == 0
    assert not running.worker.deliveries.past.catchup._resting


async def test_a_broker_that_goes_while_a_session_rests_loses_nothing(start_worker: Start) -> None:
    running = await start_worker(inflight_max=4)
    client = await lagging(running, "s", 60)
    got = await take(client, 8)
    await running.until(lambda: running.worker.deliveries.past.catchup._resting)
    running.broker.tap.cut()
    await running.until(lambda: running.worker.links["b0"].connection is None)
    got += await take(client, 52)
    assert got == [b"%d" % n for n in range(60)]
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)


async def test_sessions_far_back_that_come_together_share_a_reader(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.deliver.catchup.FAR_BYTES", -1)
    monkeypatch.setattr("gateway.deliver.catchup.MANY_SESSIONS", 2)
    # Until the test says that nobody came any more.
    monkeypatch.setattr("gateway.deliver.catchup.GATHER_S", 3600.0)
    monkeypatch.setattr("gateway.deliver.catchup.GATHER_MAX_S", 3600.0)
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
    catchup = running.worker.deliveries.past.catchup
    await acknowledged(running, catchup._far_queue, 5)
    assert opened(running) == 0  # they are waited for
    catchup._gathering.cancel()
    catchup._gather_until = 0.0
    catchup._gathered()
    for client in clients:
        assert await take(client, 4) == [b"%d" % n for n in range(4, 8)]
    assert opened(running) == 1
    assert catchup.shared == 5
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)
