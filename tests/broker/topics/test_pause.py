"""Paused topics take and keep, and deliver nothing: to pulls or readers; then all, in order."""

from __future__ import annotations

import asyncio

import pytest
from broker_stack import Stack, Start, bodies
from topic_calls import consumed, create, delete, listed, pause, remove, update

from holdmq.errors import Code
from holdmq.names.topics import filter_terms
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import (
    PullQueue,
    ReadOpenRequest,
    ReadPosition,
    ReadRequest,
    ReadResponse,
    TopicCreateRequest,
)
from holdmq.wire.topic_headers import HIDE_FROM_PRODUCERS, TopicUpdateRequest


class Reader:
    """A reader as a gateway has one: it keeps the position that it was told."""

    def __init__(self, broker: Stack, reader_id: int, mqtt_filter: str) -> None:
        self.broker = broker
        self.reader_id = reader_id
        self.mqtt_filter = mqtt_filter
        self.position = -1

    async def open(self, position: int | None = None) -> None:
        request = ReadOpenRequest(self.reader_id, 0, position, filter_terms(self.mqtt_filter))
        reply = await self.broker.client.call(RequestCode.READ_OPEN, request)
        self.position = reply.header(ReadPosition).position

    async def read(self, credit_bytes: int = 1 << 20, hold_ms: int = 15_000) -> tuple[list[bytes], bool]:
        request = ReadRequest(self.reader_id, credit_bytes, hold_ms)
        reply = await self.broker.client.call(RequestCode.READ, request, 20.0)
        header = reply.header(ReadResponse)
        assert header.position >= self.position
        self.position = header.position
        return bodies(reply), header.is_late

    async def until(self, last: bytes, credit_bytes: int = 1 << 20) -> list[bytes]:
        got: list[bytes] = []
        while last not in got:
            got += (await self.read(credit_bytes))[0]
        return got


async def send(broker: Stack, topic: str, *bodies_: bytes) -> None:
    for body in bodies_:
        assert (await broker.produce(topic, 0, (body, "a"))).status == Code.OK


@pytest.fixture
async def two_topics(broker: Stack) -> Stack:
    for topic in ("p", "q"):
        await create(broker, TopicCreateRequest(topic, 1))
    return broker


async def test_a_pull_gets_nothing_until_the_topic_is_resumed(two_topics: Stack) -> None:
    broker = two_topics
    await send(broker, "p", b"1")
    assert (await pause(broker, "p")).is_paused
    pulled, got = await broker.pull(PullQueue("p", 0, 0, 0))
    assert (pulled[0].status, pulled[0].next_offset, pulled[0].end_offset, got) == (Code.OK, 0, 1, [])
    held = asyncio.ensure_future(broker.pull(PullQueue("p", 0, 0, 0), hold_ms=40_000))
    while not broker.server.pull.hold.size:
        await asyncio.sleep(0)
    await send(broker, "p", b"2")
    assert not held.done()
    assert not (await pause(broker, "p", False)).is_paused
    assert (await held)[1] == [b"1", b"2"]


async def test_what_a_paused_topic_takes_does_not_prolong_a_held_pull(two_topics: Stack) -> None:
    broker = two_topics
    await pause(broker, "p")
    hold = broker.server.pull.hold
    held = asyncio.ensure_future(broker.pull(PullQueue("p", 0, 0, 0), hold_ms=40_000))
    while not hold.size:
        await asyncio.sleep(0)
    deadline = hold.next_deadline()
    await send(broker, "p", b"1", b"2")
    assert hold.next_deadline() == deadline
    await pause(broker, "p", False)
    assert (await held)[1] == [b"1", b"2"]


async def test_a_held_pull_of_several_queues_is_woken_by_the_topic_that_is_not_paused(
    two_topics: Stack,
) -> None:
    broker = two_topics
    await pause(broker, "p")
    held = asyncio.ensure_future(
        broker.pull(PullQueue("p", 0, 0, 0), PullQueue("q", 0, 0, 0), hold_ms=40_000)
    )
    while not broker.server.pull.hold.size:
        await asyncio.sleep(0)
    await send(broker, "p", b"kept")
    await send(broker, "q", b"live")
    pulled, got = await held
    assert ([row.next_offset for row in pulled], got) == ([0, 1], [b"live"])


async def test_a_reader_passes_what_is_kept_and_gets_it_in_order_at_resume(two_topics: Stack) -> None:
    broker = two_topics
    reader = Reader(broker, 1, "#")
    await reader.open()
    await send(broker, "p", b"p0")
    await reader.until(b"p0")
    await pause(broker, "p")
    await send(broker, "p", b"p1", b"p2")
    await send(broker, "q", b"q1")
    await send(broker, "p", b"p3")
    assert await reader.until(b"q1") == [b"q1"]
    await pause(broker, "p", False)
    await send(broker, "p", b"p4")
    assert await reader.until(b"p4") == [b"p1", b"p2", b"p3", b"p4"]
    await send(broker, "q", b"q2")
    assert await reader.until(b"q2") == [b"q2"]


