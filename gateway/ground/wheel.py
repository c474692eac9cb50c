"""The timer wheel: all deadlines of a worker's connections, one timer.

::

    slot      0     1     2    …    SLOTS-1        a set of items each; the hand moves one slot a tick
    deadline  d → slot  ⌈d / tick⌉ mod SLOTS, at most SLOTS-1 ticks ahead of the hand

An item later than the horizon waits in the farthest slot and is put on again when the hand
comes by. A deadline that moves later costs nothing: the item is asked for its deadline when
its slot comes, and put on again. So a message received costs no timer work at all.
"""

from __future__ import annotations

from math import ceil
from typing import Final, Generic, Protocol, TypeVar

SLOTS: Final = 512
TICK_S: Final = 0.25
"""How late a deadline may be noticed: a quarter of the shortest keep alive. The horizon is 128 s."""
NOWHERE: Final = -1


class Timed(Protocol):
    """What a wheel can hold: hashable by identity; `wheel_slot` belongs to the wheel (start: NOWHERE)."""

    wheel_slot: int

    def next_deadline(self) -> float | None:
        """When this must be looked at; None = never."""


T = TypeVar("T", bound=Timed)


class Wheel(Generic[T]):
    """Items by deadline; `len()` is how many are on it."""

    __slots__ = ("_count", "_hand", "_slots", "tick_s")

    def __init__(self, now: float, tick_s: float = TICK_S) -> None:
        self.tick_s = tick_s
        self._slots: list[set[T] | None] = [None] * SLOTS
        self._hand = int(now / tick_s)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: T) -> None:
        """Put an item on, or move it, to its `next_deadline()`; with None it is taken off.

        Needed when a deadline comes nearer. One that moves later needs no call.
        """
        self.remove(item)
        deadline = item.next_deadline()
        if deadline is None:
            return
        tick = min(max(ceil(deadline / self.tick_s), self._hand + 1), self._hand + SLOTS - 1)
        index = tick % SLOTS
        slot = self._slots[index]
        if slot is None:
            slot = self._slots[index] = set()
        slot.add(item)
        item.wheel_slot = index
        self._count += 1

    def remove(self, item: T) -> None:
        """Take an item off; one that is not on changes nothing."""
        index = item.wheel_slot
        if index != NOWHERE:
            slot = self._slots[index]
            assert slot is not None
            slot.discard(item)
            if not slot:
                # A set keeps the room of all that it ever had, and the hand may come much later.
                self._slots[index] = None
            item.wheel_slot = NOWHERE
            self._count -= 1

    def advance(self, now: float) -> list[T]:
        """Move the hand to `now`; take off and return the items whose deadline has come."""
        target = int(now / self.tick_s)
        due: list[T] = []
        # After a stall longer than the horizon one round sees every slot.
        hand = max(self._hand, target - SLOTS)
        early: list[T] = []
        while hand < target:
            hand += 1
            slot = self._slots[hand % SLOTS]
            if slot is not None:
                self._slots[hand % SLOTS] = None
                for item in slot:
                    item.wheel_slot = NOWHERE
                    self._count -= 1
                    deadline = item.next_deadline()
                    if deadline is None:
                        continue
                    if deadline <= now:
                        due.append(item)
                    else:
                        early.append(item)
        self._hand = max(self._hand, target)
        for item in early:
            self.put(item)
        return due

    def next_deadline(self) -> float | None:
        """When `advance` should be called next: the next tick, or None while nothing is on the wheel."""
        return (self._hand + 1) * self.tick_s if self._count else None
