"""A TCP proxy in front of a server that can be cut: then a client and the server are parted, and both live.

While it is cut, nothing goes through in either direction and nobody is told: new connections are taken and
stay silent. What was sent meanwhile arrives when it is healed, as TCP would send it again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Final, Self

CHUNK_BYTES: Final = 64 << 10


class CutProxy:
    """Listens on `port` of the loopback for a server at `target_port`, until it is closed."""

    def __init__(self, target_port: int, port: int) -> None:
        self.port = port
        self._target_port = target_port
        self._healed = Event()
        self._healed.set()
        self._gate = Lock()
        self._is_closed = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[Thread] = []
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self._begin(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        """Let nothing through from now on."""
        self._healed.clear()

    def heal(self) -> None:
        """Let everything through, first what was held."""
        self._healed.set()

    def drop(self) -> None:
        """Break the connections that there are; new ones are taken."""
        with self._gate:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _shut(*pair)

    def close(self) -> None:
        """End it, and every thread of it."""
        with self._gate:
            self._is_closed = True
        _shut(self._listener)
        self.drop()
        self.heal()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), f"a thread of the proxy at {self.port} does not end"
        self._listener.close()

    def _begin(self, work: Callable[[], None]) -> None:
        thread = Thread(target=work, name="cut-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._begin(partial(self._join, client))

    def _join(self, client: socket.socket) -> None:
        """Connect a client to the server, and be one of the two directions."""
        self._healed.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target_port), 10)
        except OSError:
            client.close()
            return
        with client, server:
            server.settimeout(None)
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._gate:
                if self._is_closed:
                    return
                self._pairs.append((client, server))
            back = Thread(target=self._pump, args=(server, client), name="cut-proxy", daemon=True)
            back.start()
            self._pump(client, server)
            back.join()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._healed.wait()
                target.sendall(data)
        _shut(source, target)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
