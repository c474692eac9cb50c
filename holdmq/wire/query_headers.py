"""Typed headers of look-ups of messages: by id, by key, at a time, and backwards.

Bodies hold whole records as they lie in the log, one after the other. With `replica_reads`
(holdmq.wire.replica_reads) a request may be refused with ASK_REPLICA, whose `replica` is where to ask: what
it wants has left the leader's memory.
"""

from __future__ import annotations

from typing import NamedTuple

from holdmq.wire.header import Header, header


@header
class MessageGetRequest(Header):
    """The message that an id (32 hex digits) names, of the broker whose store id it begins with.

    Refused with MESSAGE_UNKNOWN or CORRUPT; the remark says which of the reasons it is.
    """

    message_id: str
    replica_reads: int = 0


@header
class MessageFindRequest(Header):
    """Messages of a topic by a key of theirs, or by their unique id (`by_unique_id`), newest first.

    Stored in [begin_ms, end_ms] (`end_ms` None = now), below the log position `before` (None = the end).
    """

    topic: str
    key: str
    by_unique_id: bool = False
    begin_ms: int = 0
    end_ms: int | None = None
    before: int | None = None
    max_count: int = 64
    replica_reads: int = 0


@header
class MessageFindResponse(Header):
    """Body: the records. `next_before`: ask again before this position; None = there are no more.

    `is_complete` False with `next_before` None: a key that so many messages have cannot be followed
    further back. Messages of the last half second (the flush interval) may be missing.
    """

    records: int
    next_before: int | None
    is_complete: bool


@header
class MessageBackwardsRequest(Header):
    """Messages of a queue before an offset (None = its end), newest first.

    `tag_filter`: an exact tag or an MQTT filter over the tag. At most `max_count` messages are looked at.
    `position`: about where in the log `offset` lies, None = not known.
    """

    topic: str
    queue_id: int
    offset: int | None = None
    max_count: int = 64
    max_bytes: int = 1 << 20
    tag_filter: str | None = None
    replica_reads: int = 0
    position: int | None = None


@header
class MessageBackwardsResponse(Header):
    """Body: the records. `next_offset`: go on before it; None = the queue's first message was looked at."""

    records: int
    next_offset: int | None


class QueueOffset(NamedTuple):
    """The first offset stored at the time or later (the end offset if there is none), and the bounds."""

    queue_id: int
    offset: int
    first_offset: int
    end_offset: int


@header
class OffsetAtRequest(Header):
    """Where each queue of a topic stood at a time (ms since the epoch, the broker's clock)."""

    topic: str
    store_ms: int


@header
class OffsetAtResponse(Header):
    """Rows are QueueOffset, of every queue to read."""

    offsets: list[QueueOffset]
    log_epoch: int
