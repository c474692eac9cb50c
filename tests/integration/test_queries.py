"""Messages looked up over the SDK, on two real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from cluster_view import listed
from two_brokers import Cluster, two_brokers

from holdmq.client import Admin, Message, MessageId, Messages, Producer, SendResult, SyncMessages
from holdmq.errors import Code, RemoteError, UsageError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from two_brokers(tmp_path_factory.mktemp("cluster"), **{"storage.flush_interval_ms": 20})


@pytest.fixture
async def messages(cluster: Cluster) -> AsyncIterator[Messages]:
    async with Messages(cluster.registries) as made:
        yield made


async def send(cluster: Cluster, *sent: Message, one_by_one: bool = False) -> list[SendResult]:
    async with Producer(cluster.registries) as producer:
        if not one_by_one:
            return await producer.send_batch(list(sent))
        return [await producer.send(message) for message in sent]


async def create(cluster: Cluster, topic: str) -> None:
    """Have a topic at both brokers, and come back when who looks for it finds both.

    One that is made by its first message may be at the quicker one alone.
    """
    async with Admin(cluster.registries) as admin:
        await admin.create_topic(topic, 4)
    await listed(cluster.registries, topic, 8)


async def found_all(messages: Messages, topic: str, key: str, total: int, **more: Any) -> list[Message]:
    """All pages, asked for once the index has caught up with `total` messages."""
    has_caught_up = False
    while True:
        found: list[Message] = []
        cursor = None
        while True:
            page = await messages.find(topic, key, cursor=cursor, **more)
            found += page.messages
            cursor = page.cursor
            if cursor is None:
                break
        if has_caught_up:
            assert page.is_complete
            return found
        has_caught_up = len(found) >= total
        await asyncio.sleep(0.02)


async def test_every_message_is_found_by_its_id_at_whichever_broker_it_is(
    cluster: Cluster, messages: Messages
) -> None:
    await create(cluster, "ids")
    results = await send(
        cluster, *(Message("ids", b"%d" % i, f"{i}/x", (f"k{i}",), {"n": str(i)}) for i in range(20))
    )
    assert {result.queue.broker for result in results} == {"broker-0", "broker-1"}
    for i, result in enumerate(results):
        assert result.message_id is not None
        message = await messages.get(str(result.message_id) if i % 2 else result.message_id)
        assert (message.body, message.tag, message.keys) == (b"%d" % i, f"{i}/x", (f"k{i}",))
        assert (message.properties, message.message_id) == ({"n": str(i)}, result.message_id)
        assert (message.broker, message.queue_id) == (result.queue.broker, result.queue.queue_id)


async def test_ids_that_name_nothing_are_told_by_what_is_wrong(cluster: Cluster, messages: Messages) -> None:
    (result,) = await send(cluster, Message("ids", b"x"))
    assert result.message_id is not None
    store_id = result.message_id.store_id
    for wrong, sentence in (
        (MessageId(store_id, 1 << 40), "the log has not come so far"),
        (MessageId(store_id, result.message_id.physical_offset + 1), "no record begins there"),
        (MessageId(b"nowhere!", 0), "which no live broker has"),
    ):
        with pytest.raises(RemoteError, match=sentence) as refused:
            await messages.get(wrong)
        assert refused.value.code == Code.MESSAGE_UNKNOWN
    with pytest.raises(UsageError, match="not a message id"):
        await messages.get("abc")


@pytest.mark.parametrize("count", [3, 64])
async def test_a_key_s_messages_come_newest_first_over_all_brokers_and_pages(
    cluster: Cluster, messages: Messages, count: int
) -> None:
    topic = f"finds-{count}"
    queues = 8
    await create(cluster, topic)
    async with Producer(cluster.registries) as producer:
        route = await producer.routes.ensure_topic(topic)
        assert len(route.write_queues) == queues
        for i in range(2 * queues):
            queue = route.write_queues[i % queues]
            await producer.send(Message(topic, b"%d" % i, keys=("k", f"own{i}")), queue=queue)
            await producer.send(Message(topic, b"other", keys=("other",)), queue=queue)
    found = await found_all(messages, topic, "k", 2 * queues, count=count)
    assert {m.body for m in found} == {b"%d" % i for i in range(2 * queues)}
    assert len(found) == 2 * queues, "none twice"
    times = [m.store_ms for m in found]
    assert times == sorted(times, reverse=True)
    (one,) = await found_all(messages, topic, "own5", 1)
    assert one.body == b"5"
    assert one.unique_id is not None
    page = await messages.find(topic, unique_id=one.unique_id)
    assert [m.message_id for m in page.messages] == [one.message_id]
    middle = times[queues]
    page = await messages.find(topic, "k", begin_ms=middle, end_ms=middle, count=64)
    assert {m.store_ms for m in page.messages} == {middle}


async def test_a_search_is_refused_for_what_it_cannot_be(cluster: Cluster, messages: Messages) -> None:
    await create(cluster, "searched")
    await send(cluster, Message("searched", b"x"))
    for wrong in ({}, {"key": "k", "unique_id": "u"}):
        with pytest.raises(UsageError, match="key or a unique_id"):
            await messages.find("ids", **wrong)
    for cursor in ("x", "[]", '{"broker-0": "1"}'):
        with pytest.raises(UsageError, match="is no cursor"):
            await messages.find("ids", "k", cursor=cursor)
    with pytest.raises(RemoteError, match="there is no topic 'missing'"):
        await messages.find("missing", "k")
    with pytest.raises(UsageError, match="brokers that are not there any more"):
        await messages.find("searched", "k", cursor='{"nobody": 1}')


async def test_the_newest_come_first_over_all_queues_and_by_tag(cluster: Cluster, messages: Messages) -> None:
    await create(cluster, "tails")
    sent = [Message("tails", b"%d" % i, f"{i % 5}/t") for i in range(300)]
    await send(cluster, *sent, one_by_one=True)
    found = [message async for message in messages.newest("tails")]
    assert len(found) == 300
    times = [m.store_ms for m in found]
    assert times == sorted(times, reverse=True)
    for tag_filter in ("3/t", "3/#"):
        tagged = [m async for m in messages.newest("tails", tag_filter)]
        assert {m.body for m in tagged} == {b"%d" % i for i in range(3, 300, 5)}
    looked_at = [m async for m in messages.newest("tails", look_back_max=2)]
    assert len(looked_at) == 2 * 8
    newest = await anext(messages.newest("tails"))
    assert newest.store_ms == times[0]


async def test_a_topic_is_replayed_from_a_time_to_what_it_has_now(
    cluster: Cluster, messages: Messages
) -> None:
    await create(cluster, "replays")
    first = await send(cluster, *(Message("replays", b"old%d" % i) for i in range(20)))
    assert first[0].message_id is not None
    old = [m async for m in messages.newest("replays")]
    boundary = old[0].store_ms + 1
    while True:
        await send(cluster, *(Message("replays", b"new%d" % i, f"{i % 2}/x") for i in range(50)))
        begins = await messages.offsets_at("replays", boundary)
        if len(begins) == 8 and sum(at.end_offset - at.offset for at in begins.values()) >= 50:
            break
    wanted = sum(at.end_offset - at.offset for at in begins.values())
    replayed = [m async for m in messages.replay("replays", boundary)]
    assert len(replayed) == wanted
    assert all(m.body.startswith(b"new") for m in replayed)
    by_queue: dict[Any, list[int]] = {}
    for m in replayed:
        by_queue.setdefault((m.broker, m.queue_id), []).append(m.queue_offset)
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())
    before = [m async for m in messages.replay("replays", 0, boundary)]
    assert {m.body for m in before} >= {b"old%d" % i for i in range(20)}
    assert len(before) + len(replayed) == sum(at.end_offset for at in begins.values())
    odd = [m async for m in messages.replay("replays", boundary, tag_filter="1/#")]
    assert {m.tag for m in odd} == {"1/x"}
    assert len(odd) == wanted // 2
    assert [m async for m in messages.replay("replays", 1 << 60)] == []


async def test_the_blocking_facade_does_the_same(cluster: Cluster) -> None:
    await create(cluster, "blocking")
    (result,) = await send(cluster, Message("blocking", b"x", keys=("k",)))

    def work() -> None:
        with SyncMessages(cluster.registries) as messages:
            assert result.message_id is not None
            assert messages.get(result.message_id).body == b"x"
            assert [m.body for m in messages.newest("blocking")] == [b"x"]
            assert [m.body for m in messages.replay("blocking", 0)] == [b"x"]
            assert len(messages.offsets_at("blocking", 0)) == 8
            while not messages.find("blocking", "k").messages:
                pass

    await asyncio.get_running_loop().run_in_executor(None, work)
