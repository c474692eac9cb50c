"""Accounts of people and tokens of programs, in one file that is replaced as a whole.

The console and `holdmq console user` may change it at the same time: each change reads what is there under
the lock beside it. Passwords are there as argon2id hashes, tokens as SHA-256: 256 random bits need no more.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from console.identity.roles import RoleName
from holdmq.credentials.password_hash import PASSWORD_MAX_BYTES, hash_password
from holdmq.errors import StartupError, StorageError, StoreFormatError, UsageError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.file_signature import Signature, signature_of
from holdmq.files.private_file import locked

FILE: Final = "accounts.json"
LOCK: Final = "accounts.lock"
ACCOUNTS_MAX: Final = 1_000
TOKENS_MAX: Final = 1_000
PASSWORD_MIN: Final = 10
"""Characters: guesses are slow here, and whoever has the file has argon2id before him."""
PASSWORD_BYTES: Final = 15
"""Random bytes of a password that the console makes: 20 characters."""
TOKEN_BYTES: Final = 32
TOKEN_PREFIX: Final = "hmq_"  # noqa: S105 # what every token begins with, so that scanners find a lost one
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"

T = TypeVar("T")


class NotFoundError(Exception):
    """There is no account or token of this name."""


class ExistsError(Exception):
    """There is an account or token of this name already, or as many as may be."""


class LastAdminError(Exception):
    """The change would leave nobody who may give accounts."""


class Account(BaseModel):
    """A person. `must_change_password`: somebody else has seen it."""

    model_config = ConfigDict(frozen=True)

    name: str
    role: RoleName
    password_hash: str
    created_ms: int
    password_ms: int
    disabled: bool = False
    must_change_password: bool = False


class Token(BaseModel):
    """A program's key, which `by` made. `expires_ms` None = never."""

    model_config = ConfigDict(frozen=True)

    name: str
    role: RoleName
    digest: str
    created_ms: int
    expires_ms: int | None
    by: str


class Identities(BaseModel):
    """All that the file has, each by its name."""

    model_config = ConfigDict(frozen=True)

    accounts: dict[str, Account] = {}
    tokens: dict[str, Token] = {}

    def token_of(self, secret: str, now_ms: int) -> Token | None:
        """Return the token with this secret, if it still counts."""
        digest = digest_of(secret)
        found = next(
            (one for one in self.tokens.values() if secrets.compare_digest(one.digest, digest)), None
        )
        if found is None or (found.expires_ms is not None and found.expires_ms <= now_ms):
            return None
        return found


