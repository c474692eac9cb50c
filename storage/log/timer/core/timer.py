"""The timer's entries: layout of bucket files, what of them is pending, and what is due next.

::

    timer/<20 digits: the due minute, in minutes since the epoch>
    | ms in the minute 2, offset in %TIMER 6 | log offset 8 | record size 4 |   big-endian, in log order

The second part of the key is the queue offset that the message had first: it names the timer. A
size of 0 says that the timer was released, by the record at the log offset. A file is what the log
says and nothing else, so a bucket's pending timers are its keys without such an entry, each at the
last log offset it has (rolling adds one). Source: storage.md, Other indexes.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.core.delayed import Entry

MINUTE_MS: Final = 60_000
ENTRY_SIZE: Final = 20
FILE_ENTRY: Final = np.dtype([("key", ">u8"), ("position", ">i8"), ("size", ">u4")])
ROW: Final = np.dtype([("due", "i8"), ("first", "i8"), ("position", "i8"), ("size", "u4")])
LATE_MERGE: Final = 16_384
"""Rows that came after their bucket was loaded and are kept apart: sorting few is cheap, merging is not."""

_OFFSET_BITS: Final = np.uint64(48)
_OFFSET_MASK: Final = np.uint64((1 << 48) - 1)

Rows = npt.NDArray[np.void]

NO_ROWS: Final[Rows] = np.empty(0, ROW)


def rows_of(entries: Iterable[Entry]) -> Rows:
    """Entries as rows, in their order."""
    return np.array(list(entries), ROW)


def entries_of_rows(rows: Rows) -> list[Entry]:
    """Rows as entries, in their order."""
    return [Entry(*row) for row in rows.tolist()]


def minutes_of(rows: Rows) -> npt.NDArray[np.int64]:
    """The due minute of every row."""
    minutes: npt.NDArray[np.int64] = rows["due"] // MINUTE_MS
    return minutes


def encode_rows(rows: Rows) -> bytes:
    """What a bucket file gets for these rows."""
    entries = np.empty(len(rows), FILE_ENTRY)
    in_minute = (rows["due"] % MINUTE_MS).astype(np.uint64)
    entries["key"] = (in_minute << _OFFSET_BITS) | (rows["first"].astype(np.uint64) & _OFFSET_MASK)
    entries["position"] = rows["position"]
    entries["size"] = rows["size"]
    return entries.tobytes()


def decode_rows(raw: bytes | bytearray, minute: int) -> Rows:
    """The rows of a bucket file's bytes; an entry that is cut at the end is not there yet."""
    entries = np.frombuffer(raw, FILE_ENTRY, len(raw) // ENTRY_SIZE)
    rows = np.empty(len(entries), ROW)
    key = entries["key"].astype(np.uint64)
    rows["due"] = (key >> _OFFSET_BITS).astype(np.int64) + minute * MINUTE_MS
    rows["first"] = (key & _OFFSET_MASK).astype(np.int64)
    rows["position"] = entries["position"]
    rows["size"] = entries["size"]
    return rows


def in_order(rows: Rows) -> Rows:
    """Rows sorted by due time, then by age."""
    ordered: Rows = rows[np.lexsort((rows["first"], rows["due"]))]
    return ordered


def pending_of(rows: Rows) -> Rows:
    """What is pending of all rows of some timers: in order, each at its last place in the log."""
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows["position"], rows["first"], rows["due"]))]
    new = np.empty(len(rows), np.bool_)
    new[0] = True
    np.not_equal(rows["first"][1:], rows["first"][:-1], out=new[1:])
    new[1:] |= rows["due"][1:] != rows["due"][:-1]
    firsts = np.flatnonzero(new)
    is_released = np.logical_or.reduceat(rows["size"] == 0, firsts)
    lasts = np.append(firsts[1:], len(rows)) - 1
    pending: Rows = rows[lasts[~is_released]]
    return pending


class LaterMinutes:
    """Minutes in which something is due; the first of them behind a point that only moves on."""

    __slots__ = ("_heap", "_known")

    def __init__(self, minutes: Iterable[int] = ()) -> None:
        self._known = set(minutes)
        self._heap = sorted(self._known)

    def add(self, minute: int) -> None:
        """Add a minute, known or not."""
        if minute not in self._known:
            self._known.add(minute)
            heappush(self._heap, minute)

    def first_after(self, minute: int) -> int | None:
        """The first behind a minute, which and all before it are forgotten; None = there is none."""
        while self._heap and self._heap[0] <= minute:
            self._known.discard(heappop(self._heap))
        return self._heap[0] if self._heap else None


