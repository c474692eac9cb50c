"""Which processes are here, which said goodbye, and which are gone without a word. Time is an argument.

A process is here as long as one of its connections is: a gateway has one for each of its workers. When the
last has ended it has left, if that one said goodbye, else it is lost until it is here again, or forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

PROCESSES_MAX: Final = 5_000
"""Processes that are here or lost: five times the brokers that may register. Others are not watched."""
NAME_MAX_CHARS: Final = 200
KINDS: Final = ("broker", "gateway", "spark", "registry")


class ProcessKey(NamedTuple):
    """A process: its kind, one of KINDS, and its name among those of its kind."""

    kind: str
    name: str


class Roster:
    """Keeps the processes of one registry. Times are seconds of a clock that never goes back."""

    def __init__(self, processes_max: int = PROCESSES_MAX) -> None:
        self.refused = 0
        """Times that a process was not watched, as there were too many."""
        self._processes_max = processes_max
        self._here: dict[ProcessKey, dict[Hashable, float]] = {}
        self._keys_of: dict[Hashable, set[ProcessKey]] = {}
        self._lost: dict[ProcessKey, float] = {}
        self._given_up: set[ProcessKey] = set()

    @property
    def present(self) -> frozenset[ProcessKey]:
        """The processes that are here."""
        return frozenset(self._here)

    @property
    def lost(self) -> Mapping[ProcessKey, float]:
        """Processes that are gone without a goodbye, and since when."""
        return self._lost

    def here(self, key: ProcessKey, owner: Hashable, now: float) -> None:
        """A process says over a connection that it is here."""
        is_new = key not in self._here and key not in self._lost
        if is_new and len(self._here) + len(self._lost) >= self._processes_max:
            self.refused += 1
            return
        self._lost.pop(key, None)
        self._given_up.discard(key)
        self._here.setdefault(key, {})[owner] = now
        self._keys_of.setdefault(owner, set()).add(key)

    def leave(self, key: ProcessKey, owner: Hashable) -> None:
        """A process says goodbye over a connection of its own."""
        if owner in self._here.get(key, {}):
            self._end(key, owner)

    def closed(self, owner: Hashable, now: float) -> None:
        """A connection has ended; who left over it is in none of this any more."""
        for key in list(self._keys_of.get(owner, ())):
            self._end(key, owner)
            if key not in self._here:
                self._lost[key] = now

    def expire(self, now: float, silence_s: float) -> None:
        """End what has not said for so long that it is here, though its connection stands: it hangs."""
        for key, owners in list(self._here.items()):
            for owner, seen_at in list(owners.items()):
                if now - seen_at > silence_s:
                    self._end(key, owner)
            if key not in self._here:
                self._lost[key] = now

    def lose(self, key: ProcessKey, at: float) -> None:
        """Take over that a process is lost, unless it is here, or nobody waits for it."""
        if key in self._given_up:
            return
        if key not in self._here and len(self._here) + len(self._lost) < self._processes_max:
            self._lost.setdefault(key, at)

    def forget(self, key: ProcessKey) -> None:
        """Ask no more for a process that is lost."""
        self._lost.pop(key, None)

    def give_up(self, key: ProcessKey) -> None:
        """Wait no more for a process, whose connection may stand: it is no news until it is here again."""
        self._lost.pop(key, None)
        for owner in list(self._here.get(key, ())):
            self._end(key, owner)
        if len(self._given_up) < self._processes_max:
            self._given_up.add(key)

    def _end(self, key: ProcessKey, owner: Hashable) -> None:
        owners = self._here[key]
        del owners[owner]
        if not owners:
            del self._here[key]
        keys = self._keys_of[owner]
        keys.discard(key)
        if not keys:
            del self._keys_of[owner]
