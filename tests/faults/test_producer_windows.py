"""kill -9 of the broker under producers that resend what was unanswered: the log has each message once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable

import pytest
from cluster_view import messages_of
from processes import Stack

from holdmq.client.producer import Producer
from holdmq.message import Message

KILLS = 6
SENDERS = 400
TOPIC = "applications"


@pytest.mark.timeout(600)
def test_what_producers_send_again_over_kills_is_in_the_log_once_and_where_they_were_told(
    holdmq_stack: Callable[..., Stack],
) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    placed = asyncio.run(send_over_kills(stack))
    found = asyncio.run(messages_of([stack.registry], TOPIC))
    stored = {(message.queue_id, message.queue_offset): message.body for message in found}
    assert len(placed) > KILLS * SENDERS
    counts = Counter(body for body in stored.values())
    assert [body for body, count in counts.items() if count > 1] == []
    assert {body: counts[body] for body in placed} == dict.fromkeys(placed, 1)
    assert {body: place for place, body in stored.items()} == placed


async def send_over_kills(stack: Stack) -> dict[bytes, tuple[int, int]]:
    """Send without a pause while the broker is killed and started again; where each message was stored."""
    chance = random.Random(6)
    placed: dict[bytes, tuple[int, int]] = {}
    stopping = asyncio.Event()

    async def send(producer: Producer, name: str) -> None:
        serial = 0
        while not stopping.is_set():
            body = f"{name}-{serial}".encode()
            serial += 1
            done = await producer.send(Message(TOPIC, body), timeout_s=200.0)
            placed[body] = (done.queue.queue_id, done.queue_offset)

    async with Producer([stack.registry]) as one, Producer([stack.registry]) as other:
        senders = [asyncio.ensure_future(send((one, other)[i % 2], f"s{i}")) for i in range(SENDERS)]
        for _ in range(KILLS):
            await grown(placed, 2 * SENDERS)
            await asyncio.sleep(chance.uniform(0.05, 0.4))  # where in a batch's life the kill strikes
            await asyncio.to_thread(stack.stop, "broker", signal.SIGKILL)
            await asyncio.to_thread(stack.start, "broker")
        await grown(placed, 2 * SENDERS)
        stopping.set()
        await asyncio.gather(*senders)
    return placed


async def grown(placed: dict[bytes, tuple[int, int]], more: int) -> None:
    """Wait until so many more messages are acknowledged."""
    goal = len(placed) + more
    async with asyncio.timeout(200.0):
        while len(placed) < goal:
            await asyncio.sleep(0.01)
