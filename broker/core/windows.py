"""Rolling counts: what happened to many things in the last second, minute, hour and day.

Everything is in matrices, a row for each thing, so that a tick costs a few numpy calls whatever is counted.
A window is a ring of slots: what falls out of it is taken off its sums when a slot begins anew. Time is an
argument, in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
"""Columns that hours and days have, too: messages and bytes, in and out."""
COLUMNS: Final = 8
"""And how often something was put and got, with the µs that it took together."""
MINUTE: Final = (5.0, 12)
HOUR: Final = (300.0, 12)
DAY: Final = (3600.0, 24)
"""Seconds of a slot and slots: a window reaches back over all of its slots but the rest of the newest."""
ROW_BYTES: Final = 8 * (COLUMNS * 15 + TRAFFIC * 38)
"""Memory of one row: totals, the last second, and three rings with their sums; 2.1 KiB."""
_FIRST_ROWS: Final = 64


class Recent(NamedTuple):
    """Counts of one thing: in total, of the last second and minute (COLUMNS), hour and day (TRAFFIC)."""

    total: list[int]
    second: list[int]
    minute: list[int]
    hour: list[int]
    day: list[int]


NOTHING: Final = Recent([0] * COLUMNS, [0] * COLUMNS, [0] * COLUMNS, [0] * TRAFFIC, [0] * TRAFFIC)


class _Ring:
    """One window of all rows."""

    __slots__ = ("_number", "_slots", "columns", "slot_s", "started_at", "sums", "table")

    def __init__(self, layout: tuple[float, int], columns: int, now: float) -> None:
        self.slot_s, self._slots = layout
        self.columns = columns
        self.started_at = now
        self._number = int(now // self.slot_s)
        self.table: Ints = np.zeros((self._slots, _FIRST_ROWS, columns), np.int64)
        self.sums: Ints = np.zeros((_FIRST_ROWS, columns), np.int64)

    def grow(self, rows: int) -> None:
        table = np.zeros((self._slots, rows, self.columns), np.int64)
        table[:, : self.table.shape[1]] = self.table
        self.table, self.sums = table, _grown(self.sums, rows)

    def advance(self, now: float) -> None:
        number = int(now // self.slot_s)
        for passed in range(min(number - self._number, self._slots)):
            slot = self.table[(self._number + 1 + passed) % self._slots]
            self.sums -= slot
            slot[:] = 0
        self._number = max(number, self._number)

    def add(self, rows: Ints, deltas: Ints) -> None:
        deltas = deltas[:, : self.columns]
        np.add.at(self.table[self._number % self._slots], rows, deltas)
        np.add.at(self.sums, rows, deltas)

    def forget(self, row: int) -> None:
        self.table[:, row] = 0
        self.sums[row] = 0

    def covered_s(self, now: float) -> float:
        begin = (self._number - self._slots + 1) * self.slot_s
        return now - max(begin, self.started_at)


class Windows(Generic[K]):
    """Rolling counts by key. At most `rows_max` keys have counts of their own; others are `unnamed`."""

    def __init__(self, rows_max: int, now: float) -> None:
        self.rows_max = rows_max
        self.unnamed = 0
        """Counts that came for keys without a row."""
        self.second_s = 0.0
        """How long the last second was."""
        self._rows: dict[K, int] = {}
        self._free: list[int] = []
        self._ticked_at = now
        self._totals: Ints = np.zeros((_FIRST_ROWS, COLUMNS), np.int64)
        self._second: Ints = np.zeros((_FIRST_ROWS, COLUMNS), np.int64)
        self._minute = _Ring(MINUTE, COLUMNS, now)
        self._hour = _Ring(HOUR, TRAFFIC, now)
        self._day = _Ring(DAY, TRAFFIC, now)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def tick(self, keys: Sequence[K], deltas: Ints, now: float) -> None:
        """A second is over, in which `deltas` (int64, a row of COLUMNS for each key) were counted.

        A key may come more than once.
        """
        rings = (self._minute, self._hour, self._day)
        for ring in rings:
            ring.advance(now)
        self.second_s, self._ticked_at = now - self._ticked_at, now
        self._second[:] = 0
        rows = np.fromiter((self._row(key) for key in keys), np.int64, len(keys))
        if not len(rows):
            return
        if rows.min() < 0:
            deltas, rows = deltas[rows >= 0], rows[rows >= 0]
        np.add.at(self._totals, rows, deltas)
        np.add.at(self._second, rows, deltas)
        for ring in rings:
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

    def busiest(self, count: int) -> list[K]:
        """The keys with most messages, in and out, in the last minute; then in the last day, then by name."""
        minute, day = self._minute.sums, self._day.sums
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
        if self._free:
            row = self._free.pop()
        elif len(self._rows) < self.rows_max:
            row = len(self._rows)
            if row >= len(self._totals):
                self._grow()
        else:
            self.unnamed += 1
            return -1
        self._rows[key] = row
        return row

    def _grow(self) -> None:
        rows = min(2 * len(self._totals), max(self.rows_max, _FIRST_ROWS))
        self._totals, self._second = _grown(self._totals, rows), _grown(self._second, rows)
        for ring in (self._minute, self._hour, self._day):
            ring.grow(rows)


def _grown(matrix: Ints, rows: int) -> Ints:
    grown = np.zeros((rows, matrix.shape[1]), np.int64)
    grown[: len(matrix)] = matrix
    return grown
