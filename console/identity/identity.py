"""Signing in and being known again: accounts, sessions and tokens as the requests of the API need them."""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

import structlog
from prometheus_client import Counter, Gauge

from console.identity.accounts import Account, AccountFile, Identities
from console.identity.roles import Rank, RoleName
from console.identity.sessions import SignedIn, SignedInTable
from holdmq.credentials.login_failures import LoginFailures, Rules
from holdmq.credentials.password_hash import NOBODYS_HASH, PASSWORD_MAX_BYTES, is_argon2_of
from holdmq.service import telemetry

RULES: Final = Rules(failures_max=5, delay_s=2.0, delay_max_s=60.0, forget_s=3600.0)
"""Five mistakes are free, for an account and for an address; then each further one makes it wait."""
CHECKS_MAX: Final = 32
"""Passwords that wait to be checked, 40 ms each: a second of a core. Whoever comes then is asked to wait."""
LOOK_S: Final = 1.0
"""How old what is known of the file may be: `holdmq console user` changes it beside us."""

SIGN_INS: Final = Counter(
    "holdmq_console_sign_ins_total", "Passwords that were shown, by outcome.", ["outcome"],
    registry=telemetry.METRICS,
)  # fmt: skip
SESSIONS: Final = Gauge(
    "holdmq_console_sessions", "Browsers that are signed in, or were until a while ago.",
    registry=telemetry.METRICS,
)  # fmt: skip

log = structlog.get_logger("holdmq.console")


class WrongCredentialsError(Exception):
    """The account or the password is wrong; nobody is told which."""


class SlowDownError(Exception):
    """Too many have failed; `retry_after_s` says when to come again."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("too many sign-ins have failed: wait a minute, then try again")
        self.retry_after_s = retry_after_s


class Caller(NamedTuple):
    """The one who makes a request. `csrf` None = no browser sends what lets him in by itself."""

    name: str
    role: Rank
    csrf: str | None = None
    must_change_password: bool = False

    @property
    def role_name(self) -> RoleName:
        """Return the role's name for answers."""
        return "admin" if self.role is Rank.ADMIN else "operator" if self.role is Rank.OPERATOR else "viewer"


class KnowsCallers(Protocol):
    """Says who makes a request, by the secret of a cookie or of an Authorization header ("" = none)."""

    async def caller(self, cookie: str, bearer: str) -> Caller | None:
        """Return who it is; None = nobody that is known."""

    async def is_still(self, caller: Caller, cookie: str, bearer: str) -> bool:
        """Return whether they are still the secrets of this caller; a session is not used by asking."""


class Everybody:
    """Takes everybody for an admin: console.auth = "none", where only this machine reaches the port."""

    async def caller(self, cookie: str, bearer: str) -> Caller | None:
        """Return the one whom everybody is."""
        return Caller("anyone", Rank.ADMIN)

    async def is_still(self, caller: Caller, cookie: str, bearer: str) -> bool:
        """Return True: nobody stops being anyone."""
        return True


