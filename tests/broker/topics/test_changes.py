"""Settings of topics: what may be changed, what is refused, and that every change is durable first."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from broker_stack import Stack, Start
from tested_engine import state_file
from topic_calls import bounds, consumed, create, delete, grow, listed, remove, update

from holdmq.errors import Code, RemoteError, StorageError
from holdmq.wire.headers import PullQueue, TopicCreateRequest
from holdmq.wire.topic_headers import HIDE_FROM_CONSUMERS, HIDE_FROM_PRODUCERS, TopicUpdateRequest
from storage.api.batches import Batch

HOUR_MS = 3_600_000


def saved(tmp_path: Path) -> dict[str, dict[str, object]]:
    content = json.loads(state_file(tmp_path, "topic.json"))["content"]
    assert isinstance(content, dict)
    return content


async def test_every_setting_is_kept_over_a_restart(start: Start, tmp_path: Path) -> None:
    broker = await start()
    await create(broker, TopicCreateRequest("t", 2, 3, perm=4, order=True, retention_ms=HOUR_MS))
    row = await update(
        broker,
        TopicUpdateRequest("t", perm=6, order=False, retention_ms=2 * HOUR_MS),
    )
    assert (row.perm, row.order, row.retention_ms) == (6, False, 2 * HOUR_MS)
    assert saved(tmp_path)["t"]["retention_ms"] == 2 * HOUR_MS
    broker = await start()
    assert (await listed(broker))["t"] == row


async def test_what_is_not_named_stays_as_it_is(broker: Stack) -> None:
    before = await create(broker, TopicCreateRequest("t", 2, 3, order=True))
    assert await update(broker, TopicUpdateRequest("t")) == before
    assert await update(broker, TopicUpdateRequest("t", perm=2)) == before._replace(perm=2)


@pytest.mark.parametrize(
    "change",
    [
        TopicUpdateRequest("t", perm=8),
        TopicUpdateRequest("t", perm=-1),
        TopicUpdateRequest("t", retention_ms=-1),
        TopicUpdateRequest("t", filter_type="mqtt"),
        TopicUpdateRequest("t", sys_flag=1),
        TopicUpdateRequest("%SYS", perm=6),
    ],
)
async def test_settings_that_no_topic_can_have_are_refused(broker: Stack, change: TopicUpdateRequest) -> None:
    before = await create(broker, TopicCreateRequest("t"))
    with pytest.raises(RemoteError) as refused:
        await update(broker, change)
    assert refused.value.code == Code.TOPIC_INVALID
    assert (await listed(broker))["t"] == before


async def test_an_older_client_may_repeat_the_settings_without_an_effect(broker: Stack) -> None:
    before = await create(broker, TopicCreateRequest("t"))
    assert await update(broker, TopicUpdateRequest("t", filter_type="tag", sys_flag=0)) == before


async def test_a_retention_longer_than_the_log_s_is_refused_and_names_the_key(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t"))
    too_long = 1000 * HOUR_MS
    with pytest.raises(RemoteError, match=r"'t'.*storage\.retention_age_s") as refused:
        await update(broker, TopicUpdateRequest("t", retention_ms=too_long))
    assert refused.value.code == Code.TOPIC_INVALID
    with pytest.raises(RemoteError, match="'u'"):
        await create(broker, TopicCreateRequest("u", retention_ms=too_long))
    assert "u" not in await listed(broker)


async def test_a_shorter_retention_raises_the_first_offset_of_its_topic_only(broker: Stack) -> None:
    for topic in ("short", "long"):
        await create(broker, TopicCreateRequest(topic, 1))
        await broker.produce(topic, 0, (b"1", None), (b"2", None))
    await update(broker, TopicUpdateRequest("short", retention_ms=1))
    broker.store.flusher.wake.set()
    pulled, _ = await broker.pull(PullQueue("short", 0, 0, 2), hold_ms=0)
    while (await bounds(broker, "short"))[0] != (2, 2):
        broker.store.flusher.wake.set()
        # Held until nothing comes: the flusher's turn.
        await broker.pull(PullQueue("short", 0, 0, 2), hold_ms=50)
    assert pulled[0].status == Code.OK
    assert await bounds(broker, "long") == [(0, 2)]


async def test_perm_governs_producing_and_pulling(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 1, perm=4))
    assert (await broker.produce("t", 0, (b"x", None))).status == Code.TOPIC_PERM
    await update(broker, TopicUpdateRequest("t", perm=2))
    assert (await broker.produce("t", 0, (b"x", None))).status == Code.OK
    assert (await broker.pull(PullQueue("t", 0, 0, 0)))[0][0].status == Code.TOPIC_PERM
    await update(broker, TopicUpdateRequest("t", perm=6))
    assert (await broker.pull(PullQueue("t", 0, 0, 0)))[1] == [b"x"]


async def test_queues_grow_at_any_time(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 1))
    assert (await broker.produce("t", 2, (b"x", None))).status == Code.QUEUE_UNKNOWN
    row = await grow(broker, "t", 3)
    assert (row.write_queues, row.read_queues, row.stored_queues) == (3, 3, 3)
    assert (await broker.produce("t", 2, (b"x", None))).status == Code.OK
    assert (await broker.pull(PullQueue("t", 2, 0, 0)))[1] == [b"x"]
    assert await grow(broker, "t", 3) == row


@pytest.mark.parametrize("queues", [0, 1, 1025])
async def test_growth_to_fewer_or_too_many_queues_is_refused(broker: Stack, queues: int) -> None:
    await create(broker, TopicCreateRequest("t", 2))
    with pytest.raises(RemoteError) as refused:
        await grow(broker, "t", queues)
    assert refused.value.code == Code.TOPIC_INVALID


async def test_an_ordered_topic_grows_only_when_every_group_has_consumed_it(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 2, order=True))
    await broker.produce("t", 1, (b"1", None), (b"2", None))
    await consumed(broker, "billing", "t", 1, 1)
    with pytest.raises(RemoteError, match="'billing' is 1 messages behind in queue 1") as refused:
        await grow(broker, "t", 4)
    assert refused.value.code == Code.TOPIC_IN_USE
    await consumed(broker, "billing", "t", 1, 2)
    assert (await grow(broker, "t", 4)).write_queues == 4


async def test_what_does_not_exist_cannot_be_changed(broker: Stack) -> None:
    for call in (update(broker, TopicUpdateRequest("t")), grow(broker, "t", 9), delete(broker, "t")):
        with pytest.raises(RemoteError) as refused:
            await call
        assert refused.value.code == Code.TOPIC_UNKNOWN


async def test_tables_are_created_by_their_kind(broker: Stack) -> None:
    assert (await create(broker, TopicCreateRequest("t", kind="table"))).kind == "table"
    assert broker.server.topics.table.is_table("t")
    assert (await broker.produce("t", 0, (b"x", None))).status == Code.KIND_UNFIT
    with pytest.raises(RemoteError, match="kind 'heap'") as refused:
        await create(broker, TopicCreateRequest("u", kind="heap"))
    assert refused.value.code == Code.TOPIC_INVALID


async def test_creating_again_with_another_perm_or_order_is_refused(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("t", 1, perm=4))
    for other in (TopicCreateRequest("t", 1), TopicCreateRequest("t", 1, perm=4, order=True)):
        with pytest.raises(RemoteError, match="perm 4") as refused:
            await create(broker, other)
        assert refused.value.code == Code.TOPIC_EXISTS


async def put(broker: Stack, topic: str, key: str, value: bytes) -> None:
    tables = broker.store.tables
    assert tables is not None
    applied: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()

    def stored(batch: Batch, error: StorageError | None) -> None:
        assert error is None
        tables.wait_applied(batch.end, applied.set_result)

    tables.put(topic, key, value, stored)
    assert await applied is None


async def test_a_table_that_is_made_again_has_no_row_of_the_one_that_went(broker: Stack) -> None:
    tables = broker.store.tables
    assert tables is not None
    await create(broker, TopicCreateRequest("t", 1, kind="table"))
    for number in range(1_100):
        tables.put("t", str(number), b"v", lambda *_: None)
    await put(broker, "t", "last", b"v")
    for step in (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS):
        await remove(broker, "t", 0, step)
    with pytest.raises(RemoteError, match="'t' has rows") as refused:
        await delete(broker, "t")
    assert refused.value.code == Code.TOPIC_IN_USE
    await delete(broker, "t", force=True)
    await create(broker, TopicCreateRequest("t", 1, kind="table"))
    assert (await asyncio.to_thread(tables.scan, "t")).rows == []
    await delete(broker, "t", force=True)
