"""What happens in each segment, per second: for `holdmq top` and for totals in metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

from storage.log.core.names import holding
from storage.log.segments import Segment

BUSIEST: Final = 16
"""Segments that are shown: a store may have thousands, and few of them are read at a time."""


class SegmentActivity(NamedTuple):
    """One segment in the last full interval: bytes and hits per second.

    `hits` are chunks that were found in memory, and for the segment at the log's end also reads
    that the tail answered.
    """

    start: int
    read_bytes: float
    written_bytes: float
    hits: float


class Activity:
    """Counts reads and hits by segment, and makes rates of them at every `tick`.

    Counting costs a lock; written bytes cost nothing: they follow from the log's end.
    """

    def __init__(self) -> None:
        self.read_bytes = 0
        self.hits = 0
        self.rates: list[SegmentActivity] = []
        self._lock = Lock()
        self._reads: dict[int, int] = defaultdict(int)
        self._hits: dict[int, int] = defaultdict(int)
        self._end = -1
        self._tail_hits = 0
        self._ticked_at = 0.0

    def read(self, segment_start: int, size_bytes: int) -> None:
        """A read from disk."""
        with self._lock:
            self.read_bytes += size_bytes
            self._reads[segment_start] += size_bytes

    def hit(self, segment_start: int) -> None:
        """A chunk was in memory."""
        with self._lock:
            self.hits += 1
            self._hits[segment_start] += 1

    def tick(self, table: Sequence[Segment], end: int, tail_hits: int, now: float) -> None:
        """Make `rates` of what happened since the last tick; `tail_hits` counts from the store's start."""
        with self._lock:
            reads, self._reads = self._reads, defaultdict(int)
            hits, self._hits = self._hits, defaultdict(int)
        begin = end if self._end < 0 else self._end
        seconds = max(now - self._ticked_at, 1e-3)
        starts = [segment.start for segment in table]
        written = written_by_segment(table, starts, begin, end)
        last = holding(starts, max(begin, end - 1))
        if last >= 0 and tail_hits > self._tail_hits:
            hits[starts[last]] += tail_hits - self._tail_hits
        self._end, self._tail_hits, self._ticked_at = end, tail_hits, now
        active = reads.keys() | hits.keys() | written.keys()
        rates = [
            SegmentActivity(
                start,
                reads.get(start, 0) / seconds,
                written.get(start, 0) / seconds,
                hits.get(start, 0) / seconds,
            )
            for start in active
        ]
        rates.sort(key=lambda rate: (rate.read_bytes + rate.written_bytes, rate.hits), reverse=True)
        self.rates = rates[:BUSIEST]


def written_by_segment(table: Sequence[Segment], starts: list[int], begin: int, end: int) -> dict[int, int]:
    """How many bytes of [begin, end) lie in each segment."""
    written: dict[int, int] = {}
    index = max(0, holding(starts, begin))
    while begin < end and index < len(table):
        stop = min(end, table[index].end)
        if stop > begin:
            written[starts[index]] = stop - begin
            begin = stop
        index += 1
    return written
