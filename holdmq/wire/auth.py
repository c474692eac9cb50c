"""HELLO's proof that both sides know the secret of an access key, which itself never travels.

::

    client                                         server
      HELLO access_key, nonce            ──►
                                         ◄──       UNAUTHENTICATED, ext_fields nonce = its own, new each time
      HELLO access_key, nonce, proof     ──►
                                         ◄──       OK, proof

    proof = HMAC-SHA-256(secret, side | protocol version | role | client id | software | access key |
                         client's nonce | server's nonce | "reads replica" of who says so |
                         "tenant" | tenant of who says one)
                         each item after its length, u32

A recorded HELLO is worth nothing: the next connection gets another nonce. The two sides prove different
texts, so that neither can be played back to the other. The idea is SCRAM's (RFC 5802) without a
password: secrets are random, so nothing slows guessing down. What follows HELLO is protected by TLS only.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping
from typing import Any, Final

from holdmq.errors import WireError
from holdmq.wire.headers import HelloRequest

NONCE_BYTES: Final = 32
"""As many as the digest has: no two connections share one by accident."""
SECRET_CHARACTERS_MIN: Final = 32
"""Shorter secrets could be guessed from one recorded HELLO; `holdmq key create` makes 43."""

_CLIENT: Final = b"holdmq hello client"
_SERVER: Final = b"holdmq hello server"
_READS_REPLICA: Final = b"reads replica"
_TENANT: Final = b"tenant"
_LENGTH: Final = struct.Struct(">I")


def client_proof(secret: bytes, hello: HelloRequest, server_nonce: bytes) -> bytes:
    """What the client sends to show that it knows `secret`; `hello` as it is sent, its proof apart."""
    return _proof(secret, _CLIENT, hello, server_nonce)


def server_proof(secret: bytes, hello: HelloRequest, server_nonce: bytes) -> bytes:
    """What the server answers to show that it knows `secret` too."""
    return _proof(secret, _SERVER, hello, server_nonce)


def is_proof(given: bytes, expected: bytes) -> bool:
    """Whether two proofs are the same, in a time that says nothing of where they differ."""
    return hmac.compare_digest(given, expected)


def challenge_of(ext_fields: Mapping[str, Any]) -> bytes | None:
    """The server's nonce in a refusal of HELLO; None if it asks for no proof. WireError if it is no nonce."""
    nonce = ext_fields.get("nonce")
    if nonce is None:
        return None
    if not isinstance(nonce, bytes) or len(nonce) != NONCE_BYTES:
        raise WireError(f"the challenge to HELLO has no nonce of {NONCE_BYTES} bytes")
    return nonce


def _proof(secret: bytes, side: bytes, hello: HelloRequest, server_nonce: bytes) -> bytes:
    items = [
        side,
        str(hello.protocol_version).encode(),
        hello.role.encode(),
        hello.client_id.encode(),
        hello.software.encode(),
        hello.access_key.encode(),
        hello.nonce,
        server_nonce,
    ]
    if hello.reads_replica:
        # Who does not say so proves what a peer that does not know the field expects.
        items.append(_READS_REPLICA)
    if hello.tenant:
        items += [_TENANT, hello.tenant.encode()]
    # With their lengths: without them the bytes of one field could be read as those of the next.
    text = b"".join(_LENGTH.pack(len(item)) + item for item in items)
    return hmac.new(secret, text, hashlib.sha256).digest()
