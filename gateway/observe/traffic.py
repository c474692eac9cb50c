"""Bytes of a connection, TLS and all, as the kernel counts them: a client costs no memory for it."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, Protocol

_BYTES: Final = struct.Struct("=QQ")
"""`tcpi_bytes_acked` and `tcpi_bytes_received` of Linux's `struct tcp_info`."""
_BYTES_AT: Final = 120
UNKNOWN: Final = (-1, -1)


class CountedSocket(Protocol):
    """A socket that tells of itself."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What asyncio's transports call `socket`, with a descriptor, a family and options."""


def traffic_of(transport: CountedSocket | None) -> tuple[int, int]:
    """Bytes that the client has acknowledged, and that came from it; UNKNOWN where nobody counts them."""
    handle = None if transport is None else transport.get_extra_info("socket")
    if handle is None or handle.fileno() < 0 or handle.family == socket.AF_UNIX:
        return UNKNOWN
    try:
        told = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_AT + _BYTES.size)
    except OSError:
        return UNKNOWN
    if len(told) < _BYTES_AT + _BYTES.size:
        return UNKNOWN  # a kernel before 4.1
    acknowledged, received = _BYTES.unpack_from(told, _BYTES_AT)
    return int(acknowledged), int(received)
