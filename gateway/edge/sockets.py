"""The client sockets of a worker: one epoll for all of them, and a small object for each.

::

    event loop ──► Sockets (an epoll of their own) ──► ClientSocket ──► ClientConnection.data_received
               ──► Acceptor, one per listening socket      ▲ write ──────── ClientConnection

A transport of the loop's own takes 1.3 KB of every connection, and most of these are idle. The loop knows one
file, the epoll. The sockets in it are edge triggered: the kernel tells what is new once, and does not look at
a thousand sockets again that were read to their end.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from gateway.ground.limits import SOCKET_HIGH_BYTES
from holdmq.record.codec import NO_HOST, decode_host
from holdmq.service import telemetry

READ_BYTES: Final = 64 << 10
"""One read: what a fast link brings in a millisecond."""
EVENTS_PER_TURN: Final = 256
"""Sockets served before the loop's other work has its turn: some milliseconds."""
ACCEPTS_PER_TURN: Final = 64
ACCEPT_PAUSE_S: Final = 1.0
"""Without a free descriptor: who waits stays in the kernel's backlog meanwhile."""
SOCKET_LOW_BYTES: Final = SOCKET_HIGH_BYTES // 4

_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_MORE: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR | select.EPOLLPRI
"""A read that is not full stopped before the end of the connection, or before urgent data."""
_EDGE: Final = select.EPOLLET | select.EPOLLRDHUP | select.EPOLLPRI
_OUT_OF_RESOURCES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

log = telemetry.get_logger()


