"""What a command asks the cluster: with an admin class of the SDK, on an event loop of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from holdmq.config.model import Config

T = TypeVar("T")
C = TypeVar("C")


def run_calls(
    config: Config,
    calls: Callable[..., AbstractAsyncContextManager[C]],
    work: Callable[[C], Awaitable[T]],
    *,
    tenant: str = "",
) -> T:
    """Do `work` with one of `calls`, a class of the SDK, connected meanwhile. Raises what it raises.

    `tenant`: in whose words names are said, "" = in whole names.
    """
    from holdmq.rpc.security import Security

    async def run() -> T:
        name = f"holdmq-cli-{os.getpid()}"
        async with calls(
            config.registries(),
            client_id=name,
            security=Security.of(config),
            cluster=config.client.cluster,
            tenant=tenant,
        ) as one:
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
