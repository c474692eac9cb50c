"""Held route requests: parked until one of their topics changes, or their time is over.

A parked request costs one object and an entry per topic that it names; no task, no timer of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

HELD_MAX: Final = 20_000
"""Held requests (about 1 KiB each): two for each connection that a registry takes."""
HELD_NAMES_MAX: Final = 1_000_000
"""Topics named by all held requests together (about 100 bytes each)."""

Owner = TypeVar("Owner")


class Held(Generic[Owner]):
    """One held request. `topics` None = all; `owner` is whatever the shell needs to answer it."""

    __slots__ = ("connection", "deadline", "is_done", "owner", "topics")

    def __init__(
        self, owner: Owner, connection: Hashable, topics: tuple[str, ...] | None, deadline: float
    ) -> None:
        self.owner = owner
        self.connection = connection
        self.topics = topics
        self.deadline = deadline
        self.is_done = False


class Holds(Generic[Owner]):
    """The table of held requests: one per connection, found by topic and by deadline."""

    def __init__(self, held_max: int = HELD_MAX, names_max: int = HELD_NAMES_MAX) -> None:
        self.names = 0
        self._held_max = held_max
        self._names_max = names_max
        self._by_connection: dict[Hashable, Held[Owner]] = {}
        self._by_topic: dict[str, dict[Hashable, Held[Owner]]] = {}
        self._of_all: dict[Hashable, Held[Owner]] = {}
        self._deadlines: list[tuple[float, int, Held[Owner]]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._by_connection)

    def of(self, connection: Hashable) -> Held[Owner] | None:
        """What this connection holds."""
        return self._by_connection.get(connection)

    def hold(self, held: Held[Owner]) -> bool:
        """Keep a request, in place of none (`cancel` the connection's other first); False at a bound."""
        names = len(held.topics or ())
        if len(self._by_connection) >= self._held_max or self.names + names > self._names_max:
            return False
        self.names += names
        self._by_connection[held.connection] = held
        if held.topics is None:
            self._of_all[held.connection] = held
        for topic in held.topics or ():
            self._by_topic.setdefault(topic, {})[held.connection] = held
        self._serial += 1
        heapq.heappush(self._deadlines, (held.deadline, self._serial, held))
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * len(self._by_connection):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_done]
            heapq.heapify(self._deadlines)
        return True

    def wake(self, topics: Iterable[str], is_for_all: bool) -> list[Held[Owner]]:
        """Take out and return those that name one of these topics, or every one (`is_for_all`)."""
        if is_for_all:
            woken = list(self._by_connection.values())
        else:
            found = dict(self._of_all)
            for topic in topics:
                found.update(self._by_topic.get(topic, {}))
            woken = list(found.values())
        for held in woken:
            self.cancel(held)
        return woken

    def expire(self, now: float) -> list[Held[Owner]]:
        """Take out and return those whose time is over."""
        due: list[Held[Owner]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            held = heapq.heappop(self._deadlines)[2]
            if not held.is_done:
                self.cancel(held)
                due.append(held)
        return due

    def next_deadline(self) -> float | None:
        """When `expire` should be called; None while nothing is held."""
        while self._deadlines and self._deadlines[0][2].is_done:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def cancel(self, held: Held[Owner]) -> None:
        """Take one out; twice changes nothing."""
        if held.is_done:
            return
        held.is_done = True
        del self._by_connection[held.connection]
        self._of_all.pop(held.connection, None)
        self.names -= len(held.topics or ())
        for topic in held.topics or ():
            waiting = self._by_topic[topic]
            waiting.pop(held.connection, None)
            if not waiting:
                del self._by_topic[topic]
