"""From where on copies fetch a leader's log: what it keeps for them."""

from __future__ import annotations

from typing import Final

KEEP_S: Final = 60.0
"""How long the log is kept for a copy that asks for nothing: it starts again, or its link is broken."""


class FetchedPositions:
    """Where each copy fetched last. `now` is a clock in seconds that never goes back."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def fetched(self, peer: str, position: int, now: float) -> None:
        """Keep the log from here on for a copy that fetches it, or is about to."""
        self._last[peer] = position, now

    def is_busy(self, peer: str, now: float) -> None:
        """Keep what is kept for a copy that is given something else, and fetches behind that."""
        known = self._last.get(peer)
        if known is not None:
            self._last[peer] = known[0], now

    def lowest(self, now: float) -> int | None:
        """Where the log that is kept begins; None = no copy has asked for anything for `KEEP_S`."""
        self._last = {peer: last for peer, last in self._last.items() if now - last[1] < KEEP_S}
        return min((position for position, _ in self._last.values()), default=None)

    def clear(self) -> None:
        """Keep nothing: this replica does not lead."""
        self._last.clear()
