"""What tests ask of a cluster before they go on: which topics its registries list, what its topics hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdmq.client.bounds import queue_bounds
from holdmq.client.pull_consumer import PullConsumer
from holdmq.client.route import RouteTable
from holdmq.message import Message
from holdmq.rpc.security import Security

WAIT_S: Final = 60.0


async def listed(registries: Sequence[str], topic: str, queues: int = 1) -> None:
    """Come back when a registry lists a topic with so many queues: brokers tell it in their own time.

    Who starts before finds no topic, and reads all of it once there is one.
    """
    routes = RouteTable(registries, "looks")
    routes.follow([topic])
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                await routes.refresh(WAIT_S)
                route = routes.get(topic)
                if route is not None and len(route.read_queues) >= queues:
                    return
                await asyncio.sleep(0.01)
    finally:
        await routes.close()


async def messages_of(
    registries: Sequence[str], *topics: str, security: Security | None = None
) -> list[Message]:
    """All that these topics hold now, in order within each queue.

    What the log does not give ends at the test's time limit.
    """
    async with PullConsumer(registries, security=security) as consumer:
        await consumer.assign(topics, "earliest", WAIT_S)
        ends = await queue_bounds(consumer.routes, consumer.positions(), WAIT_S)
        found: list[Message] = []
        while any(consumer.positions()[queue].offset < held.end_offset for queue, held in ends.items()):
            found += await consumer.poll()
    return found
