"""Rolling counts: what happened to many things in the last second, minute, hour and day.

Everything is in matrices, a row for each thing, so that a tick costs a few numpy calls whatever is counted.
A window is a ring of slots: what falls out of it is taken off its sums when a slot begins anew. Time is an
argument, in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
K = TypeVar("K", bound=Hashable)

MESSAGES_IN: Final = 0
BYTES_IN: Final = 1
MESSAGES_OUT: Final = 2
BYTES_OUT: Final = 3
TRAFFIC: Final = 4
"""The first columns: messages and bytes, in and out; then come puts and gets, with the µs that they took."""
MESSAGES_REPLAYED: Final = 8
BYTES_REPLAYED: Final = 9
"""What was read again, or in bulk: by replays and by Spark, which consume nothing."""
REQUEUED: Final = 10
TIMED_OUT: Final = 11
GIVEN_BACK: Final = 12
"""Messages that came back from a consumer: to be delivered again, as its time was over, by its own hand."""
COLUMNS: Final = 13
LASTING: Final = (MESSAGES_IN, BYTES_IN, MESSAGES_OUT, BYTES_OUT, MESSAGES_REPLAYED, BYTES_REPLAYED)
"""The columns that hours and days have, in this order."""
MINUTE: Final = (5.0, 12)
HOUR: Final = (300.0, 12)
DAY: Final = (3600.0, 24)
"""Seconds of a slot and slots: a window reaches back over all of its slots but the rest of the newest."""
ROW_BYTES: Final = 8 * (COLUMNS * 15 + len(LASTING) * 38)
"""Memory of one row: totals, the last second, and three rings with their sums; 3.3 KiB."""
EVICT_INTERVAL_S: Final = 60.0


class Recent(NamedTuple):
    """Counts of one thing: in total, of the last second and minute (COLUMNS), hour and day (LASTING)."""

    total: list[int]
    second: list[int]
    minute: list[int]
    hour: list[int]
    day: list[int]


NOTHING: Final = Recent([0] * COLUMNS, [0] * COLUMNS, [0] * COLUMNS, [0] * len(LASTING), [0] * len(LASTING))


class _Ring:
    """One window of all rows."""

    __slots__ = ("_chosen", "_number", "_slots", "slot_s", "started_at", "sums", "table")

    def __init__(
        self, layout: tuple[float, int], chosen: tuple[int, ...] | None, rows_max: int, now: float
    ) -> None:
        """`chosen`: the columns that it has, None = all."""
        self.slot_s, self._slots = layout
        self._chosen = None if chosen is None else np.array(chosen)
        columns = COLUMNS if chosen is None else len(chosen)
        self.started_at = now
        self._number = int(now // self.slot_s)
        self.table: Ints = np.zeros((self._slots, rows_max, columns), np.int64)
        self.sums: Ints = np.zeros((rows_max, columns), np.int64)

    def advance(self, now: float, used: int) -> None:
        number = int(now // self.slot_s)
        for passed in range(min(number - self._number, self._slots)):
            slot = self.table[(self._number + 1 + passed) % self._slots, :used]
            self.sums[:used] -= slot
            slot[:] = 0
        self._number = max(number, self._number)

    def add(self, rows: Ints, deltas: Ints) -> None:
        """Count; no row comes twice."""
        if self._chosen is not None:
            deltas = deltas[:, self._chosen]
        self.table[self._number % self._slots][rows] += deltas
        self.sums[rows] += deltas

    def forget(self, row: int) -> None:
        self.table[:, row] = 0
        self.sums[row] = 0

    def covered_s(self, now: float) -> float:
        begin = (self._number - self._slots + 1) * self.slot_s
        return now - max(begin, self.started_at)


class Windows(Generic[K]):
    """Rolling counts by key.

    At most `rows_max` keys have counts of their own. When all have, those that had none for a day lose
    theirs, and while there are none of these, counts of others are `unnamed`.
    """

    def __init__(self, rows_max: int, now: float) -> None:
        self.rows_max = rows_max
        self.unnamed = 0
        """Counts that came for keys without a row."""
        self.second_s = 0.0
        """How long the last second was."""
        self._rows: dict[K, int] = {}
        self._free: list[int] = []
        self._ticked_at = self._evicted_at = now
        self._used = 0
        # The kernel gives memory for a row when it is first written.
        self._totals: Ints = np.zeros((rows_max, COLUMNS), np.int64)
        self._second: Ints = np.zeros((rows_max, COLUMNS), np.int64)
        self._minute = _Ring(MINUTE, None, rows_max, now)
        self._hour = _Ring(HOUR, LASTING, rows_max, now)
        self._day = _Ring(DAY, LASTING, rows_max, now)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def begin(self, now: float) -> None:
        """A second is over; what was counted in it is added next."""
        for ring in (self._minute, self._hour, self._day):
            ring.advance(now, self._used)
        self.second_s, self._ticked_at = now - self._ticked_at, now
        self._second[: self._used] = 0

    def add(self, keys: Sequence[K], deltas: Ints) -> None:
        """Add counts (int64, a row of COLUMNS for each key) of the second that is over.

        A key may come more than once, in one call and in several.
        """
        rows = np.fromiter((self._row(key) for key in keys), np.int64, len(keys))
        if not len(rows):
            return
        rows, deltas = _together(rows, deltas)
        self._totals[rows] += deltas
        self._second[rows] += deltas
        for ring in (self._minute, self._hour, self._day):
            ring.add(rows, deltas)

    def recent(self, key: K) -> Recent:
        """The counts of a key; zeros if it never came."""
        row = self._rows.get(key)
        if row is None:
            return NOTHING
        sums = (self._totals, self._second, self._minute.sums, self._hour.sums, self._day.sums)
        return Recent(*(matrix[row].tolist() for matrix in sums))

    def total(self, key: K) -> list[int]:
        """The counts of a key since the start."""
        row = self._rows.get(key)
        return NOTHING.total if row is None else self._totals[row].tolist()

    def totals(self, keys: Collection[K], column: int) -> list[int]:
        """One column of the counts of these keys since the start."""
        rows = np.fromiter((self._rows.get(key, -1) for key in keys), np.int64, len(keys))
        found: list[int] = np.where(rows < 0, 0, self._totals[rows, column]).tolist()
        return found

    def busiest(self, count: int) -> list[K]:
        """The keys with most messages, in and out, in the last minute; then in the last day, then by name."""
        minute, day = self._minute.sums[: self._used], self._day.sums[: self._used]
        sides = [MESSAGES_IN, MESSAGES_OUT]
        by_minute, by_day = minute[:, sides].sum(axis=1), day[:, sides].sum(axis=1)
        if len(self._rows) > count:
            rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
            order = np.lexsort((-by_day[rows], -by_minute[rows]))[:count]
            chosen = set(rows[order].tolist())
            keys = [key for key, row in self._rows.items() if row in chosen]
        else:
            keys = list(self._rows)
        return sorted(keys, key=lambda key: self._rank(key, by_minute, by_day))

    def _rank(self, key: K, by_minute: Ints, by_day: Ints) -> tuple[int, int, str]:
        row = self._rows[key]
        return -int(by_minute[row]), -int(by_day[row]), str(key)

    def covered_ms(self) -> list[int]:
        """How many ms the counts of second, minute, hour and day are of: less after a start."""
        rings = (self._minute, self._hour, self._day)
        return [int(self.second_s * 1e3), *(int(ring.covered_s(self._ticked_at) * 1e3) for ring in rings)]

    def forget(self, key: K) -> None:
        """A thing is gone: so are its counts."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        self._totals[row] = self._second[row] = 0
        for ring in (self._minute, self._hour, self._day):
            ring.forget(row)
        self._free.append(row)

    def _row(self, key: K) -> int:
        row = self._rows.get(key)
        if row is not None:
            return row
        if not self._free and len(self._rows) >= self.rows_max:
            self._evict()
        if self._free:
            row = self._free.pop()
        elif self._used < self.rows_max:
            row = self._used
            self._used += 1
        else:
            self.unnamed += 1
            return -1
        self._rows[key] = row
        return row

    def _evict(self) -> None:
        """Forget those that had no counts for a day; looked for at most once a minute."""
        if self._ticked_at - self._evicted_at < EVICT_INTERVAL_S:
            return
        self._evicted_at = self._ticked_at
        for key in [key for key, row in self._rows.items() if not self._day.sums[row].any()]:
            self.forget(key)


def _together(rows: Ints, deltas: Ints) -> tuple[Ints, Ints]:
    """The sums by row, each row once; what has no row (-1) is left out."""
    order = np.argsort(rows, kind="stable")
    rows, deltas = rows[order], deltas[order]
    begin = int(np.searchsorted(rows, 0))
    rows, deltas = rows[begin:], deltas[begin:]
    firsts = np.flatnonzero(np.diff(rows, prepend=-1))
    if len(firsts) == len(rows):
        return rows, deltas
    return rows[firsts], np.add.reduceat(deltas, firsts, axis=0)
