"""Messages through a topic of its own, from a producer of the SDK to members of a consumer group."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdmq.client import Consumer, Message, Producer
from holdmq.client.admin import Admin
from holdmq.client.groups import GroupAdmin
from holdmq.errors import UsageError
from holdmq.rpc.security import Security
from loadtest.figures import quantile

SILENCE_S: Final = 20.0
"""How long nothing may arrive before the rest counts as missing."""
LOOK_S: Final = 0.25
_HEAD: Final = struct.Struct(">dI")
"""Each body begins with the time of its sending and its number."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """So many messages of one producer, in batches, to the members of one group."""

    messages: int = 20_000
    payload_bytes: int = 100
    batch: int = 500
    in_flight: int = 4
    """Batches on their way at a time."""
    members: int = 2

    def check(self) -> None:
        """Raise UsageError for a plan that cannot be."""
        if self.payload_bytes < _HEAD.size:
            raise UsageError(f"a message carries its number and time: {_HEAD.size} bytes or more")


class QueueFigures(NamedTuple):
    """What came of a plan; rates are messages per second, latencies ms from sending to the handler."""

    produced: int
    produce_rate: float
    consumed: int
    consume_rate: float
    repeated: int
    """Deliveries of messages that had been delivered before."""
    p50_ms: float
    p99_ms: float
    max_ms: float


Progress = Callable[[int], None]
"""Called with the number of messages that arrived."""


class _Whom(NamedTuple):
    """Whose brokers are asked, as the SDK's classes are given it."""

    registries: Sequence[str]
    security: Security | None
    cluster: str


async def run(
    plan: QueuePlan,
    registries: Sequence[str],
    security: Security | None,
    progress: Progress,
    cluster: str = "",
) -> QueueFigures:
    """Make a topic and a group, send and consume, and delete both. Raises HoldMQError."""
    name = f"loadtest-{secrets.token_hex(4)}"
    whom = _Whom(registries, security, cluster)
    async with Admin(**whom._asdict()) as admin:
        await admin.create_topic(name)
        try:
            return await _exchange(plan, name, whom, progress)
        finally:
            await admin.delete_topic(name, force=True)
            async with GroupAdmin(**whom._asdict()) as groups:
                await groups.delete(name)


async def _exchange(plan: QueuePlan, name: str, whom: _Whom, progress: Progress) -> QueueFigures:
    seen: set[int] = set()
    latencies: list[float] = []
    last = began = time.perf_counter()

    async def take(message: Message) -> None:
        nonlocal last
        last = time.perf_counter()
        sent_at, number = _HEAD.unpack_from(message.body)
        latencies.append(last - sent_at)
        seen.add(number)

    members = [
        Consumer(
            whom.registries,
            name,
            take,
            [name],
            start="earliest",
            security=whom.security,
            cluster=whom.cluster,
        )
        for _ in range(plan.members)
    ]
    try:
        await asyncio.gather(*(member.start() for member in members))
        began = last = time.perf_counter()
        async with Producer(**whom._asdict()) as producer:
            sending = asyncio.create_task(_send(plan, name, producer))
            while not sending.done() or len(seen) < plan.messages:
                if sending.done() and time.perf_counter() - last > SILENCE_S:
                    break
                await asyncio.sleep(LOOK_S)
                progress(len(seen))
            sent_s = await sending
    finally:
        await asyncio.gather(*(member.close() for member in members))
    ordered = sorted(latencies)
    p50, p99, most = (quantile(ordered, share) * 1e3 for share in (0.5, 0.99, 1))
    return QueueFigures(
        plan.messages,
        plan.messages / sent_s,
        len(seen),
        len(seen) / max(last - began, 1e-9),
        len(latencies) - len(seen),
        p50,
        p99,
        most,
    )


async def _send(plan: QueuePlan, name: str, producer: Producer) -> float:
    """Send all messages, and return how many seconds it took until the last was acknowledged."""
    pad = bytes(plan.payload_bytes - _HEAD.size)
    numbers = iter(range(plan.messages))

    async def lane() -> None:
        while batch := list(itertools.islice(numbers, plan.batch)):
            now = time.perf_counter()
            await producer.send_batch([Message(name, _HEAD.pack(now, number) + pad) for number in batch])

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(plan.in_flight)))
    return time.perf_counter() - began
