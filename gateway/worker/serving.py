"""The life of one worker process: it finds its brokers, accepts clients until it is to stop, and drains.

By itself, as what awaits is left to the interpreter: mypyc's coroutines take the cancelling of a task that
they wait for as their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from typing import Final

from gateway.edge.listeners import Listener
from gateway.worker.worker import Worker
from holdmq.client.presence import Presence
from holdmq.config.model import Config
from holdmq.credentials.login_failures import LoginFailures
from holdmq.rpc.security import Security
from holdmq.service import telemetry

START_ROUTES_S: Final = 5.0
"""How long a starting worker waits for its brokers before it accepts clients without them."""

ORPHANED_S: Final = 0.1
"""How long a worker that is to stop waits until it asks whether its parent lives."""

log = telemetry.get_logger()


async def serve(
    config: Config,
    index: int,
    places: Sequence[tuple[Listener, socket.socket]],
    report: socket.socket,
    stopping: asyncio.Event,
    login_failures: LoginFailures | None,
) -> None:
    """Run one worker until it has drained; `login_failures` is what its parent knows of logins."""
    worker = Worker(config, index, [listener for listener, _ in places], report, login_failures)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, worker.reload)
    host = socket.gethostname()
    presence = Presence(
        config.registries(),
        "gateway",
        "gateway",
        f"{host}:{config.gateway.port}",
        f"gateway-{host}-{index}",
        Security.of(config),
    )
    presence.start()
    leaving = loop.create_task(_leave(presence, stopping, os.getppid()), name="goodbye")
    try:
        await run(worker, places, stopping)
        await leaving
    finally:
        leaving.cancel()
        await presence.close()


async def _leave(presence: Presence, stopping: asyncio.Event, parent_pid: int) -> None:
    """Say goodbye once the gateway stops in order, before it drains: who waits may lose patience."""
    await stopping.wait()
    # The signal that a parent has died may come before its children are another process's.
    await asyncio.sleep(ORPHANED_S)
    if os.getppid() == parent_pid:  # else it is to be noticed
        await presence.leave()


async def run(
    worker: Worker, places: Sequence[tuple[Listener, socket.socket]], stopping: asyncio.Event
) -> None:
    """Serve the worker's listeners, each on its socket, until `stopping`, then drain."""
    watching = _begin(worker)
    try:
        await _wait_for_brokers(worker, stopping)
        acceptors = [worker.reception.listen(listener, listening) for listener, listening in places]
        log.info("gateway worker serves", worker=worker.index, brokers=sorted(worker.links))
        await stopping.wait()
        for acceptor in acceptors:
            acceptor.close()
        await worker.draining.drain()
    finally:
        worker.clock.end()
        watching.cancel()
        worker.parent.close()
        await worker.access.close()
        worker.gate.is_draining = True
        worker.reception.sockets.close()
        await worker.topics.close()
        await worker.routes.close()


def _begin(worker: Worker) -> asyncio.Task[None]:
    """Look for brokers, and keep the clocks; no client is accepted yet. The task looks at certificates."""
    watching = asyncio.get_running_loop().create_task(worker.certificates.run(), name="certificates")
    watching.add_done_callback(_say_if_failed)
    worker.access.start()
    worker.roster.begin()
    worker.parent.listen(worker.commands.obey)
    worker.clock.begin()
    return watching


async def _wait_for_brokers(worker: Worker, stopping: asyncio.Event) -> None:
    deadline = worker.now() + START_ROUTES_S
    while not stopping.is_set() and worker.now() < deadline:
        if worker.roster.is_ready:
            return
        await asyncio.sleep(0.02)


def _say_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("nobody looks at certificates any more", exc_info=task.exception())
