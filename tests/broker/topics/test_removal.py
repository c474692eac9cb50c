"""Queues and topics go safely: three steps, each refused with its reason while its condition fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest
from broker_stack import Stack, Start, make_record
from topic_calls import bounds, consumed, create, delete, grow, listed, remove, remove_all_steps

from holdmq.errors import Code, RemoteError, StorageError, WireError
from holdmq.wire.headers import PullQueue, TopicCreateRequest
from holdmq.wire.topic_headers import DELETE, HIDE_FROM_CONSUMERS, HIDE_FROM_PRODUCERS
from storage.api.batches import Batch, BatchRun


async def refusal(call: Awaitable[object]) -> RemoteError:
    with pytest.raises(RemoteError) as refused:
        await call
    return refused.value


async def test_each_step_waits_for_its_condition_and_names_what_is_missing(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 3))
    await broker.produce("t", 2, (b"1", None), (b"2", None))
    await consumed(broker, "billing", "t", 2, 1)

    early = await refusal(remove(broker, "t", 2, DELETE))
    assert early.code == Code.TOPIC_IN_USE
    assert "hide them from consumers first" in early.remark
    early = await refusal(remove(broker, "t", 2, HIDE_FROM_CONSUMERS))
    assert "hide them from producers first" in early.remark

    row = await remove(broker, "t", 2, HIDE_FROM_PRODUCERS)
    assert (row.write_queues, row.read_queues) == (2, 3)
    lagging = await refusal(remove(broker, "t", 2, HIDE_FROM_CONSUMERS))
    assert lagging.code == Code.TOPIC_IN_USE
    assert "group 'billing' is 1 messages behind in queue 2" in lagging.remark
    assert (await broker.pull(PullQueue("t", 2, 0, 1)))[1] == [b"2"]

    await consumed(broker, "billing", "t", 2, 2)
    row = await remove(broker, "t", 2, HIDE_FROM_CONSUMERS)
    assert (row.write_queues, row.read_queues, row.stored_queues) == (2, 2, 3)
    assert (await broker.pull(PullQueue("t", 2, 0, 0)))[0][0].status == Code.QUEUE_UNKNOWN

    row = await remove(broker, "t", 2, DELETE)
    assert (row.read_queues, row.stored_queues) == (2, 2)
    assert broker.store.bounds("t", 2) == (2, 2)
    # A step that was taken already changes nothing.
    for step in (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS, DELETE):
        assert await remove(broker, "t", 2, step) == row


async def test_a_hidden_queue_takes_what_old_routes_send_until_its_grace_is_over(start: Start) -> None:
    broker = await start(hide_grace_s=600.0)
    await create(broker, TopicCreateRequest("t", 2))
    await remove(broker, "t", 1, HIDE_FROM_PRODUCERS)
    assert (await broker.produce("t", 1, (b"late", None))).status == Code.OK
    refused = await refusal(remove(broker, "t", 1, HIDE_FROM_CONSUMERS))
    assert "old route" in refused.remark
    grace_s = broker.server.topics.table.grace_s("t", asyncio.get_running_loop().time())
    assert 0 < grace_s <= 600
    broker.server.topics.table.allow_until("t", asyncio.get_running_loop().time())
    assert (await broker.produce("t", 1, (b"too late", None))).status == Code.QUEUE_UNKNOWN
    assert (await broker.pull(PullQueue("t", 1, 0, 0)))[1] == [b"late"]
    assert (await remove(broker, "t", 1, HIDE_FROM_CONSUMERS)).read_queues == 1


async def test_keys_of_an_ordered_topic_move_at_once_and_only_when_drained(start: Start) -> None:
    broker = await start(hide_grace_s=30)
    await create(broker, TopicCreateRequest("t", 2, order=True))
    await broker.produce("t", 1, (b"1", None))
    await consumed(broker, "billing", "t", 1, 0)
    refused = await refusal(remove(broker, "t", 1, HIDE_FROM_PRODUCERS))
    assert "'billing' is 1 messages behind in queue 1" in refused.remark
    await consumed(broker, "billing", "t", 1, 1)
    await remove(broker, "t", 1, HIDE_FROM_PRODUCERS)
    assert (await broker.produce("t", 1, (b"2", None))).status == Code.QUEUE_UNKNOWN


async def test_hidden_queues_are_shown_again_with_what_they_hold(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    await broker.produce("t", 1, (b"1", None))
    await remove(broker, "t", 1, HIDE_FROM_PRODUCERS)
    await remove(broker, "t", 1, HIDE_FROM_CONSUMERS)
    row = await grow(broker, "t", 2)
    assert (row.write_queues, row.read_queues) == (2, 2)
    assert (await broker.pull(PullQueue("t", 1, 0, 0)))[1] == [b"1"]


async def test_a_queue_that_is_made_again_goes_on_behind_the_one_that_went(start: Start) -> None:
    broker = await start()
    await create(broker, TopicCreateRequest("t", 2))
    await broker.produce("t", 1, (b"1", None), (b"2", None))
    await remove_all_steps(broker, "t", 1)
    broker = await start()
    await grow(broker, "t", 2)
    assert await bounds(broker, "t") == [(0, 0), (2, 2)]
    assert (await broker.produce("t", 1, (b"3", None))).base_offset == 2
    pulled, got = await broker.pull(PullQueue("t", 1, 0, 0))
    assert (pulled[0].status, pulled[0].next_offset, got) == (Code.OFFSET_BEHIND, 2, [])


async def test_the_last_queue_goes_with_its_topic_only(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 1))
    await remove(broker, "t", 0, HIDE_FROM_PRODUCERS)
    await remove(broker, "t", 0, HIDE_FROM_CONSUMERS)
    assert "delete that" in (await refusal(remove(broker, "t", 0, DELETE))).remark
    await delete(broker, "t")
    assert await listed(broker) == {}


async def test_a_topic_in_use_is_deleted_by_force_only(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    await broker.produce("t", 0, (b"1", None))
    refused = await refusal(delete(broker, "t"))
    assert refused.code == Code.TOPIC_IN_USE
    assert "delete with force" in refused.remark
    await delete(broker, "t", force=True)
    assert (await broker.produce("t", 0, (b"2", None))).status == Code.TOPIC_UNKNOWN
    assert (await broker.pull(PullQueue("t", 0, 0, 0)))[0][0].status == Code.TOPIC_UNKNOWN


async def test_a_topic_that_is_made_again_has_nothing_of_the_one_that_went(start: Start) -> None:
    broker = await start()
    await create(broker, TopicCreateRequest("t", 2))
    await broker.produce("t", 0, (b"1", None))
    await consumed(broker, "billing", "t", 0, 1)
    await delete(broker, "t", force=True)
    assert broker.server.groups.offsets.table.get("billing", "t", 0) == -1
    broker = await start()
    assert await listed(broker) == {}
    await create(broker, TopicCreateRequest("t", 1, 2))
    assert await bounds(broker, "t") == [(1, 1)]


async def test_a_topic_may_be_made_again_while_it_is_being_deleted(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    await broker.produce("t", 0, (b"1", None))
    deleting = asyncio.ensure_future(delete(broker, "t", force=True))
    making = [asyncio.ensure_future(create(broker, TopicCreateRequest("t", 3))) for _ in range(3)]
    await deleting
    assert {row.write_queues for row in await asyncio.gather(*making)} <= {2, 3}
    assert (await create(broker, TopicCreateRequest("t", by_use=True))).topic == "t"


async def test_a_parked_pull_hears_that_its_queue_is_gone(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    first = asyncio.ensure_future(broker.pull(PullQueue("t", 1, 0, 0), hold_ms=40_000))
    both = asyncio.ensure_future(broker.pull(PullQueue("t", 0, 0, 0), hold_ms=40_000))
    while broker.server.pull.hold.size < 2:
        await asyncio.sleep(0)
    await remove_all_steps(broker, "t", 1)
    assert (await first)[0][0].status == Code.QUEUE_UNKNOWN
    assert broker.server.pull.hold.size == 1
    await delete(broker, "t", force=True)
    assert (await both)[0][0].status == Code.TOPIC_UNKNOWN


async def test_removal_says_what_it_cannot_do(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    with pytest.raises((RemoteError, WireError), match="step 'burn'"):
        await remove(broker, "t", 1, "burn")
    assert (await refusal(remove(broker, "t", -1, HIDE_FROM_PRODUCERS))).code == Code.TOPIC_INVALID
    assert (await refusal(remove(broker, "%SYS", 1, HIDE_FROM_PRODUCERS))).code == Code.TOPIC_INVALID


async def test_what_is_on_its_way_to_the_disk_holds_its_queue(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    await remove(broker, "t", 1, HIDE_FROM_PRODUCERS)
    await grow(broker, "t", 2)
    sending = [asyncio.ensure_future(broker.produce("t", 1, (b"x" * 1000, None))) for _ in range(50)]
    while not broker.store.is_being_written("t", 1):
        await asyncio.sleep(0)
    reason = broker.server.topics.undrained("t", 1)
    assert reason == "queue 1 is being written"
    await asyncio.gather(*sending)
    assert broker.server.topics.undrained("t", 1) is None


async def test_the_last_topic_can_go_and_the_broker_starts_again(start: Start) -> None:
    broker = await start()
    await create(broker, TopicCreateRequest("t", 1))
    await broker.produce("t", 0, (b"1", None))
    await delete(broker, "t", force=True)
    broker = await start()
    assert not broker.server.topics.is_new
    assert await listed(broker) == {}


async def release(broker: Stack, topic: str, queue_id: int, body: bytes) -> None:
    """A message comes to a queue as a delayed one does: by the store, past what producers may do."""
    stored: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
    record = make_record(topic, queue_id, body)
    sizes = np.array([len(record)], np.int64)
    batch = Batch(memoryview(bytearray(record)), sizes, [BatchRun(topic, queue_id, 1)])
    broker.store.append(batch, lambda _batch, error: stored.set_result(error))
    assert await stored is None


@pytest.mark.parametrize("steps", [2, 3])
async def test_a_delayed_message_to_a_queue_that_went_is_not_lost(start: Start, steps: int) -> None:
    broker = await start()
    await create(broker, TopicCreateRequest("t", 3))
    await broker.produce("t", 2, (b"before", None))
    for step in (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS, DELETE)[:steps]:
        await remove(broker, "t", 1, step)
    await release(broker, "t", 2, b"delayed")
    while (await listed(broker))["t"].read_queues != 3:
        await asyncio.sleep(0)
    row = (await listed(broker))["t"]
    assert (row.write_queues, row.read_queues) == (1, 3)
    assert (await broker.pull(PullQueue("t", 2, 0, 1)))[1] == [b"delayed"]
    broker = await start()
    assert (await broker.pull(PullQueue("t", 2, 0, 1)))[1] == [b"delayed"]


async def test_a_delayed_message_that_comes_while_its_queue_is_deleted_lies_behind_that(
    broker: Stack,
) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    await broker.produce("t", 1, (b"before", None))
    for step in (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS):
        await remove(broker, "t", 1, step)
    deleting = asyncio.ensure_future(remove(broker, "t", 1, DELETE))
    while not broker.server.numbers()["topic_deletions"]:
        await asyncio.sleep(0)
    await release(broker, "t", 1, b"delayed")
    await deleting
    while (await listed(broker))["t"].read_queues != 2:
        await asyncio.sleep(0)
    assert await bounds(broker, "t") == [(0, 0), (1, 2)]
    assert (await broker.pull(PullQueue("t", 1, 0, 1)))[1] == [b"delayed"]


async def test_topics_that_wait_for_one_of_their_name_to_go_are_bounded(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.topics.requests.PARKED_MAX", 1)
    await create(broker, TopicCreateRequest("t", 1))
    await broker.produce("t", 0, (b"1", None))
    delete_queue = broker.store.delete_queue
    begun: list[tuple[Any, ...]] = []
    # It goes no sooner than others have asked for its name.
    monkeypatch.setattr(broker.store, "delete_queue", lambda *arguments: begun.append(arguments))
    deleting = asyncio.ensure_future(delete(broker, "t", force=True))
    while not broker.server.numbers()["topic_deletions"]:
        await asyncio.sleep(0)
    making = [asyncio.ensure_future(create(broker, TopicCreateRequest("t", 1))) for _ in range(2)]
    refused = await refusal(making[1])
    assert refused.code == Code.BUSY
    for arguments in begun:
        delete_queue(*arguments)
    await deleting
    assert (await making[0]).topic == "t"
