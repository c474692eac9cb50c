"""A broker tells who reads a topic, whichever way of reading it is."""

from __future__ import annotations

import time

import pytest
from broker_stack import Stack
from group_peer import GroupPeer

from holdmq.errors import Code, RemoteError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsRequest
from holdmq.wire.group_headers import BROADCAST, CLUSTERING, SHARED, GroupRequest, GroupSubscription
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    FilterTerm,
    PullQueue,
    PullRequest,
    ReadCloseRequest,
    ReadOpenRequest,
    TermKind,
    TopicCreateRequest,
)
from holdmq.wire.query_headers import MessageBackwardsRequest
from holdmq.wire.reader_headers import (
    BULK,
    GATEWAY,
    LOOK_UP,
    MQTT_SHARE,
    PULL,
    ReaderRow,
    TopicReadersRequest,
    TopicReadersResponse,
)
from holdmq.wire.share_headers import ShareJoin, ShareJoinRequest
from holdmq.wire.shared_headers import SharedCloseRequest, SharedOpenRequest, SharedOpenResponse


async def readers(broker: Stack, topic: str = "t") -> list[ReaderRow]:
    reply = await broker.client.call(RequestCode.TOPIC_READERS, TopicReadersRequest(topic))
    answer = reply.header(TopicReadersResponse)
    assert answer.total == len(answer.readers)
    return rows(ReaderRow, answer.readers)


async def test_every_kind_of_reader_is_told(broker: Stack) -> None:
    await broker.create("t", 1)
    began_ms = time.time_ns() // 1_000_000
    port = broker.server.rpc.port
    one, every = GroupPeer(broker, "one", "workers-c"), GroupPeer(broker, "every", "caches")
    await one.join("t", mode=CLUSTERING)
    await every.join("t", mode=BROADCAST)
    wanted = [GroupSubscription("t", "*")]
    opened = await one.client.call(RequestCode.SHARED_OPEN, SharedOpenRequest("workers-s", wanted))
    await every.client.call(RequestCode.PULL, PullRequest([PullQueue("t", 0, 0, 0)], 1000))
    queue = ColumnQueue("t", 0, 0, 0, 1)
    spark = Client(f"127.0.0.1:{port}", "spark", "spark-1")
    await spark.call(RequestCode.PULL_COLUMNS, PullColumnsRequest([queue], ["body"], 1))
    await spark.call(RequestCode.MESSAGE_BACKWARDS, MessageBackwardsRequest("t", 0))
    worker = Client(f"127.0.0.1:{port}", "gateway", "worker-0")
    term = FilterTerm(TermKind.TOPIC, "t", 0, "")
    await worker.call(RequestCode.READ_OPEN, ReadOpenRequest(1, 0, None, [term]))
    join = ShareJoin(1, "$share/g/t/#", "meter", 1, 60, 1, 0, -1, [], [])
    await worker.call(RequestCode.SHARE_JOIN, ShareJoinRequest([join]))
    found = await readers(broker)
    assert {(row.kind, row.group, row.client_id, row.role) for row in found} == {
        (CLUSTERING, "workers-c", "one", "client"),
        (BROADCAST, "caches", "every", "client"),
        (SHARED, "workers-s", "one", "client"),
        (PULL, "", "every", "client"),
        (BULK, "", "spark-1", "spark"),
        (LOOK_UP, "", "spark-1", "spark"),
        (GATEWAY, "", "worker-0", "gateway"),
        (MQTT_SHARE, "$share/g/t/#", "worker-0", "gateway"),
    }
    for row in found:
        assert began_ms - 1 <= row.since_ms <= row.seen_ms <= time.time_ns() // 1_000_000 + 1
        assert row.address.startswith("127.0.0.1:")
    assert await readers(broker, "another") == []
    member_id = opened.header(SharedOpenResponse).member_id
    await one.client.call(RequestCode.SHARED_CLOSE, SharedCloseRequest(member_id))
    await one.client.call(RequestCode.GROUP_LEAVE, GroupRequest("workers-c"))
    await worker.call(RequestCode.READ_CLOSE, ReadCloseRequest(1))
    await spark.close()
    while broker.server.readers.table.asking > 1:
        await broker.pull(PullQueue("another", 0, 0, 0))
    assert {row.kind for row in await readers(broker)} == {BROADCAST, PULL, MQTT_SHARE}
    for client in (one.client, every.client, worker):
        await client.close()


async def test_a_reader_that_pulls_again_is_seen_again_and_is_the_same(broker: Stack) -> None:
    await broker.create("t", 1)
    await broker.pull(PullQueue("t", 0, 0, 0))
    (before,) = await readers(broker)
    await broker.pull(PullQueue("t", 0, 0, 0), hold_ms=30)
    await broker.pull(PullQueue("t", 0, 0, 0))
    (after,) = await readers(broker)
    assert after._replace(seen_ms=before.seen_ms) == before
    assert after.seen_ms >= before.seen_ms + 25


async def test_rows_are_bounded_and_the_rest_is_counted(broker: Stack) -> None:
    await broker.create("t", 1)
    peer = GroupPeer(broker, "one", "g")
    await peer.join("t")
    await broker.pull(PullQueue("t", 0, 0, 0))
    reply = await broker.client.call(RequestCode.TOPIC_READERS, TopicReadersRequest("t", 1))
    answer = reply.header(TopicReadersResponse)
    assert (len(answer.readers), answer.total, answer.has_others) == (1, 2, False)
    for wrong in (0, 10_001):
        with pytest.raises(RemoteError) as refused:
            await broker.client.call(RequestCode.TOPIC_READERS, TopicReadersRequest("t", wrong))
        assert refused.value.code == Code.LIMIT_EXCEEDED
    await peer.client.close()


async def test_a_gateway_that_reads_everything_reads_neither_temporary_topics_nor_what_is_not_there(
    broker: Stack,
) -> None:
    await broker.create("t", 1)
    await broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("c#tmp", 1))
    worker = Client(f"127.0.0.1:{broker.server.rpc.port}", "gateway", "worker-0")
    everything = FilterTerm(TermKind.TOPIC, "", 0, "")
    await worker.call(RequestCode.READ_OPEN, ReadOpenRequest(1, 0, None, [everything]))
    assert [row.kind for row in await readers(broker, "t")] == [GATEWAY]
    assert [await readers(broker, name) for name in ("c#tmp", "nothing")] == [[], []]
    await worker.close()
