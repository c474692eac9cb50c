"""Applications at work on a shard while it has faults: each notes what it got, and what must never happen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from typing import Final

from holdmq.client import Consumer, Message, Producer, PullConsumer, SharedConsumer
from holdmq.client.admin import Admin
from holdmq.client.shared_consumer import INVISIBLE_S
from holdmq.client.shared_member import SharedMessage
from holdmq.errors import HoldMQError
from holdmq.message import TopicQueue

TOPIC: Final = "applications"
QUEUES: Final = 4
BODY_BYTES: Final = 500
SEND_S: Final = 120.0
PAUSE_S: Final = 0.004
CATCH_UP_S: Final = 60.0
Place = tuple[int, int]
"""A queue's id, and an offset there."""


class Application(threading.Thread):
    """An SDK producer that sends one message after the other, and notes where each was acknowledged."""

    def __init__(self, registry: str) -> None:
        super().__init__(name="application", daemon=True)
        self.placed: dict[Place, bytes] = {}
        self.ends: dict[int, int] = defaultdict(int)
        self.errors: list[str] = []
        self.gaps: list[tuple[float, float]] = []
        self.acked_at = time.monotonic()
        self._registry = registry
        self._stopping = threading.Event()

    def run(self) -> None:
        """Send until `stop`."""
        asyncio.run(self._send())

    async def _send(self) -> None:
        async with Admin([self._registry]) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        serial = 0
        async with Producer([self._registry], send_timeout_s=SEND_S) as producer:
            while not self._stopping.is_set():
                body = (b"app-%d-" % serial).ljust(BODY_BYTES, b".")
                key = f"key-{serial % 8}"
                serial += 1
                try:
                    result = await producer.send(Message(TOPIC, body), key=key)
                except HoldMQError as error:
                    self.errors.append(str(error))
                    continue
                now = time.monotonic()
                if now - self.acked_at > 0.2:
                    self.gaps.append((self.acked_at, now))
                self.acked_at = now
                if result.queue_offset >= 0:
                    queue = result.queue.queue_id
                    self.placed[queue, result.queue_offset] = body
                    self.ends[queue] = result.queue_offset + 1
                await asyncio.sleep(PAUSE_S)

    def longest_gap_since(self, began: float) -> float:
        """The longest time without an acknowledgement that ended after `began`, or goes on."""
        gaps = [end - max(begin, began) for begin, end in self.gaps if end > began]
        return max([*gaps, time.monotonic() - max(self.acked_at, began)], default=0.0)

    def stop(self) -> None:
        """End after the message in hand."""
        self._stopping.set()
        self.join(SEND_S)


class Clients(threading.Thread):
    """A reader of all queues, and two members each of an ordered and of a shared group, on one event loop."""

    def __init__(self, registry: str) -> None:
        super().__init__(name="clients", daemon=True)
        self.read: dict[str, dict[Place, bytes]] = {TOPIC: {}, "devices": {}}
        self.consumed: dict[int, list[int]] = defaultdict(list)
        """Offsets in the order in which the ordered group's handlers got them, by queue."""
        self.acknowledged: dict[Place, tuple[float, SharedMessage]] = {}
        """When (the loop's time) the shared group's acknowledgement of a message was answered, and which."""
        self.shared: set[Place] = set()
        """What the shared group was handed out: whether an acknowledgement that failed counts is unknown."""
        self.errors: list[str] = []
        self._registry = registry
        self._ordered: list[Consumer] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        """Work until `stop`."""
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self.errors.append(f"a client failed: {error!r}")
            raise

    @property
    def are_at_work(self) -> bool:
        """Whether each of them got something, or one of them failed."""
        has_read = all(self.read.values())
        return bool(self.errors) or (has_read and len(self.consumed) == QUEUES and bool(self.acknowledged))

    def stop(self) -> None:
        """End every client."""
        self._stopping.set()
        self.join(60.0)

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            for number in range(2):
                tasks.create_task(self._consume(number))
                tasks.create_task(self._share(number))

    async def _read(self) -> None:
        async with PullConsumer([self._registry]) as consumer:
            await consumer.assign([TOPIC, "devices"], "earliest", CATCH_UP_S)
            while not self._stopping.is_set():
                try:
                    found = await consumer.poll(hold_ms=300)
                except HoldMQError:
                    await asyncio.sleep(0.1)  # nobody leads: it is asked again
                    continue
                for message in found:
                    self._was_read(message)

    def _was_read(self, message: Message) -> None:
        place = message.queue_id, message.queue_offset
        known = self.read[message.topic].setdefault(place, message.body)
        if known != message.body:
            self.errors.append(f"two values at {message.topic} {place}: {known!r} and {message.body!r}")

    async def _consume(self, number: int) -> None:
        async def handle(message: Message) -> None:
            self.consumed[message.queue_id].append(message.queue_offset)
            self._held_by_one()

        consumer = Consumer(
            [self._registry], "ordered", handle, [TOPIC], start="earliest", ordered=True,
            client_id=f"ordered-{number}",
        )  # fmt: skip
        async with consumer:
            self._ordered.append(consumer)
            while not self._stopping.is_set():
                await asyncio.sleep(0.05)
                self._held_by_one()

    def _held_by_one(self) -> None:
        """Two members of a group never have a queue at once."""
        held: set[TopicQueue] = set()
        for consumer in self._ordered:
            mine = set(consumer.positions())
            if mine & held:
                self.errors.append(f"two members of the ordered group have {sorted(mine & held)} at once")
            held |= mine

    async def _share(self, number: int) -> None:
        async with SharedConsumer(
            [self._registry], "shared", [TOPIC], start="earliest", client_id=f"shared-{number}"
        ) as consumer:
            while not self._stopping.is_set():
                try:
                    found = await consumer.pull(32, hold_ms=300)
                except HoldMQError:
                    await asyncio.sleep(0.1)  # no connection: what was handed out comes again
                    continue
                self._was_shared(found)
                try:
                    await consumer.ack(*found)
                except HoldMQError:
                    continue  # some of them come again
                at = asyncio.get_running_loop().time()
                for message in found:
                    place = message.queue_id, message.queue_offset
                    self.acknowledged.setdefault(place, (at, message))

    def _was_shared(self, found: list[SharedMessage]) -> None:
        """What was acknowledged is handed out no more; an earlier leader may have done so before."""
        for message in found:
            place = message.queue_id, message.queue_offset
            self.shared.add(place)
            at, before = self.acknowledged.get(place, (float("inf"), message))
            came_at = message.deadline - INVISIBLE_S
            if came_at > at:
                self.errors.append(
                    f"{place} was acknowledged at {at:.3f} under {before.receipt}, and handed out again at "
                    f"{came_at:.3f} under {message.receipt}"
                )
