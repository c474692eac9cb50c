"""Logins that failed, and who has to wait because of them: by address, by user name, and by both. Sans-IO.

::

    failures 1 … failures_max     each is tried at once
    failures_max + 1, + 2, …      nothing is tried for delay_s, 2 · delay_s, … up to delay_max_s
    none for forget_s             all is forgotten

A user who came in from an address lately is *known* there: then only failures of this user at this address
hold him back. So nobody locks a device out by guessing at its name elsewhere, nor by failing beside it behind
the same carrier's address. An address may fail once more for each user that is known there.

The same wrong secret again is no further guess: a device with an old password does not hold its site back.
A proof of SCRAM cannot be compared with another, so that each of these counts.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any, Final, NamedTuple

COUNTED_MAX: Final = 20_000
"""Addresses, users and pairs of them (each) with too few failures to be held back; 250 to 700 bytes. Past
it the one that failed longest ago is forgotten: an address that wants another's few failures forgotten has to
fail itself, and is held back after `failures_max`, so that it takes thousands of addresses."""
HELD_MAX: Final = 10_000
"""The same of those that are held back, whose places the others cannot take."""
KNOWN_MAX: Final = 100_000
"""Users that are known at an address, 350 bytes each; past it who came in longest ago is not known."""
KNOWN_OF_USER_MAX: Final = 64
"""Addresses where one user is known: more are not remembered, so that one user's cannot push others' out."""
KNOWN_S: Final = 7 * 86_400.0
"""How long a user is known after he came in: longer than a device that sends once a day is away."""
TOLD_AGAIN_S: Final = 3600.0
"""How old it must be for other processes to be told again."""
GUESSES_MAX: Final = 8
"""Wrong secrets that are remembered of an address or user, as hashes, to tell a repeated one."""
_USER_BYTES: Final = 16
_GUESS_BYTES: Final = 8
_DOUBLINGS_MAX: Final = 30

ADDRESS: Final = "address"
USER: Final = "user"
PAIR: Final = "user at this address"


class Rules(NamedTuple):
    """How many failures are free, the first and the longest delay, and after which time without any all is
    forgotten (s)."""

    failures_max: int
    delay_s: float
    delay_max_s: float
    forget_s: float


class Login(NamedTuple):
    """One login: an address (bytes that stand for it), a hash of the user's name, one of what was guessed.

    b"" = no address, no name, or a secret that cannot be compared (a SCRAM proof differs each time).
    """

    address: bytes
    user: bytes
    guess: bytes


def login_row(login: Login) -> list[str]:
    """A login as processes tell each other."""
    return [part.hex() for part in login]


def login_of(row: list[Any]) -> Login:
    """The login that a row tells of. Raises ValueError."""
    address, user, guess = (bytes.fromhex(part) for part in row)
    return Login(address, user, guess)


class _Failures:
    """Failures of one; nothing is tried before `until` (s)."""

    __slots__ = ("failures", "guesses", "last_at", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.guesses: tuple[bytes, ...] = ()
        self.last_at = 0.0
        self.until = 0.0


class _Table:
    """Failures by key. Who is held back is kept apart, so that many who failed once do not push him out."""

    __slots__ = ("_counted", "_held", "_rules")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        # Both in the order of the last failure: the first ones are those to forget.
        self._counted: OrderedDict[bytes, _Failures] = OrderedDict()
        self._held: OrderedDict[bytes, _Failures] = OrderedDict()

    @property
    def held(self) -> int:
        return len(self._held)

    def is_held(self, key: bytes, now: float) -> bool:
        entry = self._held.get(key)
        return entry is not None and entry.until > now

    def failed(self, key: bytes, guess: bytes, more: int, now: float) -> bool:
        """Count a failure of one who may have `more` than the rules say; whether he is held back from now on
        and was not before."""
        rules = self._rules
        entry = self._held.get(key) or self._counted.get(key)
        if entry is None or now - entry.last_at >= rules.forget_s:
            self.forget(key)
            entry = _Failures()
        if guess:
            if guess in entry.guesses:
                return False
            entry.guesses = (*entry.guesses, guess)[-GUESSES_MAX:]
        entry.failures += 1
        entry.last_at = now
        was_held = key in self._held
        over = entry.failures - rules.failures_max - more
        if over <= 0:
            # Who is held back stays among those: his place is not given to who has failed less.
            _put(self._held if was_held else self._counted, key, entry, HELD_MAX if was_held else COUNTED_MAX)
            return False
        entry.until = now + min(rules.delay_max_s, rules.delay_s * 2.0 ** min(over - 1, _DOUBLINGS_MAX))
        self._counted.pop(key, None)
        _put(self._held, key, entry, HELD_MAX)
        return not was_held

    def forget(self, key: bytes | None) -> bool:
        """Forget one, or all (None); whether somebody was held back."""
        if key is None:
            was_held = bool(self._held)
            self._held.clear()
            self._counted.clear()
            return was_held
        self._counted.pop(key, None)
        return self._held.pop(key, None) is not None

    def expire(self, now: float) -> None:
        for entries in (self._counted, self._held):
            while entries:
                key, entry = next(iter(entries.items()))
                if now - entry.last_at < self._rules.forget_s:
                    break
                del entries[key]


def _put(entries: OrderedDict[bytes, _Failures], key: bytes, entry: _Failures, entries_max: int) -> None:
    entries[key] = entry
    entries.move_to_end(key)
    if len(entries) > entries_max:
        entries.popitem(last=False)


class LoginFailures:
    """Counts failed logins and says who must wait. Processes that share one tell each other of failures.

    `key` is secret, the same in all of them: nobody can tell names and guesses from what is kept.
    """

    def __init__(self, rules: Rules, key: bytes) -> None:
        self._key = key
        self._addresses = _Table(rules)
        self._users = _Table(rules)
        self._pairs = _Table(rules)
        # Address and user together → when he came in last; in this order.
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._known_of_user: dict[bytes, int] = {}
        self._known_at: dict[bytes, int] = {}

    @property
    def held(self) -> int:
        """Addresses, users and pairs that have failed too often, and have to wait when they fail again."""
        return self._addresses.held + self._users.held + self._pairs.held

    @property
    def known(self) -> int:
        """Users that are known, each at one address."""
        return len(self._known)

    def login(self, address: bytes, user: str, secret: bytes | None = None) -> Login:
        """A login as it is counted; a `secret` of None is compared with nothing."""
        name = user.encode()
        guess = b""
        if secret is not None:
            guess = self._digest(b"%d:" % len(name) + name + secret, _GUESS_BYTES)
        return Login(address, self._digest(name, _USER_BYTES) if name else b"", guess)

    def is_held(self, login: Login, now: float) -> bool:
        """Whether it must not be tried now: it is to be answered as one whose secret is wrong.

        It does not depend on the secret, nor on whether there is such a user.
        """
        pair = _pair(login)
        at = self._known.get(pair)
        if at is not None and now - at < KNOWN_S:
            return self._pairs.is_held(pair, now)
        return self._addresses.is_held(login.address, now) or (
            bool(login.user) and self._users.is_held(login.user, now)
        )

    def failed(self, login: Login, now: float) -> tuple[str, ...]:
        """Count a failed login; return what is newly held back (ADDRESS, USER, PAIR)."""
        began: list[str] = []
        if self._addresses.failed(login.address, login.guess, self._known_at.get(login.address, 0), now):
            began.append(ADDRESS)
        if login.user and self._users.failed(login.user, login.guess, 0, now):
            began.append(USER)
        pair = _pair(login)
        if pair in self._known and self._pairs.failed(pair, login.guess, 0, now):
            began.append(PAIR)
        return tuple(began)

    def succeeded(self, login: Login, now: float) -> bool:
        """Note a login that was right; True = tell other processes: it is new, or they were told long ago."""
        if not login.user:
            return False
        pair = _pair(login)
        before = self._known.get(pair)
        self._pairs.forget(pair)
        if before is None:
            if self._known_of_user.get(login.user, 0) >= KNOWN_OF_USER_MAX:
                return False
            _count(self._known_of_user, login.user, 1)
            _count(self._known_at, login.address, 1)
        elif now - before < TOLD_AGAIN_S:
            return False  # nor written down: or who comes often would never be told of again
        self._known[pair] = now
        self._known.move_to_end(pair)
        if len(self._known) > KNOWN_MAX:
            self._unknow(next(iter(self._known)))
        return True

    def forget(self, user: str | None) -> int:
        """Forget the failures of a user, or of all users and addresses (None); how many were held back."""
        if user is None:
            held = self.held
            for table in (self._addresses, self._users, self._pairs):
                table.forget(None)
            return held
        name = self.login(b"", user).user
        held = int(self._users.forget(name))
        for pair in [pair for pair in self._known if pair.endswith(name)]:
            held += self._pairs.forget(pair)
        return held

    def expire(self, now: float) -> None:
        """Forget what counts no more."""
        for table in (self._addresses, self._users, self._pairs):
            table.expire(now)
        while self._known:
            pair, at = next(iter(self._known.items()))
            if now - at < KNOWN_S:
                break
            self._unknow(pair)

    def _unknow(self, pair: bytes) -> None:
        del self._known[pair]
        _count(self._known_of_user, pair[-_USER_BYTES:], -1)
        _count(self._known_at, pair[:-_USER_BYTES], -1)

    def _digest(self, data: bytes, size_bytes: int) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=size_bytes).digest()


def _pair(login: Login) -> bytes:
    return login.address + login.user


def _count(counts: dict[bytes, int], key: bytes, by: int) -> None:
    count = counts.get(key, 0) + by
    if count > 0:
        counts[key] = count
    else:
        counts.pop(key, None)
