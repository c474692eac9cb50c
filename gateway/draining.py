"""The end of a worker: its clients are sent away in good order, and what is under way is finished."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.connection import DRAINING
from gateway.session.session import CLOSED
from holdmq import telemetry
from holdmq.mqtt import ReasonCode

if TYPE_CHECKING:
    from gateway.worker import Worker

DRAIN_RATE_MIN: Final = 1000
"""Connections closed per second while draining, at least: fewer than what a peer takes in a storm."""
DRAIN_STEP_S: Final = 0.05

log = telemetry.get_logger()


async def drain(worker: Worker) -> None:
    """Disconnect the clients at a steady rate, after their acknowledgements, and flush."""
    worker.counters.draining = 1
    worker.is_draining = True
    deadline = worker.now() + worker.drain_s
    for shell in list(worker.shells):
        shell.pause(DRAINING)
    rate = max(DRAIN_RATE_MIN, int(len(worker.shells) / max(0.1, worker.drain_s / 2)))
    while worker.shells and worker.now() < deadline:
        closing = 0
        for shell in list(worker.shells):
            if shell.session.state == CLOSED:
                continue  # its client has yet to answer
            inbound = shell.session.inbound
            if inbound is not None and inbound.head is not None and worker.now() < deadline - 1:
                continue  # its last publishes are still on their way into the log
            shell.close(ReasonCode.SERVER_SHUTTING_DOWN, "draining", "this gateway shuts down")
            closing += 1
            if closing >= rate * DRAIN_STEP_S:
                break
        await asyncio.sleep(DRAIN_STEP_S)
    for shell in list(worker.shells):
        shell.close(ReasonCode.SERVER_SHUTTING_DOWN, "draining", "this gateway shuts down")
    for _ in range(max(0, int((deadline - worker.now()) / DRAIN_STEP_S))):
        if worker.persistent.is_idle and all(link.producer.is_idle for link in worker.links.values()):
            break
        await asyncio.sleep(DRAIN_STEP_S)
    unsent = sum(link.producer.pending_bytes for link in worker.links.values())
    if unsent:
        log.warning("drained with unconfirmed bytes left", worker=worker.index, unsent_bytes=unsent)
    for shell in list(worker.shells):
        if shell.transport is not None:
            shell.transport.abort()  # its client neither reads nor answers, and the time is over
    worker.reporting.send_report()
