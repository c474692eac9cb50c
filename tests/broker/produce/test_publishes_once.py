"""Runs that say what their records are known by: what the broker has is left out, over restarts too."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from broker_stack import Stack, Start, broker, produce_body, start, until

from holdmq.errors import Code
from holdmq.record.codec import SYS_QOS_SHIFT, encode_record
from holdmq.record.once import Once
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceRequest, ProduceResponse, ProduceRun, PullQueue, RunResult

__all__ = ["broker", "start"]

UID = 99
Connect = Callable[..., Awaitable["Gateway"]]


class Gateway:
    """A gateway's producer on queue 0 of topic d."""

    def __init__(self, stack: Stack, role: str) -> None:
        self.client = Client(f"127.0.0.1:{stack.server.rpc.port}", role, "gateway-1")
        self.producer_id = 50
        self.next = 0

    async def publish(
        self, *packet_ids: int, epoch: int = 1, delayed: bool = False, repeat: bool = False
    ) -> RunResult:
        """One run; packet id 0: a message of QoS 1. `repeat`: with the sequences of the last one."""
        records = []
        for packet_id in packet_ids:
            pairs = b"DUE\x01+3600000\x02" if delayed else b""
            if packet_id:
                pairs += Once(UID, packet_id, (1, 1), epoch, 0).pair()
            qos = 2 if packet_id else 1
            body = b"%d" % packet_id
            records.append(encode_record(b"d", 0, body, pairs, 1, sys_flag=qos << SYS_QOS_SHIFT, prepared=9))
        body = produce_body(records)
        first = self.next - len(records) if repeat else self.next
        self.next = first + len(records)
        run = ProduceRun("d", 0, len(records), self.producer_id, 1, first)
        header = ProduceRequest(
            zlib.crc32(body), [run], want_positions=True, delayed=[0] if delayed else [], noted=[0]
        )
        reply = await self.client.call(RequestCode.PRODUCE, header, 40.0, [body], len(body))
        return rows(RunResult, reply.header(ProduceResponse).results)[0]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    made: list[Gateway] = []

    async def run(stack: Stack, role: str = "gateway") -> Gateway:
        made.append(Gateway(stack, role))
        return made[-1]

    yield run
    for gateway in made:
        await gateway.client.close()


async def stored(stack: Stack) -> list[bytes]:
    found: list[bytes] = []
    while some := (await stack.pull(PullQueue("d", 0, 0, len(found))))[1]:
        found += some
    return found


async def test_what_was_published_before_is_left_out_of_its_run(broker: Stack, connect: Connect) -> None:
    await broker.create("d", 1)
    gateway = await connect(broker)
    assert await gateway.publish(1, 0, 2) == (0, 0, "")
    assert (await gateway.publish(2))[:2] == (0, 2), "where it was first"
    assert (await gateway.publish(0, 1, 3, 2, 0))[:2] == (0, -1), "what is left is not in one piece"
    assert await gateway.publish(1, 2, 3) == (0, 0, "")
    assert await gateway.publish(4, 5) == (0, 6, "")
    assert await stored(broker) == [b"1", b"0", b"2", b"0", b"3", b"0", b"4", b"5"]
    assert broker.server.numbers()["publishes_repeated_total"] == 6


async def test_a_run_that_is_sent_again_after_a_part_was_left_out_is_known_as_a_whole(
    broker: Stack, connect: Connect
) -> None:
    await broker.create("d", 1)
    gateway = await connect(broker)
    await gateway.publish(1)
    await gateway.publish(0, 1, 0)
    assert (await gateway.publish(0, 1, 0, repeat=True))[0] == Code.OK
    assert (await gateway.publish(0))[0] == Code.OK
    assert await stored(broker) == [b"1", b"0", b"0", b"0"]


@pytest.mark.parametrize("by_snapshot", [False, True])
async def test_publishes_are_known_after_a_restart(start: Start, connect: Connect, by_snapshot: bool) -> None:
    stack = await start()
    await stack.create("d", 1)
    gateway = await connect(stack)
    await gateway.publish(1, 0, 2)
    if by_snapshot:
        stack.server.producers.take_snapshot()
        await until(lambda: stack.server.producers.snapshots)
    await gateway.publish(3)
    stack = await start()
    gateway = await connect(stack)
    gateway.producer_id = 51
    assert (await gateway.publish(1, 2, 3))[:2] == (0, 0)
    assert (await gateway.publish(2, 4))[0] == Code.OK
    assert await stored(stack) == [b"1", b"0", b"2", b"3", b"4"]


async def test_producers_go_on_after_a_restart_that_followed_a_repeat(start: Start, connect: Connect) -> None:
    stack = await start()
    await stack.create("d", 1)
    gateway = await connect(stack)
    await gateway.publish(1)
    await gateway.publish(0, 1, 0)
    await gateway.publish(0)
    stack = await start()
    again = await connect(stack)
    again.next = gateway.next
    assert (await again.publish(0, repeat=True))[0] == Code.OK, "the newest run is known"
    assert (await again.publish(0))[0] == Code.OK
    assert await stored(stack) == [b"1", b"0", b"0", b"0", b"0"]


async def test_delayed_publishes_wait_once(broker: Stack, connect: Connect) -> None:
    await broker.create("d", 1)
    gateway = await connect(broker)
    assert (await gateway.publish(1, 2, delayed=True))[:2] == (0, -1)
    assert (await gateway.publish(2, 3, delayed=True))[0] == Code.OK
    assert (await gateway.publish(1, delayed=True))[0] == Code.OK
    assert broker.server.produce.delayed == 3


async def test_only_gateways_are_heard_in_this(broker: Stack, connect: Connect) -> None:
    await broker.create("d", 1)
    client = await connect(broker, "client")
    await client.publish(1)
    await client.publish(1)
    assert await stored(broker) == [b"1", b"1"]
    assert broker.server.produce.received.ids == 0
