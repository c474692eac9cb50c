"""The password file: hashes of `holdmq passwd` and amqtt (argon2), of crypt(5) and of Mosquitto."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
import warnings
from pathlib import Path
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from gateway.access.user_file import read_users
from holdmq.errors import ConfigError

WHAT: Final = "access.password_file"
MEMORY_KIB: Final = 19_456
"""OWASP's smallest choice of argon2id (19 MiB, 2 passes, 1 lane): 20 to 40 ms of a core. amqtt's own 64 MiB
in four lanes would let four devices that connect at once take 256 MiB."""
PASSES: Final = 2
LANES: Final = 1
PASSWORD_MAX_BYTES: Final = 4096
"""A longer password is wrong without being tried."""

_ARGON2: Final = re.compile(
    r"\$argon2(id|i|d)\$(v=\d+\$)?m=(\d{1,7}),t=(\d{1,4}),p=(\d{1,3})\$[^$]+\$[^$]+\Z"
)
_CRYPT: Final = re.compile(r"\$6\$(rounds=\d+\$)?[./0-9A-Za-z]{0,16}\$[./0-9A-Za-z]{86}\Z")
_MOSQUITTO: Final = re.compile(r"\$7\$(\d{1,8})\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)\Z")

_hasher = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


@functools.cache
def _nobodys() -> str:
    return _hasher.hash("nobody's")


class PasswordFile:
    """Users and their hashes, as they were read. Never changed, so that any thread may ask it."""

    __slots__ = ("_users",)

    def __init__(self, users: dict[str, str]) -> None:
        self._users = users

    @classmethod
    def read(cls, path: Path) -> PasswordFile:
        """Read a file (blocking). Raises ConfigError naming file and user."""
        users = read_users(path, WHAT)
        for name, text in users.items():
            if not (_ARGON2.match(text) or _CRYPT.match(text) or _MOSQUITTO.match(text)):
                raise ConfigError(
                    f"the hash of user {name!r} in {path} ({WHAT}) is of no known kind: argon2, $6$ of "
                    "crypt(5) and $7$ of mosquitto_passwd are"
                )
        return cls(users)

    def hash_of(self, user: str) -> str | None:
        """The text of a user's hash; None = there is no such user."""
        return self._users.get(user)


def hash_password(password: bytes) -> str:
    """Make the hash of a new password: argon2id (blocking, 20 to 40 ms)."""
    return _hasher.hash(password)


def verify(hash_text: str | None, password: bytes) -> bool:
    """Whether a password is right (blocking, 20 to 100 ms); None = nobody's, which takes as long."""
    if len(password) > PASSWORD_MAX_BYTES:
        return False
    if hash_text is None:
        _argon2_is(_nobodys(), password)
        return False
    if hash_text.startswith("$7$"):
        return _mosquitto_is(hash_text, password)
    if hash_text.startswith("$6$"):
        return _crypt_is(hash_text, password)
    return _argon2_is(hash_text, password)


def _argon2_is(hash_text: str, password: bytes) -> bool:
    try:
        return _hasher.verify(hash_text, password)
    except (Argon2Error, InvalidHashError):
        return False


def _mosquitto_is(hash_text: str, password: bytes) -> bool:
    """PBKDF2 with HMAC-SHA-512, as mosquitto_passwd 2 writes it."""
    found = _MOSQUITTO.match(hash_text)
    if found is None:
        return False
    try:
        salt, digest = base64.b64decode(found[2], validate=True), base64.b64decode(found[3], validate=True)
    except binascii.Error:
        return False
    made = hashlib.pbkdf2_hmac("sha512", password, salt, max(1, int(found[1])), len(digest) or None)
    return hmac.compare_digest(made, digest)


def _crypt_is(hash_text: str, password: bytes) -> bool:
    """SHA-512 of crypt(5): only where Python still has crypt (before 3.13)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from crypt import crypt
        except ImportError:
            return False
    try:
        made = crypt(password.decode(), hash_text)
    except (UnicodeDecodeError, ValueError, OSError):
        return False
    return bool(made) and hmac.compare_digest(made, hash_text)