class SignedInCallers:
    """Knows who has signed in, and the tokens of programs."""

    def __init__(self, file: AccountFile, sessions: SignedInTable) -> None:
        self.file = file
        self.sessions = sessions
        self._failures = LoginFailures(RULES, secrets.token_bytes(32))
        self._identities = Identities()
        self._signature: object = None
        self._looked_at = float("-inf")
        self._turn = asyncio.Lock()
        # Two at once: a guesser with many addresses leaves the other cores to the cluster.
        self._threads = ThreadPoolExecutor(2, "console-passwords")
        self._checks = 0

    async def caller(self, cookie: str, bearer: str) -> Caller | None:
        """Return whose session or token it is. StorageError when the accounts cannot be read."""
        identities = await self.identities()
        session = self.sessions.use(cookie, time.monotonic()) if cookie and not bearer else None
        SESSIONS.set(len(self.sessions))
        return _caller_of(identities, session, bearer)

    async def is_still(self, caller: Caller, cookie: str, bearer: str) -> bool:
        """Return whether they are still the secrets of this caller. StorageError as `caller`."""
        identities = await self.identities()
        session = self.sessions.look(cookie, time.monotonic()) if cookie and not bearer else None
        return _caller_of(identities, session, bearer) == caller

    async def sign_in(self, name: str, password: str, address: str) -> tuple[str, Caller]:
        """Begin a session; return its cookie's secret, and who it is.

        Raises WrongCredentialsError, SlowDownError.
        """
        account = await self._checked(name, password, address)
        secret, session = self.sessions.begin(account.name, time.monotonic())
        SESSIONS.set(len(self.sessions))
        return secret, _caller(account, session)

    async def change_password(self, name: str, old: str, new: str, address: str) -> tuple[str, Caller]:
        """Change the password of who knows the old one: all sessions end, and a new one begins."""
        await self._checked(name, old, address)
        account, _ = await asyncio.to_thread(self.file.set_password, name, new, by_owner=True)
        await self.identities(anew=True)
        self.sessions.end_of(name)
        secret, session = self.sessions.begin(name, time.monotonic())
        return secret, _caller(account, session)

    async def identities(self, *, anew: bool = False) -> Identities:
        """Return accounts and tokens; sessions of accounts that have changed end. StorageError."""
        async with self._turn:
            now = time.monotonic()
            if anew or now - self._looked_at >= LOOK_S:
                await self._look()
                self._looked_at = now
        return self._identities

    def release(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> None:
        signature = await asyncio.to_thread(self.file.signature)
        if signature == self._signature:
            return
        before, self._identities = self._identities, await asyncio.to_thread(self.file.load)
        self._signature = signature
        for name, account in before.accounts.items():
            if _entitled(account) != _entitled(self._identities.accounts.get(name)):
                self.sessions.end_of(name)

    async def _checked(self, name: str, password: str, address: str) -> Account:
        login = self._failures.login(address.encode(), name, password.encode(errors="replace"))
        if self._failures.is_held(login, time.monotonic()) or self._checks >= CHECKS_MAX:
            SIGN_INS.labels("held").inc()
            raise SlowDownError(int(RULES.delay_max_s))
        account = (await self.identities()).accounts.get(name)
        hash_text = NOBODYS_HASH if account is None or account.disabled else account.password_hash
        self._checks += 1
        try:
            is_right = await asyncio.get_running_loop().run_in_executor(
                self._threads, _is_right, hash_text, password
            )
        finally:
            self._checks -= 1
        if not is_right or account is None or account.disabled:
            SIGN_INS.labels("wrong").inc()
            held = self._failures.failed(login, time.monotonic())
            log.warning("a sign-in has failed", address=address, held_back=", ".join(held))
            raise WrongCredentialsError("the name or the password is wrong")
        SIGN_INS.labels("right").inc()
        self._failures.succeeded(login, time.monotonic())
        self._failures.expire(time.monotonic())
        return account


def _entitled(account: Account | None) -> tuple[object, ...]:
    """Return what a session stands on: when it changes, the session ends."""
    return () if account is None else (account.role, account.password_hash, account.disabled)


def _is_right(hash_text: str, password: str) -> bool:
    secret = password.encode(errors="replace")
    return len(secret) <= PASSWORD_MAX_BYTES and is_argon2_of(hash_text, secret)


def _caller_of(identities: Identities, session: SignedIn | None, bearer: str) -> Caller | None:
    if bearer:
        token = identities.token_of(bearer, time.time_ns() // 1_000_000)
        return None if token is None else Caller(f"token:{token.name}", Rank.of(token.role))
    account = None if session is None else identities.accounts.get(session.account)
    return None if account is None or session is None else _caller(account, session)


def _caller(account: Account, session: SignedIn) -> Caller:
    return Caller(account.name, Rank.of(account.role), session.csrf, account.must_change_password)
