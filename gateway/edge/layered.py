"""A connection with layers between its socket and MQTT: a PROXY header, TLS, WebSocket, in this order.

::

    socket ──► PROXY header ──► TLS ──► WebSocket ──► ClientConnection.data_received
           ◄─────────────────── TLS ◄── WebSocket ◄── ClientConnection.write

The session begins with the connection, so that its deadline for a complete CONNECT holds for all layers.
"""

from __future__ import annotations

import ssl
from typing import Final

from gateway.edge.connection import ClientConnection
from gateway.edge.context import ConnectionContext
from gateway.edge.core.proxy_protocol import ProxyError, ProxyHeader, ProxyParser
from gateway.edge.core.websocket import CLOSED as WS_CLOSED
from gateway.edge.core.websocket import CLOSING as WS_CLOSING
from gateway.edge.core.websocket import GOING_AWAY, MESSAGE_SLACK_BYTES, NORMAL, POLICY_VIOLATION, WebSocket
from gateway.edge.listeners import HANDSHAKES_MAX, Listener
from gateway.edge.sockets import ClientSocket
from gateway.edge.tls import Tls, explain_failure
from gateway.ground.limits import CONNECT_MAX_BYTES
from gateway.ground.peer import Peer, certificate_named, peer_of, shown
from gateway.session.session import CLOSED, CONNECTED_STATE
from holdmq.mqtt import ReasonCode

BELOW_MAX_BYTES: Final = CONNECT_MAX_BYTES + MESSAGE_SLACK_BYTES
"""What may lie in the layers before a client is admitted: a frame with the largest CONNECT and some more."""

_NOTHING_SAID = ProxyHeader()


