"""What the live readers of a worker get, on its way to the subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.brokers.link import BrokerLink
from gateway.brokers.turn import Turn
from gateway.deliver.delivery import LiveDelivery
from gateway.ground.counters import Counters

if TYPE_CHECKING:
    from gateway.deliver.past_delivery import PastDelivery


class LiveIntake:
    """Delivers each answer, moves its reader's place on, and tells who caught up with it."""

    def __init__(self, delivery: LiveDelivery, past: PastDelivery, counters: Counters, turn: Turn) -> None:
        self._delivery = delivery
        self._past = past
        self._counters = counters
        self._turn = turn

    def live(
        self, link: BrokerLink, body: memoryview, position: int, records: int, is_late: bool = False
    ) -> None:
        """A live reader got records up to `position`; `is_late`: from below it, kept by paused topics."""
        self._counters.reads_total += 1
        self._counters.records_read_total += records
        self._delivery.live(link, body, is_late)
        link.reader.position = position
        self._past.catchup.fed(link)
        self._turn.settle()

    def reader_opened(self) -> None:
        """A live reader is open (again): sessions that lag may go on."""
        self._past.reader_opened()

    def each_second(self, _now: float) -> None:
        """Say again what is malformed: so many lines a second."""
        self._delivery.malformed_logged = 0
