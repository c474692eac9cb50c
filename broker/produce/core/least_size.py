"""The least size of a message, and since when it counts: who was told another one gets time to hear of it."""

from __future__ import annotations

from typing import Final

GRACE_S: Final = 30.0
"""How long what was allowed is still taken after the least size rose: three times as long as a producer waits
for an answer. What is on its way then is not refused, nor what travels with it."""


class LeastSize:
    """The least size in force, in bytes (0 = none); `now` is seconds on any clock that does not go back."""

    def __init__(self, bytes_min: int) -> None:
        self.bytes_min = bytes_min
        self._before = bytes_min
        self._since = 0.0

    def change(self, bytes_min: int, now: float) -> None:
        """Another one counts: a lower one at once, a higher one when the grace is over."""
        self._before = min(self.enforced(now), bytes_min)
        self.bytes_min = bytes_min
        self._since = now + GRACE_S

    def enforced(self, now: float) -> int:
        """What is refused below."""
        return self._before if now < self._since else self.bytes_min
