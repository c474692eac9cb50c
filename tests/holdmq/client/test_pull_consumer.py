from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdmq.client import Message, Position, Producer, PullConsumer, TopicQueue
from holdmq.client import pull_consumer as module
from holdmq.errors import Code, OffsetError, RemoteError, TransportError, UsageError
from holdmq.record.batch import split_records
from holdmq.record.codec import encode_message


@pytest.fixture
async def consumer(registries: list[str]) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(registries) as consumer:
        yield consumer


def put(broker: Any, topic: str, queue_id: int, *bodies: bytes, tag: str | None = None) -> None:
    for body in bodies:
        broker.append(topic, queue_id, encode_message(Message(topic, body, tag), queue_id, 1))
    broker._wake()


async def drain(consumer: PullConsumer, count: int) -> list[Message]:
    got: list[Message] = []
    while len(got) < count:
        got += await consumer.poll(hold_ms=20_000)
    return got


async def test_everything_is_read_from_the_beginning_in_order(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t")
    put(broker, "t", 0, b"a", b"b", tag="42/x")
    put(broker, "t", 1, b"c")
    await consumer.assign(["t"], "earliest")
    got = await drain(consumer, 3)
    assert [m.body for m in got if m.queue_id == 0] == [b"a", b"b"]
    assert [(m.body, m.broker, m.queue_offset) for m in got if m.queue_id == 1] == [(b"c", "broker-0", 0)]
    assert got[0].topic == "t"
    assert await consumer.poll(hold_ms=0) == []
    assert consumer.positions()[TopicQueue("t", "broker-0", 0)] == Position(1, 2)
    assert set(consumer.lag().values()) == {0}


async def test_latest_begins_with_what_comes_next(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t")
    put(broker, "t", 0, b"old")
    await consumer.assign(["t"])
    polling = asyncio.ensure_future(consumer.poll(hold_ms=20_000))
    await asyncio.sleep(0.05)
    assert not polling.done()
    put(broker, "t", 0, b"new")
    assert [m.body for m in await polling] == [b"new"]


async def test_an_offset_is_where_to_begin(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 1)
    put(broker, "t", 0, b"a", b"b", b"c")
    await consumer.assign([TopicQueue("t", "broker-0", 0)], 1)
    assert [m.body for m in await consumer.poll()] == [b"b", b"c"]


async def test_one_pull_names_all_queues_and_is_held_once(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 8)
    await consumer.assign(["t"])
    assert await consumer.poll(hold_ms=50) == []
    assert [len(pull.queues) for pull in broker.pulls] == [8]


async def test_brokers_answer_on_their_own(consumer: PullConsumer, make_broker: Any) -> None:
    one, two = await make_broker("a"), await make_broker("b")
    for broker in (one, two):
        await broker.add_topic("t", 1)
    await consumer.assign(["t"])
    polling = asyncio.ensure_future(consumer.poll(hold_ms=20_000))
    await asyncio.sleep(0.05)
    put(two, "t", 0, b"x")
    assert [(m.body, m.broker) for m in await polling] == [(b"x", "b")]
    assert await consumer.poll(hold_ms=0) == []
    put(one, "t", 0, b"y")
    assert [m.body for m in await drain(consumer, 1)] == [b"y"]
    assert len(one.pulls) == 1


async def test_small_answers_give_each_queue_its_turn(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 3)
    for queue_id in range(3):
        put(broker, "t", queue_id, *[b"x" * 100] * 20)
    await consumer.assign(["t"], "earliest")
    seen: list[int] = []
    for _ in range(6):
        seen += {m.queue_id for m in await consumer.poll(max_bytes=300)}
    assert set(seen) == {0, 1, 2}
    rest = await drain(consumer, 60 - 2 * 6 - 6)
    assert rest


async def test_tags_are_filtered_at_the_broker_and_again_here(registries: list[str], broker: Any) -> None:
    await broker.add_topic("t", 1)
    async with PullConsumer(registries, tags=["b", ""]) as consumer:
        await consumer.assign(["t"], "earliest")
        for i in range(10):
            put(broker, "t", 0, str(i).encode(), tag="b" if i % 3 == 0 else "a")
        put(broker, "t", 0, b"none")
        put(broker, "t", 0, b"empty", tag="")
        assert [m.body for m in await drain(consumer, 5)] == [b"0", b"3", b"6", b"9", b"empty"]
        assert consumer.positions()[TopicQueue("t", "broker-0", 0)].offset == 12
        assert len(broker.filters) == 1


async def test_what_a_broker_sends_beyond_the_filter_is_not_handed_out(
    registries: list[str], broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "_passes", lambda *_: True)
    await broker.add_topic("t", 1)
    async with PullConsumer(registries, tag_filter="42/+") as consumer:
        put(broker, "t", 0, b"yes", tag="42/x")
        put(broker, "t", 0, b"deeper", tag="42/x/y")
        put(broker, "t", 0, b"other", tag="43/x")
        put(broker, "t", 0, b"none")
        await consumer.assign(["t"], "earliest")
        assert [m.body for m in await consumer.poll()] == [b"yes"]
        assert await consumer.poll(hold_ms=10) == []


async def test_rejected_messages_move_the_position_without_being_handed_out(
    registries: list[str], broker: Any
) -> None:
    await broker.add_topic("t", 1)
    async with PullConsumer(registries, tags=["b"]) as consumer:
        await consumer.assign(["t"], "earliest")
        put(broker, "t", 0, b"1", b"2", b"3", tag="a")
        async with asyncio.timeout(60):
            while consumer.positions()[TopicQueue("t", "broker-0", 0)].offset < 3:
                assert await consumer.poll(hold_ms=50) == []


async def test_a_lost_connection_registers_the_filter_again(registries: list[str], broker: Any) -> None:
    await broker.add_topic("t", 1)
    async with PullConsumer(registries, tag_filter="42/#") as consumer:
        await consumer.assign(["t"], "earliest")
        put(broker, "t", 0, b"1", tag="42/x")
        assert len(await drain(consumer, 1)) == 1
        broker.close_connections()
        put(broker, "t", 0, b"no", tag="43")
        put(broker, "t", 0, b"2", tag="42")
        assert [m.body for m in await drain(consumer, 1)] == [b"2"]
        assert len(broker.filters) == 2


async def test_reading_goes_on_after_a_broker_restarts_elsewhere(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 1)
    put(broker, "t", 0, b"1")
    await consumer.assign(["t"], "earliest")
    assert len(await drain(consumer, 1)) == 1
    await broker.stop()
    assert await consumer.poll(hold_ms=100) == []
    put(broker, "t", 0, b"2")
    await broker.restart()
    assert [m.body for m in await drain(consumer, 1)] == [b"2"]


async def test_queues_and_topics_that_appear_are_read_from_their_beginning(
    consumer: PullConsumer, broker: Any
) -> None:
    await consumer.assign(["t"], "latest")
    assert await consumer.poll(hold_ms=0) == []
    await broker.add_topic("t", 1)
    broker.first[("t", 0)] = 100
    put(broker, "t", 0, b"1")
    assert [(m.body, m.queue_offset) for m in await drain(consumer, 1)] == [(b"1", 100)]
    await broker.add_topic("t", 2)
    put(broker, "t", 1, b"2")
    await consumer.routes.refresh()
    assert [m.body for m in await drain(consumer, 1)] == [b"2"]


@pytest.mark.parametrize(
    ("offset", "code", "continue_at"),
    [(5, Code.OFFSET_BEHIND, 100), (500, Code.OFFSET_AHEAD, 102)],
)
async def test_a_position_outside_the_queue_is_told_and_stays_until_seek(
    consumer: PullConsumer, broker: Any, offset: int, code: Code, continue_at: int
) -> None:
    await broker.add_topic("t", 1)
    broker.first[("t", 0)] = 100
    put(broker, "t", 0, b"a", b"b")
    queue = TopicQueue("t", "broker-0", 0)
    await consumer.assign([queue], offset)
    for _ in range(2):
        with pytest.raises(OffsetError) as caught:
            await consumer.poll(hold_ms=20_000)
        assert (caught.value.code, caught.value.next_offset) == (code, continue_at)
    assert consumer.positions()[queue].offset == offset
    await consumer.seek(queue, 101)
    assert [m.body for m in await consumer.poll()] == [b"b"]


async def test_damage_is_told_and_other_queues_go_on(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 2)
    put(broker, "t", 0, b"a")
    put(broker, "t", 1, b"b", b"c")
    broker.cuts[("t", 1)] = Code.CORRUPT
    await consumer.assign(["t"], "earliest")
    assert [m.body for m in await consumer.poll()] == [b"a"]
    with pytest.raises(OffsetError, match="CORRUPT") as caught:
        await consumer.poll()
    del broker.cuts[("t", 1)]
    await consumer.seek(TopicQueue("t", "broker-0", 1), caught.value.next_offset)
    assert [m.body for m in await consumer.poll()] == [b"c"]


async def test_seeking_voids_the_answer_that_is_on_its_way(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 1)
    queue = TopicQueue("t", "broker-0", 0)
    put(broker, "t", 0, b"a", b"b", b"c")
    await consumer.assign([queue], 3)
    assert await consumer.poll(hold_ms=0) == []
    polling = asyncio.ensure_future(consumer.poll(hold_ms=20_000))
    await asyncio.sleep(0.05)
    await consumer.seek(queue, "earliest")
    put(broker, "t", 0, b"d")
    assert [m.body for m in await polling] == [b"a", b"b", b"c", b"d"]


async def test_raw_answers_have_the_records_as_they_lie(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 1)
    put(broker, "t", 0, b"a", b"b")
    await consumer.assign(["t"], "earliest")
    (part,) = await consumer.poll_raw()
    assert (part.queue, part.status) == (TopicQueue("t", "broker-0", 0), Code.OK)
    assert (part.messages, part.offset, part.next_offset, part.end_offset) == (2, 0, 2, 2)
    assert bytes(part.records) == b"".join(broker.logs[("t", 0)])
    assert len(split_records(part.records)) == 2


async def test_raw_answers_tell_a_fault_once(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 1)
    await consumer.assign([TopicQueue("t", "broker-0", 0)], 7)
    (part,) = await consumer.poll_raw()
    assert (part.status, part.next_offset, part.messages) == (Code.OFFSET_AHEAD, 0, 0)
    assert await consumer.poll_raw(hold_ms=20) == []


async def test_a_final_refusal_is_raised(consumer: PullConsumer, broker: Any) -> None:
    await broker.add_topic("t", 1)
    broker.cuts[("t", 0)] = Code.TOPIC_PERM
    await consumer.assign(["t"], "earliest")
    with pytest.raises(RemoteError, match="TOPIC_PERM"):
        await consumer.poll()


async def test_a_broker_that_stays_away_is_told(
    consumer: PullConsumer, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNREACHABLE_S", 0.05)
    await broker.add_topic("t", 1)
    await consumer.assign(["t"], "earliest")
    assert await consumer.poll(hold_ms=0) == []
    await broker.stop()

    async def poll_on() -> None:
        while True:
            assert await consumer.poll(hold_ms=100) == []

    async with asyncio.timeout(60):
        with pytest.raises(TransportError, match="'broker-0' is unreachable"):
            await poll_on()


async def test_a_consumer_and_a_producer_can_share_one_route_table(
    registries: list[str], broker: Any
) -> None:
    async with Producer(registries) as producer:
        await producer.send(Message("t", b"1"))
        async with PullConsumer(routes=producer.routes) as consumer:
            await consumer.assign(["t"], "earliest")
            assert [m.body for m in await drain(consumer, 1)] == [b"1"]
        await producer.send(Message("t", b"2"))
    assert len(broker.bodies("t")) == 2


async def test_misuse_is_named(registries: list[str], broker: Any) -> None:
    with pytest.raises(UsageError, match="not both"):
        PullConsumer(registries, tags=["a"], tag_filter="b")
    with pytest.raises(UsageError, match="list of tags"):
        PullConsumer(registries, tags="a")
    with pytest.raises(UsageError, match="no MQTT topic"):
        PullConsumer(registries, tags=["a/+"])
    with pytest.raises(UsageError, match="#"):
        PullConsumer(registries, tag_filter="#/a")
    with pytest.raises(UsageError, match="list of at least one"):
        PullConsumer("127.0.0.1:1")
    await broker.add_topic("t", 1)
    async with PullConsumer(registries) as consumer:
        with pytest.raises(UsageError, match="below 0"):
            await consumer.assign(["t"], -1)
        with pytest.raises(UsageError, match="not assigned"):
            await consumer.seek(TopicQueue("t", "b", 0), 0)
        await consumer.assign(["t"])
        with pytest.raises(UsageError, match="one task at a time"):
            await asyncio.gather(consumer.poll(hold_ms=50), consumer.poll(hold_ms=50))
    with pytest.raises(UsageError, match="closed"):
        await consumer.poll()
