"""One RPC connection, the same on both sides: many requests each way, answered in any order.

Requests are answered by callbacks, so that a held request costs an entry in a dict and
neither a task nor a future. All deadlines of a connection share one timer.

Backpressure: `outstanding_max_bytes` bounds the requests that were received and not yet
answered (past it the socket is not read until half of them are). The accepting side reads
nothing more from a peer that does not take what it writes; the calling side always reads, or
both could wait for each other for ever.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import structlog

from holdmq.errors import (
    BusyError,
    Code,
    HoldMQError,
    LeadLostError,
    RemoteError,
    RequestTimeout,
    TransportError,
    WireError,
)
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import ONE_WAY, RESPONSE, Command
from holdmq.wire.frame import PREFIX_SIZE, Buffer, FrameDecoder, encode_frame
from holdmq.wire.header import Header
from holdmq.wire.tenant_words import TenantWords
from holdmq.wire.untrusted import PEER_LIMITS, STRANGER_LIMITS

if TYPE_CHECKING:
    from holdmq.credentials.access_keys import Grants

H = TypeVar("H", bound=Header)
OUTSTANDING_MAX_BYTES: Final = 32 << 20
"""Requests in hand per connection: eight PRODUCE bodies of the largest record."""
REQUEST_OVERHEAD_BYTES: Final = 256
"""What an outstanding request counts beside its body, so that empty ones are bounded too."""
DEAD_PEER_S: Final = 30
"""A peer whose host answers nothing for this long is gone: three times a broker's longest usual silence."""
STRANGER_LINGER_S: Final = 1.0
"""How long a peer that is refused may take to read why: several round trips."""
WRITE_HIGH_BYTES: Final = 8 << 20
"""Unsent bytes at which a peer counts as not reading: one largest PULL answer."""

log = structlog.get_logger("holdmq.rpc")


class Reply:
    """A successful answer: its ext_fields and its body (the receiver's own, writable)."""

    __slots__ = ("body", "ext_fields")

    def __init__(self, ext_fields: dict[str, Any], body: memoryview) -> None:
        self.ext_fields = ext_fields
        self.body = body

    def header(self, kind: type[H]) -> H:
        """The typed header; WireError if it is not one."""
        return kind.from_ext(self.ext_fields)


OnReply = Callable[[Reply | HoldMQError], None]


class Request:
    """A request in hand. Answer it exactly once with `reply` or `refuse`, now or later."""

    __slots__ = ("_cost", "body", "command", "connection")

    def __init__(self, connection: Connection, command: Command, body: memoryview) -> None:
        self.connection = connection
        self.command = command
        self.body = body
        self._cost = len(body) + REQUEST_OVERHEAD_BYTES

    def header(self, kind: type[H]) -> H:
        """The typed header; WireError (MISSING_FIELD) if it is not one."""
        return kind.from_ext(self.command.ext_fields)

    def reply(self, header: Header, body: Iterable[Buffer] = (), body_length: int = 0) -> None:
        """Answer with success. Nothing is sent for a one-way request or on a closed connection."""
        self._answer(Command(Code.OK, self.command.opaque, RESPONSE, "", header.to_ext()), body, body_length)

    def let_go(self) -> None:
        """Forget header and body, as who holds the request for long has taken what it needs from them."""
        self.command.ext_fields = {}
        self.body = memoryview(b"")

    def refuse(self, error: HoldMQError) -> None:
        """Answer with the error's code, its sentence, and a retry-after where it has one."""
        ext = error.ext_fields if isinstance(error, RemoteError) else {}
        remark = error.remark if isinstance(error, RemoteError) else str(error)
        self._answer(Command(error.code, self.command.opaque, RESPONSE, remark, ext), (), 0)

    def _answer(self, command: Command, body: Iterable[Buffer], body_length: int) -> None:
        connection = self.connection
        connection.release(self._cost)
        self._cost = 0
        self.body = memoryview(b"")
        if not self.command.is_one_way:
            connection.send(command, body, body_length)


