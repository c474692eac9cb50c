"""Blocking look-ups that requests wait for: on the reader pool, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

import structlog

from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Request

LOOKUPS_MAX: Final = 1_000
"""Look-ups of one kind that run or wait for a thread: at a millisecond each, a second of the pool."""

T = TypeVar("T")

log = structlog.get_logger("holdmq.broker")


class Lookups:
    """Runs look-ups: `running` now, `total` so far, `refused` because LOOKUPS_MAX ran already."""

    def __init__(self, pool: Executor) -> None:
        self.running = 0
        self.total = 0
        self.refused = 0
        self._pool = pool
        self._loop = asyncio.get_running_loop()

    def run(self, request: Request, look_up: Callable[[], T], answer: Callable[[T], object]) -> None:
        """Call `look_up` on the pool, then `answer` with what it returned on the loop.

        What either raises is the request's answer. Raises BUSY when too many look-ups wait.
        """
        if self.running >= LOOKUPS_MAX:
            self.refused += 1
            raise RemoteError(Code.BUSY, f"{LOOKUPS_MAX} look-ups wait for the disk")
        self.running += 1
        self.total += 1
        future = self._loop.run_in_executor(self._pool, look_up)

        def done(finished: asyncio.Future[T]) -> None:
            self.running -= 1
            if not finished.cancelled():
                answering(request, lambda: answer(finished.result()))

        future.add_done_callback(done)


def answering(request: Request, work: Callable[[], object]) -> None:
    """Do what answers a request; what it raises is the answer, as in a request's own handler."""
    try:
        work()
    except HoldMQError as error:
        request.refuse(error)
    except Exception as error:
        log.exception("request failed", request=request.command.code, peer=request.connection.address)
        request.refuse(RemoteError(Code.SYSTEM_ERROR, f"the request failed: {type(error).__name__}"))
