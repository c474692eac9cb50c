"""Offsets of the source, and how many records one batch takes: pure functions over dicts.

Offsets are what Spark keeps in its checkpoint, as JSON::

    {"broker-0/devices/0": 38, "broker-0/devices/1": 12, "broker-0": 3}

``broker/topic/queue`` is a queue's next offset; ``broker`` alone is the epoch of that broker's log
in which those offsets were seen, so that a cut of the log is noticed even after it has grown again.
A queue that is not named is read from its first offset: so a topic or queue that appears while a
query runs is read whole. ``#lost``, where it stands, counts what retention removed before the query
read it. Keys are sorted, because Spark compares offsets as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from holdmq.message import TopicQueue

Offsets = dict[str, int]
LATEST: Final = "latest"
LOST: Final = "#lost"
"""The key of the count of lost records: no broker has such a name."""
FROM_FIRST: Final = -1
"""A range's start when its queue was not in the offsets: whatever the first offset is by then."""


class SourceBounds(NamedTuple):
    """What one queue holds: `first` offset and next confirmed offset `end`."""

    first: int
    end: int


class OffsetRange(NamedTuple):
    """Records [start, end) of one queue; `epoch` is the log's when `start` was noted, 0 = unknown."""

    queue: TopicQueue
    epoch: int
    start: int
    end: int


def parse_queue(key: str) -> TopicQueue | None:
    """Read ``broker/topic/queue``; None for a broker's name and LOST; ValueError for any other key."""
    parts = key.split("/")
    if len(parts) == 1 and key:
        return None
    if len(parts) != 3 or not parts[0] or not parts[1] or not parts[2].isdigit():
        raise ValueError(f"{key!r} is not broker/topic/queue")
    return TopicQueue(parts[1], parts[0], int(parts[2]))


def check_offsets(value: Any) -> Offsets:
    """Return `value` as Offsets; ValueError says what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError('a JSON object like {"broker/topic/queue": 38} is expected')
    for key, offset in value.items():
        if not isinstance(key, str):
            raise ValueError(f"{key!r} is not broker/topic/queue")
        parse_queue(key)
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise ValueError(f"the offset {offset!r} of {key} is not a whole number from 0 on")
    return dict(sorted(value.items()))


def advance(
    start: Offsets, bounds: Mapping[TopicQueue, SourceBounds], epochs: Mapping[str, int], limit: int | None
) -> Offsets:
    """Return the offsets up to which the next batch reads.

    `bounds` holds the queues that answered; others stay where `start` has them, as do the epochs of
    their brokers. `limit` bounds the records of the batch, None = all there is. The bound is shared
    max-min: small backlogs are taken whole, the rest goes to the large ones in equal parts, so a topic
    with an hour of backlog does not delay a live one beside it.
    """
    taken = _take(start, bounds, limit)
    end = dict(start)
    for queue, records in taken.items():
        first, last = bounds[queue]
        # Below its own past a queue ends only when its log was cut: go back, what is written there is new.
        position = min(max(start.get(str(queue), first), first), last)
        end[str(queue)] = position + records
    end.update({broker: epoch for broker, epoch in epochs.items() if epoch > 0})
    return dict(sorted(end.items()))


def _take(
    start: Offsets, bounds: Mapping[TopicQueue, SourceBounds], limit: int | None
) -> dict[TopicQueue, int]:
    backlog = {
        queue: max(0, end - max(start.get(str(queue), first), first))
        for queue, (first, end) in bounds.items()
    }
    if limit is None or sum(backlog.values()) <= limit:
        return backlog
    left, waiting = limit, len(backlog)
    taken = {}
    for queue in sorted(backlog, key=lambda q: (backlog[q], q)):
        taken[queue] = min(backlog[queue], left // waiting)
        left -= taken[queue]
        waiting -= 1
    return taken


def overtaken(wanted: Iterable[OffsetRange], bounds: Mapping[TopicQueue, SourceBounds]) -> list[OffsetRange]:
    """Return the records of ranges that retention removed, for each range that it overtook.

    A queue that is read from its first record loses nothing.
    """
    found = []
    for item in wanted:
        known = bounds.get(item.queue)
        if known is not None and FROM_FIRST < item.start < min(known.first, item.end):
            found.append(item._replace(end=min(known.first, item.end)))
    return found


def cut_back(start: Offsets, bounds: Mapping[TopicQueue, SourceBounds]) -> list[OffsetRange]:
    """Return what a cut of the log took back: for each such queue the records [its end, our offset)."""
    return [
        OffsetRange(queue, 0, end, start[str(queue)])
        for queue, (_, end) in sorted(bounds.items())
        if start.get(str(queue), 0) > end
    ]


def ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the ranges between two offsets, in the order of their queues; empty ones are left out.

    A range that ends before it starts is one of a log that was cut: the broker is asked with the start
    and its epoch, and says where what is new begins.
    """
    found = []
    for key, last in sorted(end.items()):
        queue = parse_queue(key)
        if queue is None:
            continue
        first = start.get(key, FROM_FIRST)
        if max(first, 0) != last:
            epoch = start.get(queue.broker, 0) if key in start else 0
            found.append(OffsetRange(queue, epoch, first, last))
    return found
