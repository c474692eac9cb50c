"""The client's half of SCRAM-SHA-256 (RFC 5802), as a device does it."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One exchange: `first`, then `final` with the challenge, then `verify` with the server's last word."""

    def __init__(self, user: str, password: str, nonce: str = "rOprNGfwEbeRWgbNEkqO") -> None:
        self._password = password
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes, binding: str = "biws") -> bytes:
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salt = base64.b64decode(fields["s"])
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt, int(fields["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c={binding},r={fields['r']}"
        signed = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, last: bytes) -> bool:
        """Whether the server knows the password as well."""
        return last == b"v=" + base64.b64encode(self._signature)
