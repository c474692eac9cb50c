"""The one timer that makes windows of what was counted."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.kernel.statistics import Statistics

TICK_S: Final = 1.0
SETTLED_PER_TURN: Final = 250
"""Queues whose counts are added up in one turn of the loop: about a millisecond."""


class StatisticsTicks:
    """Ends the seconds of `statistics`, from `start` until `stop`: without it what is counted is nowhere."""

    def __init__(self, statistics: Statistics) -> None:
        self.ticks = 0
        self._statistics = statistics
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tick once a second from now on."""
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Tick no more; stopping what does not tick changes nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.ticks += 1
        self._statistics.tick(self._loop.time())
        self._settle()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _settle(self) -> None:
        if self._statistics.settle(SETTLED_PER_TURN):
            self._loop.call_soon(self._settle)