class ConnectionHandler(Protocol):
    """What a connection's owner does with it."""

    def request_received(self, request: Request) -> None:
        """Handle a request; a HoldMQError raised here is answered, others become SYSTEM_ERROR."""

    def connection_closed(self, connection: Connection, reason: HoldMQError) -> None:
        """The connection is gone; its unanswered calls have been failed."""

    def writing_resumed(self, connection: Connection) -> None:
        """The peer reads again after `connection.is_writable` was False."""


def _keep_alive(sock: socket.socket) -> None:
    """Find out about a host that vanished without a word."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_S // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, DEAD_PEER_S // 6))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)


class Connection(asyncio.Protocol):
    """One connection. Made by rpc.server and rpc.client; `request` and `call` are its use."""

    __slots__ = (
        "_decoder",
        "_is_paused",
        "_loop",
        "_on_open",
        "_opaques",
        "_outstanding",
        "_outstanding_max_bytes",
        "_pending",
        "_reads_while_unwritable",
        "_timer",
        "_timer_at",
        "_transport",
        "_words",
        "address",
        "bytes_in",
        "bytes_out",
        "challenge",
        "connected_ms",
        "context",
        "ends_with_lead",
        "grants",
        "handler",
        "host",
        "is_closed",
        "is_stranger",
        "is_writable",
    )  # fmt: skip

    def __init__(
        self,
        handler: ConnectionHandler,
        frame_max_bytes: int,
        outstanding_max_bytes: int = OUTSTANDING_MAX_BYTES,
        reads_while_unwritable: bool = False,
        on_open: Callable[[Connection], None] | None = None,
        is_stranger: bool = False,
        ends_with_lead: bool = False,
        words: TenantWords | None = None,
    ) -> None:
        self.handler = handler
        self._words = words
        """What names in requests, answers and pushes are said in; None = whole names, as they come."""
        self.is_stranger = is_stranger
        """Whether the peer has yet to say HELLO: until `admit` it may send little, and answer nothing."""
        self.ends_with_lead = ends_with_lead
        """Whether an answer NOT_LEADER ends the connection: all that is unanswered gets LeadLostError."""
        self.address = "?"
        self.host = "?"
        self.context: Any = None
        self.grants: Grants | None = None
        """What the peer may ask for; None = anything."""
        self.challenge = b""
        """The nonce that HELLO must answer, between its two halves."""
        self.connected_ms = 0
        self.is_writable = True
        self.is_closed = False
        self.bytes_in = 0
        self.bytes_out = 0
        self._decoder = FrameDecoder(frame_max_bytes, STRANGER_LIMITS if is_stranger else PEER_LIMITS)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, tuple[float, OnReply]] = {}
        self._opaques = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._outstanding = 0
        self._outstanding_max_bytes = outstanding_max_bytes
        self._is_paused = False
        self._reads_while_unwritable = reads_while_unwritable
        self._loop = asyncio.get_running_loop()
        self._on_open = on_open

    @property
    def principal(self) -> str:
        """The name of the access key that the peer has shown; "" = it is anonymous."""
        return "" if self.grants is None else self.grants.key.name

    def sees(self, name: str) -> bool:
        """Whether lists for the peer may have this topic or group: others' tenants' are none of its."""
        return self.grants is None or self.grants.sees(name)

    def peer_certificate(self) -> dict[str, Any] | None:
        """The peer's verified certificate, as ssl.SSLObject.getpeercert says it; None if it showed none."""
        if self._transport is None:
            return None
        found: dict[str, Any] | None = self._transport.get_extra_info("peercert")
        return found or None

    def admit(self, frame_max_bytes: int) -> None:
        """The peer is known (after HELLO): give its frames the size, and its headers the limits, of one."""
        self.is_stranger = False
        self._decoder.frame_max_bytes = frame_max_bytes
        self._decoder.limits = PEER_LIMITS

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        _keep_alive(transport.get_extra_info("socket"))
        peer = transport.get_extra_info("peername")
        is_ip = isinstance(peer, tuple) and len(peer) > 1
        self.host = peer[0] if is_ip else "unix"
        self.address = f"{peer[0]}:{peer[1]}" if is_ip else "unix"
        self.connected_ms = time.time_ns() // 1_000_000
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.bytes_in += len(data)
        if self.is_stranger and len(data) > self._decoder.frame_max_bytes + PREFIX_SIZE:
            # HELLO is one frame and waits for its answer. Of many small ones all would be read before the
            # first of them ends the connection.
            self._refuse_connection(WireError(f"{len(data)} bytes at once before HELLO was answered"))
            return
        try:
            frames = self._decoder.receive_data(data)
        except WireError as e:
            self._refuse_connection(e)
            return
        for command, body in frames:
            if self.is_closed:
                return
            if command.is_response:
                if self.is_stranger:
                    self._refuse_connection(WireError("an answer before HELLO; nothing was asked"))
                    return
                self._response_received(command, body)
            else:
                self._request_received(command, body)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_closed:
            self._closed(TransportError(f"connection to {self.address} lost: {exc or 'closed by the peer'}"))
        self._transport = None

    def pause_writing(self) -> None:
        self.is_writable = False
        self._set_paused()

    def resume_writing(self) -> None:
        self.is_writable = True
        self._set_paused()
        if not self.is_closed:
            self.handler.writing_resumed(self)

    # Use

    def request(
        self,
        code: RequestCode,
        header: Header,
        on_reply: OnReply,
        timeout_s: float,
        body: Iterable[Buffer] = (),
        body_length: int = 0,
    ) -> None:
        """Send a request; `on_reply` gets a Reply or the error, exactly once, never from inside this call
        unless the connection is closed already. `body_length` is the sum of the body's lengths."""
        if self.is_closed:
            on_reply(TransportError(f"connection to {self.address} is closed"))
            return
        opaque = next(self._opaques)
        ext_fields = header.to_ext()
        if self._words is not None:
            on_reply = _in_words(self._words, code, ext_fields, on_reply)
            ext_fields = self._words.asked(code, ext_fields)
        # A header that cannot be encoded raises here, before anybody waits for an answer.
        self.send(Command(code, opaque, 0, "", ext_fields), body, body_length)
        deadline = self._loop.time() + timeout_s
        self._pending[opaque] = (deadline, on_reply)
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)

    async def call(
        self,
        code: RequestCode,
        header: Header,
        timeout_s: float,
        body: Iterable[Buffer] = (),
        body_length: int = 0,
    ) -> Reply:
        """Send a request and wait for its answer; raises RemoteError, RequestTimeout, TransportError."""
        future: asyncio.Future[Reply] = self._loop.create_future()

        def on_reply(result: Reply | HoldMQError) -> None:
            if future.done():
                return
            if isinstance(result, HoldMQError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.request(code, header, on_reply, timeout_s, body, body_length)
        return await future

    def send_one_way(
        self, code: RequestCode, header: Header, body: Iterable[Buffer] = (), body_length: int = 0
    ) -> None:
        """Send a request that nobody answers; silently nothing on a closed connection."""
        ext_fields = header.to_ext()
        if self._words is not None:
            ext_fields = self._words.asked(code, ext_fields)
        self.send(Command(code, next(self._opaques), ONE_WAY, "", ext_fields), body, body_length)

    def send(self, command: Command, body: Iterable[Buffer] = (), body_length: int = 0) -> None:
        """Write one frame (requests and answers use this)."""
        if self._transport is None or self.is_closed:
            return
        parts = encode_frame(command, body, body_length)
        self.bytes_out += len(parts[0]) + body_length
        self._transport.writelines(parts)

    def release(self, cost: int) -> None:
        """A received request of this cost was answered."""
        self._outstanding -= cost
        if self._is_paused and self._outstanding <= self._outstanding_max_bytes // 2:
            self._set_paused()

    def close(self, reason: HoldMQError | None = None) -> None:
        """Send what is written, then close; unanswered calls fail with `reason`."""
        if not self.is_closed:
            self._closed(reason or TransportError(f"connection to {self.address} closed here"))
        if self._transport is not None:
            self._transport.close()
            if self.is_stranger:
                # TLS waits for the peer to say goodbye too, for half a minute.
                self._loop.call_later(STRANGER_LINGER_S, self.abort)

    def lead_lost(self, remark: str) -> None:
        """Close, as the peer said NOT_LEADER with this remark: nothing else that was asked is answered."""
        self.close(LeadLostError(f"{self.address} leads its shard no more: {remark}"))

    def abort(self, reason: HoldMQError | None = None) -> None:
        """Close, but send neither what is written nor a goodbye; unanswered calls fail with `reason`."""
        if not self.is_closed:
            self._closed(reason or TransportError(f"connection to {self.address} closed here"))
        if self._transport is not None:
            self._transport.abort()

    # Inside

    def _request_received(self, command: Command, body: memoryview) -> None:
        if self._words is not None:
            command.ext_fields = self._words.told(command.code, command.ext_fields)
        request = Request(self, command, body)
        self._outstanding += len(body) + REQUEST_OVERHEAD_BYTES
        if self._outstanding > self._outstanding_max_bytes:
            self._set_paused()
        try:
            self.handler.request_received(request)
        except WireError as e:
            request.refuse(e)
            if e.code == Code.PROTOCOL_ERROR:
                self.close(e)
        except HoldMQError as e:
            request.refuse(e)
        except Exception:
            log.exception("request failed", request=command.code, peer=self.address)
            request.refuse(
                RemoteError(Code.SYSTEM_ERROR, "the request failed; the server's log has the cause")
            )

    def _response_received(self, command: Command, body: memoryview) -> None:
        entry = self._pending.pop(command.opaque, None)
        if entry is None:
            return  # it timed out here before the answer came
        if command.code == Code.OK:
            entry[1](Reply(command.ext_fields, body))
            return
        try:
            code = Code(command.code)
        except ValueError:
            code = Code.SYSTEM_ERROR
        if code == Code.NOT_LEADER and self.ends_with_lead:
            self._pending[command.opaque] = entry  # it ends as all the others do
            self.lead_lost(command.remark)
        elif code == Code.BUSY:
            retry_after_ms = command.ext_fields.get("retry_after_ms", 100)
            entry[1](BusyError(command.remark, retry_after_ms if isinstance(retry_after_ms, int) else 100))
        else:
            entry[1](RemoteError(code, command.remark, command.ext_fields))

    def _refuse_connection(self, error: WireError) -> None:
        self.send(Command(error.code, 0, RESPONSE, str(error)))
        self.close(error)

    def _closed(self, reason: HoldMQError) -> None:
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for _, on_reply in pending.values():
            on_reply(reason)
        self.handler.connection_closed(self, reason)

    def _set_paused(self) -> None:
        is_stuck = not (self.is_writable or self._reads_while_unwritable)
        wanted = is_stuck or self._outstanding > self._outstanding_max_bytes
        if wanted == self._is_paused or self._transport is None or self._transport.is_closing():
            return
        self._is_paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        self._time_out(self._loop.time())

    def _time_out(self, now: float) -> None:
        # By itself: mypyc would take the timer for None, also when what is told here has set it.
        late = [opaque for opaque, (deadline, _) in self._pending.items() if deadline <= now]
        for opaque in late:
            _, on_reply = self._pending.pop(opaque)
            on_reply(RequestTimeout(f"no answer from {self.address} within the deadline"))
        if self._pending and self._timer is None:
            self._set_timer(max(min(d for d, _ in self._pending.values()), now + 0.02))


def _in_words(words: TenantWords, code: RequestCode, asked: dict[str, Any], on_reply: OnReply) -> OnReply:
    """Have an answer come in a tenant's words."""

    def translated(result: Reply | HoldMQError) -> None:
        if isinstance(result, Reply):
            result.ext_fields = words.answered(code, asked, result.ext_fields)
        elif isinstance(result, RemoteError) and not isinstance(result, BusyError):
            result = words.refused(result)
        on_reply(result)

    return translated
