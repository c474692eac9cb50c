"""The admin HTTP server of a process: health by three paths, ``/metrics``, and what a process adds.

``/startz`` holds once the process has what it needs of its own (its files are read, its ports bound), from
then on for ever; ``/readyz`` while it takes work; ``/healthz`` while it turns.

Runs on threads of its own, so it answers while the event loop is busy, and says when it is stuck. What a
process adds are its *controls*: they show more than numbers, or change something, and so are for programs on
the same machine only, which say so with the header CONTROL_HEADER (that no web page can send here). Whatever
is asked is refused when the request is for a name that is none of ours (``holdmq.service.host_rule``).
"""

from __future__ import annotations

import io
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from email.errors import FirstHeaderLineIsContinuationDefect, MissingHeaderBodySeparatorDefect
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from prometheus_client import CONTENT_TYPE_LATEST, Counter, generate_latest

from holdmq.config.section import is_loopback
from holdmq.service import telemetry
from holdmq.service.host_rule import AllowedHosts, Refusal, split_target

ReadyCheck = Callable[[], tuple[bool, str]]
"""Returns whether something holds, and the reason when it does not."""

CONTROL_HEADER: Final = "X-HoldMQ-Control"


class ControlAnswer(NamedTuple):
    """What a control answers: an HTTP status, and text in pieces, each written as it comes."""

    status: int
    pieces: Iterable[bytes]


Control = Callable[[str, dict[str, str]], ControlAnswer]
"""Called on a server thread with the method (GET, POST) and the query; its pieces may take their time."""

ADMIN_CONNECTIONS_MAX: Final = 16
"""Requests answered at a time: probes and scrapers are few, and each costs a thread."""

ADMIN_REQUEST_S: Final = 5.0
"""Time to send the whole request, and to take each piece of the answer: probes are near and small."""

ADMIN_REQUEST_MAX_BYTES: Final = 16 << 10
"""The request with its headers, as of a WebSocket: what a browser sends with all its cookies."""

ADMIN_HEADERS_MAX: Final = 64
"""Headers of a request: a browser sends some twenty, proxies on the way add some each."""

_NO_HEADERS: Final = (FirstHeaderLineIsContinuationDefect, MissingHeaderBodySeparatorDefect)
"""Past such a line the parser sees no headers, and so no Host."""

Clock = Callable[[], float]
"""Returns seconds that only ever go on."""

_REFUSED = Counter(
    "holdmq_admin_refused_total",
    "Admin connections closed because ADMIN_CONNECTIONS_MAX were open.",
    registry=telemetry.METRICS,
)
_MISDIRECTED = Counter(
    "holdmq_admin_misdirected_requests_total",
    "Admin requests refused because their Host is no name of this installation (security.hosts).",
    registry=telemetry.METRICS,
)
_REQUESTS_CUT = Counter(
    "holdmq_admin_requests_cut_total",
    "Admin requests cut off at ADMIN_REQUEST_S or ADMIN_REQUEST_MAX_BYTES.",
    registry=telemetry.METRICS,
)


