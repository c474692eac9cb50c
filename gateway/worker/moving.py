"""Clients whose session was kept by a broker that an operator gave up: they are to connect again.

Their connections end as in a drain, at a rate and each after its acknowledgements, so that all of them have
new sessions at other brokers within seconds, and none of those gets a storm.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Final

from gateway.edge.connection import DRAINING
from gateway.session.session import CLOSED
from gateway.worker.draining import DRAIN_RATE_MIN, is_settled
from holdmq.mqtt import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.edge.connection import ClientConnection
    from gateway.protect.gate import AdmissionGate
    from gateway.session.session import Session

MOVE_S: Final = 5.0
"""Within so long all of them are told, however many."""
SETTLE_S: Final = 2.0
"""How long one may wait for its acknowledgements then."""


class OrphanMoves:
    """Ends the `connections` of `orphans`, a few in each tick; those that come meanwhile follow."""

    def __init__(
        self,
        orphans: Mapping[Session, None],
        connections: set[ClientConnection],
        gate: AdmissionGate,
    ) -> None:
        self._orphans = orphans
        self._connections = connections
        self._gate = gate
        self._staying: deque[ClientConnection] = deque()
        self._leaving: dict[ClientConnection, float] = {}
        self._rate = 0.0
        self._credit = 0.0
        self._ticked_at = 0.0

    def tick(self, now: float) -> None:
        """Send away those that are due."""
        if not self._orphans or self._gate.is_draining:
            self._staying.clear()
            self._leaving.clear()
            self._ticked_at = now
            return
        if not self._staying and not self._leaving:
            found = (one for one in self._connections if one.session in self._orphans)
            self._staying.extend(found)
            self._rate = max(DRAIN_RATE_MIN, len(self._staying) / MOVE_S)
            self._credit = 0.0
        self._credit = min(self._credit + self._rate * (now - self._ticked_at), self._rate)
        self._ticked_at = now
        due = min(len(self._staying), int(self._credit))
        self._credit -= due
        for _ in itertools.repeat(None, due):
            connection = self._staying.popleft()
            if connection.session.state != CLOSED:
                connection.pause(DRAINING)
                self._leaving[connection] = now + SETTLE_S
        for connection, until in list(self._leaving.items()):
            if connection.session.state == CLOSED:
                del self._leaving[connection]
            elif is_settled(connection) or now >= until:
                del self._leaving[connection]
                connection.close(
                    ReasonCode.SERVER_SHUTTING_DOWN,
                    "owner_lost",
                    "the broker that kept this session is lost; connect again for a new one",
                )
