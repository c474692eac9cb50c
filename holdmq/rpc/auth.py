"""Admission to a broker or registry: by access key, by certificate, or anonymous.

The files are looked at every `reload_interval_s` and on SIGHUP. An entry that changed or went ends the
connections that it admitted: they come back with what holds now. A file that cannot be read changes
nothing, and is said once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import structlog

from holdmq.credentials.access_keys import AccessKey, Grants, by_certificate, load_keys, roles_of
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError
from holdmq.files.file_signature import Signature, changed, signature_of
from holdmq.rpc.connection import Connection
from holdmq.rpc.strangers import UNAUTHENTICATED_MAX, Strangers
from holdmq.rpc.tls import EXPIRES_SOON_S, ServerTls, explain_client_failure, names_of
from holdmq.wire.auth import NONCE_BYTES, client_proof, is_proof, server_proof
from holdmq.wire.headers import HelloRequest

REFUSALS_LOGGED_EVERY_S: Final = 1.0
"""Least time between two lines on refusals of a kind: who guesses must not fill a disk."""
EXPIRY_SAID_EVERY_S: Final = 86_400.0
_UNGUESSABLE: Final = secrets.token_bytes(32)
"""Stands for the secret of keys that do not exist, so that they are refused like wrong secrets."""

if TYPE_CHECKING:
    from holdmq.config.model import Config

log = structlog.get_logger("holdmq.rpc")


class _Loaded(NamedTuple):
    keys: dict[str, AccessKey]
    signature: Signature


HELP: Final = {
    "access_keys": "Access keys that are known.",
    "unauthenticated_connections": "Connections that have not said who they are yet.",
    "unauthenticated_displaced_total": "Of these, those closed to make room for others.",
    "unauthenticated_total": "Connections whose credentials were missing or wrong.",
    "not_permitted_total": "Requests refused, as the access key does not allow them.",
    "tls_handshakes_failed_total": "TLS handshakes that failed.",
    "security_reload_failures_total": "Changed files of keys or certificates that were of no use.",
    "tls_certificate_expiry_seconds": "When the certificate in use ends, in s since 1970.",
}
"""What `ServerSecurity.numbers` are, behind holdmq_rpc_."""


class ServerSecurity:
    """Admits connections. Make it with `of` (blocking), give it to the rpc.Server, which runs `watch`.

    `keys_file` None = no access keys. `certificate_roles` are the roles of client certificates that no
    entry names; empty = such a certificate admits nobody. `unauthenticated_max` are the places of connections
    that have not said HELLO (`strangers`).
    """

    def __init__(
        self,
        *,
        allow_anonymous: bool,
        keys_file: str = "",
        tls: ServerTls | None = None,
        certificate_roles: Iterable[str] = (),
        reload_interval_s: float = 5.0,
        unauthenticated_max: int = UNAUTHENTICATED_MAX,
    ) -> None:
        self.tls = tls
        self.unauthenticated = 0
        self.not_permitted = 0
        self.handshake_failures = 0
        self.reload_failures = 0
        self.strangers: Strangers[Connection] = Strangers(unauthenticated_max)
        self._allow_anonymous = allow_anonymous
        self._keys_file = keys_file
        names = list(certificate_roles)
        self._certificate_roles = roles_of("security.certificate_roles", names) if names else None
        self._reload_interval_s = reload_interval_s
        self._grants: dict[str, Grants] = {}
        self._find_by_certificate = by_certificate(())
        self._tls_signature: Signature = ()
        self._keys_signature: Signature = ()
        self._failed: dict[str, Signature] = {}
        self._wake: asyncio.Event | None = None
        self._said: dict[str, tuple[float, int]] = {}
        self._expiry_said = float("-inf")
        if tls is not None:
            self._tls_signature = signature_of(tls.paths)
        if keys_file:
            self._use(self._load())

    @classmethod
    def of(cls, config: Config, section: Literal["broker", "registry"]) -> ServerSecurity:
        """What ``[security]`` says for the listener of `section` (broker, registry); blocking.

        Raises ConfigError when it makes no sense, would open the listener to everybody without an explicit
        choice, or a file cannot be used.
        """
        settings = config.security
        allow_anonymous = config.rpc_anonymous_allowed(section)
        tls = None
        if settings.tls_cert:
            tls = ServerTls(
                settings.tls_cert,
                settings.tls_key,
                settings.tls_client_ca,
                settings.require_client_certificate,
            )
        return cls(
            allow_anonymous=allow_anonymous,
            keys_file=settings.keys_file,
            tls=tls,
            certificate_roles=settings.certificate_roles,
            reload_interval_s=settings.reload_interval_s,
            unauthenticated_max=settings.unauthenticated_max,
        )

    def numbers(self) -> Mapping[str, int | float]:
        """Gauges and counters (names end in `_total`); read on any thread."""
        found: dict[str, int | float] = {
            "access_keys": len(self._grants),
            "unauthenticated_connections": len(self.strangers),
            "unauthenticated_displaced_total": self.strangers.displaced,
            "unauthenticated_total": self.unauthenticated,
            "not_permitted_total": self.not_permitted,
            "tls_handshakes_failed_total": self.handshake_failures,
            "security_reload_failures_total": self.reload_failures,
        }
        if self.tls is not None:
            found["tls_certificate_expiry_seconds"] = self.tls.expires_at
        return found

    def keys(self) -> list[AccessKey]:
        """Return the access keys that are in force."""
        return [grants.key for grants in self._grants.values()]

    # HELLO

    def admit(self, connection: Connection, hello: HelloRequest) -> bytes:
        """Let a connection in: sets its `grants` (None = anything) and returns the server's proof.

        Raises RemoteError UNAUTHENTICATED: with a nonce in its ext_fields it is the challenge, and the
        connection may say HELLO once more; otherwise it must be closed.
        """
        proof = self._admit(connection, hello)
        grants = connection.grants
        denied = None if grants is None else grants.tenant_denied(hello.tenant)
        if denied is not None:
            raise denied
        return proof

    def _admit(self, connection: Connection, hello: HelloRequest) -> bytes:
        if hello.access_key and self._keys_file:
            return self._admit_by_key(connection, hello)
        names = names_of(connection.peer_certificate())
        if names:
            key = self._find_by_certificate(names)
            if key is not None:
                connection.grants = self._grants[key.name]
                return b""
            if self._certificate_roles is not None:
                unlisted = AccessKey(f"certificate {names[0]}", roles=self._certificate_roles)
                connection.grants = Grants(unlisted, is_listed=False)
                return b""
        if self._allow_anonymous:
            return b""
        self.unauthenticated += 1
        if names:
            reason = f"no entry of the keys file names the certificate of {names[0]!r}"
        else:
            reason = (
                "credentials are needed: set client.access_key and client.secret_file, or client.tls_cert"
            )
        raise RemoteError(Code.UNAUTHENTICATED, reason)

    def _admit_by_key(self, connection: Connection, hello: HelloRequest) -> bytes:
        nonce = connection.challenge
        if not nonce:
            if len(hello.nonce) != NONCE_BYTES:
                raise RemoteError(
                    Code.UNAUTHENTICATED, f"HELLO with an access key has a nonce of {NONCE_BYTES} bytes"
                )
            connection.challenge = nonce = secrets.token_bytes(NONCE_BYTES)
            raise RemoteError(Code.UNAUTHENTICATED, "show that you know the secret", {"nonce": nonce})
        connection.challenge = b""
        grants = self._grants.get(hello.access_key)
        secret = grants.key.secret.encode() if grants is not None else b""
        proven = is_proof(hello.proof, client_proof(secret or _UNGUESSABLE, hello, nonce))
        if grants is None or not secret or not proven:
            self.unauthenticated += 1
            raise RemoteError(
                Code.UNAUTHENTICATED,
                f"access key {hello.access_key[:64]!r} is unknown or its secret is wrong; `holdmq key list` "
                "shows those that the keys file has",
            )
        connection.grants = grants
        return server_proof(secret, hello, nonce)

    def handshake_failed(self, error: BaseException) -> None:
        """Count and log a TLS handshake that failed."""
        self.handshake_failures += 1
        client_ca = self.tls.client_ca if self.tls is not None else ""
        reason = explain_client_failure(error, client_ca)
        self.say_refused("TLS handshake failed", "?", TransportError(reason))

    def say_refused(self, event: str, address: str, error: HoldMQError) -> None:
        """Log a refusal, at most one of an event per REFUSALS_LOGGED_EVERY_S, with how many were not."""
        now = time.monotonic()
        since, more = self._said.get(event, (float("-inf"), 0))
        if now - since < REFUSALS_LOGGED_EVERY_S:
            self._said[event] = (since, more + 1)
            return
        self._said[event] = (now, 0)
        log.warning(event, peer=address, reason=str(error), others_since=more)

    # Reloading

    def reload_soon(self) -> None:
        """Look at the files now (SIGHUP)."""
        if self._wake is not None:
            self._wake.set()

    async def watch(self, connections: Iterable[Connection]) -> None:
        """Look at the files at intervals until cancelled; `connections` is iterated after each change."""
        wake = self._wake = asyncio.Event()
        loop = asyncio.get_running_loop()
        while True:
            self._warn_of_expiry()
            try:
                async with asyncio.timeout(self._reload_interval_s):
                    await wake.wait()
            except TimeoutError:
                pass
            is_asked = wake.is_set()
            wake.clear()
            loaded = await loop.run_in_executor(None, self._look, is_asked)
            if loaded is not None:
                self._use(loaded)
                self._end_changed(connections)

    def _look(self, is_asked: bool) -> _Loaded | None:
        """On a thread: read what changed; None = the access keys stay."""
        if self.tls is not None:
            failed = () if is_asked else self._failed.get("tls", ())
            signature = changed(self.tls.paths, self._tls_signature, failed)
            if signature is not None:
                try:
                    self.tls.reload()
                except (HoldMQError, OSError) as error:
                    self._reload_failed("tls", signature, error)
                else:
                    self._tls_signature = signature
                    log.info("certificates were read again; new connections use them")
        if not self._keys_file:
            return None
        failed = () if is_asked else self._failed.get("keys", ())
        signature = changed((self._keys_file,), self._keys_signature, failed)
        if signature is None:
            return None
        try:
            return self._load()
        except (HoldMQError, OSError) as error:
            self._reload_failed("keys", signature, error)
            return None

    def _reload_failed(self, which: str, signature: Signature, error: Exception) -> None:
        self.reload_failures += 1
        self._failed[which] = signature
        log.error("a changed file is of no use; what was read before stays in force", reason=str(error))

    def _load(self) -> _Loaded:
        # The signature first: what changes while it is read is then read again.
        signature = signature_of((self._keys_file,))
        return _Loaded(load_keys(Path(self._keys_file)), signature)

    def _use(self, loaded: _Loaded) -> None:
        old = self._grants
        self._grants = {
            name: old[name] if name in old and old[name].key == key else Grants(key)
            for name, key in loaded.keys.items()
        }
        self._find_by_certificate = by_certificate(loaded.keys.values())
        self._keys_signature = loaded.signature

    def _end_changed(self, connections: Iterable[Connection]) -> None:
        ended = 0
        for connection in list(connections):
            grants = connection.grants
            if grants is None:
                continue
            if grants.is_listed:
                has_changed = self._grants.get(grants.key.name) is not grants
            else:
                names = names_of(connection.peer_certificate())
                has_changed = self._find_by_certificate(names) is not None
            if has_changed:
                ended += 1
                connection.close(
                    RemoteError(
                        Code.UNAUTHENTICATED, f"access key {grants.key.name!r} changed or was deleted"
                    )
                )
        log.info("access keys were read again", keys=len(self._grants), connections_ended=ended)

    def _warn_of_expiry(self) -> None:
        if self.tls is None or time.monotonic() - self._expiry_said < EXPIRY_SAID_EVERY_S:
            return
        left_s = self.tls.expires_at - time.time()
        if left_s < EXPIRES_SOON_S:
            self._expiry_said = time.monotonic()
            log.warning(
                "the certificate expires soon; renew it",
                file=self.tls.paths[0],
                days_left=int(left_s // 86_400),
            )
