"""Parked pulls: requests that found nothing wait here for an arrival or their deadline.

A parked pull costs one object and an entry per queue that it names; no task, no timer of its
own. An arrival looks only at its own queue's pulls, and wakes those whose filter passes one
of the new messages.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from broker.kernel.core.filters import FilterSet

PARKED_MAX: Final = 100_000
"""Parked pulls per broker (about 1 KiB each): ten for each of 10,000 connections."""

Owner = TypeVar("Owner")
QueueKey = tuple[str, int]


class ParkedPull(Generic[Owner]):
    """One parked pull. `owner` is whatever its shell needs to answer it."""

    __slots__ = ("deadline", "filter", "is_done", "owner", "queues")

    def __init__(
        self, owner: Owner, queues: tuple[QueueKey, ...], filter_set: FilterSet | None, deadline: float
    ) -> None:
        self.owner = owner
        self.queues = queues
        self.filter = filter_set
        self.deadline = deadline
        self.is_done = False


class Hold(Generic[Owner]):
    """The table of parked pulls, by queue and by deadline."""

    def __init__(self, parked_max: int = PARKED_MAX) -> None:
        self.parked_max = parked_max
        self.size = 0
        self._by_queue: dict[QueueKey, dict[int, ParkedPull[Owner]]] = {}
        self._deadlines: list[tuple[float, int, ParkedPull[Owner]]] = []
        self._serial = 0

    def park(self, parked: ParkedPull[Owner]) -> bool:
        """Keep a pull until `arrived`, `expire` or `cancel`; False if the table is full (answer it now)."""
        if self.size >= self.parked_max:
            return False
        self._serial += 1
        self.size += 1
        for key in parked.queues:
            self._by_queue.setdefault(key, {})[id(parked)] = parked
        heapq.heappush(self._deadlines, (parked.deadline, self._serial, parked))
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self.size:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_done]
            heapq.heapify(self._deadlines)
        return True

    def arrived(
        self, topic: str, queue_id: int, hashes: npt.NDArray[np.uint64] | None
    ) -> list[ParkedPull[Owner]]:
        """Messages became visible: take out and return the pulls that want one of them.

        `hashes` are the messages' tag hashes, None = all without tag.
        """
        waiting = self._by_queue.get((topic, queue_id))
        if not waiting:
            return []
        woken = [p for p in waiting.values() if p.filter is None or p.filter.may_pass_any(topic, hashes)]
        for parked in woken:
            self.cancel(parked)
        return woken

    def withdraw(self, topic: str, queue_id: int) -> list[ParkedPull[Owner]]:
        """The queue has other settings, or is gone: take out and return all its pulls."""
        waiting = list(self._by_queue.get((topic, queue_id), {}).values())
        for parked in waiting:
            self.cancel(parked)
        return waiting

    def expire(self, now: float) -> list[ParkedPull[Owner]]:
        """Take out and return the pulls whose deadline has come."""
        due: list[ParkedPull[Owner]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            parked = heapq.heappop(self._deadlines)[2]
            if not parked.is_done:
                self.cancel(parked)
                due.append(parked)
        return due

    def next_deadline(self) -> float | None:
        """When `expire` should be called; None if nothing is parked."""
        while self._deadlines and self._deadlines[0][2].is_done:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def cancel(self, parked: ParkedPull[Owner]) -> None:
        """Take out a pull (its connection closed); twice changes nothing."""
        if parked.is_done:
            return
        parked.is_done = True
        self.size -= 1
        for key in parked.queues:
            waiting = self._by_queue[key]
            waiting.pop(id(parked), None)
            if not waiting:
                del self._by_queue[key]
