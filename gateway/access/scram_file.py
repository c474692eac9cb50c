"""The file of SCRAM verifiers, and the exchanges that ask it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.access.user_file import read_users
from gateway.core.scram import ITERATIONS, SALT_BYTES, ScramServer, Verifier
from holdmq.errors import ConfigError

WHAT: Final = "access.scram_file"
NONCE_BYTES: Final = 18


class ScramFile:
    """Users and their verifiers, as they were read; never changed."""

    __slots__ = ("_users",)

    def __init__(self, users: dict[str, Verifier]) -> None:
        self._users = users

    @classmethod
    def read(cls, path: Path) -> ScramFile:
        """Read a file (blocking). Raises ConfigError naming file and user."""
        users: dict[str, Verifier] = {}
        for name, text in read_users(path, WHAT).items():
            try:
                users[name] = Verifier.parse(text)
            except ValueError as error:
                raise ConfigError(f"user {name!r} in {path} ({WHAT}) has {error}") from error
        return cls(users)

    def verifier_of(self, user: str) -> Verifier | None:
        """A user's verifier; None = there is no such user."""
        return self._users.get(user)


class Exchanges:
    """Begins exchanges with the users that `verifier_of` finds."""

    def __init__(self, verifier_of: Callable[[str], Verifier | None]) -> None:
        self._verifier_of = verifier_of
        # Nobody outside can tell an invented salt, which is the same at each try, from a real one.
        self._secret = secrets.token_bytes(32)

    def begin(self) -> ScramServer:
        """A new exchange."""
        return ScramServer(self._verifier_of, self._invented, secrets.token_urlsafe(NONCE_BYTES))

    def _invented(self, user: str) -> Verifier:
        salt = hmac.digest(self._secret, user.encode(), "sha256")[:SALT_BYTES]
        return Verifier(ITERATIONS, salt, b"", b"")


def make_verifier(password: str) -> Verifier:
    """A verifier of a new password (blocking). Raises ValueError."""
    return Verifier.of(password, secrets.token_bytes(SALT_BYTES))