class AdminServer:
    """Serves these paths until ``close``; `port` is the port as bound.

    `started`, `ready` and `alive` give status 200 or 503 and the text; `collect` returns the metrics in the
    Prometheus text format (None = ``telemetry.METRICS``). `controls` are more paths. All are called on server
    threads. `hosts` are the names under which it may be asked; None = by its addresses and as localhost only.
    Raises OSError when the address cannot be bound.
    """

    def __init__(
        self,
        bind: str,
        port: int,
        *,
        started: ReadyCheck,
        ready: ReadyCheck,
        alive: ReadyCheck,
        collect: Callable[[], bytes] | None = None,
        controls: Mapping[str, Control] | None = None,
        hosts: AllowedHosts | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        handler = _handler(
            {"/startz": started, "/readyz": ready, "/healthz": alive},
            collect or _own_metrics,
            {} if controls is None else controls,
            hosts or AllowedHosts(),
            clock,
        )
        self._server = _BoundedServer((bind, port), handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="admin", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _own_metrics() -> bytes:
    return generate_latest(telemetry.METRICS)


class _BoundedServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(ADMIN_CONNECTIONS_MAX)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer would look its own name up, and a slow resolver would hold up the start.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            _REFUSED.inc()
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()  # no thread was started, which would have done so
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        telemetry.get_logger().warning("an admin request failed", peer=str(client_address), exc_info=True)


class RequestReader(io.RawIOBase):
    """What a client sends as its request, until `deadline_s` of `clock` and at most `size_max` bytes.

    A read past the deadline raises TimeoutError, which ends the connection: a client that sends a byte now
    and then is as slow as one that sends none. A read past `size_max` finds the end, and sets `is_cut`.
    """

    def __init__(self, connection: socket.socket, clock: Clock, deadline_s: float, size_max: int) -> None:
        super().__init__()
        self._connection = connection
        self._clock = clock
        self._deadline_s = deadline_s
        self._left = size_max
        self.is_cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what there is into `buffer`, waiting until the deadline; 0 = nothing more will come."""
        if not self._left:
            if not self.is_cut:
                _REQUESTS_CUT.inc()
            self.is_cut = True
            return 0
        try:
            left_s = self._deadline_s - self._clock()
            if left_s <= 0:
                raise TimeoutError("the request took too long")
            self._connection.settimeout(left_s)
            size = self._connection.recv_into(memoryview(buffer)[: self._left])
        except TimeoutError:
            _REQUESTS_CUT.inc()
            raise
        self._left -= size
        return size


def _handler(
    states: Mapping[str, ReadyCheck],
    collect: Callable[[], bytes],
    controls: Mapping[str, Control],
    hosts: AllowedHosts,
    clock: Clock,
) -> type[BaseHTTPRequestHandler]:
    class AdminHandler(BaseHTTPRequestHandler):
        timeout = ADMIN_REQUEST_S
        server_version = "holdmq"
        sys_version = ""
        default_request_version = "HTTP/1.1"  # of a line that says none: HTTP/0.9 had neither Host nor status

        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            deadline_s = clock() + ADMIN_REQUEST_S
            self.reader = RequestReader(self.connection, clock, deadline_s, ADMIN_REQUEST_MAX_BYTES)
            self.rfile = io.BufferedReader(self.reader)

        def parse_request(self) -> bool:
            """Read the headers, and look at what holds for every method and path; True = answer it."""
            if not super().parse_request():
                return False
            self.connection.settimeout(ADMIN_REQUEST_S)  # from here on for each piece of the answer
            refusal = self._refusal()
            if refusal is not None:
                self._answer(HTTPStatus(refusal.status), f"{refusal.sentence}\n".encode())
                return False
            self.path = split_target(self.path)[1]
            return True

        def _refusal(self) -> Refusal | None:
            if self.reader.is_cut or len(self.headers) > ADMIN_HEADERS_MAX:
                return Refusal(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"a request has at most {ADMIN_REQUEST_MAX_BYTES} bytes and {ADMIN_HEADERS_MAX} headers",
                )
            if any(isinstance(defect, _NO_HEADERS) for defect in self.headers.defects):
                return Refusal(HTTPStatus.BAD_REQUEST, "there is a line that is no header")
            found = self.headers.get_all("Host", [])
            refusal = hosts.refusal(self.path, found, is_http_1_0=self.request_version == "HTTP/1.0")
            if refusal is not None:
                _MISDIRECTED.inc()
            return refusal

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(HTTPStatus.OK, collect(), CONTENT_TYPE_LATEST)
            elif path in states:
                self._state(states[path])
            else:
                self._control("GET", path)

        def do_POST(self) -> None:
            self._control("POST", self.path.partition("?")[0])

        def _control(self, method: str, path: str) -> None:
            control = controls.get(path)
            if control is None:
                self._answer(HTTPStatus.NOT_FOUND, b"try /startz, /readyz, /healthz or /metrics\n")
            elif not is_loopback(self.client_address[0]) or CONTROL_HEADER not in self.headers:
                self._answer(
                    HTTPStatus.FORBIDDEN,
                    b"only for commands on this machine: holdmq config reload, trace, ban\n",
                )
            else:
                query = parse_qs(self.path.partition("?")[2])
                self._stream(control(method, {name: values[-1] for name, values in query.items()}))

        def _stream(self, answer: ControlAnswer) -> None:
            pieces = iter(answer.pieces)
            try:
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/x-ndjson")
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(piece)
            except OSError:
                pass  # who asked has seen enough
            finally:
                if isinstance(pieces, Generator):
                    pieces.close()

        def _state(self, check: ReadyCheck) -> None:
            holds, reason = check()
            status = HTTPStatus.OK if holds else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, reason.encode() + b"\n")

        def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Probes come every second: an access log would drown what matters."""

    return AdminHandler
