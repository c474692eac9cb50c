"""Connections on their way in: counted, identified, told to the owner of their client id, and let in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.edge.connection import OPENING_PAUSE, ClientConnection
from gateway.edge.context import Arrivals
from gateway.ground.counters import Counters
from gateway.ground.wheel import Wheel
from gateway.session.clients import Clients
from gateway.session.events import Event
from gateway.session.session import CLOSED, Session, close_connection
from holdmq.mqtt import ReasonCode

if TYPE_CHECKING:
    from gateway.access.access import Access
    from gateway.brokers.turn import Turn
    from gateway.observe.connection_log import ConnectionLog
    from gateway.persistent.sessions import PersistentSessions
    from gateway.protect.gate import AdmissionGate
    from gateway.protect.metering import Metering


class ConnectionArrivals(Arrivals):
    """Leads each connection past everybody who has a say; `connections` are those whose sockets are open."""

    def __init__(
        self,
        connections: set[ClientConnection],
        wheel: Wheel[Session],
        clients: Clients,
        counters: Counters,
        turn: Turn,
        gate: AdmissionGate,
        access: Access,
        persistent: PersistentSessions,
        metering: Metering,
        connection_log: ConnectionLog,
    ) -> None:
        self._connections = connections
        self._wheel = wheel
        self._clients = clients
        self._counters = counters
        self._turn = turn
        self._gate = gate
        self._access = access
        self._persistent = persistent
        self._metering = metering
        self._connection_log = connection_log

    def opened(self, connection: ClientConnection) -> None:
        """A connection was accepted."""
        self._connections.add(connection)
        connection.listener.connections += 1
        connection.listener.accepted_total += 1
        self._counters.connections = len(self._connections)
        self._gate.opened(connection)
        self._wheel.put(connection.session)

    def connected(self, connection: ClientConnection) -> None:
        """CONNECT may be accepted: its socket waits until who it is is known, and its owner has said so."""
        connection.pause(OPENING_PAUSE)
        if self._gate.lets_ask(connection.session):
            self._access.admit(connection)

    def identified(self, connection: ClientConnection) -> None:
        """Ask the owner of the client id, if the gate admits who it is."""
        session = connection.session
        if self._gate.admits(session, session.principal or session.client_id):
            self._persistent.connecting(session)

    def admitted(self, connection: ClientConnection, events: list[Event]) -> None:
        """The owner has decided; an older connection of this client id ends [MQTT-3.1.4-3]."""
        session = connection.session
        if session.state == CLOSED:
            connection.handle(events)
            self._turn.settle()
            return
        older = self._clients.session(session.client_id)
        if older is not None and older is not session:
            self._counters.takeovers_total += 1
            close_connection(
                older, ReasonCode.SESSION_TAKEN_OVER, "taken_over", "this client id connected again"
            )
        self._gate.is_known(connection)
        self._clients.add(session)
        is_outdated = self._access.is_outdated(session)
        self._wheel.put(session)
        self._connection_log.connected(connection)
        meter = self._metering.meter
        if meter is None or meter.received(connection, 0, events):
            connection.handle(events)
        connection.resume(OPENING_PAUSE)
        if is_outdated:
            self._access.look(session)
        self._turn.settle()
