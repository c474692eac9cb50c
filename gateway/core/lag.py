"""Where a subscriber stands that is not fed live: a position per broker, never a copy of a message."""

from __future__ import annotations


class Lag:
    """`positions`: per broker, the first record that was not delivered; the session reads on from there.
    `floors`: per broker that is live again, the position up to which catching up delivered.
    `epochs`: the log epoch in which a position was learnt, where it is not the live reader's.
    `holds` counts filters of the session that the live feed does not have yet, so that catching up could not
    end.
    `replaying`: brokers whose messages of QoS 0 catching up delivers too, as the session asked for the past.
    `filters_added` counts filters that came meanwhile: a reader opened before does not know them."""

    __slots__ = ("epochs", "filters_added", "floors", "holds", "is_queued", "positions", "replaying")

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.floors: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.is_queued = False
        self.holds = 0
        self.replaying: set[str] | None = None
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
        # What is behind from now on was learnt from the live feed.
        self.epochs.pop(broker, None)
        self.floors[broker] = position

    def stands_at(self, broker: str, live: int) -> int:
        """Below which position everything was delivered; `live` is how far the live feed is."""
        behind = self.positions.get(broker)
        return max(live, self.floors.get(broker, 0)) if behind is None else behind

    def replay_from(self, broker: str, log_epoch: int, position: int, stands: int) -> None:
        """Go back to `position`, at most to where the session `stands`, and deliver QoS 0 from there, too."""
        if position < stands:
            self.epochs[broker] = log_epoch
        self.floors.pop(broker, None)
        self.positions[broker] = position
        self.filters_added += 1
        if self.replaying is None:
            self.replaying = set()
        self.replaying.add(broker)

    def replays(self, broker: str, position: int) -> bool:
        """Whether a message of QoS 0 at `position` is catching up's to deliver, not the live feed's."""
        replaying = self.replaying
        if replaying is None or broker not in replaying:
            return False
        if broker in self.positions or position < self.floors.get(broker, 0):
            return True
        replaying.discard(broker)
        return False

    @property
    def is_over(self) -> bool:
        """Whether the session is fed live by every broker, with nothing to leave out."""
        return not self.positions and not self.floors
