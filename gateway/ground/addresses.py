"""Connections by address, sans-IO: an IPv6 /64 counts as one, as one customer has all of it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Network
from typing import Final

from holdmq.record.codec import NO_HOST

NOBODY: Final = b""
"""The key of a connection without an address (UNIX sockets)."""
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""IPv6 addresses that are IPv4 ones (RFC 4291, 2.5.5.2): a proxy may tell them so."""
_LOOPBACK_V6: Final = bytes(15) + b"\x01"


def address_key(born_host: bytes) -> bytes:
    """Whom a BornHost belongs to: the IPv4 address (4 bytes), the /64 of an IPv6 one (8), or NOBODY."""
    if len(born_host) == 8:
        return NOBODY if born_host == NO_HOST else born_host[:4]
    return born_host[12:16] if born_host.startswith(_MAPPED) else born_host[:8]


def is_local(born_host: bytes) -> bool:
    """Whether a BornHost is of this machine: a loopback address, or none at all (UNIX sockets)."""
    key = address_key(born_host)
    return not key or (len(key) == 4 and key[0] == 127) or born_host[:16] == _LOOPBACK_V6


def shown_key(key: bytes) -> str:
    """A key for people: `10.0.0.1`, `2001:db8::/64`, or "" for NOBODY."""
    if not key:
        return ""
    if len(key) == 4:
        return str(IPv4Address(key))
    return str(IPv6Network((key + bytes(8), 64)))


class AddressCounts:
    """How many connections each address has; one without any takes no memory."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def opened(self, key: bytes) -> int:
        """Another connection of an address; how many it has now, 0 for NOBODY."""
        if not key:
            return 0
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count

    def closed(self, key: bytes) -> None:
        """One of its connections is gone."""
        count = self._counts.get(key, 0)
        if count > 1:
            self._counts[key] = count - 1
        else:
            self._counts.pop(key, None)
