"""What the property tests of consumer groups share: real registry and broker, members that come and go."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Stack

from holdmq.client import Consumer, Message, Producer
from holdmq.client.queue_member import QueueMember
from holdmq.message import TopicQueue
from holdmq.wire.codes import RequestCode
from holdmq.wire.topic_headers import TopicGrowRequest

DELIVERED_S = 100.0
START_S = 100.0
"""Of a member, while the broker starts again, too."""
SEND_S = 200.0


async def until(holds: Callable[[], bool], what: Callable[[], str], timeout_s: float = DELIVERED_S) -> None:
    """Wait for `holds`; AssertionError with `what()` when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what()}: not within {timeout_s} s"
        await asyncio.sleep(0.01)


async def crash(consumer: QueueMember) -> None:
    """End a member as SIGKILL ends its process: nothing is reported, released or saved."""
    workers = consumer._workers if isinstance(consumer, Consumer) else None
    tasks = [consumer._keeper, *consumer._preparing.values()]
    if workers is not None:
        tasks += workers._tasks
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    consumer._pulls.close()
    if workers is not None:
        workers._is_closed = True
    membership = consumer._membership
    consumer.routes.on_down.clear()
    consumer.routes.on_push.clear()
    await consumer.routes.close()
    for timer in (membership._timer, consumer._settling._retry_timer):
        if timer is not None:
            timer.cancel()
    progress: Any = consumer._progress
    if hasattr(progress, "_store"):
        progress._store.close()  # the kernel takes a dead process's locks


class Cluster:
    """Registry and broker for a whole module; each example has a topic and a group of its own."""

    def __init__(self, directory: Path) -> None:
        self.stack = Stack(directory, {"broker.offset_save_interval_s": 1})
        self.stack.start_all(("registry", "broker"))
        self.runner = asyncio.Runner()
        self.examples = 0
        self.registries = [f"127.0.0.1:{self.stack.registry_port}"]

    def close(self) -> None:
        self.runner.close()
        for name in ("broker", "registry"):
            assert self.stack.stop(name) == 0


class Example:
    """One topic, its producer, and what was acknowledged."""

    def __init__(self, cluster: Cluster, queues: int) -> None:
        cluster.examples += 1
        self.cluster = cluster
        self.topic = f"t{cluster.examples}-{os.getpid()}"
        self.group = f"g{cluster.examples}"
        self.queues = queues
        self.sent: list[bytes] = []
        self.producer: Producer
        self.number = 0

    def run(self, work: Any) -> Any:
        return self.cluster.runner.run(work)

    async def begin(self) -> None:
        self.producer = Producer(self.cluster.registries, send_timeout_s=SEND_S)
        await self.producer.send(Message(self.topic, b"the topic's first"))
        if self.queues > 4:
            await self.grow(self.queues)
        else:
            self.queues = 4

    async def end(self) -> None:
        await self.producer.close()

    async def send(self, count: int) -> list[bytes]:
        """Messages over all queues, acknowledged."""
        messages = []
        for _ in range(count):
            self.number += 1
            messages.append(Message(self.topic, b"%d" % self.number))
        await self.producer.send_batch(messages)
        bodies = [message.body for message in messages]
        self.sent += bodies
        return bodies

    async def grow(self, queues: int) -> None:
        """Add queues to the topic."""
        self.queues = queues
        routes = self.producer.routes
        await routes.link("broker-0").client.call(
            RequestCode.TOPIC_GROW, TopicGrowRequest(self.topic, queues), 100.0
        )

        def all_there() -> bool:
            routes.refresh_soon()
            route = routes.get(self.topic)
            return route is not None and len(route.write_queues) == queues

        await until(all_there, lambda: f"{queues} queues in the route")

    async def kill_broker(self) -> None:
        """kill -9, and start again; members and producer live on meanwhile."""
        await asyncio.to_thread(self.cluster.stack.restart, "broker", signal.SIGKILL)

    def queues_of(self, consumer: Consumer) -> list[TopicQueue]:
        return [queue for queue in consumer.positions() if queue.topic == self.topic]
