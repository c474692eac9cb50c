"""The newest confirmed batches, in memory: the very buffers that were written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from storage.api.batches import Batch

BATCH_OVERHEAD_BYTES: Final = 1_200
"""What a batch of one run costs beside its records: arrays, views and list places."""

_COMPACT_AT: Final = 1024
_GONE: Final = Batch(memoryview(b""), np.empty(0, np.int64), [])
_end_of = attrgetter("end")


class Tail:
    """Batches in log order, bounded by bytes; `first_position` is where memory begins.

    A batch leaves when the bound is passed and its consume-queue entries are in their files.
    """

    __slots__ = ("_batches", "_head", "first_position", "max_bytes", "size_bytes")

    def __init__(self, position: int, max_bytes: int) -> None:
        self.first_position = position
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._batches: list[Batch] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._batches) - self._head

    def add(self, batch: Batch) -> None:
        """Add the batch that follows the last one."""
        self._batches.append(batch)
        self.size_bytes += len(batch.records) + BATCH_OVERHEAD_BYTES

    def evict(self, indexed_position: int) -> list[Batch]:
        """Let the oldest go until the bound holds; only what lies below `indexed_position` may."""
        gone: list[Batch] = []
        batches = self._batches
        head = self._head
        while (
            self.size_bytes > self.max_bytes and head < len(batches) and batches[head].end <= indexed_position
        ):
            batch = batches[head]
            gone.append(batch)
            batches[head] = _GONE  # its place outlives it until the list is compacted
            self.size_bytes -= len(batch.records) + BATCH_OVERHEAD_BYTES
            self.first_position = batch.end
            head += 1
        if head > _COMPACT_AT and head * 2 > len(batches):
            del batches[:head]
            head = 0
        self._head = head
        return gone

    def since(self, position: int, max_bytes: int) -> Sequence[Batch] | None:
        """Batches from the one that holds `position` on, until `max_bytes`; None = it is no longer here."""
        if position < self.first_position:
            return None
        batches = self._batches
        first = bisect_right(batches, position, lo=self._head, key=_end_of)
        last = first
        while last < len(batches) and max_bytes > 0:
            max_bytes -= len(batches[last].records)
            last += 1
        return batches[first:last]
