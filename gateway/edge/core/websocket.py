"""MQTT over WebSocket (MQTT 5.0, 6), sans-IO: the server's side of RFC 6455 around `websockets`.

::

    OPENING ──request accepted──► OPEN ──our Close sent──► CLOSING ──their Close──► CLOSED
       └──────refused───────────────┴──their Close, a violation───────────────────────▲

Payloads of binary frames are one stream, wherever frames begin and end [MQTT-6.0.0-2]. Nothing is
compressed: MQTT payloads are small or compressed already, and each connection would cost 300 KiB.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from websockets.exceptions import NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from holdmq.service.host_rule import AllowedHosts, split_target

OPENING: Final = 0
OPEN: Final = 1
CLOSING: Final = 2
CLOSED: Final = 3

REQUEST_MAX_BYTES: Final = 16 << 10
"""The opening request with its headers: what browsers send with all their cookies."""
CLOSING_READ_MAX_BYTES: Final = 64 << 10
"""What a client may still send after our Close and before its own: what was on its way."""
MESSAGE_SLACK_BYTES: Final = 64 << 10
"""Room in a message for small packets around one of the largest."""

SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
"""The second one is what clients of MQTT 3.1 ask for."""
NORMAL: Final = int(CloseCode.NORMAL_CLOSURE)
GOING_AWAY: Final = int(CloseCode.GOING_AWAY)
POLICY_VIOLATION: Final = int(CloseCode.POLICY_VIOLATION)
_CLOSE_REASON_MAX_BYTES: Final = 123
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_HANDSHAKE_HEADERS: Final = ("sec-websocket-", "connection", "upgrade", "origin", "host")

_log = logging.getLogger("holdmq.websocket")
_log.setLevel(logging.WARNING)  # of each connection the gateway's own log tells


class WebSocketRules(NamedTuple):
    """What a listener demands: path of the URL, origins of pages (`*` = any, none = the same host), and the
    names under which it may be asked.
    """

    path: str
    origins: frozenset[str]
    message_max_bytes: int
    hosts: AllowedHosts


class Violation(NamedTuple):
    """Why the connection must end: the metric's reason, and a sentence for people."""

    reason: str
    sentence: str


