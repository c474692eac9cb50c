"""Pulls of a task: from the leader, from the replica that it names, and from the leader after any failure."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdmq.client.replica_links import ReplicaLinks
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsRequest, PullColumnsResponse
from holdmq.wire.headers import PulledQueue
from holdmq.wire.replica_reads import ReplicaReads
from spark_streaming.source.replica_pulls import PulledColumns, ReplicaPulls, WantedColumns

ALLOW, PREFER, NEVER = ReplicaReads.ALLOW, ReplicaReads.PREFER, ReplicaReads.NEVER
QUEUES = [ColumnQueue("t", 0, 0, 10, 30), ColumnQueue("t", 1, 0, 10, 30)]


def row(
    queue_id: int, records: int, end: int = 30, status: int = Code.OK, next_offset: int = -1
) -> PulledQueue:
    following = 10 + records if next_offset < 0 else next_offset
    return PulledQueue("t", queue_id, status, following, 0, end, records, 0)


def answer(*rows: PulledQueue, replica: str = "", at: tuple[int, ...] = ()) -> Reply:
    header = PullColumnsResponse(list(rows), 4, [], replica, list(at))
    return Reply(header.to_ext(), memoryview(b""))


class Peers:
    """A leader `""` and replicas that answer what they are told to, and what they were asked."""

    def __init__(self, **answers: list[Reply | HoldMQError]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, int, list[int]]] = []
        self.pulls = ReplicaPulls(cast("ReplicaLinks", self), self.leader)

    def _answer(self, who: str, request: PullColumnsRequest) -> Reply:
        queue_ids = [cast("ColumnQueue", queue).queue_id for queue in request.queues]
        self.asked.append((who, request.replica_reads, queue_ids))
        found = self.answers[who].pop(0)
        if isinstance(found, HoldMQError):
            raise found
        return found

    async def leader(self, broker: str, request: PullColumnsRequest) -> Reply:
        assert broker == "broker"
        return self._answer("leader", request)

    async def call(self, address: str, _code: RequestCode, request: Any, _timeout_s: float) -> Reply:
        return self._answer(address, request)

    async def pull(self, wanted: ReplicaReads, queues: list[ColumnQueue] = QUEUES) -> PulledColumns:
        return await self.pulls.pull("broker", queues, WantedColumns((), None, wanted))


async def test_what_a_leader_answers_is_taken_and_what_it_names_is_asked_for_there() -> None:
    peers = Peers(leader=[answer(row(0, 5), row(1, 3), replica="b", at=(0,))], b=[answer(row(0, 7))])
    assert [r.records for r in (await peers.pull(ALLOW)).queues] == [5, 3]
    assert [r.records for r in (await peers.pull(ALLOW)).queues] == [7]
    assert peers.asked == [("leader", ALLOW, [0, 1]), ("b", ALLOW, [0])]


async def test_an_answer_that_only_names_a_replica_is_followed_at_once() -> None:
    peers = Peers(leader=[answer(row(0, 0), row(1, 0), replica="b", at=(0, 1))], b=[answer(row(0, 7))])
    assert [r.records for r in (await peers.pull(PREFER)).queues] == [7]
    assert peers.asked == [("leader", PREFER, [0, 1]), ("b", PREFER, [0, 1])]


@pytest.mark.parametrize(
    "failure",
    [TransportError("gone"), RemoteError(Code.NOT_LEADER, "a leads"), answer(row(7, 1))],
)
async def test_whatever_a_replica_does_not_answer_for_certain_the_leader_does(
    failure: Reply | HoldMQError,
) -> None:
    names = answer(row(0, 0), row(1, 0), replica="b", at=(0, 1))
    peers = Peers(leader=[names, names, answer(row(0, 2), row(1, 2))], b=[failure])
    pulled = await peers.pull(PREFER)
    assert [r.records for r in pulled.queues][:1] == [2]
    assert peers.asked[-1][:2] == ("leader", NEVER)
    assert sum(who == "b" for who, _, _ in peers.asked) == 1


async def test_a_queue_that_a_replica_sends_back_is_the_leaders() -> None:
    names = answer(row(0, 0), replica="b", at=(0,))
    peers = Peers(leader=[names, answer(row(0, 2))], b=[answer(row(0, 0, end=10))])
    assert [r.records for r in (await peers.pull(PREFER, QUEUES[:1])).queues] == [2]
    assert peers.asked == [("leader", PREFER, [0]), ("b", PREFER, [0]), ("leader", NEVER, [0])]


async def test_where_a_queue_ends_is_not_a_replicas_to_say() -> None:
    peers = Peers(
        leader=[answer(row(0, 0), row(1, 0), replica="b", at=(0, 1))],
        b=[answer(row(0, 5, end=15), row(1, 0, end=12, status=Code.OFFSET_AHEAD, next_offset=12))],
    )
    (found,) = (await peers.pull(PREFER)).queues
    assert (found.queue_id, found.records, found.end_offset) == (0, 5, 30)


async def test_tags_that_leave_nothing_are_progress_at_a_replica_too() -> None:
    peers = Peers(
        leader=[answer(row(0, 0), replica="b", at=(0,))],
        b=[answer(row(0, 0, next_offset=20), replica="b", at=(0,))],
    )
    (found,) = (await peers.pull(PREFER, QUEUES[:1])).queues
    assert (found.next_offset, found.records) == (20, 0)


async def test_what_a_leader_refuses_is_the_tasks_to_know() -> None:
    peers = Peers(leader=[RemoteError(Code.NOT_PERMITTED, "no")])
    with pytest.raises(RemoteError, match="no"):
        await peers.pull(ALLOW)
