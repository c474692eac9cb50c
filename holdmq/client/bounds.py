"""First and end offsets of queues, asked of the brokers that hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from holdmq.client.calls import call_until
from holdmq.client.route import RouteTable
from holdmq.message import TopicQueue
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import QueueBounds, QueueBoundsRequest, QueueBoundsResponse


class Bounds(NamedTuple):
    """What a queue holds: offsets from `first_offset` to before `end_offset`, in this log epoch."""

    log_epoch: int
    first_offset: int
    end_offset: int


async def queue_bounds(
    routes: RouteTable, queues: Iterable[TopicQueue], timeout_s: float
) -> dict[TopicQueue, Bounds]:
    """Bounds of these queues; queues that their broker does not have are left out.

    A broker that is away, or whose copies change their leader, is asked again until `timeout_s` is over.
    Raises TransportError or RemoteError of the first broker that fails.
    """
    topics: dict[str, set[str]] = {}
    wanted = set(queues)
    for queue in wanted:
        topics.setdefault(queue.broker, set()).add(queue.topic)

    async def ask(broker: str) -> dict[TopicQueue, Bounds]:
        request = QueueBoundsRequest(sorted(topics[broker]))
        reply = await call_until(routes, timeout_s, RequestCode.QUEUE_BOUNDS, lambda _: (broker, request))
        answer = reply.header(QueueBoundsResponse)
        return {
            TopicQueue(row.topic, broker, row.queue_id): Bounds(
                answer.log_epoch, row.first_offset, row.end_offset
            )
            for row in rows(QueueBounds, answer.queues)
        }

    found: dict[TopicQueue, Bounds] = {}
    for part in await asyncio.gather(*(ask(broker) for broker in topics)):
        found.update(part)
    return {queue: bounds for queue, bounds in found.items() if queue in wanted}
