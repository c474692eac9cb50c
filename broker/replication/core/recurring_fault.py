"""What fails again with every attempt is told when it begins, then now and then, and when it is over."""

from __future__ import annotations

from typing import Final, NamedTuple

REMIND_S: Final = 60.0
"""Between two lines of a log while a fault lasts: with an attempt a second, one line in sixty attempts."""


class FaultNews(NamedTuple):
    """What is to be told of a fault: `failures` in a row, over `lasted_s` so far."""

    failures: int
    lasted_s: float


class RecurringFault:
    """Counts attempts that fail in a row. `now` is a clock in seconds that never goes back."""

    __slots__ = ("_began_at", "_failures", "_told_at")

    def __init__(self) -> None:
        self._failures = 0
        self._began_at = self._told_at = 0.0

    def failed(self, now: float) -> FaultNews | None:
        """An attempt failed; what is to be told of it, None = it was told less than `REMIND_S` ago."""
        self._failures += 1
        if self._failures == 1:
            self._began_at = now
        elif now - self._told_at < REMIND_S:
            return None
        self._told_at = now
        return FaultNews(self._failures, now - self._began_at)

    def succeeded(self, now: float) -> FaultNews | None:
        """An attempt succeeded; the fault that is over by that, None = there was none."""
        failures, self._failures = self._failures, 0
        return FaultNews(failures, now - self._began_at) if failures else None
