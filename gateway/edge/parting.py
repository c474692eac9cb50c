"""The last seconds of a connection that the gateway closed: what it said must arrive.

A socket that is closed while bytes of its peer are unread, or on their way, is reset, and the peer's kernel
then drops what was sent to it: the client would not see the CONNACK or DISCONNECT that says why. So our half
is closed first, and what comes is dropped until the client has closed its own; gateway.edge.stragglers bounds
how long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.edge.sockets import ClientSocket, Receiver

if TYPE_CHECKING:
    from gateway.edge.connection import ClientConnection

PARTING_BYTES_MAX: Final = 1 << 20
"""What a closed connection may still send: a socket's buffers. Who sends more does not listen."""


class Parting(Receiver):
    """Takes the place of a shell at its socket."""

    __slots__ = ("_left", "_shell")

    def __init__(self, shell: ClientConnection) -> None:
        # The socket is the shell's: two that know each other stay until a full collection of garbage.
        self._shell = shell
        self._left = PARTING_BYTES_MAX

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        transport = self._shell.transport
        if self._left < 0 and transport is not None:
            transport.abort()

    def connection_made(self, transport: ClientSocket) -> None:
        """Do nothing: the connection was there before."""

    def pause_writing(self) -> None:
        """Nothing more is written."""

    def resume_writing(self) -> None:
        """Nothing more is written."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._shell.connection_lost(exc)


def half_close(shell: ClientConnection, transport: ClientSocket) -> None:
    """Close our half of the connection behind what was written; the transport is the shell's and open."""
    transport.set_protocol(Parting(shell))
    transport.write_eof()
    transport.resume_reading()  # whatever it was paused for
