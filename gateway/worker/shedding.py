"""A worker that has more clients than it should sends some of them to others, a few a second."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from gateway.protect.core.shedding import Shedding
from gateway.session.session import CONNECTED_STATE
from gateway.worker.draining import is_settled
from holdmq.mqtt import ReasonCode

if TYPE_CHECKING:
    from gateway.edge.connection import ClientConnection
    from gateway.ground.counters import Counters
    from gateway.protect.gate import AdmissionGate
    from holdmq.config.model import GatewaySection


class HotWorkerRelief:
    """Sends clients of `connections` away while there are more than `gateway.shed_above`."""

    def __init__(
        self,
        section: GatewaySection,
        connections: set[ClientConnection],
        gate: AdmissionGate,
        counters: Counters,
    ) -> None:
        self._shedding = Shedding(section.shed_above, section.shed_rate)
        self._connections = connections
        self._gate = gate
        self._counters = counters

    def reconfigure(self, section: GatewaySection) -> None:
        """Send clients away above another number, or at another rate."""
        self._shedding.reconfigure(section.shed_above, section.shed_rate)

    def each_second(self, now: float) -> None:
        """Send away those that are due: clients that wait for no acknowledgement and so need not repeat."""
        if self._gate.is_draining:
            return
        # Not connections: a client that was sent away may take its time to close its side.
        due = self._shedding.due(now, self._counters.sessions)
        if not due:
            return
        fit = (
            connection
            for connection in self._connections
            if connection.session.state == CONNECTED_STATE and is_settled(connection)
        )
        leaving = list(itertools.islice(fit, due))
        for connection in leaving:
            # To wills, logs and WebSockets it is what a drain is: the client shall come back elsewhere.
            connection.close(ReasonCode.USE_ANOTHER_SERVER, "draining", "other gateways have more room")
        self._shedding.sent(len(leaving))
        self._counters.shed_total += len(leaving)
