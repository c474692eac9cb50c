"""A coordinator's client that can be cut off, lose answers, or be slow, around any other one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdmq.coordination.api import Coordinator, ShardSnapshot, ShardState
from holdmq.errors import CoordinatorError

T = TypeVar("T")


class FaultyCoordinator:
    """Passes calls on to `real`, unless told otherwise; all faults end in CoordinatorError, as real ones.

    `is_cut`: no call arrives. `answers_lost`: so many of the next calls take effect, and nobody hears of it.
    `before` is awaited before a call arrives: what it does, or how long it takes, comes in between.
    """

    def __init__(self, real: Coordinator) -> None:
        self._real = real
        self.is_cut = False
        self.answers_lost = 0
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.calls: list[str] = []

    async def read(self) -> ShardSnapshot:
        return await self._call("read", self._real.read)

    async def compare_and_set(self, version: int, state: ShardState) -> int | None:
        return await self._call("compare_and_set", lambda: self._real.compare_and_set(version, state))

    async def hold(self, ttl_s: float) -> str | None:
        return await self._call("hold", lambda: self._real.hold(ttl_s))

    async def release(self, acquisition: str) -> None:
        await self._call("release", lambda: self._real.release(acquisition))

    async def changed(self, seen: ShardSnapshot, wait_s: float) -> ShardSnapshot:
        return await self._call("changed", lambda: self._real.changed(seen, wait_s))

    async def close(self) -> None:
        await self._real.close()

    async def _call(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(operation)
        if self.before is not None:
            await self.before(operation)
        await asyncio.sleep(0)
        if self.is_cut:
            raise CoordinatorError("it cannot be reached", operation=operation)
        answer = await call()
        if self.answers_lost:
            self.answers_lost -= 1
            raise CoordinatorError("the connection broke before the answer", operation=operation)
        return answer
