"""When a worker has too much to do, sans-IO: samples in with their time, a level out.

::

    NORMAL ──pressure ≥ 1 for RISE_S──► REFUSING ──still, PAUSE_AFTER_S later──► PAUSING
       ◄──pressure < CALM for CALM_S────        ◄──pressure < CALM for CALM_S────────

Pressure is the largest of the measures, each relative to its limit: how late the event loop is, what the
process has in memory, how long brokers have been busy. Between CALM and 1 nothing changes: what was decided
holds until it has clearly helped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

NORMAL: Final = 0
REFUSING: Final = 1
"""New connections are refused: they cost most, and have not been promised anything."""
PAUSING: Final = 2
"""The clients that send most are not read, either."""

RISE_S: Final = 1.0
"""How long pressure must last: one long turn of the loop is no overload."""
PAUSE_AFTER_S: Final = 3.0
"""How long refusing may take to help."""
CALM: Final = 0.8
CALM_S: Final = 3.0
"""How long it must be calm for each step back: refused clients come again about then."""
BUSY_MAX_S: Final = 5.0
"""How long brokers may have refused everything: half of what a connection waits for its broker."""
NOISE_SHARE: Final = 0.5
"""How much of what comes in is not read while PAUSING."""
NOISIEST_MAX: Final = 1_000
"""Clients that are paused at a time."""

LAG: Final = "loop lag"
MEMORY: Final = "memory"
BROKER: Final = "broker busy"

T = TypeVar("T")


class Overload:
    """The level of one worker. A limit of 0 means that its measure is not looked at."""

    __slots__ = (
        "_calm_since",
        "_high_since",
        "_least_lag_s",
        "cause",
        "lag_limit_s",
        "level",
        "memory_limit_bytes",
    )

    def __init__(self, lag_limit_s: float, memory_limit_bytes: int) -> None:
        self.lag_limit_s = lag_limit_s
        self.memory_limit_bytes = memory_limit_bytes
        self._least_lag_s: float | None = None
        self._high_since: float | None = None
        self._calm_since: float | None = None
        self.level = NORMAL
        self.cause = ""
        """What made the level rise last."""

    def ticked(self, late_s: float) -> None:
        """The loop's clock ticked so late."""
        # The least of all ticks between two samples: the lag that does not go away by itself (CoDel's way).
        if self._least_lag_s is None or late_s < self._least_lag_s:
            self._least_lag_s = late_s

    def sample(self, memory_bytes: int, busy_s: float, now: float) -> int:
        """Take a sample, once a second or so; return the level from now on."""
        pressures = {BROKER: busy_s / BUSY_MAX_S}
        if self.lag_limit_s:
            pressures[LAG] = (self._least_lag_s or 0.0) / self.lag_limit_s
        if self.memory_limit_bytes:
            pressures[MEMORY] = memory_bytes / self.memory_limit_bytes
        self._least_lag_s = None
        cause, pressure = max(pressures.items(), key=lambda entry: entry[1])
        if pressure >= 1:
            self._rise(cause, now)
        elif pressure < CALM:
            self._fall(now)
        else:
            self._high_since = self._calm_since = None
        return self.level

    def _rise(self, cause: str, now: float) -> None:
        self._calm_since = None
        if self._high_since is None:
            self._high_since = now
        lasted_s = now - self._high_since
        if self.level < PAUSING and lasted_s >= (RISE_S if self.level == NORMAL else PAUSE_AFTER_S):
            self.level += 1
            self.cause = cause
            self._high_since = now

    def _fall(self, now: float) -> None:
        self._high_since = None
        if self._calm_since is None:
            self._calm_since = now
        elif self.level and now - self._calm_since >= CALM_S:
            self.level -= 1
            self._calm_since = now


def noisiest(sent: Iterable[tuple[T, int]]) -> list[T]:
    """Those that together sent NOISE_SHARE of all bytes, the largest first, at most NOISIEST_MAX."""
    ordered = sorted(sent, key=lambda entry: entry[1], reverse=True)
    left = sum(size for _, size in ordered) * NOISE_SHARE
    found: list[T] = []
    for who, size in ordered[:NOISIEST_MAX]:
        if left <= 0 or not size:
            break
        found.append(who)
        left -= size
    return found
