"""The listening side: accepts connections, requires HELLO first, hands requests to a table."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

import structlog

from holdmq.credentials.access_keys import Grants
from holdmq.errors import Code, HoldMQError, RemoteError, StartupError, WireError
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.connection import OUTSTANDING_MAX_BYTES, Connection, Request
from holdmq.rpc.handshake import Handshakes
from holdmq.rpc.strangers import Strangers
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import PROTOCOL_VERSION, HelloRequest, HelloResponse

HELLO_MAX_BYTES: Final = 16 << 10
"""Frame limit before HELLO: room for credentials and names, none for an attack."""
HELLO_TIMEOUT_S: Final = 10.0
"""How long a connection may say nothing: a dial-up's patience, a port scanner's end."""
CONNECTIONS_MAX: Final = 10_000
"""Connections per RPC server that said HELLO: far above a fleet's gateways and applications."""

log = structlog.get_logger("holdmq.rpc")

OnRequest = Callable[[Request], None]


class Server:
    """An RPC server: `routes` maps request codes to handlers, `hello` answers HELLO.

    `on_closed` is told of every connection that had said HELLO. Counters: `connections`
    (now), `refused` (connections that broke the protocol, kept silent or came over a bound), `closed`.
    `strangers` are those that have not said HELLO: they have places of their own, `connections_max` bounds
    the others.
    `security` decides who may connect and what they may ask for, and has the TLS of `listen`; None = all
    may ask for everything. It may be set until `listen` is called. `connections` is where those that are open
    are kept, with what they said in HELLO (None = nothing yet): who makes it first can hand it to handlers.
    """

    def __init__(
        self,
        routes: dict[RequestCode, OnRequest],
        hello: Callable[[Connection, HelloRequest], HelloResponse],
        frame_max_bytes: int,
        on_closed: Callable[[Connection], None] = lambda _: None,
        on_writable: Callable[[Connection], None] = lambda _: None,
        outstanding_max_bytes: int = OUTSTANDING_MAX_BYTES,
        connections_max: int = CONNECTIONS_MAX,
        hello_timeout_s: float = HELLO_TIMEOUT_S,
        security: ServerSecurity | None = None,
        connections: dict[Connection, HelloRequest | None] | None = None,
    ) -> None:
        self.connections: dict[Connection, HelloRequest | None] = {} if connections is None else connections
        self.strangers: Strangers[Connection] = Strangers()
        self.refused = 0
        self.closed = 0
        self._routes: dict[int, OnRequest] = {int(code): handler for code, handler in routes.items()}
        self._hello = hello
        self._on_closed = on_closed
        self._on_writable = on_writable
        self._frame_max_bytes = frame_max_bytes
        self._outstanding_max_bytes = outstanding_max_bytes
        self._connections_max = connections_max
        self._hello_timeout_s = hello_timeout_s
        self.security = security
        self._watching: asyncio.Task[None] | None = None
        self.handshakes: Handshakes | None = None
        self._listeners: list[asyncio.AbstractServer] = []
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Listen on TCP; port 0 picks one (see `port`). StartupError if it is taken."""
        loop = asyncio.get_running_loop()
        self._use_places()
        try:
            listener = await loop.create_server(self._protocol, host, port, backlog=1024, **self._tls())
        except OSError as e:
            raise StartupError(
                f"cannot listen on {host}:{port}: {os.strerror(e.errno) if e.errno else e}; "
                "free the port or configure another one"
            ) from e
        # uvloop has a list where asyncio has a tuple, which compiled code would refuse.
        self.port = cast("Any", listener).sockets[0].getsockname()[1]
        self._listeners.append(listener)
        self._watch()

    async def listen_unix(self, path: str) -> None:
        """Listen on a UNIX socket; StartupError if it cannot be made."""
        self._use_places()
        try:
            listener = await asyncio.get_running_loop().create_unix_server(self._protocol, path)
        except OSError as e:
            raise StartupError(f"cannot listen on unix:{path}: {e}") from e
        self._listeners.append(listener)
        self._watch()

    async def close(self) -> None:
        """Stop listening and close every connection after what was written is sent."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.close(RemoteError(Code.SHUTTING_DOWN, "the server is draining"))
        self._listeners.clear()

    def _tls(self) -> dict[str, Any]:
        if self.security is None or self.security.tls is None:
            return {}
        context = self.security.tls.context
        self.handshakes = Handshakes(context, self._hello_timeout_s, self._handshake_failed)
        return {"ssl": context, "ssl_handshake_timeout": self._hello_timeout_s}

    def _handshake_failed(self, error: BaseException) -> None:
        self.refused += 1
        if self.security is not None:
            self.security.handshake_failed(error)

    def _use_places(self) -> None:
        if self.security is not None:
            self.strangers = self.security.strangers

    def _watch(self) -> None:
        if self.security is not None and self._watching is None:
            watching = self.security.watch(self.connections)
            self._watching = asyncio.get_running_loop().create_task(watching, name="security")

    def _protocol(self) -> Connection:
        return Connection(
            self, HELLO_MAX_BYTES, self._outstanding_max_bytes, on_open=self._opened, is_stranger=True
        )

    def _opened(self, connection: Connection) -> None:
        self.connections[connection] = None
        if self._is_full():
            connection.abort(self._too_many())
            return
        displaced = self.strangers.enter(connection, connection.host)
        if displaced is not None:
            displaced.abort(
                WireError(
                    f"it made room for another: {self.strangers.places} connections may wait to say HELLO, "
                    f"{self.strangers.address_max} of one address (security.unauthenticated_max)",
                    Code.LIMIT_EXCEEDED,
                )
            )
        loop = asyncio.get_running_loop()
        connection.context = loop.call_later(self._hello_timeout_s, self._silent, connection)

    def _is_full(self) -> bool:
        """Whether there are more than may say HELLO; the connection that it is about is no stranger then."""
        return len(self.connections) - len(self.strangers) > self._connections_max

    def _too_many(self) -> WireError:
        return WireError(f"{self._connections_max} connections", Code.LIMIT_EXCEEDED)

    def _silent(self, connection: Connection) -> None:
        connection.abort(WireError(f"no HELLO within {self._hello_timeout_s} s", Code.HELLO_REQUIRED))

    # Handler

    def request_received(self, request: Request) -> None:
        connection = request.connection
        code = request.command.code
        if self.connections.get(connection) is None:
            try:
                self._hello_received(request)
            except HoldMQError as e:
                # It says HELLO well or not at all: who may try again and again costs more than who connects.
                request.refuse(e)
                connection.close(e)
            return
        handler = self._routes.get(code)
        if handler is None:
            raise RemoteError(Code.UNKNOWN_REQUEST, f"request code {code} is not known here")
        if connection.grants is not None:
            self._check(connection, connection.grants, request)
        handler(request)

    def _check(self, connection: Connection, grants: Grants, request: Request) -> None:
        try:
            grants.check(request.command.code, request.command.ext_fields)
        except RemoteError as e:
            if self.security is not None:
                self.security.not_permitted += 1
                self.security.say_refused("request refused", connection.address, e)
            raise

    def _hello_received(self, request: Request) -> None:
        connection = request.connection
        if request.command.code != RequestCode.HELLO:
            request.refuse(
                RemoteError(Code.HELLO_REQUIRED, "the first request of a connection must be HELLO")
            )
            connection.close(WireError("no HELLO", Code.HELLO_REQUIRED))
            return
        hello = request.header(HelloRequest)
        if hello.protocol_version != PROTOCOL_VERSION:
            raise RemoteError(
                Code.VERSION_UNSUPPORTED,
                f"protocol version {hello.protocol_version}; this server speaks {PROTOCOL_VERSION}",
            )
        proof = b""
        if self.security is not None:
            try:
                proof = self.security.admit(connection, hello)
            except RemoteError as e:
                request.refuse(e)
                if "nonce" not in e.ext_fields:  # it is no challenge: a second HELLO would be another try
                    self.security.say_refused("connection refused", connection.address, e)
                    connection.close(e)
                return
        self.strangers.leave(connection)
        if self._is_full():
            raise self._too_many()
        answer = self._hello(connection, hello)
        if connection.grants is not None:
            answer = replace(answer, principal=connection.grants.key.name, proof=proof)
        connection.context.cancel()
        connection.context = request.command.language
        self.connections[connection] = hello
        connection.admit(self._frame_max_bytes)
        request.reply(answer)

    def connection_closed(self, connection: Connection, reason: HoldMQError) -> None:
        self.closed += 1
        if isinstance(reason, WireError):
            self.refused += 1
            if self.security is not None:
                self.security.say_refused("connection refused", connection.address, reason)
            else:
                log.warning("connection refused", peer=connection.address, reason=str(reason))
        had_hello = self.connections.pop(connection, None) is not None
        self.strangers.leave(connection)
        if had_hello:
            self._on_closed(connection)
        elif isinstance(connection.context, asyncio.TimerHandle):
            connection.context.cancel()

    def writing_resumed(self, connection: Connection) -> None:
        self._on_writable(connection)
