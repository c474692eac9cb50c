"""SCRAM-SHA-256 at the server (RFC 5802, RFC 7677), sans-IO: messages in, messages out.

::

    client                                   server
      │ n,,n=ada,r=<nonce>                ──►  first message
      │◄── r=<nonce+ours>,s=<salt>,i=<n>       challenge
      │ c=biws,r=<both>,p=<proof>         ──►  final message
      │◄── v=<signature>                       the server knows the user as well

The server keeps salt, iterations, StoredKey and ServerKey (a `Verifier`): enough to check a client, not
enough to be one. Channel binding is not offered. An unknown user gets a challenge as any other, and fails at
the end as with a wrong password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final, NamedTuple

METHOD: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4096
"""RFC 7677, 4: at least so many. The client counts, on a device; the server never does."""
ITERATIONS_MAX: Final = 1_000_000
"""More would keep a device busy for minutes."""
SALT_BYTES: Final = 16
SALT_MAX_BYTES: Final = 64
"""A longer salt protects nobody better."""
MESSAGE_MAX_BYTES: Final = 4096
"""A message of a client: user name and nonces are some hundred."""

_VERIFIER: Final = re.compile(r"SCRAM-SHA-256\$(\d{1,10}):([^$:]+)\$([^$:]+):([^$:]+)\Z")
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}\Z")


class ScramError(Exception):
    """The exchange has failed; the client is told the text, which says nothing of whether a user exists."""


class Verifier(NamedTuple):
    """What a server keeps of a password (RFC 5803 has the fields, PostgreSQL the text)."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, salt: bytes) -> Verifier:
        """Make one: takes as long as a client needs. Raises ValueError for a password that cannot be."""
        salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, ITERATIONS)
        client_key = _hmac(salted, b"Client Key")
        return cls(ITERATIONS, salt, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Read `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`. ValueError says what is wrong."""
        found = _VERIFIER.match(text)
        if found is None:
            raise ValueError("no SCRAM-SHA-256 verifier")
        salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in found.groups()[1:])
        iterations = int(found[1])
        if not ITERATIONS <= iterations <= ITERATIONS_MAX:
            raise ValueError(
                f"a SCRAM-SHA-256 verifier of {iterations:,} iterations; {ITERATIONS:,} to "
                f"{ITERATIONS_MAX:,} are allowed, as a client counts them"
            )
        if not salt or len(salt) > SALT_MAX_BYTES or len(stored_key) != 32 or len(server_key) != 32:
            raise ValueError(
                "a SCRAM-SHA-256 verifier with keys that have not 32 bytes, or with a salt that has not 1 to "
                f"{SALT_MAX_BYTES}"
            )
        return cls(iterations, salt, stored_key, server_key)

    def __str__(self) -> str:
        salt, stored, server = map(_text, (self.salt, self.stored_key, self.server_key))
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored}:{server}"


class Decoys:
    """Challenges for users that there are not, which nobody outside can tell from those of real ones.

    Who has the same `key` and the same `verifiers` invents the same: all workers of all gateways that share a
    file, before and after a restart. Salts depend on the key and the name alone. Iterations and the length of
    the salt are those of one of the real users, drawn by the name: a user more or less changes them for as
    few names as can be.
    """

    __slots__ = ("_counts", "_key", "_kinds")

    def __init__(self, key: bytes, verifiers: Iterable[Verifier]) -> None:
        self._key = key
        counts = Counter((verifier.iterations, len(verifier.salt)) for verifier in verifiers)
        self._kinds = sorted(counts) or [(ITERATIONS, SALT_BYTES)]
        self._counts = list(accumulate(counts[kind] for kind in self._kinds)) if counts else [1]

    def verifier_of(self, user: str) -> Verifier:
        """What stands for a user; nobody knows a password that fits."""
        name = user.encode()
        drawn = int.from_bytes(_hmac(self._key, b"kind of " + name)[:8]) * self._counts[-1] >> 64
        iterations, salt_bytes = self._kinds[bisect_right(self._counts, drawn)]
        salt = hmac.digest(self._key, b"salt of " + name, "sha512")[:salt_bytes]
        return Verifier(iterations, salt, _hmac(self._key, b"StoredKey of " + name), b"")


class ScramServer:
    """One exchange. `verifier_of` finds a user; `invented` makes what stands for one that there is not.

    That one has a StoredKey of which nobody knows what it was made of, so that no proof fits. It is made for
    users that there are as well: to find a user takes as long as not to find one.

    Feed messages to `receive`; when `is_done`, `user` is who it is.
    """

    __slots__ = (
        "_auth_message", "_gs2", "_invented", "_nonce", "_server_nonce", "_verifier", "_verifier_of",
        "is_done", "user",
    )  # fmt: skip

    def __init__(
        self,
        verifier_of: Callable[[str], Verifier | None],
        invented: Callable[[str], Verifier],
        server_nonce: str,
    ) -> None:
        self._verifier_of = verifier_of
        self._invented = invented
        self._server_nonce = server_nonce
        self._nonce = ""
        self._gs2 = b""
        self._auth_message = ""
        self._verifier: Verifier | None = None
        self.is_done = False
        self.user = ""

    def receive(self, message: bytes) -> bytes:
        """Take the client's message, return ours. Raises ScramError."""
        if len(message) > MESSAGE_MAX_BYTES or self.is_done:
            raise ScramError("a message that has no place here")
        try:
            text = message.decode()
        except UnicodeDecodeError as error:
            raise ScramError("a message that is not UTF-8") from error
        verifier = self._verifier
        return (self._first(text) if verifier is None else self._final(text, verifier)).encode()

    def _first(self, text: str) -> str:
        binding, _, rest = text.partition(",")
        authzid, comma, bare = rest.partition(",")
        if not comma or binding not in ("n", "y"):
            # p=…: it wants a binding that we did not offer (RFC 5802, 6).
            raise ScramError(f"channel binding {binding[:32]!r} is not offered")
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            # m=…: an extension that we must know (RFC 5802, 5.1).
            raise ScramError("a first message without user and nonce")
        client_nonce = fields[1][2:]
        if not _NONCE.match(client_nonce):
            raise ScramError("a nonce that is none")
        self.user = _name(fields[0][2:])
        if authzid and (not authzid.startswith("a=") or _name(authzid[2:]) != self.user):
            raise ScramError("it wants to act as another user")
        invented = self._invented(self.user)
        verifier = self._verifier = self._verifier_of(self.user) or invented
        self._nonce = client_nonce + self._server_nonce
        self._gs2 = f"{binding},{authzid},".encode()
        challenge = f"r={self._nonce},s={_text(verifier.salt)},i={verifier.iterations}"
        self._auth_message = f"{bare},{challenge}"
        return challenge

    def _final(self, text: str, verifier: Verifier) -> str:
        without_proof, mark, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        if not mark or len(fields) < 2 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
            raise ScramError("a final message without binding, nonce and proof")
        if _bytes(fields[0][2:]) != self._gs2:
            raise ScramError("the channel binding changed between its messages")
        if not hmac.compare_digest(fields[1][2:].encode(), self._nonce.encode()):
            raise ScramError("the nonce is not that of the challenge")
        proof = _bytes(proof_text)
        signed = f"{self._auth_message},{without_proof}".encode()
        signature = _hmac(verifier.stored_key, signed)
        if len(proof) != len(signature):
            raise ScramError("a proof of a wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key):
            raise wrong_password(self.user)
        self.is_done = True
        return f"v={_text(_hmac(verifier.server_key, signed))}"


def wrong_password(user: str) -> ScramError:
    """What ends an exchange whose proof does not fit, or is not looked at."""
    return ScramError(f"no such user, or a wrong password of {user[:64]!r}")


def saslprep(text: str) -> str:
    """Prepare a user name or password (RFC 4013), unassigned code points refused. Raises ValueError."""
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(" " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c))
    prepared = unicodedata.normalize("NFKC", mapped)
    prohibited = (
        stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
        stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
        stringprep.in_table_c9, stringprep.in_table_a1,
    )  # fmt: skip
    if not prepared or any(table(c) for c in prepared for table in prohibited):
        raise ValueError("a text with characters that names and passwords cannot have")
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1]))
    ):
        raise ValueError("a text of mixed directions")
    return prepared


def _name(text: str) -> str:
    """A user name as it is sent: `,` is =2C and `=` is =3D."""
    name = text.replace("=2C", ",").replace("=3D", "=")
    if not name or re.search(r"=(?!2C|3D)", text):
        raise ScramError("a user name that is none")
    try:
        return saslprep(name)
    except ValueError as error:
        raise ScramError(f"a user name: {error}") from error


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramError("a field that is no base64") from error
