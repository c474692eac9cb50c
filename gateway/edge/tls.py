"""TLS of one connection between a socket and its session: bytes in, bytes out, no event loop.

The event loop's own TLS would keep a timer and 256 KiB of buffers per connection, and cannot begin
after a PROXY header. This one feeds OpenSSL a record's worth at a time, so that its buffers stay small.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

from gateway.ground.peer import Certificate, certificate_of

RECORD_BYTES: Final = 16 << 10
"""The largest TLS record: OpenSSL's buffers grow to what they are given at once, and never shrink."""

_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER", "UNKNOWN_PROTOCOL")


class Tls:
    """The server's side of one connection."""

    __slots__ = (
        "_incoming",
        "_out",
        "_outgoing",
        "certificate",
        "error",
        "is_ended",
        "is_open",
        "ssl_object",
    )

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._out: list[bytes] = []
        self.ssl_object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.certificate: Certificate | None = None
        """The client's, verified; None until the handshake is done, and if it showed none."""
        self.is_open = False
        """Whether the handshake is done."""
        self.is_ended = False
        """Whether the client said that it sends no more."""
        self.error: ssl.SSLError | None = None
        """Why the connection is of no use any more; what is left to send are alerts."""

    @property
    def buffered(self) -> int:
        """Bytes of a record that is not whole yet."""
        return self._incoming.pending

    def receive_data(self, data: bytes) -> bytes:
        """Take bytes from the socket; return what they say. Look at `data_to_send`, `error`, `is_ended`."""
        found: list[bytes] = []
        if len(data) <= RECORD_BYTES:
            self._feed(data, found)
        else:
            view = memoryview(data)
            for at in range(0, len(data), RECORD_BYTES):
                self._feed(view[at : at + RECORD_BYTES], found)
        return found[0] if len(found) == 1 else b"".join(found)

    def encrypt(self, data: bytes) -> bytes:
        """The records that carry these bytes; b"" before the handshake is done and after an error."""
        if not self.is_open or self.error is not None:
            return b""
        view = memoryview(data)
        try:
            for at in range(0, len(data), RECORD_BYTES):
                self.ssl_object.write(view[at : at + RECORD_BYTES])
                self._take()
        except ssl.SSLError as error:
            self.error = error
            return b""
        return self.data_to_send()

    def close(self) -> None:
        """Say that nothing more is sent (close_notify)."""
        if self.is_open and self.error is None:
            # It says that it waits for the client's, which nobody does.
            with contextlib.suppress(ssl.SSLError):
                self.ssl_object.unwrap()
            self._take()

    def data_to_send(self) -> bytes:
        """Take the bytes to write."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def _feed(self, data: bytes | memoryview, found: list[bytes]) -> None:
        if self.error is not None or self.is_ended:
            return
        self._incoming.write(data)
        try:
            self._step(found)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.error = error
        self._take()

    def _step(self, found: list[bytes]) -> None:
        tls, incoming = self.ssl_object, self._incoming
        if not self.is_open:
            tls.do_handshake()
            self.is_open = True
            self.certificate = certificate_of(tls.getpeercert())
        # A read that finds nothing raises, which costs as much as one that finds a message.
        while incoming.pending or tls.pending():
            part = tls.read(RECORD_BYTES)
            if not part:
                self.is_ended = True
                return
            found.append(part)

    def _take(self) -> None:
        if self._outgoing.pending:
            self._out.append(self._outgoing.read())


def explain_failure(error: ssl.SSLError, client_ca: str) -> str:
    """Why a connection to a TLS listener failed, for the log."""
    text = str(error).upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused by {client_ca} (tls_client_ca): {error.verify_message}"
    if "PEER_DID_NOT_RETURN_A_CERTIFICATE" in text:
        return "the client showed no certificate, and require_client_certificate is true"
    if "UNSUPPORTED_PROTOCOL" in text or "VERSION_TOO_LOW" in text:
        return "the client speaks no TLS version from 1.2 on"
    if any(word in text for word in _NOT_TLS):
        return "the client does not speak TLS"
    if "ALERT" in text:
        return f"the client does not take our certificate: {error.reason}"
    return error.reason or str(error)
