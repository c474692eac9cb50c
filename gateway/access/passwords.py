"""The password file: hashes of `holdmq passwd` and amqtt (argon2), of crypt(5) and of Mosquitto.

What a check costs says nothing of the name: each computes one hash of every shape (kind and parameters) that
the file has, the user's own for his shape and decoys for the others, and for a name that the file does not
know decoys alone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.access.user_file import parse_users, read_secret_text
from holdmq.credentials.password_hash import (
    MEMORY_KIB,
    NOBODYS_HASH,
    PASSES,
    PASSWORD_MAX_BYTES,
    is_argon2_of,
)
from holdmq.errors import ConfigError

WHAT: Final = "access.password_file"
MEMORY_MAX_KIB: Final = 262_144
"""256 MiB for one check: four threads of a worker take 1 GiB. Hashes of amqtt and argon2-cffi need 64."""
WORK_MAX_KIB: Final = 1_048_576
"""Memory × passes of argon2: 0.7 to 1 s of a core, by which a thread answers nobody else."""
LANES_MAX: Final = 16
ITERATIONS_MAX: Final = 1_000_000
"""PBKDF2's iterations and crypt's rounds: 0.5 to 1 s. OWASP asks for 210,000, mosquitto_passwd takes 101."""
DIGEST_MAX_BYTES: Final = 64
SHAPES_MAX: Final = 4
"""Shapes of which a check computes each one. A file has one or two; of more the dearest are taken, and users
of the others cost their own on top."""

_ARGON2: Final = re.compile(
    r"(\$argon2(id|i|d)\$(?:v=(\d{1,3})\$)?m=(\d{1,10}),t=(\d{1,10}),p=(\d{1,8})\$)"
    r"([^$]{1,256})\$([^$]{1,256})\Z"
)
_CRYPT: Final = re.compile(r"(\$6\$(?:rounds=(\d{1,9})\$)?)([./0-9A-Za-z]{0,16})\$([./0-9A-Za-z]{86})\Z")
_CRYPT_ROUNDS: Final = 5000
_CRYPT_ROUNDS_MIN: Final = 1000
"""What crypt(5) takes for fewer."""
_MOSQUITTO: Final = re.compile(r"\$7\$(\d{1,10})\$([A-Za-z0-9+/=]{1,256})\$([A-Za-z0-9+/=]{1,256})\Z")


class Shape(NamedTuple):
    """All that decides what the check of a password costs. `work` is about the µs of a core that it takes."""

    work: int
    kind: str
    parameters: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Shape:
        """The shape of a hash. Raises ValueError with what is wrong, to follow `is `."""
        if found := _ARGON2.match(text):
            return cls._argon2(found)
        if found := _CRYPT.match(text):
            rounds = max(_CRYPT_ROUNDS_MIN, int(found[2] or _CRYPT_ROUNDS))
            _refuse_over(rounds, ITERATIONS_MAX, "rounds of crypt", "")
            return cls(rounds // 2, "crypt", (rounds,))
        if found := _MOSQUITTO.match(text):
            iterations = int(found[1])
            if not iterations:
                raise ValueError("of 0 iterations of PBKDF2; at least 1 is needed")
            _refuse_over(iterations, ITERATIONS_MAX, "iterations of PBKDF2", "")
            salt, digest = _decoded(found[2]), _decoded(found[3])
            if not salt or not digest or len(digest) > DIGEST_MAX_BYTES:
                raise ValueError(f"no base64 of a salt and of 1 to {DIGEST_MAX_BYTES} bytes of PBKDF2")
            return cls(iterations, "pbkdf2", (iterations,))
        raise ValueError("of no known kind: argon2, $6$ of crypt(5) and $7$ of mosquitto_passwd are")

    @classmethod
    def _argon2(cls, found: re.Match[str]) -> Shape:
        memory, passes, lanes = int(found[4]), int(found[5]), int(found[6])
        if not passes or not lanes or memory < 8 * lanes:
            raise ValueError(
                f"of argon2 with m={memory}, t={passes}, p={lanes}: t and p ≥ 1, and m ≥ 8·p are needed"
            )
        _refuse_over(memory, MEMORY_MAX_KIB, "memory of argon2", " KiB")
        _refuse_over(memory * passes, WORK_MAX_KIB, "memory × passes of argon2", " KiB")
        _refuse_over(lanes, LANES_MAX, "lanes of argon2", "")
        if min(len(_decoded(found[7])), len(_decoded(found[8]))) < 4:
            raise ValueError("no base64 of an argon2 salt and digest")
        return cls(memory * passes, f"argon2{found[2]}", (memory, passes, lanes))


def _refuse_over(value: int, limit: int, what: str, unit: str) -> None:
    if value > limit:
        raise ValueError(f"too dear to check: {value:,}{unit} {what}, of which {limit:,}{unit} are allowed")


def _decoded(text: str) -> bytes:
    """Base64 with or without its padding; b"" for what is none."""
    try:
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def decoy_of(text: str) -> str:
    """A hash of the same shape that no password has."""
    if found := _ARGON2.match(text):
        return f"{found[1]}{_noise(found[7])}${_noise(found[8])}"
    if found := _CRYPT.match(text):
        noise = secrets.token_hex(43)
        return f"{found[1]}{noise[: len(found[3])]}${noise}"
    found = _MOSQUITTO.match(text)
    assert found is not None
    return f"$7${found[1]}${_noise(found[2])}${_noise(found[3])}"


def _noise(text: str) -> str:
    made = base64.b64encode(secrets.token_bytes(len(_decoded(text)))).decode()
    return made if text.endswith("=") else made.rstrip("=")


class PasswordFile:
    """Users and their hashes, as they were read. Never changed, so that any thread may ask it.

    `decoys` has a hash that nobody's password has for each shape that a check computes, the dearest first.
    `warning`: what is not as it should be, for people; "" = nothing.
    """

    __slots__ = ("_users", "decoys", "warning")

    def __init__(self, users: dict[str, str], decoys: dict[Shape, str], warning: str = "") -> None:
        self._users = users
        self.decoys = decoys
        self.warning = warning

    @classmethod
    def read(cls, path: Path) -> PasswordFile:
        """Read a file (blocking). Raises ConfigError naming file, line and user."""
        return cls.parse(read_secret_text(path, WHAT), path)

    @classmethod
    def parse(cls, text: str, path: Path) -> PasswordFile:
        """A file's text. Raises ConfigError naming `path`, line and user."""
        users: dict[str, str] = {}
        counts: Counter[Shape] = Counter()
        samples: dict[Shape, str] = {}
        for name, (secret, number) in parse_users(text, path, WHAT).items():
            try:
                shape = Shape.of(secret)
            except ValueError as error:
                raise ConfigError(
                    f"line {number} of {path} ({WHAT}): the hash of user {name!r} is {error}"
                ) from error
            users[name] = secret
            counts[shape] += 1
            samples[shape] = secret
        if not samples:
            samples[Shape.of(NOBODYS_HASH)] = NOBODYS_HASH
        dearest = sorted(samples, reverse=True)
        warning = ""
        if len(dearest) > SHAPES_MAX:
            users_left = sum(counts[shape] for shape in dearest[SHAPES_MAX:])
            warning = (
                f"it has hashes of {len(dearest)} kinds, of which a check computes the {SHAPES_MAX} dearest: "
                f"how long a wrong password takes tells of the other {users_left} users that they exist"
            )
        decoys = {shape: decoy_of(samples[shape]) for shape in dearest[:SHAPES_MAX]}
        return cls(users, decoys, warning)

    def hash_of(self, user: str) -> str | None:
        """The text of a user's hash; None = there is no such user."""
        return self._users.get(user)

    def beside(self, hash_text: str | None) -> tuple[str, ...]:
        """The decoys that `verify` of this hash must compute as well, so that it costs what others do."""
        own = None if hash_text is None else Shape.of(hash_text)
        return tuple(decoy for shape, decoy in self.decoys.items() if shape != own)


