"""TLS for the RPC: contexts that follow their files, and what to do about each failure.

TLS 1.2 at least. Certificates and keys are read again when their files change, for new connections;
those that are open stay as they are. No tickets are given: connections live for days, and a session of
TLS 1.3 that is resumed would not be checked against the certificate authority of now. OpenSSL remembers
sessions of TLS 1.2 for two hours in the context where they began.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdmq.errors import ConfigError
from holdmq.files.private_file import refuse_if_open_to_others

EXPIRES_SOON_S: Final = 14 * 86_400
"""A certificate that ends sooner is warned of: two weeks are enough to renew one by hand."""


class TlsKeys(NamedTuple):
    """How the configuration calls a listener's files; for errors."""

    cert: str = "security.tls_cert"
    key: str = "security.tls_key"
    client_ca: str = "security.tls_client_ca"


class ClientTlsKeys(NamedTuple):
    """How the configuration calls a client's files; for errors."""

    ca: str = "client.tls_ca"
    cert: str = "client.tls_cert"
    key: str = "client.tls_key"


class ServerTls:
    """A listener's TLS. `context` goes to the listener once; `reload` changes what it does.

    `client_ca` "" = client certificates are not asked for. The constructor and `reload` block, and raise
    ConfigError naming key and file.
    """

    def __init__(
        self, cert: str, key: str, client_ca: str, requires_certificate: bool, keys: TlsKeys | None = None
    ) -> None:
        self._keys = keys or TlsKeys()
        self.paths = tuple(path for path in (cert, key, client_ca) if path)
        self.expires_at = 0.0
        """When the certificate ends, s since the epoch."""
        self.names: tuple[str, ...] = ()
        """The DNS names that the certificate is for."""
        self._cert = cert
        self._key = key
        self.client_ca = client_ca
        self._requires_certificate = requires_certificate
        self._now = self._build()
        self.context = self._build()
        # The one hook that comes before anything of the context is used: it hands each handshake to the
        # newest context, authorities included.
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Read the files again; new connections use them. What cannot be read changes nothing."""
        self._now = self._build()

    @property
    def newest(self) -> ssl.SSLContext:
        """The context of the files as they were last read: for a listener that takes one per connection."""
        return self._now

    def _choose(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        handshake.context = self._now

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        _load_chain(context, self._keys.cert, self._cert, self._keys.key, self._key)
        certificate = _own_certificate(context, self._cert)
        self.expires_at = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        alternatives: Any = certificate.get("subjectAltName", ())
        self.names = tuple(str(name) for kind, name in alternatives if kind == "DNS")
        if self.client_ca:
            _load_authorities(context, self._keys.client_ca, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if self._requires_certificate else ssl.CERT_OPTIONAL
        return context


def client_context(ca: str, cert: str, key: str, keys: ClientTlsKeys | None = None) -> ssl.SSLContext:
    """A client's context (blocking): `ca` "" = the system's authorities, `cert` "" = no certificate.

    Raises ConfigError naming key and file.
    """
    keys = keys or ClientTlsKeys()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        _load_authorities(context, keys.ca, ca)
    else:
        context.load_default_certs()
    if cert:
        _load_chain(context, keys.cert, cert, keys.key, key)
    return context


def names_of(certificate: dict[str, Any] | None) -> list[str]:
    """The names in a verified peer certificate (`getpeercert()`): alternative names, then common names."""
    if not certificate:
        return []
    names = [str(name) for kind, name in certificate.get("subjectAltName", ()) if kind in _NAME_KINDS]
    for part in certificate.get("subject", ()):
        names += [str(value) for name, value in part if name == "commonName"]
    return names


_NAME_KINDS: Final = frozenset({"DNS", "URI", "email"})


def explain_failure(error: BaseException, address: str, ca: str) -> str | None:
    """Why a TLS connection to `address` failed and what to do; None if TLS is not why."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        authorities = f"{ca} (client.tls_ca)" if ca else "the system's authorities; set client.tls_ca"
        return {
            _EXPIRED: f"the certificate of {address} has expired: renew it there (security.tls_cert)",
            _NOT_YET: f"the certificate of {address} is not valid yet: check both clocks",
            _WRONG_HOST: f"the certificate of {address} is for another host: {error.verify_message}; connect "
            "by a name that is in it, or set client.tls_server_name to one",
            _WRONG_ADDRESS: f"the certificate of {address} is not for this IP address; connect by a "
            "name that is in it, or set client.tls_server_name to one",
        }.get(
            error.verify_code,
            f"the certificate of {address} is not signed by {authorities} ({error.verify_message})",
        )
    if any(word in text for word in ("WRONG_VERSION_NUMBER", "wrong version number", "RECORD_LAYER")):
        return f"{address} does not speak TLS: set security.tls_cert there, or unset client.tls_ca here"
    if isinstance(error, ssl.SSLError):
        return f"TLS with {address} failed: {text}"
    return None


def explain_client_failure(error: BaseException, client_ca: str) -> str:
    """Why a server's handshake with a client failed, for the server's log."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return "the client's certificate has expired: renew it there (client.tls_cert)"
        return (
            f"the client's certificate is not signed by {client_ca} (security.tls_client_ca): "
            f"{error.verify_message}"
        )
    if "PEER_DID_NOT_RETURN_A_CERTIFICATE" in text:
        return "the client showed no certificate, and security.require_client_certificate is true"
    if any(word in text.upper() for word in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER")):
        return "the client does not speak TLS: it must set client.tls_ca"
    if "ALERT" in text.upper():
        return f"the client does not take our certificate: {text}"
    return text or type(error).__name__


_EXPIRED, _NOT_YET, _WRONG_HOST, _WRONG_ADDRESS = 10, 9, 62, 64
"""X509_V_ERR_CERT_HAS_EXPIRED, …_NOT_YET_VALID, …_HOSTNAME_MISMATCH, …_IP_ADDRESS_MISMATCH (x509_vfy.h)."""


def _load_chain(context: ssl.SSLContext, cert_key: str, cert: str, key_key: str, key: str) -> None:
    for name, path in ((cert_key, cert), (key_key, key)):
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{name} is {path}, which does not exist or cannot be read")
    refuse_if_open_to_others(Path(key), key_key)
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(cert, key, password="")  # nosec B106 # no password, see above
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            raise ConfigError(f"{key} ({key_key}) is not the key of {cert} ({cert_key})") from error
        raise ConfigError(
            f"{cert} ({cert_key}) and {key} ({key_key}) are no PEM certificate and unencrypted key: {error}"
        ) from error


def _load_authorities(context: ssl.SSLContext, name: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else error
        raise ConfigError(f"{path} ({name}) is no readable PEM file of authorities: {reason}") from error


def _own_certificate(context: ssl.SSLContext, path: str) -> dict[str, Any]:
    """A server context's certificate, as `getpeercert()`; ConfigError if it is not valid now, or no server's.

    The standard library reads the fields of verified certificates only: so this shakes hands with itself,
    taking the certificate as its own authority.
    """
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    peer.check_hostname = False
    peer.verify_mode = ssl.CERT_NONE
    der = _shake_hands(context, peer).getpeercert(binary_form=True)
    assert der is not None
    peer.verify_mode = ssl.CERT_REQUIRED
    peer.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    peer.load_verify_locations(cadata=der)
    try:
        certificate = _shake_hands(context, peer).getpeercert()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(f"the certificate {path} is of no use: {error.verify_message}; renew it") from error
    assert certificate is not None
    return certificate


def _shake_hands(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> ssl.SSLObject:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    pending = [client, server]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except ssl.SSLWantReadError:
                continue
        if client not in pending:
            break
    return client
