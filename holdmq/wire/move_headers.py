"""Typed headers of moves: messages that a consumer sends back, delays, and dead letters.

A message that a group could not handle is sent back: it becomes a copy that waits in the timer and
appears in `%RETRY%<group>`, which that group's consumers read beside their topics (PULL with the
group's name). After `retry_max_times` retries it goes to `%DLQ%<group>` instead, which anybody may read.

Delayed messages of producers have no request of their own: they go through PRODUCE, in runs that the
header's `delayed` names, each record with the property DUE (ms since the epoch; `+ms` = from when the
broker takes it). So they share the sequences of their queue with what is not delayed, and are resent,
answered on confirmation and refused run by run like it: DELAY_INVALID (no DUE, or none that can be),
KIND_UNFIT (temporary topics and tables). Their base offset is -1: they get one when they are due.
Source: broker.md, Failure of a consumer; storage.md, Moves.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

DELAY_LEVELS_MS: Final = (
    1_000,
    5_000,
    10_000,
    30_000,
    *(minutes * 60_000 for minutes in range(1, 11)),
    20 * 60_000,
    30 * 60_000,
    3_600_000,
    7_200_000,
)
"""Delay of level 1, 2, … 18, as RocketMQ has them."""
TO_DEAD_LETTERS: Final = -1
"""A `delay_level` that asks for no more retries."""


class SentBack(NamedTuple):
    """A message that a group could not handle, by where it was read (its topic or `%RETRY%<group>`).

    `attempts`: how often it was retried before; the record's own count stands if that is higher.
    `delay_level`: 0 = level 3 + attempts (or the group's own table, by attempts), 1 and up = that level,
    past the table its last, TO_DEAD_LETTERS = not again.
    """

    topic: str
    queue_id: int
    offset: int
    attempts: int
    delay_level: int


class SendBackResult(NamedTuple):
    """What became of it. `status` is an errors.Code.

    OK: the copy is in the log (it may have been before: a repeat). `attempt` is its number, `due_ms` when
    it appears (-1: it is with the dead letters, or was there before this request).
    MESSAGE_UNKNOWN: it never was, or retention took it.
    """

    status: int
    attempt: int
    due_ms: int
    remark: str


@header
class SendBackRequest(Header):
    """Rows are SentBack, at most SEND_BACK_MAX; may be repeated as often as needed."""

    group: str
    messages: list[SentBack]


@header
class SendBackResponse(Header):
    """Rows are SendBackResult, in the order of the request."""

    results: list[SendBackResult]


SEND_BACK_MAX: Final = 1_000
"""Messages of one SEND_BACK: what a consumer holds of a few pulls."""


class DeadLetterRow(NamedTuple):
    """A group's dead letters at this broker: offsets from `first_offset` to below `end_offset`.

    `resent` of them were sent again.
    """

    group: str
    first_offset: int
    end_offset: int
    resent: int


@header
class DlqListRequest(Header):
    """One group's dead letters, or all groups' when None.

    `resends_from`: of one group, say also what of the next 1,000 letters from this offset on was sent again;
    -1 = that is not asked.
    """

    group: str | None = None
    resends_from: int = -1


class ResentLetters(NamedTuple):
    """Letters from `first_offset` to below `end_offset`, all sent again at `at_ms`, for `by`.

    `at_ms` -1: when is not known any more; `by` "": nobody was named.
    """

    first_offset: int
    end_offset: int
    at_ms: int
    by: str


@header
class DlqListResponse(Header):
    """Rows are DeadLetterRow, by group; groups that never had one are left out.

    `resends`: rows are ResentLetters, by offset, of what `resends_from` asked for.
    """

    groups: list[DeadLetterRow]
    resends: list[ResentLetters] = field(default_factory=list)


@header
class DlqResendRequest(Header):
    """Send dead letters again: to their real topic, or to `topic`.

    `offsets` None = all from `first_offset` to below `end_offset` (-1 = the end of now). What was sent again
    before is passed over; each is a new message there, with no attempts. `limit` bounds one request's work.
    `by` names the one who asks, for those who read the letters later: up to 128 characters that print.
    """

    group: str
    offsets: list[int] | None = None
    first_offset: int = 0
    end_offset: int = -1
    topic: str = ""
    limit: int = 1_000
    by: str = ""


class ResendFailure(NamedTuple):
    """A dead letter that could not be sent again; `status` is an errors.Code."""

    offset: int
    status: int
    remark: str


@header
class DlqResendResponse(Header):
    """How many were sent now, how many had been before, and what failed (rows: ResendFailure).

    `next_offset`: where to go on when the limit ended it; -1 = all was looked at.
    """

    resent: int
    repeated: int
    failures: list[ResendFailure]
    next_offset: int


@header
class DlqPurgeRequest(Header):
    """Give up a group's dead letters below `end_offset` (-1 = all of now)."""

    group: str
    end_offset: int = -1


@header
class DlqPurgeResponse(Header):
    """How many went, durably, and the first offset that is left."""

    purged: int
    first_offset: int