class LayeredConnection(ClientConnection):
    """One connection of a listener that is not plain."""

    __slots__ = ("_below_bytes", "_header", "_is_handshaking", "_proxy", "_tls", "_websocket")

    def __init__(self, shared: ConnectionContext, listener: Listener) -> None:
        super().__init__(shared, listener)
        self._proxy = None if listener.networks is None else ProxyParser()
        self._header = _NOTHING_SAID
        self._tls: Tls | None = None
        self._is_handshaking = False
        self._below_bytes = 0
        """What lies in the layers below MQTT, as long as the client is not admitted."""
        self._websocket = None if listener.websocket is None else WebSocket(listener.websocket)

    @property
    def peer(self) -> Peer:
        """The client's side, as the layers tell it."""
        peer = peer_of(self.listener.name, self.transport)
        header, tls = self._header, self._tls
        if header.address:
            through = shown(peer.address, peer.port)
            peer = peer._replace(address=header.address, port=header.port, through=through)
        certificate = None if tls is None else tls.certificate
        return peer._replace(certificate=certificate or certificate_named(header.common_name))

    @property
    def is_identified(self) -> bool:
        """Whether the client's address is known: behind a proxy once its header came."""
        return self._proxy is None

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """What OpenSSL knows of the connection; None without TLS."""
        return None if self._tls is None else self._tls.ssl_object

    # asyncio.Protocol

    def connection_made(self, transport: ClientSocket) -> None:
        super().connection_made(transport)
        if self._proxy is not None:
            proxy = super().peer
            if not proxy.address and self.transport is not None:
                self.transport.abort()  # a health check, gone before it was looked at
            elif not self.listener.trusts(proxy.address):
                self._refuse("proxy_untrusted", f"{proxy.address} is not in proxy_networks of the listener")

    def data_received(self, data: bytes) -> None:
        if self._proxy is not None:
            data = self._take_header(self._proxy, data)
        if data and self.listener.tls is not None:
            data = self._decrypted(data)
        websocket = self._websocket
        if data and websocket is not None:
            data = websocket.receive_data(data)
            self._write_below(websocket.data_to_send())
        if data:
            super().data_received(data)
        self._look_for_the_end()
        state = self.session.state
        if state != CONNECTED_STATE and state != CLOSED:
            self._hold_below()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshake_is_over()
        super().connection_lost(exc)

    # In

    def _take_header(self, parser: ProxyParser, data: bytes) -> bytes:
        """Take a part of the PROXY header; what follows it."""
        if self.session.state == CLOSED:
            return b""
        try:
            found = parser.feed(data)
        except ProxyError as error:
            self._refuse("proxy_header", f"no PROXY header: {error}")
            return b""
        if found is None:
            return b""
        self._proxy = None
        self._header, rest = found
        self.session.born_host = self.peer.born_host()
        self._shared.gate.identified(self)
        return rest

    def _decrypted(self, data: bytes) -> bytes:
        tls = self._tls
        if tls is None:
            listener = self.listener
            if listener.handshakes >= HANDSHAKES_MAX:
                self._refuse("tls_handshakes_max", f"{HANDSHAKES_MAX} TLS handshakes are under way")
                return b""
            assert listener.tls is not None
            tls = self._tls = Tls(listener.tls.newest)
            listener.handshakes += 1
            self._is_handshaking = True
        data = tls.receive_data(data)
        if tls.is_open:
            self._handshake_is_over()
        self._write_raw(tls.data_to_send())
        return data

    def _hold_below(self) -> None:
        """Count what lies in the layers while nobody knows whose it is; a frame has a CONNECT's bound."""
        held = 0 if self._proxy is None else self._proxy.buffered
        if self._tls is not None:
            held += self._tls.buffered
        if self._websocket is not None:
            held += self._websocket.buffered
        if held > BELOW_MAX_BYTES:
            self._refuse("websocket_message_too_large", f"more than {BELOW_MAX_BYTES} bytes before a CONNECT")
            self._finish()
            return
        change, self._below_bytes = held - self._below_bytes, held
        if change:
            self.hold_unauthenticated(change)

    def _handshake_is_over(self) -> None:
        if self._is_handshaking:
            self._is_handshaking = False
            self.listener.handshakes -= 1

    def _look_for_the_end(self) -> None:
        """Close when a layer cannot go on, or the client ended it."""
        tls, websocket = self._tls, self._websocket
        if tls is not None and tls.error is not None:
            reason = "tls_record" if tls.is_open else "tls_handshake"
            self._refuse(reason, explain_failure(tls.error, self.listener.settings.tls_client_ca))
            self._finish()
        elif websocket is not None and websocket.state == WS_CLOSED:
            if websocket.violation is not None:
                self._refuse(*websocket.violation)
            self._finish()
        elif tls is not None and tls.is_ended:
            self._finish()

    def _refuse(self, reason: str, sentence: str) -> None:
        self.close(ReasonCode.PROTOCOL_ERROR, reason, sentence)

    # Out

    def send(self, data: bytes) -> None:
        """Write bytes of MQTT through the layers."""
        if self._websocket is not None:
            data = self._websocket.encode(data)
        self._write_below(data)

    def _write_below(self, data: bytes) -> None:
        """Write bytes of the layer above TLS."""
        if data and self.listener.tls is not None:
            data = b"" if self._tls is None else self._tls.encrypt(data)
        self._write_raw(data)

    def _write_raw(self, data: bytes) -> None:
        transport = self.transport
        if data and transport is not None and not transport.is_closing():
            transport.write(data)

    def end(self, reason: str) -> None:
        """Close after what was written; over WebSocket once the client answered our Close (RFC 6455, 7)."""
        websocket = self._websocket
        if websocket is not None:
            code = POLICY_VIOLATION if reason else NORMAL
            websocket.close(GOING_AWAY if reason == "draining" else code, reason)
            self._write_below(websocket.data_to_send())
            if websocket.state == WS_CLOSING and self.transport is not None:
                self.transport.resume_reading()  # whatever it was paused for: the answer must be seen
                return
        self._finish(reason)

    def _finish(self, reason: str = "") -> None:
        """Close what lies below WebSocket, if that has not been done."""
        if self._tls is not None and not self.is_parting:
            self._tls.close()
            self._write_raw(self._tls.data_to_send())
        super().end(reason)
