"""Where a subscriber stands that is not fed live: a position per broker, never a copy of a message.

When all clients of a worker come back at once, all their sessions stand somewhere: a dictionary for each
thing that is known of them would be a KiB of every session, and stay as holes in the memory.
"""

from __future__ import annotations

from typing import Final

_UNKNOWN: Final = -1
"""In the place of a position, a floor or an epoch that there is not."""

_NOT_SAID: Final = -2
"""The same for a start: a row may say -1, the end of a log that nobody had read."""


class BrokerPosition:
    """Where a session stands at one broker, and the `following` one. Numbers are >= 0, or _UNKNOWN.

    `position`: the first record that was not delivered; the session reads on from there. `floor`, once it is
    live again: the position up to which catching up delivered. `log_epoch`: the one in which a position was
    learnt, where it is not the live reader's.
    """

    __slots__ = ("broker", "floor", "following", "log_epoch", "position")

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.position = _UNKNOWN
        self.floor = _UNKNOWN
        self.log_epoch = _UNKNOWN
        self.following: BrokerPosition | None = None


class Starts:
    """From which log position on a subscription counts, by broker: what lies before was published earlier."""

    __slots__ = ("_broker", "_following", "_position")

    def __init__(self) -> None:
        self._broker = ""
        self._position = _NOT_SAID
        self._following: Starts | None = None

    def get(self, broker: str) -> int | None:
        """The position; None = nobody said one."""
        starts: Starts | None = self
        while starts is not None:
            if starts._broker == broker:
                return None if starts._position == _NOT_SAID else starts._position
            starts = starts._following
        return None

    def put(self, broker: str, position: int) -> None:
        """Count a broker's log from this position on."""
        starts = self
        while starts._broker != broker:
            if not starts._broker:
                starts._broker = broker
                break
            following = starts._following
            if following is None:
                following = starts._following = Starts()
            starts = following
        starts._position = position

    def forget(self, broker: str) -> None:
        """Count a broker's log from the beginning of what is left of it."""
        if self.get(broker) is not None:
            self.put(broker, _NOT_SAID)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of any broker."""
        starts: Starts | None = self
        while starts is not None and starts._position == _NOT_SAID:
            starts = starts._following
        return starts is None


class Lag(BrokerPosition):
    """All brokers of one session; the first one's spot is the Lag itself.

    `holds` counts filters of the session that the live feed does not have yet, so that catching up could not
    end.
    `replaying`: brokers whose messages of QoS 0 catching up delivers too, as the session asked for the past.
    `filters_added` counts filters that came meanwhile: a reader opened before does not know them."""

    __slots__ = ("filters_added", "holds", "is_queued", "replaying")

    def __init__(self) -> None:
        super().__init__("")
        self.is_queued = False
        self.holds = 0
        self.replaying: set[str] | None = None
        self.filters_added = 0

    def _find(self, broker: str) -> BrokerPosition | None:
        spot: BrokerPosition | None = self
        while spot is not None and spot.broker != broker:
            spot = spot.following
        return spot

    def _at(self, broker: str) -> BrokerPosition:
        """The spot of a broker, made behind the others if need be."""
        spot: BrokerPosition = self
        while spot.broker != broker:
            if not spot.broker:
                spot.broker = broker
                break
            following = spot.following
            if following is None:
                following = spot.following = BrokerPosition(broker)
            spot = following
        return spot

    # What is known

    @property
    def is_behind(self) -> bool:
        """Whether the session has to catch up at some broker."""
        spot: BrokerPosition | None = self
        while spot is not None and spot.position < 0:
            spot = spot.following
        return spot is not None

    @property
    def is_over(self) -> bool:
        """Whether the session is fed live by every broker, with nothing to leave out."""
        spot: BrokerPosition | None = self
        while spot is not None and spot.position < 0 and spot.floor < 0:
            spot = spot.following
        return spot is None

    def brokers(self) -> list[str]:
        """Those of which something is known, the one that was caught up with last at the end."""
        found: list[str] = []
        spot: BrokerPosition | None = self
        while spot is not None:
            if spot.broker:
                found.append(spot.broker)
            spot = spot.following
        return found

    @property
    def positions(self) -> dict[str, int]:
        """By broker, the first record that was not delivered; a copy."""
        return {broker: at for broker in self.brokers() if (at := self.position_at(broker)) is not None}

    def position_at(self, broker: str) -> int | None:
        """The first record that was not delivered; None = the broker feeds the session live."""
        spot = self._find(broker)
        return None if spot is None or spot.position < 0 else spot.position

    def floor_at(self, broker: str) -> int | None:
        """Up to which position catching up delivered, if the live feed was not seen to be further."""
        spot = self._find(broker)
        return None if spot is None or spot.floor < 0 else spot.floor

    def log_epoch_at(self, broker: str, live: int) -> int:
        """The log epoch in which the position was learnt; `live` is the live reader's."""
        spot = self._find(broker)
        return live if spot is None or spot.log_epoch < 0 else spot.log_epoch

    def stands_at(self, broker: str, live: int) -> int:
        """Below which position everything was delivered; `live` is how far the live feed is."""
        spot = self._find(broker)
        if spot is None:
            return live
        return max(live, spot.floor) if spot.position < 0 else spot.position

    # Catching up

    def begin_at(self, broker: str, position: int, log_epoch: int) -> None:
        """The session reads on from `position`, which was learnt in `log_epoch`."""
        spot = self._at(broker)
        spot.position = position
        spot.log_epoch = log_epoch

    def opened_in(self, broker: str, log_epoch: int) -> None:
        """The position counts in this log epoch, too."""
        self._at(broker).log_epoch = log_epoch

    def reach(self, broker: str, position: int) -> None:
        """Everything below `position` was delivered to a session that is behind."""
        spot = self._find(broker)
        if spot is not None and 0 <= spot.position < position:
            spot.position = position

    def caught_up(self, broker: str, position: int) -> None:
        """Everything below `position` was delivered, and the live feed goes on from there or below."""
        spot = self._at(broker)
        following = spot.following
        while following is not None:
            # Who was served comes last: where a session falls behind everywhere, each broker has its turn.
            spot.broker = following.broker
            spot.position = following.position
            spot.floor = following.floor
            spot.log_epoch = following.log_epoch
            spot = following
            following = spot.following
        spot.broker = broker
        spot.position = _UNKNOWN
        # What is behind from now on was learnt from the live feed.
        spot.log_epoch = _UNKNOWN
        spot.floor = position

    def relax(self, broker: str, live: int) -> None:
        """The live feed is at `live`: a floor that it has passed means nothing more."""
        spot = self._find(broker)
        if spot is not None and spot.floor <= live:
            spot.floor = _UNKNOWN

    def replay_from(self, broker: str, log_epoch: int, position: int, stands: int) -> None:
        """Go back to `position`, at most to where the session `stands`, and deliver QoS 0 from there, too."""
        spot = self._at(broker)
        if position < stands:
            spot.log_epoch = log_epoch
        spot.floor = _UNKNOWN
        spot.position = position
        self.filters_added += 1
        if self.replaying is None:
            self.replaying = set()
        self.replaying.add(broker)

    # The live feed

    def wants_live(self, broker: str, position: int) -> bool:
        """Whether the live feed is to deliver the record at `position`; else catching up does or did."""
        spot = self._find(broker)
        if spot is None:
            return True
        if spot.position >= 0 or position < spot.floor:
            return False
        spot.floor = _UNKNOWN
        return True

    def fall_behind(self, broker: str, position: int, *, is_late: bool = False) -> None:
        """The record at `position` could not be delivered; `is_late`: a paused topic had kept it.

        Below a floor lies nothing that was not delivered, but for what was kept.
        """
        spot = self._at(broker)
        if spot.position < 0:
            spot.position = position if is_late else max(position, spot.floor)
        spot.floor = _UNKNOWN

    def go_back(self, broker: str, position: int) -> bool:
        """A record that a paused topic had kept comes now: whether catching up is to deliver it.

        It then reads on from there; what its reader has on the way would lead past it.
        """
        spot = self._find(broker)
        if spot is None or spot.position < 0:
            return False
        if position < spot.position:
            spot.position = position
            self.filters_added += 1
        return True

    def replays(self, broker: str, position: int) -> bool:
        """Whether a message of QoS 0 at `position` is catching up's to deliver, not the live feed's."""
        replaying = self.replaying
        if replaying is None or broker not in replaying:
            return False
        spot = self._find(broker)
        if spot is not None and (spot.position >= 0 or position < spot.floor):
            return True
        replaying.discard(broker)
        return False
