"""What a command asks the cluster: with an admin class of the SDK, on an event loop of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from holdmq.config.model import Config

if TYPE_CHECKING:
    from holdmq.client.cluster_calls import AdminCalls

T = TypeVar("T")
C = TypeVar("C", bound="AdminCalls")


def run_calls(config: Config, calls: type[C], work: Callable[[C], Awaitable[T]]) -> T:
    """Do `work` with one of `calls`, which is connected meanwhile. Raises what it raises."""
    from holdmq.rpc.security import Security

    async def run() -> T:
        name = f"holdmq-{calls.KIND}-{os.getpid()}"
        async with calls(config.registries(), client_id=name, security=Security.of(config)) as one:
            return await work(one)

    return asyncio.run(run())


async def first_of(found: AsyncIterable[T], count: int) -> list[T]:
    """Return the first of what is found, at most `count` (1 or more); no more is asked for."""
    first: list[T] = []
    async for one in found:
        first.append(one)
        if len(first) == count:
            break
    return first
