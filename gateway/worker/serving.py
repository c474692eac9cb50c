"""The life of one worker process: it finds its brokers, accepts clients until it is to stop, and drains.

By itself, as what awaits is left to the interpreter: mypyc's coroutines take the cancelling of a task that
they wait for as their own.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from typing import Final

from gateway.edge.listeners import Listener
from gateway.worker.worker import Worker
from holdmq.config.model import Config
from holdmq.credentials.login_failures import LoginFailures
from holdmq.service import telemetry

START_ROUTES_S: Final = 5.0
"""How long a starting worker waits for its brokers before it accepts clients without them."""

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
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, worker.reload)
    await run(worker, places, stopping)


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
