"""How many clients a worker sends away while others have room for them.

A gateway that was added takes new connections, and those that were there before keep theirs: hot ones stay
hot until their clients leave. So a worker with more clients than it should have sends some away, a few a
second, and they come back wherever connections go now. If there is no other place they come back here: a
round of a minute that has not helped is followed by ten of rest, so that a fleet that fills every gateway is
not stirred for nothing.
"""

from __future__ import annotations

from typing import Final

ROUND_S: Final = 60.0
"""How long clients are sent away until it is looked at whether that helped: coming back takes seconds."""
REST_S: Final = 600.0
"""How long nothing is done then: an autoscaler starts a pod meanwhile."""


class Shedding:
    """Asked once a second; `above` clients are as many as there should be (0 = nothing is ever done)."""

    def __init__(self, above: int, rate: int) -> None:
        self.reconfigure(above, rate)
        self._sent = 0
        self._began_at: float | None = None
        """When the round that is under way began."""
        self._began_with = 0
        self._rests_until = 0.0

    def reconfigure(self, above: int, rate: int) -> None:
        """Take other numbers; a round that is under way, or a rest, goes on."""
        self._above = above
        self._rate = rate

    def due(self, now: float, clients: int) -> int:
        """Return how many of `clients` to send away in this second."""
        over = clients - self._above
        if not self._above or over <= 0 or now < self._rests_until:
            self._began_at = None
            return 0
        if self._began_at is not None and now - self._began_at >= ROUND_S:
            self._began_at = None
            if self._began_with - clients < self._sent / 2:
                self._rests_until = now + REST_S
                return 0
        if self._began_at is None:
            self._began_at, self._began_with, self._sent = now, clients, 0
        return min(over, self._rate)

    def sent(self, count: int) -> None:
        """Note how many of those that were due have left: others were in the middle of something."""
        self._sent += count
