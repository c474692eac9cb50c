"""Where clients come in: the sockets of a worker, and what all their connections share, put together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial

from gateway.access.access import Access
from gateway.brokers.link import BrokerLink
from gateway.brokers.turn import Turn
from gateway.edge.connection import ClientConnection
from gateway.edge.context import ConnectionContext
from gateway.edge.layered import LayeredConnection
from gateway.edge.listeners import Listener
from gateway.edge.prerequisites import Prerequisites
from gateway.edge.sockets import Acceptor, Sockets
from gateway.edge.stragglers import Stragglers
from gateway.ground.wheel import Wheel
from gateway.observe.busiest import BusiestClients
from gateway.observe.connection_log import ConnectionLog
from gateway.observe.tracing import Tracing
from gateway.persistent.sessions import PersistentSessions
from gateway.persistent.wills import WillPublisher
from gateway.protect.gate import AdmissionGate
from gateway.protect.metering import Metering
from gateway.protect.overload import OverloadWatch
from gateway.publish.ingress import Ingress
from gateway.session.clients import Clients
from gateway.session.session import Session, SessionContext
from gateway.worker.arrivals import ConnectionArrivals
from gateway.worker.deliveries import Deliveries
from gateway.worker.departures import ConnectionDepartures


class Reception:
    """Accepts clients; `connections` are those whose sockets are open, `wheel` has their deadlines."""

    def __init__(
        self,
        context: SessionContext,
        clients: Clients,
        links: Mapping[str, BrokerLink],
        turn: Turn,
        now: Callable[[], float],
        gate: AdmissionGate,
        metering: Metering,
        overload: OverloadWatch,
        access: Access,
        persistent: PersistentSessions,
        wills: WillPublisher,
        ingress: Ingress,
        prerequisites: Prerequisites,
        deliveries: Deliveries,
        connection_log: ConnectionLog,
        tracing: Tracing,
        busiest: BusiestClients,
    ) -> None:
        counters = context.counters
        self.connections: set[ClientConnection] = set()
        self.wheel: Wheel[Session] = Wheel(now())
        self.stragglers = Stragglers(counters)
        self.sockets = Sockets(asyncio.get_running_loop())
        arrivals = ConnectionArrivals(
            self.connections,
            self.wheel,
            clients,
            counters,
            turn,
            gate,
            access,
            persistent,
            metering,
            connection_log,
        )
        departures = ConnectionDepartures(
            self.connections,
            self.wheel,
            links,
            clients,
            counters,
            now,
            gate,
            metering,
            overload,
            persistent,
            wills,
            deliveries.past,
            deliveries.subscriptions,
            self.stragglers,
            connection_log,
            tracing,
            busiest,
        )
        self._shared = ConnectionContext(
            context,
            turn,
            now,
            arrivals,
            departures,
            gate,
            metering,
            access,
            ingress,
            prerequisites,
            deliveries.subscriptions,
            deliveries.past,
            deliveries.shares,
            self.stragglers,
            tracing,
        )

    def listen(self, listener: Listener, listening: socket.socket) -> Acceptor:
        """Accept the clients of a listener."""
        make = ClientConnection if listener.is_plain else LayeredConnection
        return self.sockets.listen(listening, partial(make, self._shared, listener))
