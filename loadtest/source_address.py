"""Where connections of a load come from: from one address a kernel makes some 28,000 to one target."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

PER_ADDRESS_MAX: Final = 20_000
"""Connections from one loopback address, well below the ports that it has."""


def source_address(number: int) -> str:
    """Return the loopback address of the connection `number`."""
    return f"127.0.1.{1 + number // PER_ADDRESS_MAX}"


def is_loopback(host: str) -> bool:
    """Return whether `host` is an IPv4 address of this machine's loopback, where every source is at hand."""
    try:
        target = ipaddress.ip_address(host)
    except ValueError:
        return False
    return target.version == 4 and target.is_loopback


def bind_source(connection: socket.socket, number: int) -> None:
    """Have a socket that is not connected yet come from the address of the connection `number`."""
    # The port is found at connect, by what is free towards the target. At bind the kernel would look for one
    # that nothing here has at all, through a list as long as the connections: a millisecond of CPU each.
    connection.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
    connection.bind((source_address(number), 0))
