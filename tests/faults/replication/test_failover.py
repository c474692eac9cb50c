"""Replicas as processes with a real etcd: their leader is killed or handed over, and nothing is missing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator

import pytest
from cluster_view import listed, messages_of
from deliveries import Deliveries
from group_peer import GroupPeer
from replica_processes import ReplicaStack, replica_stack

from holdmq.client import Admin, Consumer
from holdmq.client.producer import Producer
from holdmq.message import Message

PATIENT_S = 60.0


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaStack]:
    with replica_stack(tmp_path_factory.mktemp("shard")) as stack:
        yield stack


async def produce(stack: ReplicaStack, topic: str, first: int, count: int) -> dict[tuple[int, int], bytes]:
    """Send numbers and return where each was said to be."""
    async with Producer(stack.registries, send_timeout_s=PATIENT_S) as producer:
        bodies = [str(number).encode() for number in range(first, first + count)]
        results = await asyncio.gather(*(producer.send(Message(topic, body), key="k") for body in bodies))
    return {
        (result.queue.queue_id, result.queue_offset): body
        for result, body in zip(results, bodies, strict=True)
    }


def stored(stack: ReplicaStack, topic: str) -> dict[tuple[int, int], bytes]:
    """All that a topic has, by place, once the leader is registered."""
    asyncio.run(listed(stack.registries, topic))
    found = asyncio.run(messages_of(stack.registries, topic))
    return {(message.queue_id, message.queue_offset): bytes(message.body) for message in found}


def test_a_killed_leader_is_replaced_and_nothing_is_missing(shard: ReplicaStack) -> None:
    placed = asyncio.run(produce(shard, "killed", 0, 300))
    before = shard.leader()
    shard.kill(before)
    placed |= asyncio.run(produce(shard, "killed", 300, 300))
    assert shard.wait_leader(before) != before
    assert stored(shard, "killed") == placed
    shard.start_again(before)
    shard.wait_in_sync()
    again = shard.leader()
    shard.kill(again)
    shard.wait_leader(again)
    assert stored(shard, "killed") == placed
    for name in shard.names:
        if "broker" not in shard.stacks[name].processes:
            shard.start_again(name)
    shard.wait_in_sync()


def test_the_lead_is_handed_over_under_load_without_an_error(shard: ReplicaStack) -> None:
    async def under_load() -> dict[tuple[int, int], bytes]:
        loading = asyncio.ensure_future(produce(shard, "switched", 0, 3_000))
        for _ in range(3):
            leader = await asyncio.to_thread(shard.leader)
            to = next(name for name in shard.names if name != leader)
            await asyncio.to_thread(shard.switch, leader, to)
            assert await asyncio.to_thread(shard.wait_leader, leader) == to
            await asyncio.to_thread(shard.wait_in_sync)
        return await loading

    placed = asyncio.run(under_load())
    assert len(placed) == 3_000
    assert stored(shard, "switched") == placed


def test_a_replica_whose_disk_was_emptied_gets_everything_again(shard: ReplicaStack) -> None:
    placed = asyncio.run(produce(shard, "emptied", 0, 500))
    leader = shard.leader()
    copy = next(name for name in shard.names if name != leader)
    shard.kill(copy)
    shutil.rmtree(shard.stacks[copy].directory / "store")
    placed |= asyncio.run(produce(shard, "emptied", 500, 500))
    shard.start_again(copy)
    shard.wait_in_sync()
    shard.switch(leader, copy)
    assert shard.wait_leader(leader) == copy
    assert stored(shard, "emptied") == placed


async def reported(stack: ReplicaStack, leader: str, group: str, offset: int, wait: bool) -> None:
    """Report an offset of queue 0 to the leader as a member of a group."""
    member = GroupPeer(stack.stacks[leader].broker_port, "member", group)
    try:
        await member.join("offsets")
        while not (await member.lease(0, topic="offsets"))[0].generation:
            await asyncio.sleep(0.05)
        assert await member.report(0, offset, topic="offsets", wait_for_disk=wait) == []
    finally:
        await member.client.close()


async def offset_of(stack: ReplicaStack, leader: str, group: str) -> int:
    member = GroupPeer(stack.stacks[leader].broker_port, "asks", group)
    try:
        rows = await member.offsets("offsets")
        return next(row.offset for row in rows if row.queue_id == 0)
    finally:
        await member.client.close()


def test_a_switch_loses_no_offset_and_a_crash_none_that_was_waited_for(shard: ReplicaStack) -> None:
    asyncio.run(produce(shard, "offsets", 0, 200))
    shard.wait_in_sync()
    leader = shard.leader()
    asyncio.run(reported(shard, leader, "waits", 7, True))
    asyncio.run(reported(shard, leader, "waits-not", 9, False))
    to = next(name for name in shard.names if name != leader)
    shard.switch(leader, to)
    assert shard.wait_leader(leader) == to
    asyncio.run(listed(shard.registries, "offsets"))
    assert asyncio.run(offset_of(shard, to, "waits-not")) == 9
    asyncio.run(reported(shard, to, "waits", 11, True))
    shard.wait_in_sync()
    shard.kill(to)
    last = shard.wait_leader(to)
    asyncio.run(listed(shard.registries, "offsets"))
    assert asyncio.run(offset_of(shard, last, "waits")) == 11
    assert asyncio.run(offset_of(shard, last, "waits-not")) == 9
    shard.start_again(to)
    shard.wait_in_sync()


def test_the_first_group_of_a_topic_stays_the_first_at_the_next_leader(shard: ReplicaStack) -> None:
    async def read(group: str, body: bytes) -> set[bytes]:
        """What a group begins with that is told nothing, and `body`, which is sent once it reads."""
        got = Deliveries()
        async with (
            Producer(shard.registries, send_timeout_s=PATIENT_S) as producer,
            Consumer(shard.registries, group, got.handler("m"), ["beginning"]),
        ):
            await producer.send(Message("beginning", body))
            while body not in got.bodies():
                await asyncio.sleep(0.02)
        return got.bodies()

    async def begin() -> set[bytes]:
        async with Admin(shard.registries) as admin:
            await admin.create_topic("beginning", first_group="beginning")
        await listed(shard.registries, "beginning")
        await produce(shard, "beginning", 0, 1)
        return await read("first", b"1")

    assert asyncio.run(begin()) == {b"0", b"1"}
    shard.wait_in_sync()
    leader = shard.leader()
    shard.kill(leader)
    shard.wait_leader(leader)
    asyncio.run(listed(shard.registries, "beginning"))
    assert asyncio.run(read("second", b"2")) == {b"2"}
    shard.start_again(leader)
    shard.wait_in_sync()
