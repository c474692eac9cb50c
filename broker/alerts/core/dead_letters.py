"""Dead letters of groups, as alarms count them."""

from __future__ import annotations

from typing import Final

DEAD_LETTER_GROUPS_MAX: Final = 10_000
"""Groups whose dead letters are counted: all of broker.groups_max."""


class DeadLetterCounts:
    """Dead letters of each group, until none came for `quiet_s`."""

    def __init__(self, quiet_s: float, groups_max: int = DEAD_LETTER_GROUPS_MAX) -> None:
        self.quiet_s = quiet_s
        self._groups_max = groups_max
        self._counts: dict[str, int] = {}
        self._last_at: dict[str, float] = {}

    def add(self, group: str, messages: int, now: float) -> None:
        """A group gave up so many messages."""
        if group not in self._counts and len(self._counts) >= self._groups_max:
            return
        self._counts[group] = self._counts.get(group, 0) + messages
        self._last_at[group] = now

    def take(self, now: float) -> dict[str, int]:
        """How many each group gave up since it was quiet last; those that are quiet now are forgotten."""
        for group, at in list(self._last_at.items()):
            if now - at >= self.quiet_s:
                del self._last_at[group], self._counts[group]
        return dict(self._counts)
