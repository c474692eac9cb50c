"""Pulls of columns from a broker, or from the replica that it names for what is far behind.

A pull goes to one of them, with those of its queues that are to be asked for there: the reader asks for the
others again. Whatever a replica does not answer for certain, its leader does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from holdmq.client.replica_choice import ReadSource, ReplicaChoice
from holdmq.client.replica_links import ReplicaLinks
from holdmq.errors import Code, HoldMQError, WireError
from holdmq.message import TopicQueue
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsRequest, PullColumnsResponse, split_buffers
from holdmq.wire.header import rows
from holdmq.wire.headers import PulledQueue
from holdmq.wire.replica_reads import ReplicaReads

PULL_TIMEOUT_S: Final = 10.0
"""How long one PULL may take before it is asked again: a cold read of 8 MiB takes a fraction of it."""
PULL_MAX_BYTES: Final = 8 << 20
"""The largest answer a broker gives: fewest round trips, and bounded memory of a task."""
TURNS_MAX: Final = 3
"""Answers without records that are followed: a leader's that names a replica, and the replica's own."""


class PulledColumns(NamedTuple):
    """One answer: a row per queue that there was room for, and the buffers of `columns` over all of them."""

    queues: list[PulledQueue]
    columns: tuple[str, ...]
    buffers: list[memoryview]
    log_epoch: int


class WantedColumns(NamedTuple):
    """What is pulled of each queue: `tags` None = messages with any tag."""

    columns: tuple[str, ...]
    tags: list[str] | None
    read_replicas: ReplicaReads


AskLeader = Callable[[str, PullColumnsRequest], Awaitable[Reply]]
"""Asks the broker of a name. Raises HoldMQError."""


class ReplicaPulls:
    """Pulls for all readers of a process, on one event loop; `ask_leader` asks a broker by its name."""

    def __init__(self, replicas: ReplicaLinks, ask_leader: AskLeader) -> None:
        self._replicas = replicas
        self._ask_leader = ask_leader
        self._choices = {wanted: ReplicaChoice(wanted) for wanted in ReplicaReads}

    async def pull(self, broker: str, queues: Sequence[ColumnQueue], wanted: WantedColumns) -> PulledColumns:
        """Read the next records of some of the queues. Raises what `ask_leader` raises, and WireError."""
        choice = self._choices[wanted.read_replicas]
        for _ in range(TURNS_MAX):
            now = asyncio.get_running_loop().time()
            sources = [choice.source(_place(broker, queue), now) for queue in queues]
            asked = [queue for queue, source in zip(queues, sources, strict=True) if source == sources[0]]
            pulled = await self._ask(sources[0], asked, wanted, choice)
            if pulled is not None:
                return pulled
        here = ReadSource(broker, "", ReplicaReads.NEVER)
        pulled = await self._ask(here, queues, wanted, choice)
        assert pulled is not None, "a leader that may name nobody answers"
        return pulled

    async def _ask(
        self, source: ReadSource, asked: Sequence[ColumnQueue], wanted: WantedColumns, choice: ReplicaChoice
    ) -> PulledColumns | None:
        """What a source answers; None = somebody else is to be asked."""
        request = PullColumnsRequest(
            list(asked), list(wanted.columns), PULL_MAX_BYTES, wanted.tags, source.wanted
        )
        if not source.replica:
            reply = await self._ask_leader(source.broker, request)
            return _taken(source, asked, wanted, choice, reply)
        try:
            reply = await self._replicas.call(
                source.replica, RequestCode.PULL_COLUMNS, request, PULL_TIMEOUT_S
            )
            return _taken(source, asked, wanted, choice, reply)
        except HoldMQError:
            # Whatever it is, the leader answers.
            choice.failed(source.replica, asyncio.get_running_loop().time())
            return None


def _taken(
    source: ReadSource,
    asked: Sequence[ColumnQueue],
    wanted: WantedColumns,
    choice: ReplicaChoice,
    reply: Reply,
) -> PulledColumns | None:
    answer = reply.header(PullColumnsResponse)
    buffers = split_buffers(reply.body, wanted.columns, answer.buffers)
    found = rows(PulledQueue, answer.queues)
    matched = _matched(asked, found)
    named = frozenset(answer.at_replica)
    now = asyncio.get_running_loop().time()
    for at, (queue, row) in enumerate(zip(matched, found, strict=True)):
        replica = answer.replica if at in named else ""
        choice.took(source, _place(source.broker, queue), queue.offset, row, replica, now)
    if source.replica:
        found = [row for row in map(_sure, matched, found) if row is not None]
        if not found:
            return None
    elif named and not any(map(_moves, matched, found)):
        return None
    return PulledColumns(found, wanted.columns, buffers, answer.log_epoch)


def _place(broker: str, queue: ColumnQueue) -> TopicQueue:
    return TopicQueue(queue.topic, broker, queue.queue_id)


def _matched(asked: Sequence[ColumnQueue], found: Sequence[PulledQueue]) -> list[ColumnQueue]:
    """What each row of an answer was asked for: rows are in the order of the request, with gaps."""
    places = iter(asked)
    matched = []
    for row in found:
        queue = next((q for q in places if (q.topic, q.queue_id) == (row.topic, row.queue_id)), None)
        if queue is None:
            raise WireError(f"an answer has rows of {row.topic}/{row.queue_id}, which it was not asked for")
        matched.append(queue)
    return matched


def _moves(asked: ColumnQueue, row: PulledQueue) -> bool:
    """Whether a row brings records, a refusal, or progress past what tags left out."""
    return bool(row.records) or row.status != Code.OK or row.next_offset != asked.offset


def _sure(asked: ColumnQueue, row: PulledQueue) -> PulledQueue | None:
    """A replica's row, if it brings something. Where the queue ends, the leader alone says."""
    if row.status != Code.OK or not _moves(asked, row):
        return None
    return row._replace(end_offset=max(row.end_offset, asked.end_offset))
