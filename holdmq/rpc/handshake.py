"""TLS handshakes of a listener: bounded, timed, and their failures said.

The event loops' own TLS listeners drop a failed handshake without a word, on both sides. Here each
runs in a task that lives as long as the handshake and raises what went wrong.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

HANDSHAKES_MAX: Final = 1_000
"""Handshakes at a time: a few seconds of a core's work; past it connections are closed at once."""
EARLY_MAX_BYTES: Final = 64 << 10
"""What a peer may send behind its handshake before we look: as much as HELLO may have."""

OnOpen = Callable[[asyncio.Transport, bytes], None]
OnFailed = Callable[[str, BaseException], None]


class Handshakes:
    """Makes the protocols of a TLS listener: `loop.create_server(handshakes.protocol, …)`.

    `on_open(transport, early)` takes over each TLS transport, with what came behind the handshake;
    `on_failed(address, error)` is told of each that failed.
    """

    def __init__(
        self, context: ssl.SSLContext, timeout_s: float, on_open: OnOpen, on_failed: OnFailed
    ) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self._context = context
        self._timeout_s = timeout_s
        self._on_open = on_open
        self._on_failed = on_failed

    def protocol(self) -> asyncio.Protocol:
        """The protocol of one accepted connection, until its handshake is done."""
        return _Handshake(self)

    def close(self) -> None:
        """Give up the handshakes that run."""
        for task in self.running:
            task.cancel()

    def start(self, handshake: _Handshake, transport: asyncio.Transport) -> None:
        """Begin, or close the connection when too many run."""
        if len(self.running) >= HANDSHAKES_MAX:
            transport.abort()
            self._on_failed(_address(transport), ConnectionAbortedError(f"{HANDSHAKES_MAX} TLS handshakes run"))
            return
        task = asyncio.get_running_loop().create_task(self._run(handshake, transport), name="TLS handshake")
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _run(self, handshake: _Handshake, transport: asyncio.Transport) -> None:
        address = _address(transport)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                handshake,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._timeout_s,
            )
        except OSError as error:  # of ssl and of the socket
            self._on_failed(address, error)
            return
        except asyncio.CancelledError:
            transport.abort()
            raise
        if secured is None or handshake.is_lost or len(handshake.early) > EARLY_MAX_BYTES:
            transport.abort()
            self._on_failed(address, ConnectionAbortedError("the connection was lost behind its handshake"))
            return
        self._on_open(cast("asyncio.Transport", secured), bytes(handshake.early))


class _Handshake(asyncio.Protocol):
    """Stands in for the connection until there is one, and keeps what comes early."""

    __slots__ = ("_handshakes", "early", "is_lost")

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self.early = bytearray()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast("asyncio.Transport", transport)
        # What the client says first is for TLS, which starts in a moment.
        plain.pause_reading()
        self._handshakes.start(self, plain)

    def data_received(self, data: bytes) -> None:
        self.early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def _address(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else "?"
