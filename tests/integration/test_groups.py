from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from deliveries import Deliveries

from holdmq.client import Admin, Consumer, Message, Producer, TopicQueue

StackMaker = Callable[..., Any]


@pytest.fixture
def stack(holdmq_stack: StackMaker) -> Any:
    return holdmq_stack(services=("registry", "broker"))


@pytest.fixture
def registries(stack: Any) -> list[str]:
    return [f"127.0.0.1:{stack.registry_port}"]


@pytest.fixture
async def producer(registries: list[str]) -> AsyncIterator[Producer]:
    async with Producer(registries) as producer:
        yield producer


async def until(holds: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def traffic(producer: Producer, topic: str, queues: int) -> AsyncIterator[list[bytes]]:
    """Messages to every queue, one after the other, as long as the block lasts; what was acknowledged."""
    sent: list[bytes] = []
    is_over = False

    async def send() -> None:
        number = 0
        while not is_over:
            batch = [Message(topic, b"%d/%d" % (number, queue_id)) for queue_id in range(queues)]
            names = [TopicQueue(topic, "broker-0", queue_id) for queue_id in range(queues)]
            await asyncio.gather(*(producer.send(m, queue=q) for m, q in zip(batch, names, strict=True)))
            sent.extend(message.body for message in batch)
            number += 1
            await asyncio.sleep(0.005)

    sending = asyncio.create_task(send())
    try:
        yield sent
    finally:
        is_over = True
        await sending


def queues_of(consumer: Consumer, topic: str = "t") -> list[TopicQueue]:
    return [queue for queue in consumer.positions() if queue.topic == topic]


async def test_a_message_sent_after_the_start_is_handled(registries: list[str], producer: Producer) -> None:
    got: asyncio.Queue[Message] = asyncio.Queue()
    await producer.send(Message("t", b"before"))
    async with Consumer(registries, "g", got.put, ["t"]) as consumer:
        await producer.send(Message("t", b"after"))
        assert (await got.get()).body == b"after"
        assert len(consumer.positions()) == 4


@pytest.mark.parametrize("ordered", [False, True])
async def test_24_queues_are_shared_evenly_and_never_consumed_by_two(
    registries: list[str], producer: Producer, ordered: bool
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic("t", 24)
    deliveries = Deliveries()
    members = [
        Consumer(registries, "g", deliveries.handler(f"m{i}", 0.002), ["t"], ordered=ordered)
        for i in range(3)
    ]

    def shares(*counts: int) -> Callable[[], bool]:
        return lambda: tuple(len(queues_of(m)) for m in members[: len(counts)]) == counts

    await members[0].start()
    async with traffic(producer, "t", 24) as sent:
        await until(shares(24), "one member has all queues")
        await members[1].start()
        await until(shares(12, 12), "two members have half each")
        began = time.monotonic()
        await members[2].start()
        await until(shares(8, 8, 8), "three members have a third each")
        assert time.monotonic() - began < 2.0
        count = len(deliveries.all)
        await until(lambda: len(deliveries.all) > count + 500, "all are at work")
    await until(lambda: deliveries.bodies() >= set(sent), "everything is delivered")
    for member in members:
        await member.close()
    assert deliveries.shared_queues() == []
    assert {d.member for d in deliveries.all} == {"m0", "m1", "m2"}
    if ordered:
        assert deliveries.disorder() == []
        assert len(deliveries.all) == len(sent)
