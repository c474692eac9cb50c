"""What was deleted of the rows that all brokers are to have, so that who was away does not bring it back.

A mark says of one row that it was deleted, or made again after that, and when; of two marks of a row the
later one holds, and that of a deletion if both are of one moment. Brokers tell each other their marks before
any row, so that all of them have the same ones in the end. A row that was never deleted has no mark. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import xxhash

KEEP_MS: Final = 30 * 24 * 3_600_000
"""How long a mark is kept: a broker that is away for longer brings back what was deleted meanwhile."""
MARKS_MAX: Final = 20_000
"""Marks that are kept, some 150 bytes each: twice what topics a broker has by default; the oldest go."""


class RowKey(NamedTuple):
    """A row: the name of its table, and its own."""

    table: str
    name: str


class Mark(NamedTuple):
    """What became of a row last. `at_ms`: since the epoch, by the clock of the broker where it happened."""

    at_ms: int
    is_deleted: bool


class RowMarks:
    """The marks of one broker. `digest` is the same at brokers that have the same; `version` rises."""

    def __init__(self, keep_ms: int = KEEP_MS, marks_max: int = MARKS_MAX) -> None:
        self.version = 0
        self.digest = 0
        self._keep_ms = keep_ms
        self._marks_max = marks_max
        self._marks: dict[RowKey, Mark] = {}
        self._sorted: list[RowKey] | None = None

    def __len__(self) -> int:
        return len(self._marks)

    def is_deleted(self, key: RowKey) -> bool:
        """Whether the row was deleted, and not made again since."""
        mark = self._marks.get(key)
        return mark is not None and mark.is_deleted

    def deleted(self) -> list[RowKey]:
        """Rows that were deleted."""
        return [key for key, mark in self._marks.items() if mark.is_deleted]

    def note_deleted(self, key: RowKey, now_ms: int) -> None:
        """A row was deleted here."""
        known = self._marks.get(key)
        if known is None or not known.is_deleted:
            self._put(key, Mark(now_ms if known is None else max(now_ms, known.at_ms + 1), True))
            self._bound()

    def note_made(self, key: RowKey, now_ms: int) -> None:
        """A row is there: one that had been deleted was made again."""
        known = self._marks.get(key)
        if known is not None and known.is_deleted:
            self._put(key, Mark(max(now_ms, known.at_ms + 1), False))

    def learn(self, key: RowKey, mark: Mark, now_ms: int) -> bool:
        """Take what another broker says, if it is news; whether it was."""
        known = self._marks.get(key)
        if mark.at_ms <= now_ms - self._keep_ms or (known is not None and known >= mark):
            return False
        self._put(key, mark)
        self._bound()
        return True

    def expire(self, now_ms: int) -> None:
        """Forget what is too old."""
        over = [key for key, mark in self._marks.items() if mark.at_ms <= now_ms - self._keep_ms]
        for key in over:
            self._put(key, None)

    def page(self, after: RowKey | None, count: int) -> tuple[list[tuple[RowKey, Mark]], RowKey | None]:
        """Marks in the order of their keys behind `after`; second is where to go on, None = that was all."""
        if self._sorted is None:
            self._sorted = sorted(self._marks)
        at = 0 if after is None else bisect_right(self._sorted, after)
        keys = self._sorted[at : at + count]
        found = [(key, self._marks[key]) for key in keys]
        return found, keys[-1] if at + count < len(self._sorted) else None

    # The file

    def content(self) -> dict[str, Any]:
        """What the file holds."""
        return {"marks": [[*key, *mark] for key, mark in sorted(self._marks.items())]}

    def load(self, content: Mapping[str, Any]) -> None:
        """Take what the file holds; TypeError or ValueError for what is no mark."""
        found = content.get("marks", [])
        if not isinstance(found, list):
            raise TypeError("marks are no list")
        self._take(found)

    def _take(self, found: Iterable[Any]) -> None:
        for table, name, at_ms, is_deleted in found:
            if not (isinstance(table, str) and isinstance(name, str)):
                raise TypeError(f"{name!r} is no name of a row")
            if type(at_ms) is not int or type(is_deleted) is not bool:
                raise TypeError(f"{at_ms!r}, {is_deleted!r} is no mark of {name!r}")
            self._put(RowKey(table, name), Mark(at_ms, is_deleted))

    # Inside

    def _put(self, key: RowKey, mark: Mark | None) -> None:
        known = self._marks.pop(key, None)
        for one in (known, mark):
            if one is not None:
                self.digest ^= _hash(key, one)
        if mark is not None:
            self._marks[key] = mark
        self.version += 1
        self._sorted = None

    def _bound(self) -> None:
        if len(self._marks) > self._marks_max:
            self._put(min(self._marks, key=lambda key: self._marks[key].at_ms), None)


def digest_of(table: str, names: Iterable[str]) -> int:
    """A number that is the same for the same names, in whatever order they come."""
    digest = 0
    start = f"{table}\0"
    for name in names:
        digest ^= xxhash.xxh3_64_intdigest((start + name).encode())
    return digest


def _hash(key: RowKey, mark: Mark) -> int:
    said = f"{key.table}\0{key.name}\0{mark.at_ms}\0{mark.is_deleted}"
    return xxhash.xxh3_64_intdigest(said.encode())
