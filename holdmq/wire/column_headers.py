"""PULL_COLUMNS: records of many queues as columns, for readers of bulk.

The body has the buffers of each column that was asked for, in that order, over all rows of all queues;
`PullColumnsResponse.buffers` are their lengths::

    offset, store_time, born_time    values int64
    body_size                        values int32
    body                             begins int32 | sizes int32 | flags int8
    properties                       begins int32 | sizes int32

All are little-endian, with one element for each row. Times are ms since the epoch, and what no date can be
is the last moment of the year 9999. `body` and `properties` are views: where each lies in one more buffer,
the last one, which comes with any of them. It has the records as they lie in the log, or only their
properties where no body was asked for. A flag is 1 for a body that is compressed, else 0; properties
are encoded as in the record (`holdmq.record.properties`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final, NamedTuple

from holdmq.errors import WireError
from holdmq.wire.header import Header, header
from holdmq.wire.headers import PulledQueue

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "offset": ("<i8",),
    "store_time": ("<i8",),
    "born_time": ("<i8",),
    "body_size": ("<i4",),
    "body": ("<i4", "<i4", "u1"),
    "properties": ("<i4", "<i4"),
}
"""Every column that can be asked for, and the elements of its buffers, as numpy names them."""
VIEWS: Final = frozenset(("body", "properties"))
COLUMNS_QUEUES_MAX: Final = 1_024
"""Queues that one request may name: readers of more go through them in groups."""
COLUMNS_TAGS_MAX: Final = 1_024
"""Tags that one request may want."""
TIME_MAX_MS: Final = 253_402_300_799_999


class ColumnQueue(NamedTuple):
    """One queue to read, below `end_offset`. `log_epoch` 0 = no claim about the epoch of `offset`."""

    topic: str
    queue_id: int
    log_epoch: int
    offset: int
    end_offset: int


@header
class PullColumnsRequest(Header):
    """Read columns of many queues; `queues` are ColumnQueue rows. Never held.

    `max_bytes` bounds the records that are looked at. `tags`: only messages with one of these; None = all.
    What a paused topic keeps is read, too: a pause is for consumers. `replica_reads`:
    holdmq.wire.replica_reads.
    """

    queues: list[ColumnQueue]
    columns: list[str]
    max_bytes: int
    tags: list[str] | None = None
    replica_reads: int = 0


@header
class PullColumnsResponse(Header):
    """Rows are PulledQueue, for the queues that there was room for, in the order of their rows in the body.

    `records` are the rows of a queue. No rows and a `next_offset` past the one asked for: the tags left
    nothing of what was read. `replica` and `at_replica` are as in PullResponse.
    """

    queues: list[PulledQueue]
    log_epoch: int
    buffers: list[int]
    replica: str = ""
    at_replica: list[int] = field(default_factory=list)


def split_buffers(body: memoryview, columns: Sequence[str], lengths: Sequence[int]) -> list[memoryview]:
    """Return the buffers of `columns` in an answer's body; WireError when they do not fill it exactly."""
    wanted = sum(len(COLUMNS[name]) for name in columns) + (not VIEWS.isdisjoint(columns))
    if len(lengths) != wanted or min(lengths, default=0) < 0 or sum(lengths) != len(body):
        raise WireError(
            f"{wanted} buffers of columns {', '.join(columns)} are expected to fill {len(body)} bytes, "
            f"and {list(lengths)} came"
        )
    found, begin = [], 0
    for length in lengths:
        found.append(body[begin : begin + length])
        begin += length
    return found