def is_weaker(hash_text: str) -> bool:
    """Whether a hash is easier to guess than those that are made today; dearer ones are not."""
    found = _ARGON2.match(hash_text)
    if found is None or found[2] != "id" or found[3] != "19":
        return True
    memory, passes = int(found[4]), int(found[5])
    return memory < MEMORY_KIB or memory * passes < MEMORY_KIB * PASSES


def verify(hash_text: str | None, password: bytes, decoys: Sequence[str] = ()) -> bool:
    """Whether a password is right (blocking, 20 to 100 ms); None = nobody's.

    `decoys` are computed as well, whatever the answer is (`PasswordFile.beside`).
    """
    if len(password) > PASSWORD_MAX_BYTES:
        return False
    is_right = hash_text is not None and _is_hash_of(hash_text, password)
    for decoy in decoys:
        _is_hash_of(decoy, password)
    return is_right


def _is_hash_of(hash_text: str, password: bytes) -> bool:
    if hash_text.startswith("$7$"):
        return _mosquitto_is(hash_text, password)
    if hash_text.startswith("$6$"):
        return _crypt_is(hash_text, password)
    return is_argon2_of(hash_text, password)


def _mosquitto_is(hash_text: str, password: bytes) -> bool:
    """PBKDF2 with HMAC-SHA-512, as mosquitto_passwd 2 writes it."""
    found = _MOSQUITTO.match(hash_text)
    if found is None:
        return False
    salt, digest = _decoded(found[2]), _decoded(found[3])
    made = hashlib.pbkdf2_hmac("sha512", password, salt, int(found[1]), len(digest))
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
