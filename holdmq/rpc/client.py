"""The calling side: one connection to one address, kept up with backoff and jitter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from holdmq.errors import (
    Code,
    HoldMQError,
    LeadLostError,
    RemoteError,
    RequestTimeout,
    TransportError,
    WireError,
)
from holdmq.rpc.connection import Connection, OnReply, Reply, Request
from holdmq.rpc.security import Introduction, Security
from holdmq.rpc.tls import explain_failure
from holdmq.wire.codes import RequestCode
from holdmq.wire.frame import FRAME_OVERHEAD_BYTES, Buffer
from holdmq.wire.header import Header
from holdmq.wire.headers import PROTOCOL_VERSION, HelloRequest, HelloResponse
from holdmq.wire.tenant_words import TenantWords

CONNECT_TIMEOUT_S: Final = 5.0
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
"""A broker restarts in about a second: a longer pause would only add to its absence."""
FRAME_MAX_BYTES: Final = (12 << 20) + FRAME_OVERHEAD_BYTES
"""What a client accepts: the largest record_max_bytes a broker may be set to, and its overhead."""

log = structlog.get_logger("holdmq.rpc")


class Client:
    """A connection that comes back by itself.

    `on_up(connection, hello)` runs after each HELLO, before callers waiting in `call` go on;
    `on_down(reason)` after each loss. `address` is host:port or unix:PATH; `set_address`
    moves the connection elsewhere. `security`: credentials and TLS, read anew for each connection.
    `follows_lead`: the peer is a replica of a shard; when it answers NOT_LEADER the connection is lost, and
    is made again after pauses that grow until there is another address. `reads_replica`: the connection is
    for reads alone, from a replica that does not lead. `words`: in which names are said; None = in whole.
    """

    def __init__(
        self,
        address: str,
        role: str,
        client_id: str,
        *,
        software: str = "",
        on_up: Callable[[Connection, HelloResponse], None] = lambda *_: None,
        on_down: Callable[[HoldMQError], None] = lambda _: None,
        on_request: Callable[[Request], None] | None = None,
        security: Security | None = None,
        follows_lead: bool = False,
        reads_replica: bool = False,
        words: TenantWords | None = None,
    ) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.hello: HelloResponse | None = None
        self.last_error: HoldMQError | None = None
        self._role = role
        self._client_id = client_id
        self._software = software
        self._on_up = on_up
        self._on_down = on_down
        self._on_request = on_request
        self._security = security
        self._follows_lead = follows_lead
        self._reads_replica = reads_replica
        self._words = words
        self._is_lead_lost = False
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._moved = asyncio.Event()
        self._up = asyncio.Event()
        self._closing = False

    def start(self) -> None:
        """Begin connecting in the background; calling it again changes nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"rpc {self.address}")

    def set_address(self, address: str) -> None:
        """Use another address from now on; drops the present connection, or attempt, if it differs."""
        if address != self.address:
            self.address = address
            self._moved.set()
            if self.connection is not None:
                self.connection.close(TransportError(f"the peer moved to {address}"))

    async def close(self) -> None:
        """Close for good; unanswered calls fail."""
        self._closing = True
        if self.connection is not None:
            self.connection.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def call(
        self,
        code: RequestCode,
        header: Header,
        timeout_s: float = CONNECT_TIMEOUT_S,
        body: Iterable[Buffer] = (),
        body_length: int = 0,
    ) -> Reply:
        """Send a request over the connection, waiting for one if there is none.

        Raises TransportError (no connection within `timeout_s`, with the last cause),
        RequestTimeout, RemoteError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connection = self.connection or await self.connected(timeout_s)
        left = max(0.001, deadline - loop.time())
        return await connection.call(code, header, left, body, body_length)

    async def connected(self, timeout_s: float) -> Connection:
        """The connection, once there is one; TransportError, with the last cause, after `timeout_s`."""
        if self._closing:
            raise TransportError(f"the client of {self.address} is closed")
        self.start()
        if self.connection is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._up.wait()
            except TimeoutError:
                cause = self.last_error or "no answer"
                raise TransportError(
                    f"no connection to {self.address} within {timeout_s} s: {cause}"
                ) from None
        if self.connection is None:
            raise TransportError(f"connection to {self.address} lost again")
        return self.connection

    def request(
        self,
        code: RequestCode,
        header: Header,
        on_reply: OnReply,
        timeout_s: float,
        body: Iterable[Buffer] = (),
        body_length: int = 0,
    ) -> None:
        """Connection.request on the present connection; without one `on_reply` gets TransportError now."""
        if self.connection is None:
            on_reply(TransportError(f"no connection to {self.address}"))
        else:
            self.connection.request(code, header, on_reply, timeout_s, body, body_length)

    async def _run(self) -> None:
        backoff_s = BACKOFF_MIN_S
        while not self._closing:
            self._moved.clear()
            address = self.address
            try:
                await self._attempt(address)
                await self._lost.wait()
                if not self._is_lead_lost:
                    backoff_s = BACKOFF_MIN_S
            except (HoldMQError, OSError, TimeoutError) as e:
                error = self._explained(e)
                if error.code == Code.UNAUTHENTICATED:
                    backoff_s = BACKOFF_MAX_S  # somebody must change a file before it can be otherwise
                if str(error) != str(self.last_error):
                    log.warning("not connected", peer=self.address, reason=str(error))
                self.last_error = error
            if address == self.address:
                # Not wait_for: Python 3.11's may swallow a cancellation that meets the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_jittered(backoff_s)):
                        await self._moved.wait()
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
            if address != self.address:
                # All who were there come here at once: not in the same instant.
                await asyncio.sleep(_jittered(BACKOFF_MIN_S))
                backoff_s = BACKOFF_MIN_S

    async def _attempt(self, address: str) -> None:
        """Connect to an address, unless there is another one before that is done (TransportError)."""
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(self._connect(address))
        moved = loop.create_task(self._moved.wait())
        try:
            await asyncio.wait((connecting, moved), return_when=asyncio.FIRST_COMPLETED)
        finally:
            connecting.cancel()
            moved.cancel()
            await asyncio.gather(connecting, moved, return_exceptions=True)
        if connecting.cancelled():
            raise TransportError(f"the peer moved to {self.address}")
        connecting.result()

    async def _connect(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._lost.clear()
        self._is_lead_lost = False

        def protocol() -> Connection:
            return Connection(
                self,
                FRAME_MAX_BYTES,
                reads_while_unwritable=True,
                ends_with_lead=self._follows_lead,
                words=self._words,
            )

        tls, secret = None, b""
        if self._security is not None:
            tls, secret = await loop.run_in_executor(None, _read_files, self._security)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.startswith("unix:"):
                _, connection = await loop.create_unix_connection(protocol, address[5:])
            else:
                host, _, port = address.rpartition(":")
                if not host or not port.isdigit() or not 0 < int(port) < 65536:
                    raise TransportError(f"{address!r} is no address: host:port or unix:PATH is")
                host = host.strip("[]")
                options: dict[str, Any] = {}
                if tls is not None and self._security is not None:
                    options = {"ssl": tls, "server_hostname": self._security.tls_server_name or host}
                _, connection = await loop.create_connection(protocol, host, int(port), **options)
        try:
            hello = await self._hello(connection, secret)
            if connection.is_closed:
                # Lost between the answer's arrival and this task's turn: nobody would tell us again.
                raise TransportError(f"connection to {address} lost right after HELLO")
            if address != self.address:
                raise TransportError(f"the peer moved to {self.address}")
        except BaseException:
            connection.close()
            raise
        self.connection = connection
        self.hello = hello
        self.last_error = None
        try:
            self._on_up(connection, hello)
        except Exception as e:
            log.exception("a connection could not be used", peer=self.address)
            connection.close(TransportError(f"the connection could not be used: {e}"))
            return
        self._up.set()

    async def _hello(self, connection: Connection, secret: bytes) -> HelloResponse:
        access_key = self._security.access_key if self._security is not None else ""
        request = HelloRequest(
            PROTOCOL_VERSION,
            self._role,
            self._client_id,
            self._software,
            reads_replica=self._reads_replica,
            tenant="" if self._words is None else self._words.tenant,
        )
        introduction = Introduction(request, access_key, secret)
        try:
            reply = await connection.call(RequestCode.HELLO, introduction.hello, CONNECT_TIMEOUT_S)
        except RemoteError as e:
            answer = introduction.challenged(e)
            reply = await connection.call(RequestCode.HELLO, answer, CONNECT_TIMEOUT_S)
        except (RequestTimeout, LeadLostError):
            raise
        except TransportError as e:
            # Event loops do not pass on what TLS had to say.
            cert = self._security.tls_cert if self._security is not None else ""
            raise TransportError(
                f"{e}, before HELLO was answered: its log says why. It may use TLS where we do not, or want "
                f"another client certificate than {cert or 'none (client.tls_cert is not set)'}"
            ) from e
        hello = reply.header(HelloResponse)
        introduction.check(hello)
        return hello

    def _explained(self, error: BaseException) -> HoldMQError:
        ca = self._security.tls_ca if self._security is not None else ""
        why = explain_failure(error, self.address, ca)
        if why is not None:
            return TransportError(why)
        if isinstance(error, HoldMQError):
            return error
        # The loops' own texts repeat the address, each in its way.
        number = error.errno if isinstance(error, OSError) else None
        why = os.strerror(number) if number is not None and number > 0 else str(error)
        return TransportError(f"cannot connect to {self.address}: {why}")

    # Handler

    def request_received(self, request: Request) -> None:
        if self._on_request is None:
            raise RemoteError(Code.UNKNOWN_REQUEST, "this client takes no requests")
        self._on_request(request)

    def connection_closed(self, connection: Connection, reason: HoldMQError) -> None:
        if isinstance(reason, WireError):
            log.warning("the peer broke the protocol", peer=self.address, reason=str(reason))
        if connection is self.connection:
            self.connection = None
            self._up.clear()
            self._lost.set()
            if isinstance(reason, LeadLostError):
                self._is_lead_lost = True
                self.last_error = reason
            self._on_down(reason)

    def writing_resumed(self, connection: Connection) -> None:
        return None


def _jittered(pause_s: float) -> float:
    return pause_s * (0.5 + random.random())  # noqa: S311 # jitter guards nothing


def _read_files(security: Security) -> tuple[ssl.SSLContext | None, bytes]:
    """On a thread: what a connection needs of the files that `security` names."""
    return security.context(), security.read_secret()
