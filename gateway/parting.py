"""The last seconds of a connection that the gateway closed: what it said must arrive.

A socket that is closed while bytes of its peer are unread, or on their way, is reset, and the peer's kernel
then drops what was sent to it: the client would not see the CONNACK or DISCONNECT that says why. So our half
is closed first, and what comes is dropped until the client has closed its own; gateway.stragglers bounds how
long.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.connection import Shell

PARTING_BYTES_MAX: Final = 1 << 20
"""What a closed connection may still send: a socket's buffers. Who sends more does not listen."""


class Parting(asyncio.Protocol):
    """Takes the place of a shell's protocol at its transport."""

    __slots__ = ("_left", "_shell", "_transport")

    def __init__(self, shell: Shell, transport: asyncio.Transport) -> None:
        self._shell = shell
        self._transport = transport
        self._left = PARTING_BYTES_MAX

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shell.connection_lost(exc)


def part(shell: Shell, transport: asyncio.Transport) -> None:
    """Close our half of the connection behind what was written; the transport is the shell's and open."""
    transport.set_protocol(Parting(shell, transport))
    transport.write_eof()
    transport.resume_reading()  # whatever it was paused for
