"""A group that is polled: what was committed never comes again, what was not always does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from group_machine import crash
from processes import running_stack

from holdmq.client import (
    Admin,
    Consumer,
    GroupAdmin,
    GroupPullConsumer,
    Message,
    Producer,
    SyncGroupPullConsumer,
    TopicQueue,
)
from holdmq.client.process_queue import SPAN_MAX
from holdmq.errors import UsageError


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with running_stack(tmp_path_factory.mktemp("polled"), "registry", "broker") as stack:
        yield [stack.registry]


@pytest.fixture
def group(topic: str) -> str:
    return f"g-{topic}"


@pytest.fixture
async def producer(registries: list[str]) -> AsyncIterator[Producer]:
    async with Producer(registries) as producer:
        yield producer


async def fill(producer: Producer, topic: str, count: int, first: int = 0) -> None:
    await producer.send_batch([Message(topic, b"%d" % number) for number in range(first, first + count)])


async def polled(member: GroupPullConsumer, count: int) -> list[Message]:
    """As many messages as are wanted; what does not come ends at the test's time limit."""
    found: list[Message] = []
    while len(found) < count:
        found += await member.poll(count - len(found))
    return found


def numbers_of(messages: list[Message]) -> list[int]:
    return sorted(int(message.body) for message in messages)


async def test_what_was_not_committed_comes_again_and_what_was_does_not(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 1)
    await fill(producer, topic, 10)
    async with GroupPullConsumer(registries, group, [topic], start="earliest") as member:
        messages = await polled(member, 10)
        assert [int(message.body) for message in messages] == list(range(10))
        assert await member.commit(messages[:4]) == frozenset()
        # The group cannot go on behind what is not done.
        assert await member.commit(messages[6:8]) == frozenset()
        with pytest.raises(UsageError, match="not in hand"):
            await member.commit(messages[:1])
    async with GroupPullConsumer(registries, group, [topic]) as member:
        assert numbers_of(await polled(member, 6)) == list(range(4, 10))
        await member.commit(wait_for_disk=True)
        await fill(producer, topic, 1, 10)
        assert numbers_of(await polled(member, 1)) == [10]
        assert await member.poll(hold_ms=50) == []
    killed = GroupPullConsumer(registries, group, [topic])
    await killed.start()
    assert numbers_of(await polled(killed, 1)) == [10]
    await crash(killed)
    async with GroupPullConsumer(registries, group, [topic]) as member:
        assert numbers_of(await polled(member, 1)) == [10]
        await member.commit()
        assert await member.poll(hold_ms=50) == []


async def test_a_queue_moves_to_a_new_member_once_what_was_polled_of_it_is_committed(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 4)
    for number in range(40):
        await producer.send(Message(topic, b"%d" % number), queue=TopicQueue(topic, "broker-0", number % 4))
    async with GroupPullConsumer(registries, group, [topic], start="earliest", client_id="first") as first:
        messages = await polled(first, 40)
        async with GroupPullConsumer(registries, group, [topic], client_id="second") as second:
            assert await second.poll(hold_ms=300) == [], "the first one has all of them in hand"
            assert await first.commit(messages) == frozenset()
            while len(second.positions()) < 2:
                assert await second.poll(hold_ms=20) == []
            for number in range(40, 80):
                queue = TopicQueue(topic, "broker-0", number % 4)
                await producer.send(Message(topic, b"%d" % number), queue=queue)
            ones, others = await asyncio.gather(polled(first, 20), polled(second, 20))
            assert numbers_of(ones + others) == list(range(40, 80))
            assert {m.queue_id for m in ones}.isdisjoint(m.queue_id for m in others)


async def test_a_commit_names_the_queues_that_others_have_got(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 2)
    for number in range(20):
        await producer.send(Message(topic, b"%d" % number), queue=TopicQueue(topic, "broker-0", number % 2))
    settings = {"start": "earliest", "client_id": "a-slow-one", "release_wait_s": 0.2}
    async with GroupPullConsumer(registries, group, [topic], **settings) as slow:  # type: ignore[arg-type]
        messages = await polled(slow, 20)
        async with GroupPullConsumer(registries, group, [topic], client_id="the-other") as other:
            again = await polled(other, 10)
            (moved,) = {TopicQueue(topic, "broker-0", message.queue_id) for message in again}
            assert await slow.commit() == {moved}
            assert await other.commit() == frozenset()
            assert numbers_of(again) == numbers_of([m for m in messages if m.queue_id == moved.queue_id])
            assert await slow.poll(hold_ms=50) == await other.poll(hold_ms=50) == []


async def test_messages_that_are_for_later_come_again_to_members_of_any_kind(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    await fill(producer, topic, 5)
    async with GroupAdmin(registries) as groups:
        await groups.update(group, delay_levels_ms=[100])
    async with GroupPullConsumer(registries, group, [topic], start="earliest") as member:
        messages = await polled(member, 5)
        later = [message for message in messages if int(message.body) in (1, 3)]
        await member.retry_later(later)
        await member.commit()
        again = await polled(member, 1)
        assert [message.reconsume_times for message in again] == [1]
        await member.commit()
    pushed: list[Message] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        pushed.append(message)
        done.set()

    async with Consumer(registries, group, handle, [topic]):
        await done.wait()
    assert numbers_of(again + pushed) == [1, 3]


async def test_what_is_not_committed_is_bounded(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 1)
    for first in range(0, SPAN_MAX + 500, 500):
        await fill(producer, topic, 500, first)
    async with GroupPullConsumer(registries, group, [topic], start="earliest") as member:
        messages = await polled(member, SPAN_MAX)
        assert await member.poll(hold_ms=100) == []
        assert member.numbers()["handlers_running"] == SPAN_MAX
        await member.commit(messages[:1])
        assert len(await member.poll()) == 1
        await member.commit()
        assert len(await polled(member, 499)) == 499


async def test_what_the_filter_leaves_out_does_not_hold_up_the_rest(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 1)
    await producer.send_batch([Message(topic, b"%d" % n, "no") for n in range(1500)])
    await producer.send(Message(topic, b"0", "yes"))
    async with GroupPullConsumer(registries, group, {topic: "yes"}, start="earliest") as member:
        began = time.monotonic()
        assert numbers_of(await member.poll(hold_ms=60_000)) == [0]
        assert time.monotonic() - began < 60
        await member.commit()
        (position,) = [p for queue, p in member.positions().items() if queue.topic == topic]
        assert position.offset == 1501


def test_without_async(registries: list[str], topic: str, group: str) -> None:
    async def send() -> None:
        async with Producer(registries) as producer:
            await fill(producer, topic, 3)

    asyncio.run(send())
    with SyncGroupPullConsumer(registries, group, [topic], start="earliest") as member:
        found: list[Message] = []
        while len(found) < 3:
            found += member.poll()
        assert member.commit(found) == frozenset()
        assert member.poll(hold_ms=10) == []
    closed = GroupPullConsumer(registries, group, [topic])
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(closed.poll())
