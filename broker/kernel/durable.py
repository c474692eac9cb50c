"""Waiting for a change that is told to a callback once it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdmq.errors import HoldMQError


async def durable(begin: Callable[[Callable[[HoldMQError | None], None]], object]) -> None:
    """Wait until a change that `begin` asks for is durable. Raises HoldMQError if it cannot be made."""
    ended: asyncio.Future[HoldMQError | None] = asyncio.get_running_loop().create_future()

    def done(error: HoldMQError | None) -> None:
        if not ended.done():
            ended.set_result(error)

    begin(done)
    error = await ended
    if error is not None:
        raise error
