"""How many sessions users and tenants have written down, and how many of them are connected. Sans-IO.

A start knows nothing of it: the rows are counted page by page while sessions come and go, each of them once::

    rows in their order   ──────passed──────┤ cursor ├──────to come──────
    a session changes     its row was counted:        its page will skip it, for what
                          count the difference        it has become is counted already

Until all pages were counted a user may have more than is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdmq.names.tenants import split_mount
from holdmq.quotas.limits import principal_of
from holdmq.wire.quota_headers import TENANT, USER
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
        self.total = 0
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
        self.total += by
        count = self._of.get(principal, 0) + by
        if count > 0:
            self._of[principal] = count
        else:
            self._of.pop(principal, None)


def _ordered(client_id: str) -> bytes:
    return client_id.encode()[:_ORDERED_BYTES]


def principals_of(client_id: str, user: str) -> tuple[str, ...]:
    """Whose quotas hold for a client's session: its user's and its tenant's, each if it has one."""
    found = (principal_of(USER, user),) if user else ()
    tenant = split_mount(client_id).tenant
    return (*found, principal_of(TENANT, tenant)) if tenant else found


class SessionUse:
    """What users and tenants have of sessions here: written down, and connected."""

    def __init__(self) -> None:
        self.users = UserCounts()
        self.tenants = UserCounts()
        self._connected: dict[str, int] = {}

    @property
    def stored(self) -> int | None:
        """Sessions that are written down; None = not all are counted yet."""
        return self.users.total if self.users.is_complete else None

    def sessions_of(self, principal: str) -> int:
        """Sessions of `user:NAME` or `tenant:NAME` that are written down."""
        kind, _, name = principal.partition(":")
        return (self.tenants if kind == TENANT else self.users).of(name)

    def connections_of(self, principal: str) -> int:
        """Clients of `user:NAME` or `tenant:NAME` that are connected, or about to be."""
        return self._connected.get(principal, 0)

    def connect(self, principals: Sequence[str]) -> None:
        """A client of these is connected."""
        for principal in principals:
            self._connected[principal] = self._connected.get(principal, 0) + 1

    def disconnect(self, principals: Sequence[str]) -> None:
        """A client of these is connected no more."""
        for principal in principals:
            left = self._connected.get(principal, 0) - 1
            if left > 0:
                self._connected[principal] = left
            else:
                self._connected.pop(principal, None)

    def change(self, client_id: str, before: str | None, after: str | None) -> None:
        """A session's row is another user's now; None = there is none."""
        self.users.change(client_id, before, after)
        tenant = split_mount(client_id).tenant
        if tenant:
            had, has = (None if user is None else tenant for user in (before, after))
            self.tenants.change(client_id, had, has)

    def count(self, page: Sequence[CountedRow]) -> None:
        """A page of rows that a start found, in the table's order."""
        self.users.count(page)
        tenants = [CountedRow(row.client_id, split_mount(row.client_id).tenant) for row in page]
        self.tenants.count([row for row in tenants if row.principal])

    def complete(self) -> None:
        """That was the last page."""
        self.users.complete()
        self.tenants.complete()


class SessionQuotas(Protocol):
    """Knows how many sessions and connections `user:NAME` and `tenant:NAME` may have here."""

    @property
    def has_counts(self) -> bool:
        """Whether anything is limited by its number."""

    def sessions_max(self, principal: str) -> int:
        """How many sessions it may have written down; 0 = as many as it likes."""

    def connections_max(self, principal: str) -> int:
        """How many of its clients may be connected; 0 = as many as it likes."""

    def refuse(self, principal: str) -> None:
        """Count one that was refused."""
