"""What sessions are owed from before the live feed: retained messages, then the log from where they stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gateway.deliver.catchup import CatchUp
from gateway.deliver.retained_answers import RetainedAnswers
from gateway.session.session import Session

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.deliver.delivery import LiveDelivery
    from gateway.deliver.retained_delivery import RetainedDelivery
    from gateway.deliver.wanted import WantedFilters
    from gateway.session.clients import Clients
    from gateway.session.session import SessionContext


class PastDelivery:
    """Decides which of both serves a session next; `keepers()` are the brokers of retained messages."""

    def __init__(
        self,
        links: Mapping[str, BrokerLink],
        wanted: WantedFilters,
        clients: Clients,
        context: SessionContext,
        delivery: LiveDelivery,
        retained_delivery: RetainedDelivery,
        keepers: Callable[[], list[str]],
        turn: Turn,
        now: Callable[[], float],
    ) -> None:
        self._clients = clients
        self._counters = context.counters
        self.retained = RetainedAnswers(
            retained_delivery, links, clients, context, turn, keepers, self._slice_over
        )
        self.catchup = CatchUp(
            links, wanted, delivery, retained_delivery, context.counters, turn, now, self.ready
        )

    def ready(self, session: Session) -> None:
        """A session takes more: retained messages are older than what it lags behind with, and come first.

        They leave room: then what it lags behind with has its turn.
        """
        if not self.retained.ready(session):
            self.catchup.ready(session)

    def _slice_over(self, session: Session) -> None:
        """The next slice gets in line, and leaves what the session lags behind with its turn meanwhile."""
        self.retained.ready(session)
        self.catchup.ready(session)

    def reader_opened(self) -> None:
        """A live reader is open (again): sessions that lag may go on."""
        for session in self._clients.sessions():
            if session.outbound is not None and session.outbound.lag is not None:
                self.catchup.ready(session)

    def forget(self, session: Session) -> None:
        """The connection ended, and what it was owed is in its state."""
        self.retained.closed(session)
        outbound = session.outbound
        if outbound is not None and outbound.lag is not None:
            outbound.lag = None
            self._counters.lagging_sessions -= 1
