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
    from gateway.edge.connection import ClientConnection
    from gateway.worker.worker import Worker

DRAIN_RATE_MIN: Final = 1000
"""Connections closed per second while draining, at least: fewer than what a peer takes in a storm."""
DRAIN_STEP_S: Final = 0.05
FLUSH_S: Final = 1.0
"""How much of drain_s, at most a fifth, is kept for what clients that were sent away leave to be written."""

log = telemetry.get_logger()


async def drain(worker: Worker) -> None:
    """Disconnect the clients at a steady rate, each after its acknowledgements, and flush."""
    worker.counters.draining = 1
    worker.gate.is_draining = True
    drain_s = worker.section.drain_s
    deadline = worker.now() + drain_s
    await _send_away(worker, deadline - min(FLUSH_S, drain_s / 5))
    left = [shell for shell in worker.shells if shell.session.state != CLOSED]
    if left:
        log.warning("clients are cut off, as drain_s is over", worker=worker.index, count=len(left))
    for shell in left:
        _close(worker, shell)
    for _ in range(max(0, int((deadline - worker.now()) / DRAIN_STEP_S))):
        is_idle = worker.persistent.is_idle and worker.retained_puts.is_idle
        if is_idle and all(link.producer.is_idle for link in worker.links.values()):
            break
        await asyncio.sleep(DRAIN_STEP_S)
    unsent = sum(link.producer.pending_bytes for link in worker.links.values())
    if unsent:
        log.warning("drained with unconfirmed bytes left", worker=worker.index, unsent_bytes=unsent)
    for shell in list(worker.shells):
        if shell.transport is not None:
            shell.transport.abort()  # its client neither reads nor answers, and the time is over
    await asyncio.sleep(0)  # the loop closes their sockets in its next turn
    worker.reporting.send_report()


async def _send_away(worker: Worker, until: float) -> None:
    """Close connections at the configured rate until none is left, or the time is over."""
    rate = worker.section.drain_rate
    if not rate:
        rate = max(DRAIN_RATE_MIN, int(len(worker.shells) / max(0.1, worker.section.drain_s / 2)))
    leaving: dict[ClientConnection, None] = {}
    staying = iter(list(worker.shells))
    credit = 0.0
    while worker.shells and worker.now() < until:
        credit = min(credit + rate * DRAIN_STEP_S, max(1.0, rate))
        while credit >= 1:
            shell = next(staying, None)
            if shell is None:
                # Those that came meanwhile; who is closed has yet to answer.
                found = [s for s in worker.shells if s.session.state != CLOSED and s not in leaving]
                if not found:
                    break
                staying = iter(found)
                continue
            if shell.session.state != CLOSED:
                shell.pause(DRAINING)
                leaving[shell] = None
                credit -= 1
        for shell in [shell for shell in leaving if _is_settled(shell)]:
            del leaving[shell]
            _close(worker, shell)
        await asyncio.sleep(DRAIN_STEP_S)


def _is_settled(shell: ClientConnection) -> bool:
    """Whether nothing that the client published is still on its way into the log."""
    inbound = shell.session.inbound
    return inbound is None or inbound.head is None


def _close(worker: Worker, shell: ClientConnection) -> None:
    code = ReasonCode.SERVER_SHUTTING_DOWN
    if worker.section.server_reference:
        code = ReasonCode.USE_ANOTHER_SERVER
    shell.close(code, "draining", "this gateway shuts down")
