"""Sessions that caught up further than the live feed is known to be, until it is there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.session.session import Session

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink

RELAXED_PER_TURN: Final = 1_000
"""Sessions that are made wholly live in one turn of the loop: a millisecond."""


class AwaitingLiveFeed:
    """`relax(session)` forgets what the live feed of its brokers has passed; called in turns of the loop."""

    def __init__(self, relax: Callable[[Session], None]) -> None:
        self._relax = relax
        self._loop = asyncio.get_running_loop()
        self._landed: dict[str, deque[tuple[int, list[Session]]]] = {}
        """By broker: how far some sessions caught up, and which, in the order in which they did."""
        self._going_on: set[str] = set()

    def land(self, broker: str, position: int, session: Session) -> None:
        """A session caught up to `position`, which the live feed is not known to have reached."""
        landed = self._landed.setdefault(broker, deque())
        if not landed or landed[-1][0] != position:
            landed.append((position, []))
        landed[-1][1].append(session)

    def fed(self, link: BrokerLink) -> None:
        """The live feed is further: who waited for that is live, some now and the rest in the next turns.

        Not with the feed's next answers: of a worker whose clients all came back most would wait for one, and
        what each session keeps until then would be in memory at a time.
        """
        landed = self._landed.get(link.name)
        left = RELAXED_PER_TURN
        while landed and landed[0][0] <= (link.reader.position or 0):
            if not left:
                if link.name not in self._going_on:
                    self._going_on.add(link.name)
                    self._loop.call_soon(self._go_on, link)
                return
            left -= 1
            sessions = landed[0][1]
            self._relax(sessions.pop())
            if not sessions:
                landed.popleft()

    def _go_on(self, link: BrokerLink) -> None:
        self._going_on.discard(link.name)
        self.fed(link)
