"""Readers far behind are sent to a replica by the leader, queue by queue, and back by the replica."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from broker_stack import Stack, Start, bodies

from broker.reading.core.far_reads import CopyReads, FarReads, ReadableCopy, ReadCounts
from holdmq.errors import Code, RemoteError
from holdmq.message import MessageId
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsRequest, PullColumnsResponse
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    PulledQueue,
    PullQueue,
    PullRequest,
    PullResponse,
    QueueBounds,
    QueueBoundsRequest,
    QueueBoundsResponse,
)
from holdmq.wire.query_headers import MessageBackwardsRequest, MessageFindRequest, MessageGetRequest
from holdmq.wire.replica_reads import ReplicaReads

COPIES = [ReadableCopy("b:1", 1 << 40), ReadableCopy("c:1", 1 << 40)]
ALLOW, PREFER = ReplicaReads.ALLOW, ReplicaReads.PREFER


class End:
    """The end of the log as the choice sees it: far away from everything, or near."""

    def __init__(self) -> None:
        self.position = 1 << 30

    def __call__(self) -> int:
        return self.position


async def leader(start: Start, end: End, copies: Sequence[ReadableCopy] = COPIES) -> Stack:
    broker = await start(next_reads=FarReads(lambda: copies, end, 1_000, ReadCounts()))
    await filled(broker)
    return broker


async def filled(broker: Stack) -> None:
    await broker.create("t", queues=3)
    for queue_id in range(2):
        await broker.produce("t", queue_id, *((b"%d-%d" % (queue_id, i), None) for i in range(3)))


async def asked(
    broker: Stack, *queues: PullQueue, wanted: int = ALLOW, group: str = "", hold_ms: int = 0
) -> tuple[PullResponse, list[bytes]]:
    header = PullRequest(list(queues), 1 << 20, hold_ms, group=group, replica_reads=wanted)
    reply: Reply = await broker.client.call(RequestCode.PULL, header, 5.0)
    return reply.header(PullResponse), bodies(reply)


async def test_an_answer_from_far_behind_names_the_replica_for_what_follows(start: Start) -> None:
    end = End()
    broker = await leader(start, end)
    first, end_of_queue = PullQueue("t", 0, 0, 0), PullQueue("t", 1, 0, 3)
    header = PullRequest([first], 1, replica_reads=ALLOW)
    answer = (await broker.client.call(RequestCode.PULL, header)).header(PullResponse)
    assert (answer.replica, answer.at_replica) == ("b:1", [0])
    assert rows(PulledQueue, answer.queues)[0].records == 1, "it has records all the same"
    answer, got = await asked(broker, end_of_queue, first)
    assert got == [b"0-0", b"0-1", b"0-2"]
    assert (answer.replica, answer.at_replica) == ("", []), "both are at their end then"
    end.position = 0
    header = PullRequest([first], 1, replica_reads=ALLOW)
    answer = (await broker.client.call(RequestCode.PULL, header)).header(PullResponse)
    assert answer.replica == "", "near the end it is in memory"


async def test_who_says_nothing_of_replicas_is_never_sent_to_one(start: Start) -> None:
    broker = await leader(start, End())
    answer, got = await asked(broker, PullQueue("t", 0, 0, 0), wanted=0)
    assert (answer.replica, answer.at_replica, len(got)) == ("", [], 3)


async def test_who_prefers_replicas_gets_no_records_of_what_one_has_and_the_rest_from_the_leader(
    start: Start,
) -> None:
    broker = await leader(start, End())
    queues = [
        PullQueue("t", 0, 0, 0),
        PullQueue("t", 1, 0, 3),
        PullQueue("t", 2, 0, 0),
        PullQueue("t", 1, 0, 9),
    ]
    answer, got = await asked(broker, *queues, wanted=PREFER, hold_ms=60_000)
    assert (answer.replica, answer.at_replica, got) == ("b:1", [0], [])
    statuses = [row.status for row in rows(PulledQueue, answer.queues)]
    assert statuses == [Code.OK, Code.OK, Code.OK, Code.OFFSET_AHEAD]
    broker_without = await leader(start, End(), [])
    answer, got = await asked(broker_without, *queues, wanted=PREFER)
    # It is the same log, which has each record twice by now.
    assert (answer.replica, got[:3]) == ("", [b"0-0", b"0-1", b"0-2"]), "no copy is in sync"


@pytest.mark.parametrize(("place", "replica"), [(0, ""), (1, "b:1"), (2, "c:1"), (3, "b:1")])
async def test_a_groups_setting_says_which_replica_it_is(start: Start, place: int, replica: str) -> None:
    broker = await leader(start, End())
    update = GroupUpdateRequest("g", which_broker_when_consume_slowly=place)
    await broker.client.call(RequestCode.GROUP_UPDATE, update)
    header = PullRequest([PullQueue("t", 0, 0, 0)], 1, group="g", replica_reads=ALLOW)
    answer = (await broker.client.call(RequestCode.PULL, header)).header(PullResponse)
    assert answer.replica == replica


async def test_columns_are_sent_to_a_replica_like_records(start: Start) -> None:
    broker = await leader(start, End())
    queues = [ColumnQueue("t", queue_id, 0, 0, 3) for queue_id in range(3)]

    async def columns(wanted: int, max_bytes: int) -> PullColumnsResponse:
        header = PullColumnsRequest(queues, ["offset"], max_bytes, None, wanted)
        reply = await broker.client.call(RequestCode.PULL_COLUMNS, header)
        return reply.header(PullColumnsResponse)

    answer = await columns(ALLOW, 1)
    assert (answer.replica, answer.at_replica) == ("b:1", [0])
    assert rows(PulledQueue, answer.queues)[0].records == 1
    answer = await columns(PREFER, 1 << 20)
    assert (answer.replica, answer.at_replica) == ("b:1", [0, 1])
    assert [row.records for row in rows(PulledQueue, answer.queues)] == [0, 0, 0]
    answer = await columns(0, 1 << 20)
    assert (answer.replica, answer.at_replica) == ("", [])


async def test_look_ups_are_sent_to_a_replica_by_where_they_lie(start: Start) -> None:
    broker = await leader(start, End())
    store_id = broker.store.store_id

    async def replica_of(code: RequestCode, header: object) -> str:
        try:
            await broker.client.call(code, header)  # type: ignore[arg-type]
        except RemoteError as error:
            return str(error.ext_fields.get("replica", "")) if error.code == Code.ASK_REPLICA else ""
        return ""

    get, find = RequestCode.MESSAGE_GET, RequestCode.MESSAGE_FIND
    backwards = RequestCode.MESSAGE_BACKWARDS
    message_id = str(MessageId(store_id, 0))
    assert await replica_of(get, MessageGetRequest(message_id, ALLOW)) == "b:1"
    assert await replica_of(get, MessageGetRequest(message_id)) == ""
    assert await replica_of(find, MessageFindRequest("t", "k", replica_reads=ALLOW)) == "", "the newest"
    assert await replica_of(find, MessageFindRequest("t", "k", before=1, replica_reads=ALLOW)) == "b:1"
    assert await replica_of(find, MessageFindRequest("t", "k", replica_reads=PREFER)) == "b:1"
    assert await replica_of(backwards, MessageBackwardsRequest("t", 0, replica_reads=ALLOW)) == ""
    far = MessageBackwardsRequest("t", 0, replica_reads=ALLOW, position=1)
    assert await replica_of(backwards, far) == "b:1"


async def test_a_replica_keeps_who_has_more_to_read_and_holds_nothing(start: Start) -> None:
    counts = ReadCounts()
    broker = await start(next_reads=CopyReads("me:1", lambda: 1 << 30, 1_000, counts))
    await filled(broker)
    header = PullRequest([PullQueue("t", 0, 0, 0)], 1, replica_reads=ALLOW)
    answer = (await broker.client.call(RequestCode.PULL, header)).header(PullResponse)
    assert (answer.replica, answer.at_replica) == ("me:1", [0])
    answer, got = await asked(broker, PullQueue("t", 0, 0, 1), PullQueue("t", 2, 0, 0), hold_ms=60_000)
    assert (answer.replica, got) == ("", [b"0-1", b"0-2"])
    answer, got = await asked(broker, PullQueue("t", 0, 0, 3), hold_ms=60_000)
    assert (answer.replica, got) == ("", []), "what comes next is the leader's, and nobody waits here"
    assert counts.sent_back == 3


async def test_a_replica_leaves_an_epoch_that_it_does_not_know_to_the_leader(start: Start) -> None:
    broker = await start(next_reads=CopyReads("me:1", lambda: 1 << 30, 1_000, ReadCounts()))
    await filled(broker)
    bounds = await broker.client.call(RequestCode.QUEUE_BOUNDS, QueueBoundsRequest(["t"]))
    epoch = bounds.header(QueueBoundsResponse).log_epoch
    assert rows(QueueBounds, bounds.header(QueueBoundsResponse).queues)[0].end_offset == 3
    answer, got = await asked(broker, PullQueue("t", 0, epoch, 0), PullQueue("t", 1, epoch + 1, 0))
    assert [row.status for row in rows(PulledQueue, answer.queues)] == [Code.OK, Code.NOT_LEADER]
    assert len(got) == 3
    queues = [ColumnQueue("t", 0, epoch + 1, 0, 3)]
    header = PullColumnsRequest(queues, ["offset"], 1 << 20, None, ALLOW)
    columns = await broker.client.call(RequestCode.PULL_COLUMNS, header)
    (row,) = rows(PulledQueue, columns.header(PullColumnsResponse).queues)
    assert row.status == Code.NOT_LEADER
