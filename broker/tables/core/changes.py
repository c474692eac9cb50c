"""Changes of tables that are under way, and those lately done: what tells a repeat, and a row's version now.

A change is in the log once and takes effect once, however often its request comes: requests have ids,
and the newest `WINDOW` of them are remembered. (Older ones, and those from before a restart, are found in
the log by their id.) Whether a row has the version that a change expects is decided when the change is
appended: by the newest change of the row that the table may not show yet, or else by the table's row. So a
change that is in the log had its expectation fulfilled. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, NamedTuple, TypeVar

WINDOW: Final = 65_536
"""Requests that are remembered: a second of the fastest writers, 15 MB."""

W = TypeVar("W")


class RowName(NamedTuple):
    """A row of a table."""

    topic: str
    key: str


class ShownChange(Generic[W]):
    """A change that was appended. `version` is provisional until `is_confirmed`; `shown` is that of the row
    that it makes (-1 = none, for a deletion). `waiting` are to be answered with its end."""

    __slots__ = ("end", "is_confirmed", "is_refused", "request_id", "row", "shown", "version", "waiting")

    def __init__(self, request_id: str, row: RowName, version: int, end: int, shown: int, owner: W) -> None:
        self.request_id = request_id
        self.row = row
        self.version = version
        self.end = end
        self.shown = shown
        self.is_confirmed = False
        self.is_refused = False
        self.waiting: list[W] = [owner]


class _Newest(Generic[W]):
    """The newest change of a row, and how many are reading the row from the table meanwhile."""

    __slots__ = ("change", "is_applied", "is_unknown", "readers")

    def __init__(self) -> None:
        self.change: ShownChange[W] | None = None
        self.is_applied = False
        self.is_unknown = False
        self.readers = 0


class TableChanges(Generic[W]):
    """All changes of one broker. `in_hand` were appended and are neither confirmed nor refused."""

    def __init__(self, window: int = WINDOW) -> None:
        self.in_hand = 0
        self._window_max = window
        self._window: dict[str, ShownChange[W]] = {}
        self._rows: dict[RowName, _Newest[W]] = {}
        self._unapplied: deque[ShownChange[W]] = deque()

    def __len__(self) -> int:
        """Requests that are remembered."""
        return len(self._window)

    @property
    def unapplied(self) -> int:
        """Changes that the tables may not show yet."""
        return len(self._unapplied)

    def find(self, request_id: str) -> ShownChange[W] | None:
        """The change that this request made, if it is remembered."""
        return self._window.get(request_id)

    def version_of(self, row: RowName) -> int | None:
        """The version that a row has, or will have, by changes that are known; -1 = no value.

        None = no change is known that the table may not show: the table's row tells.
        """
        newest = self._rows.get(row)
        return None if newest is None or newest.change is None else newest.change.shown

    def begin(
        self, request_id: str, row: RowName, version: int, end: int, shown: int, owner: W
    ) -> ShownChange[W]:
        """A change was appended, provisionally at log position `version`, and ends before `end`."""
        change = ShownChange(request_id, row, version, end, shown, owner)
        self._window[request_id] = change
        while len(self._window) > self._window_max and self._forget_oldest():
            pass
        newest = self._rows.setdefault(row, _Newest())
        newest.change, newest.is_applied = change, False
        self._unapplied.append(change)
        self.in_hand += 1
        return change

    def _forget_oldest(self) -> bool:
        oldest = next(iter(self._window.values()))
        if not oldest.is_confirmed:
            return False
        del self._window[oldest.request_id]
        return True

    def confirm(self, change: ShownChange[W]) -> list[W]:
        """The log has it; whom to tell."""
        change.is_confirmed = True
        return self._end(change)

    def refuse(self, change: ShownChange[W]) -> list[W]:
        """The log does not have it, nor any that was appended after it and is not confirmed; whom to tell.

        Its request may come again.
        """
        change.is_refused = True
        if self._window.get(change.request_id) is change:
            del self._window[change.request_id]
        newest = self._rows.get(change.row)
        if newest is not None and newest.change is change:
            newest.change, newest.is_unknown = None, True
            self._drop(change.row, newest)
        return self._end(change)

    def _end(self, change: ShownChange[W]) -> list[W]:
        self.in_hand -= 1
        waiting, change.waiting = change.waiting, []
        return waiting

    def applied(self, position: int) -> None:
        """The tables show what lies below `position`."""
        while self._unapplied and (self._unapplied[0].end <= position or self._unapplied[0].is_refused):
            change = self._unapplied.popleft()
            newest = self._rows.get(change.row)
            if newest is not None and newest.change is change:
                newest.is_applied = True
                self._drop(change.row, newest)

    # Reading a row's version from the table

    def begin_reading(self, row: RowName) -> None:
        """Somebody reads a row that has no known change, after the table showed all that is confirmed."""
        newest = self._rows.setdefault(row, _Newest())
        if not newest.readers:
            newest.is_unknown = False
        newest.readers += 1

    def end_reading(self, row: RowName, version: int) -> int | None:
        """The row was read, with this version; the version it has now. None = read it again.

        A change that came meanwhile is newer than what was read; one that came and was refused may have
        hidden another.
        """
        newest = self._rows[row]
        newest.readers -= 1
        known = version if newest.change is None else newest.change.shown
        is_lost = newest.change is None and newest.is_unknown
        self._drop(row, newest)
        return None if is_lost else known

    def _drop(self, row: RowName, newest: _Newest[W]) -> None:
        if not newest.readers and (newest.change is None or newest.is_applied):
            del self._rows[row]
