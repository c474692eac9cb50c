"""What the members of a consumer group were given, and what must hold of it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from holdmq.message import Message

Place = tuple[str, str, int]
"""Topic, broker and queue id."""


class Delivery(NamedTuple):
    """One call of a handler; times are this machine's monotonic clock."""

    member: str
    place: Place
    offset: int
    body: bytes
    began: float
    ended: float


class Deliveries:
    """All deliveries of a test, in the order in which they ended."""

    def __init__(self) -> None:
        self.all: list[Delivery] = []

    def handler(
        self, member: str, pause_s: float = 0.0, fails: Callable[[Message], bool] = lambda _: False
    ) -> Callable[[Message], Awaitable[bool]]:
        """A handler that records for this member, takes `pause_s`, and fails where `fails` says so."""

        async def handle(message: Message) -> bool:
            began = time.monotonic()
            await asyncio.sleep(pause_s)
            place = (message.topic, message.broker or "", message.queue_id)
            delivery = Delivery(member, place, message.queue_offset, message.body, began, time.monotonic())
            self.all.append(delivery)
            return not fails(message)

        return handle

    def bodies(self, member: str | None = None) -> set[bytes]:
        """What was delivered, to this member or to anybody."""
        return {d.body for d in self.all if member in (None, d.member)}

    def shared_queues(self) -> list[tuple[Delivery, Delivery]]:
        """Pairs of deliveries of one queue to two members that overlap in time: there must be none."""
        found: list[tuple[Delivery, Delivery]] = []
        for deliveries in self._by_place().values():
            last: dict[str, Delivery] = {}
            for delivery in sorted(deliveries, key=lambda d: d.began):
                for member, other in last.items():
                    if member != delivery.member and other.ended > delivery.began:
                        found.append((other, delivery))
                known = last.get(delivery.member)
                if known is None or known.ended < delivery.ended:
                    last[delivery.member] = delivery
        return found

    def disorder(self, may_go_back: bool = False) -> list[tuple[Delivery, Delivery]]:
        """Neighbours of one queue whose first deliveries are out of order.

        Offsets that were delivered before may come again; `may_go_back` False: not even that.
        """
        found: list[tuple[Delivery, Delivery]] = []
        for deliveries in self._by_place().values():
            highest: Delivery | None = None
            for delivery in sorted(deliveries, key=lambda d: d.began):
                if highest is None or delivery.offset > highest.offset:
                    if highest is not None and delivery.offset != highest.offset + 1:
                        found.append((highest, delivery))
                    highest = delivery
                elif not may_go_back:
                    found.append((highest, delivery))
        return found

    def _by_place(self) -> dict[Place, list[Delivery]]:
        places: dict[Place, list[Delivery]] = defaultdict(list)
        for delivery in self.all:
            places[delivery.place].append(delivery)
        return places
