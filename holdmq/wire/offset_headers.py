"""Typed headers of consumer offsets: report, read, reset, clone.

An offset is the next one to consume. Reports only raise it; a reset alone may lower it, and
raises the generation of every lease on the queue. Source: broker.md, Offsets.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

FROM_MEMORY: Final = "memory"
FROM_STORE: Final = "store"
MEMORY_THEN_STORE: Final = "memory_then_store"

TO_EARLIEST: Final = "earliest"
TO_LATEST: Final = "latest"
TO_TIME: Final = "time"
TO_OFFSET: Final = "offset"


class OffsetReport(NamedTuple):
    """`generation` is that of the lease under which the group consumed, 0 = none (broadcast, tools)."""

    topic: str
    queue_id: int
    generation: int
    offset: int
    log_epoch: int


@header
class OffsetReportRequest(Header):
    """Report progress; usually one-way. `wait_for_disk`: answered when consumerOffset.json has it.

    `only_first`: rows say where a group begins, and change nothing in queues where it has begun.
    """

    group: str
    offsets: list[OffsetReport]
    wait_for_disk: bool = False
    only_first: bool = False


class OffsetResult(NamedTuple):
    """`status` is an errors.Code: OK, GROUP_FENCED, QUEUE_UNKNOWN, OFFSET_AHEAD."""

    topic: str
    queue_id: int
    status: int


@header
class OffsetReportResponse(Header):
    """Rows are OffsetResult, of refused reports only."""

    refused: list[OffsetResult]


class OffsetRow(NamedTuple):
    """A group's progress in one queue. `offset` -1 = none is kept; times are ms, 0 = unknown.

    `first_offset` and `end_offset` are the queue's bounds; `oldest_ms` is the store time of the message at
    `offset` (0 = the group is at the end), by which the backlog's age is counted. `done` messages from
    `offset` on are done already: those that a shared group acknowledged out of turn.
    """

    topic: str
    queue_id: int
    offset: int
    first_offset: int
    end_offset: int
    oldest_ms: int
    done: int


@header
class OffsetGetRequest(Header):
    """A group's offsets. `topics` None = all; `read_type`: memory, store or memory_then_store."""

    group: str
    topics: list[str] | None = None
    read_type: str = MEMORY_THEN_STORE


@header
class OffsetGetResponse(Header):
    """List the committed offsets, an OffsetRow each."""

    offsets: list[OffsetRow]
    log_epoch: int


@header
class OffsetResetRequest(Header):
    """Move a group in a topic to earliest, latest, a time (`value` in ms) or an offset (`value`).

    `queue_ids` None = all of the topic's here. `dry_run`: answer what would happen. An offset outside the
    queue's bounds becomes the nearer bound.
    """

    group: str
    topic: str
    to: str
    value: int = 0
    queue_ids: list[int] | None = None
    dry_run: bool = False


class OffsetChange(NamedTuple):
    """A queue's offset before (-1 = none) and after."""

    topic: str
    queue_id: int
    before: int
    after: int


@header
class OffsetChangeResponse(Header):
    """Rows are OffsetChange; durable in consumerOffset.json unless it was a dry run."""

    changes: list[OffsetChange]


@header
class OffsetCloneRequest(Header):
    """Give `target` the offsets of `source` (`topics` None = all). The target must have no members."""

    source: str
    target: str
    topics: list[str] | None = None
    dry_run: bool = False
