"""SIGSTOP of a broker: it keeps its connections and is silent. Producers use another one, or say so."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from processes import Stack

from holdmq.client.lanes import SendResult
from holdmq.client.producer import Producer
from holdmq.client.pull_consumer import PullConsumer
from holdmq.errors import RequestTimeout
from holdmq.message import Message

StackMaker = Callable[..., Stack]
KEYS = 12
REROUTE_S = 1.5
SEND_S = 4.0
"""The time in which a producer's own process did not run is no silence of the broker's: some of these."""


class Senders:
    """Tasks that send numbered messages, one after the other: half of them with a key of their own."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.results: dict[bytes, SendResult] = {}
        self.sent = [0] * KEYS
        self.longest_s = 0.0
        self._is_over = False
        self._tasks = [asyncio.ensure_future(self._run(n)) for n in range(KEYS)]

    async def _run(self, n: int) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_over:
            body = b"%d %d" % (n, self.sent[n])
            began = loop.time()
            result = await self.producer.send(Message("t", body), key=f"k{n}" if n % 2 else None)
            self.results[body] = result
            self.longest_s = max(self.longest_s, loop.time() - began)
            self.sent[n] += 1
            await asyncio.sleep(0.002)

    async def progress(self, count: int) -> None:
        """Wait until every sender has sent `count` more; raises what one of them raised."""
        goals = [sent + count for sent in self.sent]
        while any(sent < goal for sent, goal in zip(self.sent, goals, strict=True)):
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)


async def run_past_a_stop(
    registry: str, process: Any, stop_s: float, **settings: Any
) -> tuple[Senders, dict[str, int]]:
    """Send while a process is stopped for `stop_s` (0 = until everybody got on without it), and after it."""
    async with Producer([registry], **settings) as producer:
        senders = Senders(producer)
        await senders.progress(20)
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(stop_s)
            await senders.progress(20)
        finally:
            process.send_signal(signal.SIGCONT)
        await senders.progress(20)
        link = producer.routes.link("broker-0")
        while not link.is_up:
            await asyncio.sleep(0.02)
        await senders.progress(20)
        await senders.end()
        return senders, producer.numbers()


async def check(registry: str, senders: Senders) -> int:
    """Everything acknowledged is where it was said, each key in order; returns how many copies there are."""
    log: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
    copies: dict[bytes, int] = defaultdict(int)
    async with PullConsumer([registry]) as consumer:
        await consumer.assign(["t"], "earliest")
        while not senders.results.keys() <= copies.keys():
            for m in await consumer.poll():
                assert m.broker is not None
                log[(m.broker, m.queue_id)][m.queue_offset] = m.body
                copies[m.body] += 1
    for body, result in senders.results.items():
        if result.queue_offset >= 0:
            assert log[(result.queue.broker, result.queue.queue_id)][result.queue_offset] == body
    for bodies in log.values():
        last: dict[bytes, int] = {}
        for _, body in sorted(bodies.items()):
            name, _, number = body.partition(b" ")
            if int(name) % 2 and copies[body] == 1:
                assert int(number) > last.get(name, -1)
                last[name] = int(number)
    return sum(count - 1 for count in copies.values())


@pytest.mark.timeout(600)
def test_with_a_second_broker_producers_lose_nothing_and_keep_sending(holdmq_stack: StackMaker) -> None:
    first = holdmq_stack(services=("registry", "broker"))
    holdmq_stack(services=("broker",), **{"registry.port": first.registry_port, "broker.name": "broker-1"})

    async def run() -> None:
        senders, numbers = await run_past_a_stop(
            first.registry, first.processes["broker"], 0.0, reroute_s=REROUTE_S
        )
        assert {r.queue.broker for r in senders.results.values()} == {"broker-0", "broker-1"}
        assert numbers["reroutes_total"] > 0
        await check(first.registry, senders)

    asyncio.run(run())


@pytest.mark.timeout(600)
def test_without_another_broker_a_send_fails_within_its_deadline_and_says_why(
    holdmq_stack: StackMaker,
) -> None:
    stack = holdmq_stack(services=("registry", "broker"))

    async def run() -> None:
        async with Producer([stack.registry], send_timeout_s=SEND_S) as producer:
            await producer.send(Message("t", b"before"), key="k", timeout_s=60.0)
            stack.processes["broker"].send_signal(signal.SIGSTOP)
            try:
                sends = [producer.send(Message("t", b"%d" % i), key="k") for i in range(20)]
                errors = await asyncio.gather(*sends, return_exceptions=True)
            finally:
                stack.processes["broker"].send_signal(signal.SIGCONT)
            for error in errors:
                assert isinstance(error, RequestTimeout)
                assert "broker 'broker-0' has not answered for" in str(error)
            after = await producer.send(Message("t", b"after"), key="k", timeout_s=100.0)
            async with PullConsumer([stack.registry]) as consumer:
                await consumer.assign([after.queue], 0)
                bodies: list[bytes] = []
                while b"after" not in bodies:
                    bodies += [m.body for m in await consumer.poll()]
        # What was in the socket when it stopped is stored: once, and in its place.
        middle = bodies[1:-1]
        assert middle == [b"%d" % i for i in range(len(middle))]
        assert (bodies[0], bodies[-1]) == (b"before", b"after")

    asyncio.run(run())
