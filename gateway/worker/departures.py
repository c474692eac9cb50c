"""Connections that end: everybody who had a part in one gives it up, and its client hears why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gateway.brokers.link import BrokerLink
from gateway.edge.connection import ClientConnection
from gateway.edge.context import Departures
from gateway.ground.counters import Counters
from gateway.ground.wheel import Wheel
from gateway.persistent.wills import WillPublisher
from gateway.session.clients import Clients
from gateway.session.events import Closed
from gateway.session.session import Session

if TYPE_CHECKING:
    from gateway.deliver.past_delivery import PastDelivery
    from gateway.deliver.subscriptions import Subscriptions
    from gateway.edge.stragglers import Stragglers
    from gateway.observe.busiest import BusiestClients
    from gateway.observe.connection_log import ConnectionLog
    from gateway.observe.tracing import Tracing
    from gateway.persistent.sessions import PersistentSessions
    from gateway.protect.gate import AdmissionGate
    from gateway.protect.metering import Metering
    from gateway.protect.overload import OverloadWatch


class ConnectionDepartures(Departures):
    """Takes sessions and sockets that end out of everything; `now` is the loop's clock."""

    def __init__(
        self,
        connections: set[ClientConnection],
        wheel: Wheel[Session],
        links: Mapping[str, BrokerLink],
        clients: Clients,
        counters: Counters,
        now: Callable[[], float],
        gate: AdmissionGate,
        metering: Metering,
        overload: OverloadWatch,
        persistent: PersistentSessions,
        wills: WillPublisher,
        past: PastDelivery,
        subscriptions: Subscriptions,
        stragglers: Stragglers,
        connection_log: ConnectionLog,
        tracing: Tracing,
        busiest: BusiestClients,
    ) -> None:
        self._connections = connections
        self._wheel = wheel
        self._links = links
        self._clients = clients
        self._counters = counters
        self._now = now
        self._gate = gate
        self._metering = metering
        self._overload = overload
        self._persistent = persistent
        self._wills = wills
        self._past = past
        self._subscriptions = subscriptions
        self._stragglers = stragglers
        self._connection_log = connection_log
        self._tracing = tracing
        self._busiest = busiest

    def losing(self, connection: ClientConnection) -> None:
        """Ask the kernel for what a socket carried, before it is gone."""
        self._connection_log.losing(connection)
        self._busiest.losing(connection)

    def session_closed(self, connection: ClientConnection, event: Closed) -> None:
        """A session ended: its filters go, its will is published, its socket closes."""
        session = connection.session
        self._wheel.remove(session)
        self._gate.is_known(connection)
        self._stragglers.unstall(connection)
        is_told = self._persistent.closed(session, event)
        self._subscriptions.forget(session)
        self._past.forget(session)
        self._clients.remove(session)
        if event.will is not None and not is_told:
            self._wills.ended(session, event.will)
        if event.reason:
            connection.listener.refused[event.reason] += 1
        self._connection_log.ended(connection, event, self._now())
        self._busiest.ended(connection)
        if self._tracing.is_on:
            self._tracing.closed(session, event)
        self._counters.disconnects_total += session.began_at > 0
        transport = connection.transport
        if transport is None:
            # Without the cycle a closed connection is freed at once, not at the next full collection.
            session.connection = None
        else:
            connection.write()
            # Nothing more is read: what the peer still sends must not keep the socket busy.
            connection.end(event.reason)
            if transport.get_write_buffer_size() or not transport.is_closing():
                self._stragglers.linger(connection, self._now())

    def lost(self, connection: ClientConnection) -> None:
        """The socket is gone."""
        self._connections.discard(connection)
        connection.listener.connections -= 1
        self._stragglers.forget(connection)
        self._gate.closed(connection)
        self._overload.forget(connection)
        self._metering.forget(connection)
        for link in self._links.values():
            link.held.pop(connection, None)
        self._wheel.remove(connection.session)
        if connection.waiting is None:
            connection.session.connection = None
        self._counters.connections = len(self._connections)
