"""When a broker looks for garbage among all its objects; `holdmq.service.interpreter` has what else is set.

What a broker makes for each message (batches, chunks, runs) lives as long as the tail cache has it, forms no
cycles and is freed by counts. A full collection looks at all of it: 60 ms after eight seconds at 10,000
msg/s, as often as a quarter of the tail was replaced, and nobody is answered meanwhile. So young objects are
looked at as ever, which takes a millisecond or two, and all objects in a quiet moment.
"""

from __future__ import annotations

import gc
import time
from typing import Final

import structlog

FULL_INTERVAL_S: Final = 600.0
"""A broker that is never quiet looks through everything this often: a stall of 0.3 s is 0.05 % of it."""
CLOSED_MAX: Final = 1_000
"""Connections that closed since; with TLS, one may leave some ten KiB in a cycle: 10 to 50 MiB."""
CHECK_INTERVAL_S: Final = 10.0
QUIET_BATCHES: Final = 10
"""Batches since the last check, one a second, at which the broker is quiet: a stall delays hardly anyone."""

log = structlog.get_logger("holdmq.broker")


class FullCollections:
    """Decides when to look through all objects. `check` is to be called every CHECK_INTERVAL_S."""

    def __init__(self, now: float) -> None:
        self.collections = 0
        self._collected_at = now
        self._checked_batches = self._batches = self._closed = 0

    def check(self, now: float, batches: int, closed: int) -> bool:
        """Whether it is time; then everything counts as collected.

        `batches` and `closed` are how many batches were taken and connections were closed since the start.
        """
        is_quiet = batches - self._checked_batches <= QUIET_BATCHES
        self._checked_batches = batches
        has_news = batches != self._batches or closed != self._closed
        is_late = now - self._collected_at >= FULL_INTERVAL_S
        if not (has_news and is_quiet) and not is_late and closed - self._closed < CLOSED_MAX:
            return False
        self.collections += 1
        self._collected_at = now
        self._batches, self._closed = batches, closed
        return True


def collect() -> None:
    """Look through all objects; blocks."""
    began = time.perf_counter()
    found = gc.collect()
    log.debug("looked for garbage", objects=found, took_ms=round((time.perf_counter() - began) * 1e3, 1))
