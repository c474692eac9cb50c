"""Which task reads what: ranges of queues cut into at most as many partitions as there are cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from holdmq.message import TopicQueue
from spark_streaming.source.offsets import FROM_FIRST, OffsetRange

PARTITION_RECORDS_MIN: Final = 20_000
"""Records that pay for a task: below this reading costs less than starting a second one."""


def split(
    wanted: Iterable[OffsetRange],
    max_partitions: int,
    firsts: Mapping[TopicQueue, int] | None = None,
    min_partitions: int = 1,
) -> list[list[OffsetRange]]:
    """Cut ranges into at most `max_partitions` lists of nearly the same number of records.

    Few records are fewer lists, but `min_partitions` at least, as long as each gets a record. A queue is
    cut in two only where the line falls inside it, so tasks read long runs. `firsts` are the first offsets
    of queues read from their first; without one such a range counts from 0.
    """
    firsts = firsts or {}
    todo = list(wanted)
    # How much a cut log has to read again is not known here; it is little.
    sizes = [max(1, item.end - _begin(item, firsts)) for item in todo]
    total = sum(sizes)
    if not todo:
        return []
    count = max(1, min(max_partitions, total // PARTITION_RECORDS_MIN), min(min_partitions, total))
    shares = (total * (index + 1) // count - total * index // count for index in range(count))
    parts: list[list[OffsetRange]] = [[]]
    room = next(shares)
    for item, size in zip(todo, sizes, strict=True):
        while size > room:
            if room > 0:
                middle = item.end - size + room
                parts[-1].append(item._replace(end=middle))
                # The rest starts in the middle of the queue, where the epoch of its start no longer holds.
                item = item._replace(epoch=0, start=middle)
                size -= room
            parts.append([])
            room = next(shares)
        parts[-1].append(item)
        room -= size
    return [part for part in parts if part]


def _begin(item: OffsetRange, firsts: Mapping[TopicQueue, int]) -> int:
    return item.start if item.start != FROM_FIRST else min(firsts.get(item.queue, 0), item.end)
