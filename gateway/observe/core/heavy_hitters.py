"""The names that carry most of the traffic, a bounded number of them: the space-saving sketch, sans-IO.

Up to its capacity every name is counted exactly. Past it a new name takes the place of the one with the
fewest messages, and its messages as an `error`: so much of what is said of it may be others'. Whoever has
more than a capacity-th of all messages is always there. Source: Metwally, Agrawal, El Abbadi, Efficient
Computation of Frequent and Top-k Elements in Data Streams (2005).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple


class Traffic(NamedTuple):
    """What connections carried; bytes are of sockets, TLS and all, as far as somebody counts them."""

    connections: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int


class HeavyHitters:
    """At most `capacity` names, 1 or more, with what they carried."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._found: dict[str, tuple[Traffic, int]] = {}
        self._fewest: list[tuple[int, str]] = []
        """A heap of weights, those of names that grew or went since among them."""

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[tuple[str, Traffic, int]]:
        """Yield names, what they carried, and how many of these messages may be others'."""
        for name, (traffic, error) in self._found.items():
            yield name, traffic, error

    def add(self, name: str, traffic: Traffic, error: int = 0) -> None:
        """Count what a name carried; `error` messages of it may be others'."""
        known = self._found.get(name)
        if known is not None:
            before, was = known
            self._found[name] = Traffic(*map(sum, zip(before, traffic, strict=True))), was + error
            return
        if len(self._found) >= self._capacity:
            inherited = self._give_up_one()
            traffic = traffic._replace(messages_in=traffic.messages_in + inherited)
            error += inherited
        self._found[name] = traffic, error
        heapq.heappush(self._fewest, (_weight(traffic), name))

    def _give_up_one(self) -> int:
        """Forget the name with the fewest messages; how many it had."""
        while True:
            weight, name = self._fewest[0]
            now = _weight(self._found[name][0])
            if now == weight:
                heapq.heappop(self._fewest)
                del self._found[name]
                return weight
            # It grew since: its place is further behind.
            heapq.heapreplace(self._fewest, (now, name))


def _weight(traffic: Traffic) -> int:
    return traffic.messages_in + traffic.messages_out
