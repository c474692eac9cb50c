"""The last minutes of every topic, second by second, put together from the files of a table.

The table's files never change: a file is added to the window once and taken out when a compaction
has replaced it, so the cost of staying current is that of the new rows alone. Several files may
hold parts of one second (one per micro-batch); their sum is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

WINDOW_S: Final = 900
"""Seconds kept: a quarter of an hour is what a live page looks back on."""

CELLS_MAX: Final = 400_000
"""(second, topic) pairs kept, about 100 MB: 900 seconds of 440 topics; with more the window is shorter."""

SETTLED_AFTER_S: Final = 1.0
"""The newest second is complete when it ended this long ago: twice what the job usually takes. The second
before the newest always is: the batch that saw the newest had read it to its end."""

IDLE_AFTER_S: Final = 8.0
"""When the newest row is older than this, nothing is flowing (or the job stands still)."""

Row = tuple[int, str, int, int]
"""second (since the epoch), topic, messages, bytes"""


class Count(NamedTuple):
    """Messages and their bytes."""

    messages: int
    bytes: int


class Current(NamedTuple):
    """The rate now: the newest complete `second` (None: nothing flows), its total and its topics."""

    second: int | None
    total: Count
    topics: dict[str, Count]


_ZERO: Final = Count(0, 0)
_TRIM_AFTER_S: Final = 60
"""Rows below the floor that a file may keep: taking them out every second would cost more than they do."""


class _FileRows:
    __slots__ = ("oldest", "rows")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.oldest = min((row[0] for row in rows), default=1 << 62)

    def trim(self, floor: int) -> None:
        self.rows = [row for row in self.rows if row[0] >= floor]
        self.oldest = floor


class TpsWindow:
    """Counts by second and topic of the last `WINDOW_S` seconds, or as many as `cells_max` allows."""

    __slots__ = ("_cells", "_cells_max", "_files", "_floor", "_seconds", "cell_count", "cut_seconds")

    def __init__(self, cells_max: int = CELLS_MAX) -> None:
        self._cells_max = cells_max
        self._files: dict[str, _FileRows] = {}
        self._seconds: dict[int, dict[str, Count]] = {}
        self._floor = 0
        self.cell_count = 0
        """(second, topic) pairs in the window."""
        self.cut_seconds = 0
        """Seconds dropped before their time because of `cells_max`, since the start."""

    @property
    def floor(self) -> int:
        """The oldest second that the window still takes."""
        return self._floor

    @property
    def files(self) -> frozenset[str]:
        """The files whose rows are in the window."""
        return frozenset(self._files)

    def newest(self) -> int | None:
        """Return the newest second that has a row, None when there is none."""
        return max(self._seconds, default=None)

    def add(self, file: str, rows: Iterable[Row]) -> None:
        """Count the rows of a new file; those below the floor are left out."""
        kept = [row for row in rows if row[0] >= self._floor]
        self._files[file] = _FileRows(kept)
        for second, topic, messages, size in kept:
            topics = self._seconds.setdefault(second, {})
            old = topics.get(topic)
            if old is None:
                self.cell_count += 1
                topics[topic] = Count(messages, size)
            else:
                topics[topic] = Count(old.messages + messages, old.bytes + size)
        while self.cell_count > self._cells_max and len(self._seconds) > 1:
            self._drop_below(min(self._seconds) + 1)
            self.cut_seconds += 1

    def remove(self, file: str) -> None:
        """Take the rows of a file out again; a file that is not in the window changes nothing."""
        gone = self._files.pop(file, None)
        for second, topic, messages, size in gone.rows if gone is not None else ():
            topics = self._seconds.get(second)
            if topics is None:
                continue
            old = topics[topic]
            left = Count(old.messages - messages, old.bytes - size)
            if left == _ZERO:
                del topics[topic]
                self.cell_count -= 1
                if not topics:
                    del self._seconds[second]
            else:
                topics[topic] = left

    def forget_before(self, now: float) -> None:
        """Drop what is older than the window at `now` (seconds since the epoch)."""
        self._drop_below(int(now) - WINDOW_S)

    def _drop_below(self, floor: int) -> None:
        if floor <= self._floor:
            return
        self._floor = floor
        for second in [s for s in self._seconds if s < floor]:
            self.cell_count -= len(self._seconds.pop(second))
        for file in self._files.values():
            if file.oldest < floor - _TRIM_AFTER_S:
                file.trim(floor)

    def since(self, first: int) -> list[tuple[int, dict[str, Count]]]:
        """Return the seconds from `first` on that have rows, ascending, with their topics."""
        return [(s, self._seconds[s]) for s in sorted(self._seconds) if s >= first]

    def current(self, now: float) -> Current:
        """Return the rate at `now`: the newest second that is complete, or nothing when none is recent."""
        newest = self.newest()
        if newest is None or now - newest > IDLE_AFTER_S:
            return Current(None, _ZERO, {})
        second = newest if now - (newest + 1) >= SETTLED_AFTER_S else newest - 1
        topics = self._seconds.get(second, {})
        return Current(second, total(topics), dict(topics))


def total(topics: dict[str, Count]) -> Count:
    """Sum the counts of all topics."""
    return Count(sum(c.messages for c in topics.values()), sum(c.bytes for c in topics.values()))


def busiest(seconds: list[tuple[int, dict[str, Count]]], top: int | None) -> list[str]:
    """Return the `top` topics with the most messages over `seconds` (None: all), busiest first."""
    sums: dict[str, int] = {}
    for _, topics in seconds:
        for topic, count in topics.items():
            sums[topic] = sums.get(topic, 0) + count.messages
    ranked = sorted(sums, key=lambda topic: (-sums[topic], topic))
    return ranked if top is None else ranked[:top]
