"""Browsers that are signed in: a table bounded in number and time. Sans-IO: `now` (s) is an argument."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from console.identity.accounts import digest_of

SESSIONS_MAX: Final = 2_000
"""Half a kilobyte each. Past it, the one that was used longest ago ends."""
OF_ACCOUNT_MAX: Final = 20
"""Browsers of one account: so one account's cannot push out everybody else's."""
SECRET_BYTES: Final = 32


class SignedIn(NamedTuple):
    """A session: whose, the token that its page sends back with each change, and when it began."""

    account: str
    csrf: str
    began: float


class _Entry:
    __slots__ = ("session", "used")

    def __init__(self, session: SignedIn, used: float) -> None:
        self.session = session
        self.used = used


class SignedInTable:
    """Sessions by their secret's digest: one ends `idle_s` after its last request, and after `longest_s`."""

    def __init__(self, idle_s: float, longest_s: float) -> None:
        self._idle_s = idle_s
        self._longest_s = longest_s
        # In the order of their last use.
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def reconfigure(self, idle_s: float, longest_s: float) -> None:
        """Take other times, for sessions that have begun as well."""
        self._idle_s = idle_s
        self._longest_s = longest_s

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, account: str, now: float) -> tuple[str, SignedIn]:
        """Begin a session; return its secret, which is not kept, and the session."""
        self._expire(now)
        own = [key for key, entry in self._entries.items() if entry.session.account == account]
        for key in own[: max(0, len(own) - OF_ACCOUNT_MAX + 1)]:
            del self._entries[key]
        if len(self._entries) >= SESSIONS_MAX:
            self._entries.popitem(last=False)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        session = SignedIn(account, secrets.token_urlsafe(SECRET_BYTES), now)
        self._entries[digest_of(secret)] = _Entry(session, now)
        return secret, session

    def use(self, secret: str, now: float) -> SignedIn | None:
        """Return the session of a secret, which has been used now; None when it is none, or is over."""
        key = digest_of(secret)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._is_over(entry, now):
            del self._entries[key]
            return None
        entry.used = now
        self._entries.move_to_end(key)
        return entry.session

    def look(self, secret: str, now: float) -> SignedIn | None:
        """Return the session of a secret as `use` does, but do not count that as its use."""
        entry = self._entries.get(digest_of(secret))
        return None if entry is None or self._is_over(entry, now) else entry.session

    def end(self, secret: str) -> None:
        """End the session of a secret, if there is one."""
        self._entries.pop(digest_of(secret), None)

    def end_of(self, account: str) -> None:
        """End all sessions of an account."""
        self.end_where(lambda session: session.account == account)

    def end_where(self, is_over: Callable[[SignedIn], bool]) -> None:
        """End the sessions of which this is true."""
        for key in [key for key, entry in self._entries.items() if is_over(entry.session)]:
            del self._entries[key]

    def _is_over(self, entry: _Entry, now: float) -> bool:
        return now - entry.used >= self._idle_s or now - entry.session.began >= self._longest_s

    def _expire(self, now: float) -> None:
        for key in [key for key, entry in self._entries.items() if self._is_over(entry, now)]:
            del self._entries[key]
