"""What was answered about clients and topics, for as long as it counts: one LRU of bounded age. Sans-IO."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

A = TypeVar("A")


class Answers(Generic[A]):
    """Answers by key; the least recently used goes when there are more than `entries_max`."""

    __slots__ = ("_entries", "_entries_max")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[Hashable, tuple[A, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now: float) -> A | None:
        """The answer, if there is one that counts at `now` (s)."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found[1] <= now:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, answer: A, until: float) -> None:
        """Remember an answer until then (s)."""
        self._entries[key] = answer, until
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
