"""The end of a worker: its clients are sent away in good order, and what is under way is finished.

A client is served until its turn to go comes: those that stay longest would otherwise ask in vain for an
answer, take the connection for dead, and storm whoever is left.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.edge.connection import DRAINING
from gateway.session.session import CLOSED
from holdmq.mqtt import ReasonCode
from holdmq.service import telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.brokers.link import BrokerLink
    from gateway.edge.connection import ClientConnection
    from gateway.ground.counters import Counters
    from gateway.persistent.retained_puts import RetainedPuts
    from gateway.persistent.sessions import PersistentSessions
    from gateway.protect.gate import AdmissionGate
    from gateway.worker.reporting import Reporting
    from holdmq.config.model import GatewaySection

DRAIN_RATE_MIN: Final = 1000
"""Connections closed per second while draining, at least: fewer than what a peer takes in a storm."""
DRAIN_STEP_S: Final = 0.05
FLUSH_S: Final = 1.0
"""How much of drain_s, at most a fifth, is kept for what clients that were sent away leave to be written."""

log = telemetry.get_logger()


class Draining:
    """Ends the connections of one worker; `connections` are those whose sockets are open."""

    def __init__(
        self,
        index: int,
        section: GatewaySection,
        connections: set[ClientConnection],
        links: Mapping[str, BrokerLink],
        gate: AdmissionGate,
        persistent: PersistentSessions,
        retained_puts: RetainedPuts,
        reporting: Reporting,
        counters: Counters,
        now: Callable[[], float],
    ) -> None:
        self._index = index
        self._section = section
        self._connections = connections
        self._links = links
        self._gate = gate
        self._persistent = persistent
        self._retained_puts = retained_puts
        self._reporting = reporting
        self._counters = counters
        self._now = now

    def reconfigure(self, section: GatewaySection) -> None:
        """Drain at another rate; drain_s stays, as the parent waits for it."""
        self._section = section

    async def drain(self) -> None:
        """Disconnect the clients at a steady rate, each after its acknowledgements, and flush."""
        self._counters.draining = 1
        self._gate.is_draining = True
        drain_s = self._section.drain_s
        deadline = self._now() + drain_s
        await self._send_away(deadline - min(FLUSH_S, drain_s / 5))
        left = [connection for connection in self._connections if connection.session.state != CLOSED]
        if left:
            log.warning("clients are cut off, as drain_s is over", worker=self._index, count=len(left))
        for connection in left:
            self._close(connection)
        for _ in range(max(0, int((deadline - self._now()) / DRAIN_STEP_S))):
            is_idle = self._persistent.is_idle and self._retained_puts.is_idle
            if is_idle and all(link.producer.is_idle for link in self._links.values()):
                break
            await asyncio.sleep(DRAIN_STEP_S)
        unsent = sum(link.producer.pending_bytes for link in self._links.values())
        if unsent:
            log.warning("drained with unconfirmed bytes left", worker=self._index, unsent_bytes=unsent)
        for connection in list(self._connections):
            if connection.transport is not None:
                connection.transport.abort()  # its client neither reads nor answers, and the time is over
        await asyncio.sleep(0)  # the loop closes their sockets in its next turn
        self._reporting.send_report()

    async def _send_away(self, until: float) -> None:
        """Close connections at the configured rate until none is left, or the time is over."""
        rate = self._section.drain_rate
        if not rate:
            rate = max(DRAIN_RATE_MIN, int(len(self._connections) / max(0.1, self._section.drain_s / 2)))
        leaving: dict[ClientConnection, None] = {}
        staying = iter(list(self._connections))
        credit, counted_at = 0.0, self._now()
        while self._connections and (now := self._now()) < until:
            # By the clock: a step takes longer than DRAIN_STEP_S, and who is left after drain_s is cut off.
            credit = min(credit + rate * (now - counted_at), max(1.0, rate))
            counted_at = now
            while credit >= 1:
                connection = next(staying, None)
                if connection is None:
                    # Those that came meanwhile; who is closed has yet to answer.
                    found = [s for s in self._connections if s.session.state != CLOSED and s not in leaving]
                    if not found:
                        break
                    staying = iter(found)
                    continue
                if connection.session.state != CLOSED:
                    connection.pause(DRAINING)
                    leaving[connection] = None
                    credit -= 1
            for connection in [connection for connection in leaving if is_settled(connection)]:
                del leaving[connection]
                self._close(connection)
            await asyncio.sleep(DRAIN_STEP_S)

    def _close(self, connection: ClientConnection) -> None:
        code = self._gate.sent_elsewhere(ReasonCode.SERVER_SHUTTING_DOWN)
        connection.close(code, "draining", "this gateway shuts down")


def is_settled(connection: ClientConnection) -> bool:
    """Whether nothing that the client published is still on its way into the log."""
    inbound = connection.session.inbound
    return inbound is None or inbound.head is None
