"""Hashes of the passwords of people and devices: argon2id, as it is made today (all calls block)."""

from __future__ import annotations

from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

MEMORY_KIB: Final = 19_456
"""OWASP's smallest choice of argon2id (19 MiB, 2 passes, 1 lane): 20 to 40 ms of a core. amqtt's own 64 MiB
in four lanes would let four devices that connect at once take 256 MiB."""
PASSES: Final = 2
LANES: Final = 1
PASSWORD_MAX_BYTES: Final = 4096
"""A longer password is wrong without being tried."""

NOBODYS_HASH: Final = f"$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}${'A' * 22}${'A' * 43}"
"""A hash that no password has: what a check computes for whoever has none."""

_hasher = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def hash_password(password: bytes) -> str:
    """Make the hash of a new password: argon2id, 20 to 40 ms."""
    return _hasher.hash(password)


def is_argon2_of(hash_text: str, password: bytes) -> bool:
    """Return whether this is an argon2 hash of the password."""
    try:
        return _hasher.verify(hash_text, password)
    except (Argon2Error, InvalidHashError):
        return False