async def test_what_was_kept_is_told_as_late_and_fits_the_credit(two_topics: Stack) -> None:
    broker = two_topics
    reader = Reader(broker, 1, "#")
    await reader.open()
    await pause(broker, "p")
    await send(broker, "p", *(b"%d" % i for i in range(20)))
    await send(broker, "q", b"q1")
    await reader.until(b"q1")
    before = reader.position
    await pause(broker, "p", False)
    got: list[bytes] = []
    while len(got) < 20:
        part, is_late = await reader.read(credit_bytes=400)
        assert is_late
        assert reader.position == before
        assert 0 < len(part) < 20
        got += part
    assert got == [b"%d" % i for i in range(20)]


async def test_a_reader_that_was_behind_gets_everything_once(two_topics: Stack) -> None:
    broker = two_topics
    slow = Reader(broker, 1, "#")
    await slow.open()
    await send(broker, "p", b"p0")
    await pause(broker, "p")
    await send(broker, "p", b"p1")
    await send(broker, "q", b"q1")
    await pause(broker, "p", False)
    await send(broker, "p", b"p2")
    assert await slow.until(b"p2") == [b"p0", b"p1", b"q1", b"p2"]


async def test_a_pause_again_before_all_was_given_loses_nothing(two_topics: Stack) -> None:
    broker = two_topics
    reader = Reader(broker, 1, "#")
    await reader.open()
    await pause(broker, "p")
    await send(broker, "p", *(b"%d" % i for i in range(10)))
    await send(broker, "q", b"q1")
    await reader.until(b"q1")
    await pause(broker, "p", False)
    got, _ = await reader.read(credit_bytes=400)
    await pause(broker, "p")
    await send(broker, "p", b"10")
    await send(broker, "q", b"q2")
    assert await reader.until(b"q2") == [b"q2"]
    await pause(broker, "p", False)
    got += await reader.until(b"10")
    assert got == [b"%d" % i for i in range(11)]


async def test_a_reader_that_comes_back_over_a_restart_gets_what_was_kept(start: Start) -> None:
    broker = await start()
    for topic in ("p", "q"):
        await create(broker, TopicCreateRequest(topic, 1))
    reader = Reader(broker, 1, "#")
    await reader.open()
    await pause(broker, "p")
    await send(broker, "p", b"p1")
    await send(broker, "q", b"q1")
    await reader.until(b"q1")
    broker = reader.broker = await start()
    assert (await listed(broker))["p"].is_paused
    await reader.open(reader.position)
    await send(broker, "p", b"p2")
    await send(broker, "q", b"q2")
    assert await reader.until(b"q2") == [b"q2"]
    await pause(broker, "p", False)
    # It comes back once more, before it was given anything.
    broker = reader.broker = await start()
    await reader.open(reader.position)
    assert await reader.until(b"p2") == [b"p1", b"p2"]


async def test_a_new_reader_is_owed_nothing_from_before_it_came(two_topics: Stack) -> None:
    broker = two_topics
    await pause(broker, "p")
    await send(broker, "p", b"before")
    reader = Reader(broker, 1, "#")
    await reader.open()
    await send(broker, "p", b"after")
    await pause(broker, "p", False)
    assert await reader.until(b"after") == [b"after"]


async def test_readers_get_nothing_of_topics_that_may_not_be_read_or_are_gone(two_topics: Stack) -> None:
    broker = two_topics
    reader = Reader(broker, 1, "#")
    await reader.open()
    await update(broker, TopicUpdateRequest("p", perm=2))
    await send(broker, "p", b"closed")
    await send(broker, "q", b"q1")
    assert await reader.until(b"q1") == [b"q1"]
    await update(broker, TopicUpdateRequest("p", perm=6))
    await send(broker, "p", b"open")
    await delete(broker, "q", force=True)
    assert await reader.until(b"open") == [b"open"]
    late = Reader(broker, 2, "#")
    await late.open(0)
    assert await late.until(b"open") == [b"closed", b"open"]


async def test_a_paused_topic_that_is_deleted_owes_nothing(two_topics: Stack) -> None:
    broker = two_topics
    reader = Reader(broker, 1, "#")
    await reader.open()
    await pause(broker, "p")
    await send(broker, "p", b"p1")
    await send(broker, "q", b"q1")
    await reader.until(b"q1")
    await delete(broker, "p", force=True)
    await send(broker, "q", b"q2")
    assert await reader.until(b"q2") == [b"q2"]


async def test_pausing_twice_and_resuming_twice_change_nothing(two_topics: Stack) -> None:
    broker = two_topics
    first = await pause(broker, "p")
    at = broker.server.topics.table.get("p")
    await send(broker, "p", b"1")
    assert await pause(broker, "p") == first
    assert broker.server.topics.table.get("p") == at
    resumed = await pause(broker, "p", False)
    assert await pause(broker, "p", False) == resumed


async def test_a_paused_topic_is_not_drained_by_being_silent(two_topics: Stack) -> None:
    broker = two_topics
    await create(broker, TopicCreateRequest("t", 2))
    await pause(broker, "t")
    await broker.produce("t", 1, (b"1", None))
    await consumed(broker, "billing", "t", 1, 0)
    await remove(broker, "t", 1, HIDE_FROM_PRODUCERS)
    assert "billing" in str(broker.server.topics.undrained("t", 1))
