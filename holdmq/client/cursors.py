"""Where a pull consumer stands in each queue, and what the answers of brokers do to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdmq.errors import CODES, Code, HoldMQError, OffsetError, RemoteError, WireError, code_of
from holdmq.message import TopicQueue
from holdmq.wire.headers import PulledQueue, PullQueue

_FAULTS = frozenset({Code.OFFSET_AHEAD, Code.OFFSET_BEHIND, Code.CORRUPT})


class Position(NamedTuple):
    """The next offset to read, and the log epoch it was read in (0 = no claim)."""

    log_epoch: int
    offset: int


class Pulled(NamedTuple):
    """One queue's part of an answer: `messages` whole records in `records`, from `offset` on.

    `status` is OK, or why nothing could be read at `offset`: OFFSET_AHEAD, OFFSET_BEHIND or CORRUPT;
    the queue is then not read until `seek`. Filters may have rejected messages: `next_offset` may
    be further than `offset + messages`. The buffer is the receiver's own.
    """

    queue: TopicQueue
    status: Code
    log_epoch: int
    offset: int
    next_offset: int
    first_offset: int
    end_offset: int
    messages: int
    records: memoryview


class QueueCursor:
    """One queue. `is_fresh`: started at the beginning by itself, so a raised beginning is no loss."""

    __slots__ = ("end_offset", "fault", "is_fresh", "log_epoch", "offset", "rest_until", "turn")

    def __init__(self, offset: int, log_epoch: int = 0, is_fresh: bool = False) -> None:
        self.offset = offset
        self.log_epoch = log_epoch
        self.is_fresh = is_fresh
        self.end_offset = -1
        self.fault: OffsetError | None = None
        self.rest_until = 0.0
        self.turn = 0
        """Rises with each seek: answers to questions from before it are void."""

    def seek(self, offset: int, log_epoch: int) -> None:
        self.offset = offset
        self.log_epoch = log_epoch
        self.is_fresh = False
        self.fault = None
        self.rest_until = 0.0
        self.turn += 1


class AskedQueue(NamedTuple):
    """A queue as a PULL asked for it."""

    queue: TopicQueue
    cursor: QueueCursor
    turn: int
    offset: int


def ask(cursors: Iterable[tuple[TopicQueue, QueueCursor]], now: float) -> list[AskedQueue]:
    """The queues that may be read now."""
    return [
        AskedQueue(queue, cursor, cursor.turn, cursor.offset)
        for queue, cursor in cursors
        if cursor.fault is None and cursor.rest_until <= now
    ]


def wire_queues(asked: list[AskedQueue]) -> list[PullQueue]:
    """What a PULL says of them."""
    return [PullQueue(a.queue.topic, a.queue.queue_id, a.cursor.log_epoch, a.offset) for a in asked]


class PullOutcome(NamedTuple):
    """What an answer brought: parts for the user, whether a route is wrong, a refusal for the user."""

    parts: list[Pulled]
    is_route_wrong: bool
    error: HoldMQError | None


def take_answer(
    asked: list[AskedQueue],
    answers: list[PulledQueue],
    log_epoch: int,
    body: memoryview,
    rest_until: float,
    is_replica: bool = False,
) -> PullOutcome:
    """Move the cursors as an answer says. It may cover only the first of the queues asked for.

    Queues that are not there (any more) are left alone until `rest_until`. What a replica refuses
    (`is_replica`) changes nothing: its leader is asked. Raises WireError for an answer that does not fit the
    question.
    """
    if len(answers) > len(asked) or sum(a.length_bytes for a in answers) != len(body):
        raise WireError("a PULL answer that does not fit its question or its body")
    parts: list[Pulled] = []
    is_route_wrong = False
    error: HoldMQError | None = None
    at = 0
    for (queue, cursor, turn, offset), row in zip(asked, answers, strict=False):
        if (row.topic, row.queue_id) != (queue.topic, queue.queue_id):
            raise WireError(f"a PULL answer names {row.topic}/{row.queue_id} in place of {queue}")
        records = body[at : at + row.length_bytes]
        at += row.length_bytes
        if cursor.turn != turn or (is_replica and row.status != Code.OK):
            continue
        if row.status in (Code.TOPIC_UNKNOWN, Code.QUEUE_UNKNOWN):
            is_route_wrong = True
            cursor.rest_until = rest_until
            continue
        if row.status != Code.OK and row.status not in _FAULTS:
            cursor.rest_until = rest_until
            error = RemoteError.of_status(row.status, f"{queue}: {CODES[code_of(row.status)].meaning}")
            continue
        status = Code(row.status)
        cursor.end_offset = row.end_offset
        if status == Code.OFFSET_BEHIND and cursor.is_fresh:
            cursor.offset, cursor.log_epoch = row.next_offset, log_epoch
            continue
        if status != Code.OK:
            cursor.fault = OffsetError(status, str(queue), offset, row.next_offset)
        else:
            cursor.offset, cursor.log_epoch, cursor.is_fresh = row.next_offset, log_epoch, False
        if row.records or status != Code.OK:
            parts.append(
                Pulled(
                    queue,
                    status,
                    log_epoch,
                    offset,
                    row.next_offset,
                    row.first_offset,
                    row.end_offset,
                    row.records,
                    records,
                )
            )
    return PullOutcome(parts, is_route_wrong, error)
