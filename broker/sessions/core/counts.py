"""How many sessions each user has written down. Sans-IO.

A start knows nothing of it: the rows are counted page by page while sessions come and go, each of them once::

    rows in their order   ──────passed──────┤ cursor ├──────to come──────
    a session changes     its row was counted:        its page will skip it, for what
                          count the difference        it has become is counted already

Until all pages were counted a user may have more than is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage.api.tables import ORDERED_KEY_BYTES

_ORDERED_BYTES = ORDERED_KEY_BYTES - 1
"""Of a client id, behind the letter of its row's key; longer ones that begin alike lie in no order."""


class CountedRow(NamedTuple):
    """A session that is written down: whose it is, "" = an anonymous client's."""

    client_id: str
    principal: str


class UserCounts:
    """Sessions by principal; anonymous clients are one. 0.1 KiB for each that has any."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._passed = b""
        self._at_cursor: set[str] = set()
        self._changed: set[str] | None = set()

    def __len__(self) -> int:
        return len(self._of)

    @property
    def is_complete(self) -> bool:
        """Whether all rows that a start found are counted."""
        return self._changed is None

    def of(self, principal: str) -> int:
        """How many sessions a user has."""
        return self._of.get(principal, 0)

    def count(self, page: Sequence[CountedRow]) -> None:
        """A page of rows, in the table's order, behind those that were counted before."""
        changed = self._changed
        if changed is None or not page:
            return
        for row in page:
            if row.client_id not in changed:
                self._add(row.principal, 1)
        last = _ordered(page[-1].client_id)
        at_cursor = {row.client_id for row in page if _ordered(row.client_id) == last}
        self._at_cursor = at_cursor | self._at_cursor if last == self._passed else at_cursor
        self._passed = last

    def complete(self) -> None:
        """That was the last page."""
        self._changed = None
        self._at_cursor = set()

    def change(self, client_id: str, before: str | None, after: str | None) -> None:
        """A session's row is another's now; None = there is none."""
        if before is not None and self._is_counted(client_id):
            self._add(before, -1)
        if after is not None:
            self._add(after, 1)
        if self._changed is not None:
            self._changed.add(client_id)

    def _is_counted(self, client_id: str) -> bool:
        if self._changed is None or client_id in self._changed:
            return True
        place = _ordered(client_id)
        return place < self._passed or (place == self._passed and client_id in self._at_cursor)

    def _add(self, principal: str, by: int) -> None:
        count = self._of.get(principal, 0) + by
        if count > 0:
            self._of[principal] = count
        else:
            self._of.pop(principal, None)


def _ordered(client_id: str) -> bytes:
    return client_id.encode()[:_ORDERED_BYTES]
