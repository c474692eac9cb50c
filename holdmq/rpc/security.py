"""What a client shows and checks when it connects: access key, TLS, certificates."""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdmq.errors import Code, ConfigError, RemoteError, UsageError, WireError
from holdmq.files.private_file import read_private
from holdmq.rpc.tls import client_context
from holdmq.wire.auth import NONCE_BYTES, challenge_of, client_proof, is_proof, server_proof
from holdmq.wire.headers import HelloRequest, HelloResponse

if TYPE_CHECKING:
    from holdmq.config.model import Config

SECRET_FILE_MAX_BYTES: Final = 64 << 10
"""A file of one secret, which is a line."""


@dataclass(frozen=True, slots=True)
class Security:
    """Credentials and TLS of a client; the same for registries and brokers.

    `access_key` with its `secret`, or the `secret_file` whose one line it is (read at each connection, so
    that it may change). TLS is used when `tls` is set or any of the others is: `tls_ca` is the PEM file of
    the authorities that may sign servers' certificates ("" = the system's), `tls_cert` and `tls_key` are
    this client's own certificate, `tls_server_name` is what to look for in the server's certificate in
    place of the host that was connected to. Raises UsageError for fields that do not go together.
    """

    access_key: str = ""
    secret: str = field(default="", repr=False)
    secret_file: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_server_name: str = ""

    def __post_init__(self) -> None:
        if self.secret and self.secret_file:
            raise UsageError("client.secret and client.secret_file are both set: one of them is enough")
        if bool(self.access_key) != bool(self.secret or self.secret_file):
            missing = "client.secret or client.secret_file" if self.access_key else "client.access_key"
            raise UsageError(f"an access key needs its name and its secret: {missing} is not set")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UsageError("client.tls_cert and client.tls_key belong together: set both or none")

    @classmethod
    def of(cls, config: Config) -> Security | None:
        """What ``[client]`` says; None when it says nothing. ConfigError if it makes no sense."""
        section = config.client
        secret = section.secret.get_secret_value() if section.secret is not None else ""
        try:
            security = cls(
                section.access_key,
                secret,
                section.secret_file,
                section.tls,
                section.tls_ca,
                section.tls_cert,
                section.tls_key,
                section.tls_server_name,
            )
        except UsageError as error:
            raise ConfigError(str(error)) from None
        return None if security == cls() else security

    @property
    def uses_tls(self) -> bool:
        return self.tls or bool(self.tls_ca or self.tls_cert or self.tls_server_name)

    def context(self) -> ssl.SSLContext | None:
        """A TLS context from the files as they are now (blocking); None without TLS. ConfigError."""
        return client_context(self.tls_ca, self.tls_cert, self.tls_key) if self.uses_tls else None

    def read_secret(self) -> bytes:
        """The secret of the access key (blocking); ConfigError if its file cannot be read."""
        if not self.secret_file:
            return self.secret.encode()
        path = Path(self.secret_file)
        raw = read_private(path, "client.secret_file", SECRET_FILE_MAX_BYTES)
        secret = raw.decode(errors="replace").strip()
        if not secret:
            raise ConfigError(f"client.secret_file: {path} is empty")
        return secret.encode()


class Introduction:
    """One connection's HELLO: says it, answers the challenge, checks the server's proof."""

    __slots__ = ("_secret", "_server_nonce", "hello")

    def __init__(self, hello: HelloRequest, access_key: str, secret: bytes) -> None:
        self._secret = secret
        self._server_nonce = b""
        nonce = secrets.token_bytes(NONCE_BYTES) if access_key else b""
        self.hello = replace(hello, access_key=access_key, nonce=nonce)

    def challenged(self, refusal: RemoteError) -> HelloRequest:
        """The HELLO that answers a challenge; raises `refusal` itself if it is none that we can answer."""
        if refusal.code != Code.UNAUTHENTICATED or not self._secret or self._server_nonce:
            raise refusal
        nonce = challenge_of(refusal.ext_fields)
        if nonce is None:
            raise refusal
        self._server_nonce = nonce
        return replace(self.hello, proof=client_proof(self._secret, self.hello, nonce))

    def check(self, answer: HelloResponse) -> None:
        """Raise WireError unless the server proved that it knows the secret that we have."""
        if not self._secret:
            return
        if not self._server_nonce:
            raise WireError(
                f"{answer.name!r} took HELLO without asking for our secret: it is not the server we were "
                "told of, or it has no access keys yet (security.keys_file there)",
                Code.UNAUTHENTICATED,
            )
        if not is_proof(answer.proof, server_proof(self._secret, self.hello, self._server_nonce)):
            raise WireError(
                f"{answer.name!r} does not know the secret of access key {self.hello.access_key!r}: it is "
                "not the server that we were told of",
                Code.UNAUTHENTICATED,
            )
