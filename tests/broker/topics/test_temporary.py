"""Temporary topics: in memory, never on disk, never by MQTT, gone with their last reader."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import pytest
from broker_stack import Stack, Start, make_record, produce_body
from group_peer import GroupPeer
from tested_engine import state_file
from topic_calls import bounds, create, delete, grow, listed, pause, remove, update

from broker.readers.core.table import ReaderTable, SubscriberKey
from broker.topics.temporary import TemporaryTopics
from holdmq.errors import Code, RemoteError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsRequest
from holdmq.wire.group_headers import BROADCAST, CLUSTERING, SHARED, GroupRequest, GroupSubscription
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    ProduceRequest,
    ProduceResponse,
    ProduceRun,
    PullQueue,
    PullRequest,
    RunResult,
    TopicCreateRequest,
)
from holdmq.wire.shared_headers import (
    SharedCloseRequest,
    SharedDelivery,
    SharedOpenRequest,
    SharedOpenResponse,
    SharedPullRequest,
    SharedPullResponse,
)
from holdmq.wire.topic_headers import HIDE_FROM_PRODUCERS, TopicUpdateRequest


async def other_client(broker: Stack, role: str = "client") -> Client:
    client = Client(f"127.0.0.1:{broker.server.rpc.port}", role, "other")
    client.start()
    while client.connection is None:
        await asyncio.sleep(0.001)
    return client


@pytest.mark.parametrize(
    ("name", "kind"), [("chat#tmp", "log"), ("chat#tmp", "temporary"), ("c", "temporary")]
)
async def test_it_works_like_a_topic_and_is_in_no_file(
    broker: Stack, tmp_path: Path, name: str, kind: str
) -> None:
    await broker.server.sessions.opened.wait()
    await broker.server.retained.opened.wait()
    before = broker.store.confirmed_position
    row = await create(broker, TopicCreateRequest(name, 2, kind=kind))
    assert row.kind == "temporary"
    result = await broker.produce(name, 1, (b"1", None), (b"2", "t"))
    assert result.status == Code.OK
    pulled, got = await broker.pull(PullQueue(name, 1, 0, result.base_offset))
    assert (got, pulled[0].next_offset) == ([b"1", b"2"], result.base_offset + 2)
    assert name not in json.loads(state_file(tmp_path, "topic.json"))["content"]
    assert broker.store.confirmed_position == before
    assert name in await listed(broker)


async def test_it_is_gone_when_its_last_reader_leaves(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("chat#tmp", 1))
    await broker.produce("chat#tmp", 0, (b"1", None))
    first, second = await other_client(broker), await other_client(broker)
    for client in (first, second):
        await client.call(RequestCode.PULL, PullRequest([PullQueue("chat#tmp", 0, 0, 0)], 1000))
    await first.close()
    assert (await broker.produce("chat#tmp", 0, (b"2", None))).status == Code.OK
    await second.close()
    while "chat#tmp" in await listed(broker):
        await asyncio.sleep(0)
    assert broker.store.temporary.size_bytes == 0
    assert (await broker.produce("chat#tmp", 0, (b"3", None))).status == Code.TOPIC_UNKNOWN
    assert broker.server.numbers()["topics_temporary_left_total"] == 1


async def test_one_of_the_same_name_never_gives_an_offset_again(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("chat#tmp", 1))
    before = (await broker.produce("chat#tmp", 0, (b"1", None))).base_offset
    await delete(broker, "chat#tmp")
    await create(broker, TopicCreateRequest("chat#tmp", 1))
    assert (await broker.produce("chat#tmp", 0, (b"1", None))).base_offset > before


async def test_it_is_gone_after_a_restart(start: Start) -> None:
    broker = await start()
    await create(broker, TopicCreateRequest("kept", 1))
    await create(broker, TopicCreateRequest("chat#tmp", 1))
    broker = await start()
    assert list(await listed(broker)) == ["kept"]


async def test_a_gateway_may_not_write_it_and_its_other_runs_go_on(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("c", 1, kind="temporary"))
    await create(broker, TopicCreateRequest("log", 1))
    gateway = await other_client(broker, "gateway")
    body = produce_body([make_record("c", 0, b"1"), make_record("log", 0, b"2")])
    runs = [ProduceRun("c", 0, 1, 7, 1, 0), ProduceRun("log", 0, 1, 7, 1, 0)]
    reply = await gateway.call(
        RequestCode.PRODUCE, ProduceRequest(zlib.crc32(body), runs), 40.0, [body], len(body)
    )
    results = rows(RunResult, reply.header(ProduceResponse).results)
    assert [result.status for result in results] == [Code.KIND_UNFIT, Code.OK]
    await gateway.close()


async def test_one_batch_may_hold_records_for_memory_and_for_the_log(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("c#tmp", 1))
    await create(broker, TopicCreateRequest("log", 1))
    topics = ["log", "c#tmp", "log"]
    body = produce_body([make_record(topic, 0, b"%d" % i) for i, topic in enumerate(topics)])
    runs = [
        ProduceRun("log", 0, 1, 7, 1, 0),
        ProduceRun("c#tmp", 0, 1, 7, 1, 0),
        ProduceRun("log", 0, 1, 7, 1, 1),
    ]
    response = await broker.produce_raw(body, runs)
    results = rows(RunResult, response.results)
    assert [result.status for result in results] == [0, 0, 0]
    assert response.positions is not None
    assert [len(positions) for positions in response.positions] == [1, 0, 1]
    again = rows(RunResult, (await broker.produce_raw(body, runs)).results)
    assert [result.base_offset for result in again] == [result.base_offset for result in results]
    assert (await broker.pull(PullQueue("log", 0, 0, 0)))[1] == [b"0", b"2"]
    assert (await broker.pull(PullQueue("c#tmp", 0, 0, results[1].base_offset)))[1] == [b"1"]


async def test_what_only_kept_topics_can_do_is_refused(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("c#tmp", 1))
    for call in (
        update(broker, TopicUpdateRequest("c#tmp", retention_ms=1)),
        remove(broker, "c#tmp", 0, HIDE_FROM_PRODUCERS),
    ):
        with pytest.raises(RemoteError) as refused:
            await call
        assert refused.value.code == Code.KIND_UNFIT
    with pytest.raises(RemoteError, match="is temporary, not table"):
        await create(broker, TopicCreateRequest("d#tmp", kind="table"))
    with pytest.raises(RemoteError, match="no retention"):
        await create(broker, TopicCreateRequest("d#tmp", retention_ms=5))


async def test_it_grows_is_paused_and_resumed(broker: Stack) -> None:
    await create(broker, TopicCreateRequest("c#tmp", 1))
    assert (await grow(broker, "c#tmp", 2)).read_queues == 2
    await pause(broker, "c#tmp")
    begin = (await bounds(broker, "c#tmp"))[1][0]
    await broker.produce("c#tmp", 1, (b"1", None))
    held = asyncio.ensure_future(broker.pull(PullQueue("c#tmp", 1, 0, begin), hold_ms=40_000))
    while not broker.server.pull.hold.size:
        await asyncio.sleep(0)
    await pause(broker, "c#tmp", False)
    assert (await held)[1] == [b"1"]


async def test_topics_max_counts_them(start: Start) -> None:
    broker = await start(topics_max=1)
    await create(broker, TopicCreateRequest("c#tmp", 1))
    with pytest.raises(RemoteError) as refused:
        await create(broker, TopicCreateRequest("d#tmp", 1))
    assert refused.value.code == Code.TOPIC_LIMIT


async def test_one_that_nobody_reads_goes_after_a_while() -> None:
    dropped: list[str] = []
    gone = asyncio.Event()

    def drop(topic: str) -> None:
        dropped.append(topic)
        topics.removed(topic)
        gone.set()

    table: ReaderTable[str] = ReaderTable()
    topics = TemporaryTopics(table, drop, unread_s=0.01)
    table.subscribe(SubscriberKey("one", "workers"), SHARED, ["b#tmp"], 0.0)
    topics.added("b#tmp")
    topics.added("a#tmp")
    await asyncio.wait_for(gone.wait(), 40)
    assert dropped == ["a#tmp"]
    assert topics.numbers() == {"topics_temporary": 1, "topics_temporary_left_total": 1}
    topics.close()


async def end_of(broker: Stack, topic: str) -> None:
    while topic in await listed(broker):
        await asyncio.sleep(0.01)


UNREAD_S = 1.0
"""So short that a topic whose readers do not count is gone while the test looks at them."""


async def test_a_shared_consumer_that_was_there_first_keeps_all_of_it(start: Start) -> None:
    broker = await start(temporary_unread_s=UNREAD_S)
    workers = await other_client(broker)
    wanted = [GroupSubscription("jobs#tmp", "*")]
    opened = await workers.call(RequestCode.SHARED_OPEN, SharedOpenRequest("workers", wanted))
    member_id = opened.header(SharedOpenResponse).member_id
    await create(broker, TopicCreateRequest("jobs#tmp", 1))
    for at in range(11):
        await broker.produce("jobs#tmp", 0, (b"%d" % at, None))
        await asyncio.sleep(UNREAD_S / 4)
    pull = SharedPullRequest(member_id, 100, 1 << 20, 0)
    got = (await workers.call(RequestCode.SHARED_PULL, pull)).header(SharedPullResponse)
    assert sum(row.records for row in rows(SharedDelivery, got.deliveries)) == 11
    await workers.call(RequestCode.SHARED_CLOSE, SharedCloseRequest(member_id))
    await asyncio.wait_for(end_of(broker, "jobs#tmp"), 40)
    await workers.close()


@pytest.mark.parametrize("mode", [CLUSTERING, BROADCAST])
async def test_a_member_keeps_it_though_it_pulls_nothing(start: Start, mode: str) -> None:
    broker = await start(temporary_unread_s=UNREAD_S)
    peer = GroupPeer(broker, "busy", "g#tmp")
    await create(broker, TopicCreateRequest("jobs#tmp", 1))
    await peer.join("jobs#tmp", mode=mode)
    await asyncio.sleep(2 * UNREAD_S)
    assert "jobs#tmp" in await listed(broker)
    await peer.client.call(RequestCode.GROUP_LEAVE, GroupRequest("g#tmp"))
    await asyncio.wait_for(end_of(broker, "jobs#tmp"), 40)
    await peer.client.close()


async def test_spark_keeps_it_while_it_reads_and_no_longer(start: Start) -> None:
    broker = await start(temporary_unread_s=UNREAD_S, reader_silent_s=2 * UNREAD_S)
    spark = await other_client(broker, "spark")
    await create(broker, TopicCreateRequest("jobs#tmp", 1))
    asked = PullColumnsRequest([ColumnQueue("jobs#tmp", 0, 0, 0, 1)], ["body"], 1 << 20)
    for _ in range(8):
        await spark.call(RequestCode.PULL_COLUMNS, asked)
        await asyncio.sleep(UNREAD_S / 2)
    assert "jobs#tmp" in await listed(broker)
    await asyncio.wait_for(end_of(broker, "jobs#tmp"), 40)
    assert not spark.connection.is_closed  # type: ignore[union-attr]
    assert broker.server.numbers()["topic_readers_silenced_total"] == 1
    await spark.close()
