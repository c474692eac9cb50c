"""What the connections of a worker share, and the two ports through which it hears of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.access.access import Access
from gateway.deliver.past_delivery import PastDelivery
from gateway.deliver.shares import Shares
from gateway.deliver.subscriptions import Subscriptions
from gateway.edge.prerequisites import Prerequisites
from gateway.edge.stragglers import Stragglers
from gateway.observe.tracing import Tracing
from gateway.protect.gate import AdmissionGate
from gateway.protect.metering import Metering
from gateway.publish.ingress import Ingress
from gateway.session.events import Closed, Event
from gateway.session.session import SessionContext

if TYPE_CHECKING:
    from gateway.brokers.turn import Turn
    from gateway.edge.connection import ClientConnection


class Arrivals(Protocol):
    """Hears of a connection on its way in, once for each step."""

    __slots__ = ()

    def opened(self, connection: ClientConnection) -> None:
        """A connection was accepted."""

    def connected(self, connection: ClientConnection) -> None:
        """CONNECT may be accepted: find out who it is."""

    def identified(self, connection: ClientConnection) -> None:
        """Ask the owner of the client id, as it is known whose connection this is."""

    def admitted(self, connection: ClientConnection, events: list[Event]) -> None:
        """The owner has decided; `events` are those of `admit` or `refuse`."""


class Departures(Protocol):
    """Hears of a connection that ends: of its session first, then of its socket, each once."""

    __slots__ = ()

    def losing(self, connection: ClientConnection) -> None:
        """The socket is about to go: what it carried cannot be asked for later."""

    def session_closed(self, connection: ClientConnection, event: Closed) -> None:
        """A session ended: its filters go, its will is published, its socket closes."""

    def lost(self, connection: ClientConnection) -> None:
        """The socket is gone."""


class ConnectionContext:
    """What all connections of a worker share; `now` is the loop's clock."""

    __slots__ = (
        "access",
        "arrivals",
        "counters",
        "departures",
        "gate",
        "ingress",
        "metering",
        "now",
        "past",
        "prerequisites",
        "sessions",
        "shares",
        "stragglers",
        "subscriptions",
        "tracing",
        "turn",
    )

    def __init__(
        self,
        sessions: SessionContext,
        turn: Turn,
        now: Callable[[], float],
        arrivals: Arrivals,
        departures: Departures,
        gate: AdmissionGate,
        metering: Metering,
        access: Access,
        ingress: Ingress,
        prerequisites: Prerequisites,
        subscriptions: Subscriptions,
        past: PastDelivery,
        shares: Shares,
        stragglers: Stragglers,
        tracing: Tracing,
    ) -> None:
        self.sessions = sessions
        self.counters = sessions.counters
        self.turn = turn
        self.now = now
        self.arrivals = arrivals
        self.departures = departures
        self.gate = gate
        self.metering = metering
        self.access = access
        self.ingress = ingress
        self.prerequisites = prerequisites
        self.subscriptions = subscriptions
        self.past = past
        self.shares = shares
        self.stragglers = stragglers
        self.tracing = tracing
