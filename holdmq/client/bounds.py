"""First and end offsets of queues, and where they stood at a time, asked of the brokers that hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from holdmq.client.calls import call_until
from holdmq.client.lifecycle import StartAt
from holdmq.client.route import RouteTable
from holdmq.message import TopicQueue
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import QueueBounds, QueueBoundsRequest, QueueBoundsResponse
from holdmq.wire.query_headers import OffsetAtRequest, OffsetAtResponse, QueueOffset


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


async def starts_of(
    routes: RouteTable, queues: Iterable[TopicQueue], start: StartAt, timeout_s: float
) -> dict[TopicQueue, tuple[int, int]]:
    """Log epoch and offset from which a reader that begins at `start` reads these queues.

    At a time: the first message that was stored then or later, or the end where none was. Raises as
    `queue_bounds`.
    """
    wanted = set(queues)
    if not isinstance(start, datetime):
        bounds = await queue_bounds(routes, wanted, timeout_s)
        is_end = start == "latest"
        return {
            queue: (known.log_epoch, known.end_offset if is_end else known.first_offset)
            for queue, known in bounds.items()
        }
    time_ms = round(start.timestamp() * 1000)

    async def ask(broker: str, topic: str) -> dict[TopicQueue, tuple[int, int]]:
        request = OffsetAtRequest(topic, time_ms)
        reply = await call_until(routes, timeout_s, RequestCode.OFFSET_AT, lambda _: (broker, request))
        answer = reply.header(OffsetAtResponse)
        return {
            TopicQueue(topic, broker, row.queue_id): (answer.log_epoch, row.offset)
            for row in rows(QueueOffset, answer.offsets)
        }

    places = {(queue.broker, queue.topic) for queue in wanted}
    found: dict[TopicQueue, tuple[int, int]] = {}
    for part in await asyncio.gather(*(ask(*place) for place in sorted(places))):
        found.update(part)
    return {queue: at for queue, at in found.items() if queue in wanted}
