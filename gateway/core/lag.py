"""Where a subscriber stands that is not fed live: a position per broker, never a copy of a message."""

from __future__ import annotations


class Lag:
    """`positions`: per broker, the first record that was not delivered; the session reads on from there.
    `floors`: per broker that is live again, the position up to which catching up delivered.
    `epochs`: the log epoch in which a position was learnt, where it is not the live reader's.
    `is_held`: the live feed does not have the session's filters yet, so catching up could not end.
    `filters_added` counts filters that came meanwhile: a reader opened before does not know them."""

    __slots__ = ("epochs", "filters_added", "floors", "is_held", "is_queued", "positions")

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.floors: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.is_queued = False
        self.is_held = False
        self.filters_added = 0

    def wants_live(self, broker: str, position: int) -> bool:
        """Whether the live feed is to deliver the record at `position`; else catching up does or did."""
        if broker in self.positions:
            return False
        floor = self.floors.get(broker)
        if floor is None:
            return True
        if position < floor:
            return False
        del self.floors[broker]
        return True

    def fall_behind(self, broker: str, position: int, *, is_late: bool = False) -> None:
        """The record at `position` could not be delivered; `is_late`: a paused topic had kept it.

        Below a floor lies nothing that was not delivered, but for what was kept.
        """
        floor = 0 if is_late else self.floors.get(broker, 0)
        self.floors.pop(broker, None)
        self.positions.setdefault(broker, max(position, floor))

    def go_back(self, broker: str, position: int) -> bool:
        """A record that a paused topic had kept comes now: whether catching up is to deliver it.

        It then reads on from there; what its reader has on the way would lead past it.
        """
        behind = self.positions.get(broker)
        if behind is None:
            return False
        if position < behind:
            self.positions[broker] = position
            self.filters_added += 1
        return True

    def caught_up(self, broker: str, position: int) -> None:
        """Everything below `position` was delivered, and the live feed goes on from there or below."""
        self.positions.pop(broker, None)
        self.floors[broker] = position

    @property
    def is_over(self) -> bool:
        """Whether the session is fed live by every broker, with nothing to leave out."""
        return not self.positions and not self.floors