class Receiver(ABC):
    """The taker of a connection: the methods of asyncio.Protocol."""

    __slots__ = ()

    @abstractmethod
    def connection_made(self, transport: ClientSocket) -> None:
        """Take a connection that begins."""

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """The peer sent this."""

    @abstractmethod
    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it; None: from this side, or in order."""

    @abstractmethod
    def pause_writing(self) -> None:
        """The peer does not take what was written."""

    @abstractmethod
    def resume_writing(self) -> None:
        """Write again: the peer takes it."""


class ClientSocket:
    """One connection, with the methods of asyncio.Transport that are used.

    `host` is the peer's address as records carry it, NO_HOST if it has none. Writing tries at once; what the
    kernel does not take waits here, and past SOCKET_HIGH_BYTES the receiver is told.
    """

    __slots__ = (
        "_is_closing",
        "_is_full",
        "_is_lost",
        "_is_reading",
        "_is_sending_end",
        "_out",
        "_read_bytes",
        "_receiver",
        "_socket",
        "_sockets",
        "_watched",
        "host",
    )

    def __init__(self, sockets: Sockets, own: socket.SocketType, receiver: Receiver, host: bytes) -> None:
        # What every read and write touches comes first, so that it shares a cache line.
        self._socket = own
        self._receiver = receiver
        self._out: bytearray | None = None
        self._is_reading = True
        self._read_bytes = READ_BYTES
        self._is_closing = False
        self._is_lost = False
        self._is_full = False
        self._is_sending_end = False
        self._watched = 0
        self._sockets = sockets
        self.host = host

    # What there is to know

    def fileno(self) -> int:
        """The descriptor; -1 when it is closed."""
        return self._socket.fileno()

    @property
    def family(self) -> int:
        """The socket's address family."""
        return self._socket.family

    def getsockopt(self, level: int, option: int, size_bytes: int) -> bytes:
        """What the kernel says of the socket; raises OSError."""
        return self._socket.getsockopt(level, option, size_bytes)

    def is_closing(self) -> bool:
        """Whether it is closed, or closed once what was written is sent."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken."""
        return 0 if self._out is None else len(self._out)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername` (address, port), or `socket`, which has a descriptor, a family and options."""
        if name == "socket" and self._socket.fileno() >= 0:
            return self
        if name == "peername" and self.host is not NO_HOST:
            return decode_host(self.host)
        return default

    def set_protocol(self, receiver: Receiver) -> None:
        """Somebody else has the connection from now on."""
        self._receiver = receiver

    # Reading

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`; what the client sends stays in the kernel."""
        if self._is_reading:
            self._is_reading = False
            self._watch()

    def resume_reading(self) -> None:
        """Read the socket again."""
        if not self._is_reading:
            self._is_reading = True
            self._watch()

    def read_at_most(self, size_bytes: int) -> None:
        """Take no more than so much with one read, from the next one on."""
        self._read_bytes = size_bytes

    def ready(self, events: int) -> None:
        """The kernel has something to say."""
        out = self._out
        if out is not None and events & ~_IN:
            self._flush(out)
        if events & ~_OUT and self._is_reading and not self._is_closing:
            self._read(events)

    def _read(self, events: int) -> None:
        try:
            data = self._socket.recv(self._read_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if data:
            if len(data) == self._read_bytes or events & _MORE:
                # Nothing new would tell of what is still there.
                self._sockets.epoll.modify(self._socket, self._watched | _EDGE)
            self._receiver.data_received(data)
        else:
            self.close()  # nobody reads what we could still say

    # Writing

    def write(self, data: bytes) -> None:
        """Send bytes, or keep what the kernel does not take."""
        if self._is_lost:
            return
        out = self._out
        if out is None:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            self._out = out = bytearray(memoryview(data)[sent:])
            self._watch()
        else:
            out += data
        if len(out) > SOCKET_HIGH_BYTES and not self._is_full:
            self._is_full = True
            self._receiver.pause_writing()

    def _flush(self, out: bytearray) -> None:
        try:
            sent = self._socket.send(out)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        del out[:sent]
        if not out:
            self._out = None
            self._watch()
            if self._is_sending_end:
                self._send_end()
            if self._is_closing:
                self._lose(None)
                return
        if self._is_full and len(out) <= SOCKET_LOW_BYTES:
            self._is_full = False
            self._receiver.resume_writing()

    # The end

    def write_eof(self) -> None:
        """Close our half behind what was written; what the peer sends is still read."""
        self._is_sending_end = True
        if self._out is None and not self._is_lost:
            self._send_end()

    def _send_end(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(error)

    def close(self) -> None:
        """Close when everything that was written is sent."""
        if not self._is_closing:
            self._is_closing = True
            self._watch()
            if self._out is None:
                self._lose(None)

    def abort(self) -> None:
        """Close at once, whatever waits."""
        self._is_closing = True
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        """The receiver hears of the end in the next turn, never from inside its own call."""
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._out = None
            self._watch()
            self._sockets.loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        try:
            self._receiver.connection_lost(error)
        finally:
            self._sockets.forget(self._socket.fileno())
            self._socket.close()

    def _watch(self) -> None:
        """Have the kernel say what is wanted now."""
        wanted = 0
        if not self._is_lost:
            if self._is_reading and not self._is_closing:
                wanted = _IN
            if self._out is not None:
                wanted |= _OUT
        watched = self._watched
        if wanted == watched:
            return
        self._watched = wanted
        epoll = self._sockets.epoll
        if not watched:
            epoll.register(self._socket, wanted | _EDGE)
        elif wanted:
            epoll.modify(self._socket, wanted | _EDGE)
        else:
            epoll.unregister(self._socket)

    def begin(self) -> None:
        """Tell the receiver, and read if it still wants to."""
        self._receiver.connection_made(self)
        self._watch()


class Sockets:
    """All client sockets of one worker."""

    __slots__ = ("_acceptors", "_table", "epoll", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.epoll = select.epoll()
        self._table: list[ClientSocket | None] = []
        """By descriptor: the kernel gives the lowest one that is free."""
        self._acceptors: list[Acceptor] = []
        loop.add_reader(self.epoll.fileno(), self._ready)

    def listen(self, listening: socket.socket, make: Callable[[], Receiver]) -> Acceptor:
        """Accept connections; `make` makes the receiver of each. The listening socket is taken over."""
        acceptor = Acceptor(self, listening, make)
        self._acceptors.append(acceptor)
        return acceptor

    def accepted(self, own: socket.SocketType, receiver: Receiver, host: bytes) -> None:
        """A connection is there."""
        table = self._table
        fd = own.fileno()
        if fd >= len(table):
            table.extend([None] * (fd + 1 - len(table)))
        client = table[fd] = ClientSocket(self, own, receiver, host)
        try:
            client.begin()
        except Exception:
            log.exception("a connection could not be begun")
            client.abort()

    def forget(self, fd: int) -> None:
        """A connection is over."""
        self._table[fd] = None

    def _ready(self) -> None:
        table = self._table
        for fd, events in self.epoll.poll(0, EVENTS_PER_TURN):
            client = table[fd]
            if client is None:
                continue
            try:
                client.ready(events)
            except Exception:
                # One connection's error must not end the others.
                log.exception("a connection failed")
                client.abort()

    def close(self) -> None:
        """Stop listening and looking; connections that are open are cut off without a word."""
        for acceptor in self._acceptors:
            acceptor.close()
        for client in self._table:
            if client is not None:
                client.abort()
        self.loop.remove_reader(self.epoll.fileno())
        # Aborted ones end in the next turn, and no longer ask it.
        self.epoll.close()


class Acceptor:
    """Accepts the connections of one listening socket."""

    __slots__ = ("_kind", "_listening", "_make", "_resuming", "_sockets")

    def __init__(self, sockets: Sockets, listening: socket.socket, make: Callable[[], Receiver]) -> None:
        self._sockets = sockets
        self._listening = listening
        self._make = make
        self._resuming: asyncio.TimerHandle | None = None
        # An accepted socket has the same, and socket.socket makes an enum of each at every look.
        self._kind = int(listening.family), int(listening.type), listening.proto
        listening.setblocking(False)
        if listening.family != socket.AF_UNIX:
            # Linux gives it to every connection accepted here: answers wait for no acknowledgement.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._resume()

    def _resume(self) -> None:
        self._resuming = None
        self._sockets.loop.add_reader(self._listening.fileno(), self._ready)

    def _ready(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause(error)
                    return
                continue  # this client has gone already
            # Its plain base: socket.socket would take twice the memory for every connection.
            own = socket.SocketType(*self._kind, accepted.detach())
            own.setblocking(False)
            self._sockets.accepted(own, self._make(), packed_host(address))

    def _pause(self, error: OSError) -> None:
        log.error(
            "no connection can be accepted; raise the limit of open files, or lower gateway.connections_max",
            reason=str(error),
        )
        loop = self._sockets.loop
        loop.remove_reader(self._listening.fileno())
        self._resuming = loop.call_later(ACCEPT_PAUSE_S, self._resume)

    def close(self) -> None:
        """Listen no more; a second call changes nothing."""
        if self._listening.fileno() < 0:
            return
        if self._resuming is not None:
            self._resuming.cancel()
        else:
            self._sockets.loop.remove_reader(self._listening.fileno())
        self._listening.close()


def packed_host(address: Any) -> bytes:
    """What accept() tells of a peer, as records carry it: 4 or 16 bytes of address, 4 of port."""
    if not isinstance(address, tuple):
        return NO_HOST
    host: str = address[0].partition("%")[0]
    port: int = address[1]
    # An IPv4 client of an IPv6 socket is one of IPv4; ::ffff:0:102:304 only looks like it (RFC 2765).
    mapped = host.removeprefix("::ffff:")
    packed = (
        socket.inet_pton(socket.AF_INET6, host) if ":" in mapped else socket.inet_pton(socket.AF_INET, mapped)
    )
    return packed + port.to_bytes(4, "big")
