"""The bound of what a producer has in hand: who comes later waits, in the order of coming."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from holdmq.errors import HoldMQError, RequestTimeout

OUTSTANDING_MAX_BYTES: Final = 32 << 20
"""Records in hand and not stored; past it senders wait. What a broker takes from one connection."""


class Room:
    """Bytes that are taken and given back. `on_wait` is called when somebody begins to wait.

    Every byte that `take` gave comes back through `give_back`. `waits` counts who had to wait.
    """

    def __init__(self, max_bytes: int, on_wait: Callable[[], None]) -> None:
        self.taken_bytes = 0
        self.waits = 0
        self._max_bytes = max_bytes
        self._on_wait = on_wait
        self._waiting: deque[tuple[int, asyncio.Future[None], Callable[[], None]]] = deque()
        self._closed: HoldMQError | None = None
        self._drained: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in hand and nobody waits."""
        return not self.taken_bytes and not self._waiting

    def try_take(self, size_bytes: int) -> bool:
        """Take these bytes if nobody waits and they fit; any size fits when nothing is in hand."""
        if self._waiting or self._closed is not None or not self._fits(size_bytes):
            return False
        self.taken_bytes += size_bytes
        return True

    async def take(self, size_bytes: int, deadline: float, then: Callable[[], None]) -> None:
        """Take these bytes, after those who came before, and call `then` at once, before anybody else's turn.

        RequestTimeout at loop time `deadline`: nothing was taken then, nor if it is cancelled while it waits.
        """
        if self.try_take(size_bytes):
            then()
            return
        if self._closed is not None:
            raise self._closed
        self.waits += 1
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((size_bytes, waiter, then))
        self._on_wait()
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                if isinstance(error, TimeoutError):
                    return
                raise
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not waiter)
            self._let_in()
            if isinstance(error, TimeoutError):
                raise RequestTimeout(
                    f"{self.taken_bytes} bytes wait to be stored; no room before the deadline"
                ) from None
            raise

    def give_back(self, size_bytes: int) -> None:
        """These bytes are no longer in hand."""
        self.taken_bytes -= size_bytes
        if self._waiting:
            self._let_in()
        if not self.taken_bytes:
            while self._drained:
                waiter = self._drained.popleft()
                if not waiter.done():
                    waiter.set_result(None)

    async def drain(self, timeout_s: float | None) -> None:
        """Wait until nothing is in hand, at most `timeout_s` (None = as long as it takes)."""
        if self.taken_bytes:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(waiter)
            await asyncio.wait([waiter], timeout=timeout_s)

    def close(self, error: HoldMQError) -> None:
        """Fail everybody who waits, and who comes later, with `error`."""
        self._closed = error
        for _, waiter, _ in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiting.clear()

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self._max_bytes

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, waiter, then = self._waiting.popleft()
            if not waiter.done():
                self.taken_bytes += size_bytes
                waiter.set_result(None)
                then()