class Lowest:
    """The lowest rows of a stream, by order, in bounded memory: how a huge bucket is loaded in slices.

    Rows up to (`after_due`, `after_first`) are passed over. `rows` gives whole timers only: all rows
    of a timer, or none. `is_cut`: there were more.
    """

    __slots__ = ("_after", "_count", "_kept", "_limit", "is_cut")

    def __init__(self, limit: int, after: tuple[int, int] | None) -> None:
        self._limit = limit
        self._after = after
        self._kept: list[Rows] = []
        self._count = 0
        self.is_cut = False

    def add(self, rows: Rows) -> None:
        """Take more rows, in any order."""
        if self._after is not None:
            due, first = self._after
            rows = rows[(rows["due"] > due) | ((rows["due"] == due) & (rows["first"] > first))]
        self._kept.append(rows)
        self._count += len(rows)
        if self._count > 2 * self._limit:
            self._cut()

    def rows(self) -> Rows:
        """The lowest rows, in order."""
        if self._count > self._limit:
            self._cut()
        return in_order(np.concatenate(self._kept)) if self._kept else NO_ROWS

    def _cut(self) -> None:
        rows = in_order(np.concatenate(self._kept))
        last = rows[self._limit - 1]
        end = self._limit
        while end < len(rows) and rows["due"][end] == last["due"] and rows["first"][end] == last["first"]:
            end += 1
        self.is_cut = self.is_cut or end < len(rows)
        self._kept = [rows[:end].copy()]
        self._count = end


class DueRows:
    """Pending rows of the open buckets, given out by due time and, in that, by age."""

    __slots__ = ("_at", "_late", "_loaded")

    def __init__(self) -> None:
        self._loaded = NO_ROWS
        self._at = 0
        self._late = NO_ROWS

    def __len__(self) -> int:
        return len(self._loaded) - self._at + len(self._late)

    def load(self, rows: Rows) -> None:
        """Add a bucket's rows, in order and behind everything loaded."""
        if len(rows):
            self._loaded = np.concatenate((self._loaded[self._at :], rows))
            self._at = 0

    def add(self, rows: Rows) -> None:
        """Add rows of buckets that are loaded already."""
        self._late = in_order(np.concatenate((self._late, rows)))
        if len(self._late) > LATE_MERGE:
            self._loaded = in_order(np.concatenate((self._loaded[self._at :], self._late)))
            self._at, self._late = 0, NO_ROWS

    def next_due(self) -> int | None:
        """When the next one is due; None = there is none."""
        fronts = [int(rows["due"][0]) for rows in (self._loaded[self._at :], self._late) if len(rows)]
        return min(fronts) if fronts else None

    def take(self, until_ms: int, count: int, size_bytes: int) -> Rows:
        """Remove and give rows that are due until then, in order: at least one, up to both bounds."""
        loaded = self._loaded[self._at : self._at + count]
        loaded = loaded[: int(np.searchsorted(loaded["due"], until_ms, "right"))]
        late = self._late[:count]
        late = late[: int(np.searchsorted(late["due"], until_ms, "right"))]
        both = np.concatenate((loaded, late))
        if not len(both):
            return both
        order = np.lexsort((both["first"], both["due"]))[:count]
        sizes = np.cumsum(both["size"][order].astype(np.int64))
        order = order[: max(1, int(np.searchsorted(sizes, size_bytes, "right")))]
        of_loaded = int((order < len(loaded)).sum())
        self._at += of_loaded
        self._late = self._late[len(order) - of_loaded :]
        return both[order]

    def move(self, entry: Entry) -> None:
        """Note a timer's new place in the log, if it waits here."""
        for rows in (self._loaded[self._at :], self._late):
            at = _index_of(rows, entry)
            if at >= 0:
                rows["position"][at], rows["size"][at] = entry.position, entry.size

    def has(self, entry: Entry) -> bool:
        """Whether a timer waits here."""
        return any(_index_of(rows, entry) >= 0 for rows in (self._loaded[self._at :], self._late))

    def remove(self, entry: Entry) -> bool:
        """Remove a timer; False = it does not wait here."""
        at = _index_of(self._loaded[self._at :], entry)
        if at >= 0:
            self._loaded = np.delete(self._loaded, self._at + at)
            return True
        at = _index_of(self._late, entry)
        if at >= 0:
            self._late = np.delete(self._late, at)
        return at >= 0


def _index_of(rows: Rows, entry: Entry) -> int:
    """Where a timer stands in rows that are in order; -1 = it does not."""
    begin, end = np.searchsorted(rows["due"], [entry.due_ms, entry.due_ms + 1]).tolist()
    at = int(begin + np.searchsorted(rows["first"][begin:end], entry.first))
    return at if at < end and rows["first"][at] == entry.first else -1