class AccountFile:
    """The file in `directory`; every call blocks and may raise StorageError. Changes are durable."""

    def __init__(self, directory: Path, clock_ms: Callable[[], int] | None = None) -> None:
        self._directory = directory
        self._file = AtomicFile(directory / FILE)
        self._clock_ms = clock_ms or _now_ms

    def signature(self) -> Signature:
        """Return what differs once somebody has changed the file."""
        return signature_of([self._file.path])

    def load(self) -> Identities:
        """Return what the file has; nothing where there is none."""
        return self._loaded()[0]

    def begin(self) -> str | None:
        """Make the account `admin` where there are no accounts, and return its password; None: there are."""
        with self._changing() as (identities, save):
            if identities.accounts:
                return None
            password = made_password()
            account = self._account("admin", "admin", password, must_change=True)
            save(identities.model_copy(update={"accounts": {account.name: account}}))
            return password

    def add(self, name: str, role: RoleName, password: str | None = None) -> tuple[Account, str]:
        """Add an account; without a password one is made. Returns both. ExistsError, UsageError."""
        _check_name(name)
        made = password or made_password()
        account = self._account(name, role, made, must_change=not password)
        with self._changing() as (identities, save):
            if name in identities.accounts:
                raise ExistsError(f"there is an account {name!r} already")
            if len(identities.accounts) >= ACCOUNTS_MAX:
                raise ExistsError(f"there are {ACCOUNTS_MAX} accounts, as many as may be; remove one first")
            save(identities.model_copy(update={"accounts": {**identities.accounts, name: account}}))
        return account, made

    def change(self, name: str, role: RoleName | None = None, disabled: bool | None = None) -> Account:
        """Change an account's role, or whether it may sign in. NotFoundError, LastAdminError."""
        changes = {key: value for key, value in (("role", role), ("disabled", disabled)) if value is not None}
        return self._replace(name, lambda account: account.model_copy(update=changes))

    def set_password(
        self, name: str, password: str | None = None, *, by_owner: bool = False
    ) -> tuple[Account, str]:
        """Give an account a new password; without one it is made. Returns both. NotFoundError, UsageError."""
        made = password or made_password()
        new = self._account(name, "viewer", made, must_change=not by_owner)
        changed = {
            "password_hash": new.password_hash,
            "password_ms": new.password_ms,
            "must_change_password": new.must_change_password,
        }
        return self._replace(name, lambda account: account.model_copy(update=changed)), made

    def remove(self, name: str) -> None:
        """Remove an account. NotFoundError, LastAdminError."""
        with self._changing() as (identities, save):
            _found(identities.accounts, name, "account")
            left = {key: one for key, one in identities.accounts.items() if key != name}
            _keep_an_admin(left)
            save(identities.model_copy(update={"accounts": left}))

    def add_token(self, name: str, role: RoleName, days: int | None, by: str) -> tuple[Token, str]:
        """Make a token that counts for `days` (None = until it is removed), and return it and its secret."""
        _check_name(name)
        secret = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        now_ms = self._clock_ms()
        expires_ms = None if days is None else now_ms + days * 86_400_000
        token = Token(
            name=name,
            role=role,
            digest=digest_of(secret),
            created_ms=now_ms,
            expires_ms=expires_ms,
            by=by,
        )
        with self._changing() as (identities, save):
            if name in identities.tokens:
                raise ExistsError(f"there is a token {name!r} already")
            if len(identities.tokens) >= TOKENS_MAX:
                raise ExistsError(f"there are {TOKENS_MAX} tokens, as many as may be; remove one first")
            save(identities.model_copy(update={"tokens": {**identities.tokens, name: token}}))
        return token, secret

    def remove_token(self, name: str) -> None:
        """Remove a token, which counts no more. NotFoundError."""
        with self._changing() as (identities, save):
            _found(identities.tokens, name, "token")
            left = {key: one for key, one in identities.tokens.items() if key != name}
            save(identities.model_copy(update={"tokens": left}))

    def _replace(self, name: str, change: Callable[[Account], Account]) -> Account:
        with self._changing() as (identities, save):
            changed = change(_found(identities.accounts, name, "account"))
            accounts = {**identities.accounts, name: changed}
            _keep_an_admin(accounts)
            save(identities.model_copy(update={"accounts": accounts}))
            return changed

    def _account(self, name: str, role: RoleName, password: str, *, must_change: bool) -> Account:
        if len(password) < PASSWORD_MIN or len(password.encode(errors="replace")) > PASSWORD_MAX_BYTES:
            raise UsageError(
                f"a password has at least {PASSWORD_MIN} characters, and at most {PASSWORD_MAX_BYTES} bytes"
            )
        now_ms = self._clock_ms()
        return Account(
            name=name,
            role=role,
            password_hash=hash_password(password.encode(errors="replace")),
            created_ms=now_ms,
            password_ms=now_ms,
            must_change_password=must_change,
        )

    @contextmanager
    def _changing(self) -> Iterator[tuple[Identities, Callable[[Identities], None]]]:
        """Hold the lock; give what the file has, and what replaces it."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._directory / LOCK):
                identities, version = self._loaded()

                def save(changed: Identities) -> None:
                    self._file.save(changed.model_dump(), version + 1)

                yield identities, save
        except OSError as error:
            raise StorageError(
                error.strerror or str(error), operation="change", path=str(self._file.path)
            ) from error

    def _loaded(self) -> tuple[Identities, int]:
        # Never its backup: whoever was removed last would be there again.
        found = self._file.load()
        if found is None:
            return Identities(), 0
        try:
            return Identities.model_validate(found.content), found.data_version
        except ValidationError as error:
            raise StoreFormatError(
                "it has accounts of another shape",
                operation="open",
                path=str(self._file.path),
                hint="restore it, or remove it to begin with a new admin",
            ) from error


def made_password() -> str:
    """Return a new random password."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def digest_of(secret: str) -> str:
    """Return what is kept of a token or a session's cookie."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _check_name(name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(f"{name[:80]!r} is no name: 1 to 64 letters, digits, '.', '_', '@' and '-' are")


def _found(entries: dict[str, T], name: str, what: str) -> T:
    if name not in entries:
        raise NotFoundError(f"there is no {what} {name[:80]!r}")
    return entries[name]


def _keep_an_admin(accounts: dict[str, Account]) -> None:
    if not any(one.role == "admin" and not one.disabled for one in accounts.values()):
        raise LastAdminError("nobody would be left who may give accounts: make another one admin first")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def first_password(directory: Path) -> str | None:
    """Make the first account, as `AccountFile.begin` does. Raises StartupError when that is not possible."""
    try:
        return AccountFile(directory).begin()
    except StorageError as error:
        raise StartupError(f"the console's accounts (console.data_dir): {error}") from error
