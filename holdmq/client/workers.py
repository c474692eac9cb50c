"""Runs a handler over messages: a bounded number of tasks (and threads, for a plain function) that take
one job after the other, and no task per message."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from holdmq.errors import UsageError
from holdmq.message import Message

Handler = Callable[[Message], Awaitable[bool | None] | bool | None]
"""Handles one message. None or True: done. False, or an exception: failed, to be consumed later."""
Failed = Iterable[Message]
BatchHandler = Callable[[list[Message]], Awaitable[Failed | bool | None] | Failed | bool | None]
"""Handles messages of one queue, in their order. None or True: all are done. False, or an exception: all have
failed. Messages of the list: those have failed, and the others are done."""
Outcome = bool | Sequence[Message]
"""Whether a job is done; or the messages of it that failed."""

TURN_S: Final = 0.005
"""How long handlers that never wait may run before the event loop gets its turn."""

log = structlog.get_logger("holdmq.client")


BATCH_MAX: Final = 1_000
"""Messages that a handler may be given at once: what one SEND_BACK takes."""


def check_batch_max(batch_max: int) -> None:
    """Raise UsageError for a number of messages that no handler is given."""
    if not 1 <= batch_max <= BATCH_MAX:
        raise UsageError(f"batch_max {batch_max} is not 1 to {BATCH_MAX}")


class WorkerJob(Protocol):
    """What a worker is given: one message or several, and whatever its owner needs to settle them."""

    @property
    def first(self) -> Message:
        """The only message, or the first one of them."""

    @property
    def messages(self) -> Sequence[Message]:
        """All messages of the job, in their order."""


J = TypeVar("J", bound=WorkerJob)


class Workers(Generic[J]):
    """Up to `concurrency` workers, made when there is work for them.

    `take()` gives the next job, None = there is none now; `settle(job, outcome)` is awaited after
    each. Call `wake` when `take` may have more. The handler runs on the event loop if it is a coroutine
    function, else on a thread of the pool. `takes_many`: it is a BatchHandler.
    """

    def __init__(
        self,
        handler: Handler | BatchHandler,
        concurrency: int,
        take: Callable[[], J | None],
        settle: Callable[[J, Outcome], Awaitable[None]],
        *,
        takes_many: bool = False,
    ) -> None:
        self.running = 0
        self._takes_many = takes_many
        self._handler = handler
        self._concurrency = concurrency
        self._take = take
        self._settle = settle
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: deque[asyncio.Event] = deque()
        self._is_closed = False
        call = getattr(handler, "__call__", handler)  # noqa: B004 - an object may have an async __call__
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._pool = None if is_async else ThreadPoolExecutor(concurrency, "holdmq handler")

    def wake(self, jobs: int) -> None:
        """There may be so many jobs more."""
        if self._is_closed:
            return
        for _ in range(min(jobs, self._concurrency)):
            if self._idle:
                self._idle.popleft().set()
            elif len(self._tasks) < self._concurrency:
                name = f"handler {len(self._tasks)}"
                self._tasks.append(asyncio.get_running_loop().create_task(self._work(), name=name))
            else:
                return

    async def close(self, timeout_s: float) -> int:
        """Take nothing more, wait for what runs, cancel what is left; how many did not end in time.

        A thread cannot be cancelled: a handler that hangs there keeps the process from ending.
        """
        self._is_closed = True
        while self._idle:
            self._idle.popleft().set()
        late = 0
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=timeout_s)
            late = len(pending)
            for task in pending:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        return late

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        turn_ends = loop.time() + TURN_S
        while not self._is_closed:
            job = self._take()
            if job is None:
                event.clear()
                self._idle.append(event)
                await event.wait()
                turn_ends = loop.time() + TURN_S
                continue
            self.running += 1
            try:
                await self._settle(job, await self._handle(job))
            finally:
                self.running -= 1
            if loop.time() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = loop.time() + TURN_S

    async def _handle(self, job: J) -> Outcome:
        handler: Callable[[Any], Any] = self._handler
        handed: Any = job.messages if self._takes_many else job.first
        try:
            if self._pool is None:
                result: Any = handler(handed)
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._pool, handler, handed)
            if inspect.isawaitable(result):
                result = await result
            if self._takes_many and result is not None and not isinstance(result, bool):
                return list(result)
        except Exception:
            first = job.first
            log.exception(
                "a handler failed", topic=first.topic, queue=first.queue_id, offset=first.queue_offset
            )
            return False
        return result is not False
