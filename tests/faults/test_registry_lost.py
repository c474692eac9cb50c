"""A registry killed and restarted, all registries killed: producers, consumers and gateways go on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest
from devices import Fleet
from processes import Stack, wait_until

from holdmq.client.producer import Producer
from holdmq.client.pull_consumer import PullConsumer
from holdmq.message import Message
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import OrderGetRequest, OrderGetResponse, OrderRow, OrderSetRequest

StackMaker = Callable[..., Stack]
SEND_S = 100.0
"""A send waits for a broker that starts again, on a machine that is busy with other tests."""


class Traffic:
    """One producer and one consumer that go on until the end; `progress` raises what either raised."""

    def __init__(self, registries: list[str]) -> None:
        self.producer = Producer(registries, send_timeout_s=SEND_S)
        self.consumer = PullConsumer(registries)
        self.sent = 0
        self.read: list[int] = []
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.producer.send(Message("t", b"-1"), key="k")
        await self.consumer.assign(["t"], "earliest")
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._read())]

    async def _send(self) -> None:
        while not self._is_over:
            await self.producer.send(Message("t", b"%d" % self.sent), key="k")
            self.sent += 1
            await asyncio.sleep(0.002)

    async def _read(self) -> None:
        while not self._is_over or len(self.read) <= self.sent:
            self.read += [int(m.body) for m in await self.consumer.poll(hold_ms=500)]

    async def progress(self, count: int = 50) -> None:
        sent, read = self.sent + count, len(self.read) + count
        while self.sent < sent or len(self.read) < read:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await self.producer.close()
        await self.consumer.close()


def devices_go_on(fleet: Fleet) -> None:
    acknowledged = fleet.acknowledged
    wait_until(lambda: fleet.acknowledged > acknowledged + 50, "devices go on")


@pytest.mark.timeout(600)
def test_a_registry_killed_and_restarted_goes_unnoticed_and_knows_everything_again(
    holdmq_stack: StackMaker,
) -> None:
    stack = holdmq_stack()
    fleet = Fleet(stack.mqtt_port, 5, 5, "devices/{i}/temp")
    fleet.start()

    async def run() -> None:
        traffic = Traffic([stack.registry])
        await traffic.start()
        await traffic.progress()
        for n in range(3):
            await asyncio.to_thread(stack.stop, "registry", signal.SIGKILL)
            await traffic.progress()
            # A topic that nobody knew yet is made by the brokers that are known.
            await traffic.producer.send(Message(f"new-{n}", b"x"))
            await asyncio.to_thread(stack.start, "registry")
            await traffic.progress()
            await asyncio.to_thread(devices_go_on, fleet)
        async with Producer([stack.registry]) as late:
            await late.send(Message("late", b"x"))
            assert set(late.routes.brokers()) == {"broker-0"}
        await traffic.end()
        assert traffic.read[: traffic.sent + 1] == list(range(-1, traffic.sent))

    asyncio.run(run())
    fleet.stop()
    assert fleet.error is None


@pytest.mark.timeout(600)
def test_all_registries_killed_and_clients_keep_working_with_what_they_have(
    holdmq_stack: StackMaker,
) -> None:
    second = holdmq_stack(services=("registry",))
    stack = holdmq_stack(services=("registry",))
    both = f"{stack.registry},{second.registry}"
    whole = holdmq_stack(services=("broker", "gateway"), **{"client.registries": both})
    fleet = Fleet(whole.mqtt_port, 5, 5, "devices/{i}/temp")
    fleet.start()

    async def run() -> None:
        traffic = Traffic(both.split(","))
        await traffic.start()
        await traffic.progress()
        for each in (stack, second):
            await asyncio.to_thread(each.stop, "registry", signal.SIGKILL)
            await traffic.progress()
        await asyncio.to_thread(devices_go_on, fleet)
        # The broker itself restarts meanwhile: its address is known.
        await asyncio.to_thread(whole.stop, "broker", signal.SIGKILL)
        await asyncio.to_thread(whole.start, "broker", wait=False)
        await traffic.progress()
        await asyncio.to_thread(devices_go_on, fleet)
        for each in (stack, second):
            await asyncio.to_thread(each.start, "registry")
        await asyncio.to_thread(whole.wait_ready, "broker")
        await traffic.progress()
        await traffic.end()

    asyncio.run(run())
    fleet.stop()
    assert fleet.error is None


@pytest.mark.timeout(600)
def test_ordered_topics_survive_kill_9_of_their_registry(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(services=("registry",))

    async def run() -> None:
        client = Client(stack.registry, "client", "test")
        for n in range(20):
            await client.call(RequestCode.ORDER_SET, OrderSetRequest(f"t{n}", {"a": n + 1}), 60.0)
        await asyncio.to_thread(stack.restart, "registry", signal.SIGKILL)
        reply = await client.call(RequestCode.ORDER_GET, OrderGetRequest(), 60.0)
        found = rows(OrderRow, reply.header(OrderGetResponse).topics)
        assert {row.topic: row.queues for row in found} == {f"t{n}": {"a": n + 1} for n in range(20)}
        await client.close()

    asyncio.run(run())
