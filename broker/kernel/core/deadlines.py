"""Deadlines of many things in one heap: what is due is taken out, what ended early is forgotten lazily."""

from __future__ import annotations

import heapq
from typing import Final, Generic, Protocol, TypeVar


class Ending(Protocol):
    """What has a deadline."""

    @property
    def is_over(self) -> bool:
        """Whether its deadline means nothing any more."""


Item = TypeVar("Item", bound=Ending)
COMPACT_MIN: Final = 1_024
"""Below so many entries those that are over cost less than looking for them."""


class Deadlines(Generic[Item]):
    """A heap of (time, item). An item may be in it several times: who takes it out looks at the item."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._serial = 0
        self._compact_at = COMPACT_MIN

    def __len__(self) -> int:
        """Entries, those of items that are over included: at most about twice the others."""
        return len(self._heap)

    def push(self, at: float, item: Item) -> None:
        """Give `item` out at `at`."""
        self._serial += 1
        heapq.heappush(self._heap, (at, self._serial, item))
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if not entry[2].is_over]
            heapq.heapify(self._heap)
            self._compact_at = max(COMPACT_MIN, 2 * len(self._heap))

    def due(self, now: float) -> list[Item]:
        """Take out what is due, in the order of deadlines."""
        found: list[Item] = []
        while self._heap and self._heap[0][0] <= now:
            item = heapq.heappop(self._heap)[2]
            if not item.is_over:
                found.append(item)
        return found

    def next(self) -> float | None:
        """When `due` should be called; None if nothing has a deadline."""
        while self._heap and self._heap[0][2].is_over:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
