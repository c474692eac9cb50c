"""The last seconds of a connection that the gateway closed: what it said must arrive.

A socket that is closed while bytes of its peer are unread, or on their way, is reset, and the peer's kernel
then drops what was sent to it: the client would not see the CONNACK or DISCONNECT that says why. So our half
is closed first, and what comes is dropped until the client has closed its own; gateway.edge.stragglers bounds
how long.
"""

from __future__ import annotations

from typing import Final

from gateway.edge.sockets import ClientSocket, Receiver

PARTING_BYTES_MAX: Final = 1 << 20
"""What a closed connection may still send: a socket's buffers. Who sends more does not listen."""


class Parting(Receiver):
    """Takes the place of a connection at its socket, until that is gone."""

    __slots__ = ("_left", "_receiver", "_transport")

    def __init__(self, receiver: Receiver, transport: ClientSocket) -> None:
        self._receiver = receiver
        self._transport: ClientSocket | None = transport
        self._left = PARTING_BYTES_MAX

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0 and self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: ClientSocket) -> None:
        """Do nothing: the connection was there before."""

    def pause_writing(self) -> None:
        """Nothing more is written."""

    def resume_writing(self) -> None:
        """Nothing more is written."""

    def connection_lost(self, exc: Exception | None) -> None:
        # Two that know each other would stay until a full collection of garbage.
        self._transport = None
        self._receiver.connection_lost(exc)


def half_close(receiver: Receiver, transport: ClientSocket) -> None:
    """Close our half of a connection behind what was written; `receiver` hears when the other is closed."""
    transport.set_protocol(Parting(receiver, transport))
    transport.write_eof()
    transport.resume_reading()  # whatever it was paused for
