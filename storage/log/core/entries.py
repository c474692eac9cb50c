"""Consume-queue entries and files: layout and arithmetic.

::

    consumequeue/<topic>/<queue id>/<20 digits: 20·k of its first entry k>
    | log offset 8 | record size 4, 0 = no entry | tag hash 8 |   big-endian, entry k at byte 20·k

Source: storage.md, Consume queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdmq.record.batch import Ints, starts_of
from storage.api.batches import Batch

ENTRY_SIZE: Final = 20
ENTRY: Final = np.dtype([("position", ">i8"), ("size", ">u4"), ("hash", ">u8")])

Entries = npt.NDArray[np.void]


def file_size_of(configured: int) -> int:
    """A file's size: the configured one, up to a whole entry (1024 → 1040)."""
    return -(-configured // ENTRY_SIZE) * ENTRY_SIZE


def entries_of(batches: list[Batch]) -> Entries:
    """The entries of all records of stamped batches, in log order."""
    counts = [len(batch.sizes) for batch in batches]
    entries = np.empty(sum(counts), ENTRY)
    sizes: Ints = np.concatenate([batch.sizes for batch in batches])
    positions = starts_of(sizes)
    # One batch lies behind the other, but for blanks between segments.
    before = 0
    gaps: list[int] = []
    for batch in batches:
        gaps.append(batch.position - before)
        before += len(batch.records)
    if gaps[0] == gaps[-1]:
        positions += gaps[0]
    else:
        positions += np.repeat(np.array(gaps, np.int64), counts)
    entries["position"] = positions
    entries["size"] = sizes
    hashes = [run.hashes for batch in batches for run in batch.runs]
    if all(of_run is None for of_run in hashes):
        entries["hash"] = 0
        return entries
    runs = (run for batch in batches for run in batch.runs)
    entries["hash"] = np.concatenate(
        [
            np.zeros(run.count, np.uint64) if of_run is None else of_run
            for run, of_run in zip(runs, hashes, strict=True)
        ]
    )
    return entries


class Span(NamedTuple):
    """A part of one file: `entries` of them from `first` on, at byte `at` of file `start`."""

    start: int
    at: int
    first: int
    entries: int


def spans_to_write(starts: list[int], first: int, count: int, file_size: int) -> list[Span]:
    """The files that entries `first` … `first + count` belong to; those not in `starts` are new.

    The last file takes entries up to `file_size`; a new one begins exactly behind.
    """
    known = list(starts)
    spans: list[Span] = []
    while count > 0:
        byte = first * ENTRY_SIZE
        index = bisect_right(known, byte) - 1
        if index < 0 or (index == len(known) - 1 and byte >= known[index] + file_size):
            known.insert(index + 1, byte)
            index += 1
        end = known[index + 1] if index + 1 < len(known) else known[index] + file_size
        fitting = min(count, (end - byte) // ENTRY_SIZE)
        spans.append(Span(known[index], byte - known[index], first, fitting))
        first += fitting
        count -= fitting
    return spans


def span_to_read(starts: list[int], first: int, count: int) -> Span | None:
    """The part of one file that entries from `first` on begin in; None = no file holds them."""
    byte = first * ENTRY_SIZE
    index = bisect_right(starts, byte) - 1
    if index < 0:
        return None
    if index + 1 < len(starts):
        count = min(count, (starts[index + 1] - byte) // ENTRY_SIZE)
    return Span(starts[index], byte - starts[index], first, count)


def first_at_or_after(low: int, high: int, limit: int, position_of: Callable[[int], int]) -> int:
    """The first entry in [low, high) whose log position is ≥ `limit`; `high` if there is none.

    `position_of` gives an entry's position, -1 where there is no entry yet (counts as past the
    limit).
    """
    while low < high:
        middle = (low + high) // 2
        position = position_of(middle)
        if 0 <= position < limit:
            low = middle + 1
        else:
            high = middle
    return low


class EntryRange(NamedTuple):
    """Entries `first` … `first + entries` of a read, whose records lie within one stretch of the log."""

    position: int
    size: int
    first: int
    entries: int


def ranges_of(
    positions: Ints, sizes: Ints, segment_starts: list[int], gap_max: int, size_max: int
) -> list[EntryRange]:
    """Group records (ascending positions) into stretches of one segment that are worth one read each."""
    ranges: list[EntryRange] = []
    first = 0
    begin = end = segment = -1
    segments = np.searchsorted(np.array(segment_starts, np.int64), positions, "right")
    for index, (position, size, its_segment) in enumerate(
        zip(positions.tolist(), sizes.tolist(), segments.tolist(), strict=True)
    ):
        if begin >= 0 and (
            its_segment != segment or position - end > gap_max or position + size - begin > size_max
        ):
            ranges.append(EntryRange(begin, end - begin, first, index - first))
            begin = -1
        if begin < 0:
            begin, first, segment = position, index, its_segment
        end = position + size
    if begin >= 0:
        ranges.append(EntryRange(begin, end - begin, first, len(positions) - first))
    return ranges