class WebSocket:
    """The server's side of one connection."""

    __slots__ = ("_discarded", "_out", "_protocol", "_request", "_rules", "state", "violation")

    def __init__(self, rules: WebSocketRules) -> None:
        self._rules = rules
        self._protocol = ServerProtocol(
            subprotocols=SUBPROTOCOLS, max_size=rules.message_max_bytes, logger=_log
        )
        self._request = b""
        self._discarded = 0
        self._out: list[bytes] = []
        self.state = OPENING
        self.violation: Violation | None = None

    @property
    def buffered(self) -> int:
        """Bytes of a request or frame that is not whole yet."""
        return len(self._request) + len(self._protocol.reader.buffer)

    def receive_data(self, data: bytes) -> bytes:
        """Take bytes from the client; return the MQTT stream's part in them.

        Afterwards look at `data_to_send`, `violation` (the connection must be closed) and `state`
        (CLOSED: so it must, after a Close of both sides).
        """
        if self.state == OPENING:
            data = self._opening(data)
        if self.state == OPEN and data:
            return self._frames(data)
        if self.state == CLOSING and data:
            self._closing(data)
        return b""

    def encode(self, data: bytes) -> bytes:
        """The frame that carries these bytes [MQTT-6.0.0-1]; b"" unless the connection is open."""
        if self.state != OPEN:
            return b""
        self._protocol.send_binary(data)
        return b"".join(self._protocol.data_to_send())

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Begin the closing handshake; there is none before the connection is open."""
        if self.state == OPEN:
            self._protocol.send_close(code, _shortened(reason))
            self._take_writes()
            self.state = CLOSING
        elif self.state == OPENING:
            self.state = CLOSED

    def data_to_send(self) -> bytes:
        """Take the bytes to write."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        return b"".join(out)

    # Opening

    def _opening(self, data: bytes) -> bytes:
        """Take a part of the request; what follows its end, if it was accepted."""
        request = self._request + data
        head, end, rest = request.partition(b"\r\n\r\n")
        if len(head) > REQUEST_MAX_BYTES:
            self._refuse(431, f"a request of more than {REQUEST_MAX_BYTES} bytes")
            return b""
        if not end:
            self._request = request
            return b""
        self._request = b""
        line = head.partition(b"\r\n")[0]
        if not line.startswith(b"GET ") or not line.endswith(b" HTTP/1.1"):
            self._refuse(400, f"{line[:100]!r} is no WebSocket request: GET … HTTP/1.1")
            return b""
        protocol = self._protocol
        protocol.receive_data(head + end)
        events = protocol.events_received()
        if not events or not isinstance(events[0], Request):
            cause = protocol.handshake_exc and protocol.handshake_exc.__cause__
            self._refuse(400, f"this is no WebSocket request: {cause}")
            return b""
        self._answer(events[0])
        return rest if self.state == OPEN else b""

    def _answer(self, request: Request) -> None:
        problem = self._problem_of(request)
        if problem is not None:
            self._refuse(*problem)
            return
        response = self._protocol.accept(request)
        if response.status_code != 101:
            error = self._protocol.handshake_exc
            sentence = str(error)
            if isinstance(error, NegotiationError):  # [MQTT-6.0.0-3]
                sentence = "the client offers no subprotocol mqtt (Sec-WebSocket-Protocol)"
            self._refuse(response.status_code, sentence, response)
            return
        self._protocol.send_response(response)  # with the subprotocol [MQTT-6.0.0-4]
        self._take_writes()
        self.state = OPEN

    def _problem_of(self, request: Request) -> tuple[int, str] | None:
        """Status and sentence for what the library does not check."""
        for name, value in request.headers.raw_items():
            # The library takes them for ASCII; in others, as Cookie, there may be anything.
            if name.lower().startswith(_HANDSHAKE_HEADERS) and not value.isascii():
                return 400, f"the header {name[:50]!r} has bytes that are no ASCII"
        origins = request.headers.get_all("Origin")
        hosts = request.headers.get_all("Host")
        refusal = self._rules.hosts.refusal(request.path, hosts)
        if refusal is not None:
            return refusal
        path = split_target(request.path)[1].partition("?")[0]
        if path != self._rules.path:
            return 404, f"the path is {self._rules.path}, not {path[:100]!r}"
        if len(origins) > 1:
            return 400, "there must be at most one Origin header"
        if origins and not self._admits(origins[0], hosts[0]):
            return 403, f"pages of {origins[0][:200]!r} may not connect; ws_origins lists those that may"
        return None

    def _admits(self, origin: str, host: str) -> bool:
        allowed = self._rules.origins
        if allowed:
            return "*" in allowed or origin.lower() in allowed
        # A browser names the page's site: without a list only pages of this very host may connect, or every
        # site could use a visitor's browser to reach what is open to the visitor's machine.
        return _is_same_host(origin, host)

    def _refuse(self, status: int, sentence: str, response: Response | None = None) -> None:
        if response is None:
            response = self._protocol.reject(status, sentence + "\n")
        self._out.append(response.serialize())
        self._ended("websocket_handshake", sentence)

    # Open

    def _frames(self, data: bytes) -> bytes:
        protocol = self._protocol
        protocol.receive_data(data)
        found: list[bytes] = []
        is_closed = False
        for frame in protocol.events_received():
            assert isinstance(frame, Frame)
            opcode = frame.opcode
            if opcode is Opcode.BINARY or opcode is Opcode.CONT:
                found.append(bytes(frame.data))
                frame.data = b""  # the library's parser keeps the newest frame until the next one comes
            elif opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                sentence = "a text frame; MQTT is sent in binary frames"
                protocol.fail(CloseCode.UNSUPPORTED_DATA, sentence)
                self._ended("websocket_text", sentence)
                break
            elif opcode is Opcode.CLOSE:
                is_closed = True
        self._take_writes()
        if protocol.parser_exc is not None and self.violation is None:
            closed_with = protocol.close_sent and protocol.close_sent.code
            is_too_big = closed_with == CloseCode.MESSAGE_TOO_BIG
            reason = "websocket_message_too_large" if is_too_big else "websocket_protocol"
            self._ended(reason, f"WebSocket: {protocol.parser_exc}")
        elif is_closed:
            self.state = CLOSED
        return found[0] if len(found) == 1 else b"".join(found)

    # Closing

    def _closing(self, data: bytes) -> None:
        """Wait for the client's Close, whatever comes before it."""
        self._discarded += len(data)
        if self._discarded > CLOSING_READ_MAX_BYTES:
            self.state = CLOSED
            return
        protocol = self._protocol
        protocol.receive_data(data)
        protocol.events_received()
        protocol.data_to_send()
        is_answered = protocol.close_rcvd is not None
        if is_answered or protocol.state is State.CLOSED or protocol.parser_exc is not None:
            self.state = CLOSED

    def _ended(self, reason: str, sentence: str) -> None:
        self.violation = Violation(reason, sentence)
        self.state = CLOSED

    def _take_writes(self) -> None:
        # An empty one asks to close the connection, which `state` says too.
        self._out += filter(None, self._protocol.data_to_send())


def rules_of(path: str, origins: list[str], packet_max_bytes: int, hosts: AllowedHosts) -> WebSocketRules:
    """The rules of a listener at `hosts` whose MQTT packets have at most `packet_max_bytes`."""
    allowed = frozenset(origin.lower() for origin in origins)
    return WebSocketRules(path, allowed, packet_max_bytes + MESSAGE_SLACK_BYTES, hosts)


def _is_same_host(origin: str, host: str) -> bool:
    try:
        page, here = urlsplit(origin), urlsplit(f"//{host}")
        default = _DEFAULT_PORTS.get(page.scheme)
        # The scheme is not compared: TLS may end in front of us.
        is_same = page.hostname == here.hostname and (page.port or default) == (here.port or default)
        return is_same and bool(page.hostname)
    except ValueError:
        return False


def _shortened(reason: str) -> str:
    return reason.encode()[:_CLOSE_REASON_MAX_BYTES].decode(errors="ignore")
