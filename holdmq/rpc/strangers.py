"""Places for connections that have not shown who they are, apart from those of the connections that have.

A new one is never refused. When there is no place it gets that of the one that waits longest: who has
credentials is done after two round trips, and who has none gives nothing up but the wait. So strangers keep
nobody out by being many, unless all their places change hands within somebody's two round trips. Source: SYN
caches (Lemon, BSDCon 2002), whose oldest entry goes as well.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

S = TypeVar("S", bound=Hashable)

UNAUTHENTICATED_MAX: Final = 2_000
"""Places: as many as come at once when a fleet reconnects; with the frame that each may begin, 32 MiB."""
ADDRESS_SHARE: Final = 4
"""An address has at most one in so many of the places: one host alone must not make all of them change hands.
A quarter, and not less, as a fleet may be behind one address."""


class Strangers(Generic[S]):
    """Gives unauthenticated connections `places` (at least 1); `displaced` counts those that made room."""

    def __init__(self, places: int = UNAUTHENTICATED_MAX) -> None:
        self.places = places
        self.displaced = 0
        self.address_max = max(1, places // ADDRESS_SHARE)
        self._origins: dict[S, str] = {}
        self._by_origin: dict[str, dict[S, None]] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def __contains__(self, stranger: object) -> bool:
        return stranger in self._origins

    def enter(self, stranger: S, address: str) -> S | None:
        """Give a place to one that comes from `address` (an IP, or a word for where else).

        Returns the one that had it, which is to be closed: the oldest of the address if that has its share,
        else the oldest of all if there is no place; else None.
        """
        origin = origin_of(address)
        neighbours = self._by_origin.setdefault(origin, {})
        found: S | None = None
        if len(neighbours) >= self.address_max:
            found = next(iter(neighbours))
        elif len(self._origins) >= self.places:
            found = next(iter(self._origins))
        self._origins[stranger] = origin
        neighbours[stranger] = None
        if found is not None:
            self.displaced += 1
            self.leave(found)
        return found

    def leave(self, stranger: S) -> None:
        """Free the place of a connection that is gone or authenticated; without a place nothing happens."""
        origin = self._origins.pop(stranger, None)
        if origin is None:
            return
        neighbours = self._by_origin[origin]
        del neighbours[stranger]
        if not neighbours:
            del self._by_origin[origin]


def origin_of(address: str) -> str:
    """What counts as one address: an IPv4 address, the /64 of an IPv6 one, which a single host has all of."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
