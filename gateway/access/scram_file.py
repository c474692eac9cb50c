"""The file of SCRAM verifiers, and the exchanges that ask it.

::

    # decoy-key: <base64 of 32 bytes>
    ada:SCRAM-SHA-256$4096:<salt>$<StoredKey>:<ServerKey>

The key makes the challenges for names that the file does not know. `holdmq passwd` writes it, as a comment,
so that an older HoldMQ can read the file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gateway.access.user_file import parse_users, read_secret_text
from gateway.session.scram import SALT_BYTES, Decoys, ScramServer, Verifier
from holdmq.errors import ConfigError

WHAT: Final = "access.scram_file"
NONCE_BYTES: Final = 18
KEY_BYTES: Final = 32

_KEY_LINE: Final = re.compile(r"^#[ \t]*decoy-key:[ \t]*(\S*)[ \t\r]*$", re.MULTILINE)


class ScramFile:
    """Users and their verifiers, as they were read; never changed.

    `warning`: what is not as it should be, for people; "" = nothing.
    """

    __slots__ = ("_decoys", "_users", "warning")

    def __init__(self, users: dict[str, Verifier], key: bytes | None) -> None:
        self._users = users
        self.warning = ""
        if key is None:
            key = _derived(users.values())
            self.warning = (
                "it has no decoy-key: when it changes, the salts of names that it does not know change too, "
                "which tells them from users; `holdmq passwd --scram` adds one, with the next user"
            )
        self._decoys = Decoys(key, users.values())

    @classmethod
    def read(cls, path: Path) -> ScramFile:
        """Read a file (blocking). Raises ConfigError naming file, line and user."""
        return cls.parse(read_secret_text(path, WHAT), path)

    @classmethod
    def parse(cls, text: str, path: Path) -> ScramFile:
        """A file's text. Raises ConfigError naming `path`, line and user."""
        users: dict[str, Verifier] = {}
        for name, (secret, number) in parse_users(text, path, WHAT).items():
            try:
                users[name] = Verifier.parse(secret)
            except ValueError as error:
                raise ConfigError(f"line {number} of {path} ({WHAT}): user {name!r} has {error}") from error
        return cls(users, _key_in(text, path))

    def verifier_of(self, user: str) -> Verifier | None:
        """A user's verifier; None = there is no such user."""
        return self._users.get(user)

    def invented(self, user: str) -> Verifier:
        """What stands for a user that there is not."""
        return self._decoys.verifier_of(user)


def _key_in(text: str, path: Path) -> bytes | None:
    found = _KEY_LINE.search(text)
    if found is None:
        return None
    try:
        key = base64.b64decode(found[1], validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        number = text.count("\n", 0, found.start()) + 1
        raise ConfigError(
            f"line {number} of {path} ({WHAT}): the decoy-key is no base64 of {KEY_BYTES} bytes; take "
            "the line away, and `holdmq passwd --scram` writes another"
        )
    return key


def _derived(verifiers: Iterable[Verifier]) -> bytes:
    """A key for a file without one: the same for all who read it, until it changes.

    Of all verifiers, as one user could make his own.
    """
    made = hashlib.sha256(b"decoy-key")
    for verifier in verifiers:
        made.update(verifier.stored_key + verifier.server_key)
    return made.digest()


def with_key(text: str) -> str:
    """A file's text with a decoy-key, which stays what it is if there is one."""
    if _KEY_LINE.search(text):
        return text
    return f"# decoy-key: {base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}\n{text}"


class Exchanges:
    """Begins exchanges with the users that `verifier_of` finds; `invented` stands for the others."""

    def __init__(
        self, verifier_of: Callable[[str], Verifier | None], invented: Callable[[str], Verifier]
    ) -> None:
        self._verifier_of = verifier_of
        self._invented = invented

    def begin(self) -> ScramServer:
        """Begin a new exchange."""
        return ScramServer(self._verifier_of, self._invented, secrets.token_urlsafe(NONCE_BYTES))


def make_verifier(password: str) -> Verifier:
    """A verifier of a new password (blocking). Raises ValueError."""
    return Verifier.of(password, secrets.token_bytes(SALT_BYTES))
