"""Readers far behind read from real replicas: all of it, in order, also while replicas and the lead go."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal

import pytest
from replica_processes import ReplicaStack, replica_stack

from holdmq.client import Consumer, Messages, Producer, PullConsumer
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.message import Message
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import Empty
from spark_streaming.source.link import close_links
from spark_streaming.source.reader import HoldMQDataSource

MESSAGES = 40_000
BODY_BYTES = 400
FAR_BYTES = 2 << 20
"""Of a log of some 20 MiB: most of it is far behind its end."""
SETTINGS: dict[str, Any] = {
    "replication.far_reads_bytes": FAR_BYTES,
    "storage.segment_size_bytes": 8 << 20,
    "broker.topic_queues_default": 4,
}
_groups = itertools.count()


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaStack]:
    with replica_stack(tmp_path_factory.mktemp("shard"), **SETTINGS) as stack:
        asyncio.run(fill(stack))
        yield stack


@pytest.fixture(autouse=True)
def _in_sync(shard: ReplicaStack) -> None:
    shard.wait_leader()
    shard.wait_in_sync()


async def fill(shard: ReplicaStack) -> None:
    """Produce what everybody here reads."""
    padding = bytes(BODY_BYTES)
    async with Producer(shard.registries) as producer:
        for start in range(0, MESSAGES, 2_000):
            numbers = range(start, start + 2_000)
            await producer.send_batch([Message("t", b"%d " % number + padding) for number in numbers])


def number_of(message: Message) -> int:
    return int(message.body.split(b" ", 1)[0])


def reads(shard: ReplicaStack, name: str) -> dict[str, float]:
    """What a replica counts of reads; nothing of one that is down."""
    if "broker" not in shard.stacks[name].processes:
        return defaultdict(float)
    return {
        kind: shard.stacks[name].metric("broker", f"holdmq_replication_reads_{kind}_total")
        for kind in ("redirected", "served", "sent_back")
    }


def copies(shard: ReplicaStack) -> list[str]:
    leader = shard.wait_leader()
    return [name for name in shard.names if name != leader]


def served(shard: ReplicaStack) -> float:
    """Requests that all copies took so far."""
    return sum(reads(shard, name)["served"] for name in shard.names)


class Seen:
    """Numbers by queue in the order in which they came, for who gets each once."""

    def __init__(self) -> None:
        self.by_queue: dict[int, list[int]] = defaultdict(list)
        self.messages = 0

    def take(self, message: Message) -> None:
        self.by_queue[message.queue_id].append(number_of(message))
        self.messages += 1

    def check_once_in_order(self) -> None:
        for numbers in self.by_queue.values():
            assert numbers == sorted(set(numbers)), "each once, in order"
        assert sorted(itertools.chain(*self.by_queue.values())) == list(range(MESSAGES))

    def check_all_in_order(self) -> None:
        """A lease that ends with a lead gives again what was not reported: from there on, in order."""
        for numbers in self.by_queue.values():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts), "what is new comes in order"
        assert set(itertools.chain(*self.by_queue.values())) == set(range(MESSAGES))


async def catch_up(
    shard: ReplicaStack, seen: Seen, meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> None:
    """Consume everything as a group; do something once a replica has answered a part of it."""
    served_before = await asyncio.to_thread(served, shard)

    async def handle(message: Message) -> None:
        seen.take(message)
        if seen.messages % 100 == 0:
            await asyncio.sleep(0.005)

    consumer = Consumer(
        shard.registries,
        f"group-{next(_groups)}",
        handle,
        ["t"],
        start="earliest",
        ordered=True,
        buffer_max_bytes=512 << 10,
        report_s=0.5,
    )
    async with consumer:
        async with asyncio.timeout(120):
            while meanwhile is not None and seen.messages < MESSAGES // 8:
                await asyncio.sleep(0.02)
            if meanwhile is not None:
                assert await asyncio.to_thread(served, shard) > served_before, "a replica has answered"
                await meanwhile()
                assert seen.messages < MESSAGES, "it was in the middle"
            while len(set(itertools.chain(*seen.by_queue.values()))) < MESSAGES:
                await asyncio.sleep(0.05)
    if meanwhile is None:
        assert await asyncio.to_thread(served, shard) > served_before


@pytest.mark.timeout(300)
def test_a_group_that_catches_up_reads_from_a_replica_and_near_the_end_from_the_leader(
    shard: ReplicaStack,
) -> None:
    seen = Seen()
    leader = shard.wait_leader()
    first = copies(shard)[0]
    before = {name: reads(shard, name) for name in shard.names}
    asyncio.run(catch_up(shard, seen))
    seen.check_once_in_order()
    after = {name: reads(shard, name) for name in shard.names}
    assert after[leader]["redirected"] > before[leader]["redirected"]
    assert after[first]["served"] - before[first]["served"] > 10
    assert after[first]["sent_back"] > before[first]["sent_back"], "the end is the leader's"
    assert after[leader]["served"] == before[leader]["served"], "a leader answers as what it is"


@pytest.mark.timeout(300)
def test_a_group_gets_every_message_once_in_order_while_the_replica_that_answers_is_killed(
    shard: ReplicaStack,
) -> None:
    seen = Seen()
    killed = copies(shard)[0]

    async def kill() -> None:
        await asyncio.to_thread(shard.kill, killed)

    try:
        asyncio.run(catch_up(shard, seen, kill))
    finally:
        shard.start_again(killed)
    seen.check_once_in_order()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["switched to the replica that answers", "killed"])
def test_a_group_gets_every_message_in_order_while_the_lead_moves(shard: ReplicaStack, how: str) -> None:
    seen = Seen()
    leader = shard.wait_leader()
    first = copies(shard)[0]

    async def move() -> None:
        if how == "killed":
            await asyncio.to_thread(shard.kill, leader)
        else:
            await asyncio.to_thread(shard.switch, leader, first)
        await asyncio.to_thread(shard.wait_leader, leader)

    asyncio.run(catch_up(shard, seen, move))
    if how == "killed":
        shard.start_again(leader)
    seen.check_all_in_order()


async def read_all(
    shard: ReplicaStack,
    read_replicas: Literal["prefer", "allow", "never"],
    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> Seen:
    """Read everything by queue and offset; do something after a third of it."""
    seen = Seen()
    task: asyncio.Task[None] | None = None
    async with PullConsumer(shard.registries, read_replicas=read_replicas) as consumer:
        await consumer.assign(["t"], "earliest")
        async with asyncio.timeout(120):
            while seen.messages < MESSAGES:
                for message in await consumer.poll(max_bytes=64 << 10):
                    seen.take(message)
                if task is None and meanwhile is not None and seen.messages > MESSAGES // 3:
                    task = asyncio.create_task(meanwhile())
                if task is not None and not task.done():
                    await asyncio.sleep(0.02)
    if task is not None:
        await task
    return seen


def test_who_prefers_replicas_reads_from_one_and_who_wants_none_from_the_leader_alone(
    shard: ReplicaStack,
) -> None:
    leader = shard.wait_leader()
    for read_replicas in ("prefer", "never"):
        before = served(shard), reads(shard, leader)["redirected"]
        asyncio.run(read_all(shard, read_replicas)).check_once_in_order()
        answered = served(shard) - before[0]
        if read_replicas == "prefer":
            assert answered > 10
        else:
            assert (answered, reads(shard, leader)["redirected"]) == (0, before[1])


@pytest.mark.timeout(300)
def test_a_reader_that_keeps_its_place_gets_each_message_once_while_replica_and_lead_go(
    shard: ReplicaStack,
) -> None:
    leader = shard.wait_leader()
    first, second = copies(shard)

    async def disturb() -> None:
        await asyncio.to_thread(shard.kill, first)
        await asyncio.to_thread(shard.switch, leader, second)
        await asyncio.to_thread(shard.wait_leader, leader)

    try:
        asyncio.run(read_all(shard, "prefer", disturb)).check_once_in_order()
    finally:
        shard.start_again(first)


@pytest.mark.timeout(300)
def test_spark_reads_from_a_replica_as_it_is_told_to_also_while_that_is_killed(shard: ReplicaStack) -> None:
    leader = shard.wait_leader()
    killed = copies(shard)[0]

    def numbers(read_replicas: str, kill: bool = False) -> list[int]:
        given = {"registry": ",".join(shard.registries), "topics": "t", "read_replicas": read_replicas}
        source = HoldMQDataSource({**given, "columns": "queue,offset,body", "max_partitions": "1"})
        reader = source.reader(source.schema())
        found: list[int] = []
        for partition in reader.partitions():
            for batch in reader.read(partition):
                found += [int(body.split(b" ", 1)[0]) for body in batch.column("body").to_pylist()]
                if kill and "broker" in shard.stacks[killed].processes:
                    shard.kill(killed)
        return found

    try:
        before = served(shard)
        assert sorted(numbers("prefer")) == list(range(MESSAGES))
        assert served(shard) > before
        before = served(shard), reads(shard, leader)["redirected"]
        assert sorted(numbers("never")) == list(range(MESSAGES))
        assert (served(shard), reads(shard, leader)["redirected"]) == before
        assert sorted(numbers("prefer", kill=True)) == list(range(MESSAGES))
    finally:
        close_links()
        if "broker" not in shard.stacks[killed].processes:
            shard.start_again(killed)


@pytest.mark.timeout(300)
def test_look_ups_and_replays_go_to_a_replica_and_to_the_leader_when_that_is_gone(
    shard: ReplicaStack,
) -> None:
    killed = copies(shard)[0]

    async def look_up(messages: Messages) -> tuple[list[int], int, int]:
        page = await messages.newest_page("t", count=50)
        first = page.messages[-1]
        assert first.message_id is not None
        got = await messages.get(first.message_id)
        assert got.body == first.body
        replayed = [number_of(message) async for message in messages.replay("t", 0)]
        return [number_of(message) for message in page.messages], len(replayed), len(set(replayed))

    async def run() -> None:
        async with Messages(shard.registries, read_replicas="never") as messages:
            before = await asyncio.to_thread(served, shard)
            wanted = await look_up(messages)
            assert wanted[1:] == (MESSAGES, MESSAGES)
            assert await asyncio.to_thread(served, shard) == before
        async with Messages(shard.registries, read_replicas="prefer") as messages:
            assert await look_up(messages) == wanted
            assert await asyncio.to_thread(served, shard) > before + 3
            await asyncio.to_thread(shard.kill, killed)
            assert await look_up(messages) == wanted

    try:
        asyncio.run(run())
    finally:
        shard.start_again(killed)


def test_a_copy_takes_connections_of_readers_alone_and_leaves_all_else_to_the_leader(
    shard: ReplicaStack,
) -> None:
    leader = shard.wait_leader()
    address = f"127.0.0.1:{shard.stacks[copies(shard)[0]].broker_port}"

    async def ask(client: Client, code: RequestCode) -> HoldMQError:
        try:
            with pytest.raises(HoldMQError) as refused:
                await client.call(code, Empty(), 2.0)
            return refused.value
        finally:
            await client.close()

    error = asyncio.run(ask(Client(address, "client", "producer"), RequestCode.HEARTBEAT))
    assert f"{leader} leads" in str(error)
    error = asyncio.run(
        ask(Client(address, "client", "reader", reads_replica=True), RequestCode.BROKER_STATUS)
    )
    assert isinstance(error, RemoteError)
    assert (error.code, error.ext_fields["leader"]) == (Code.NOT_LEADER, leader)
