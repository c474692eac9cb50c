"""What was answered last before the leader was killed is known to the replica that leads next."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from applications_before import asking, send_back
from processes import Stack
from replica_processes import ReplicaStack, replica_stack
from shared_peer import Got, SharedPeer
from shared_peer import bodies as bodies_of

from holdmq.client import DeadLetters, Message, Producer, TopicQueue
from holdmq.client.groups import GroupAdmin
from holdmq.errors import Code
from holdmq.wire.move_headers import TO_DEAD_LETTERS

ROUNDS = 2


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaStack]:
    with replica_stack(tmp_path_factory.mktemp("shard")) as stack:
        yield stack


async def publish(shard: ReplicaStack, topic: str, *bodies: bytes) -> None:
    async with Producer(shard.registries, send_timeout_s=60.0) as producer:
        await producer.routes.ensure_topic(topic, timeout_s=30)
        queue = TopicQueue(topic, "broker-0", 0)
        await producer.send_batch([Message(topic, body) for body in bodies], queue=queue)


async def member_of(stack: Stack) -> SharedPeer:
    return await SharedPeer(f"127.0.0.1:{stack.broker_port}").open("last", "jobs", invisible_ms=600_000)


async def pulled(member: SharedPeer, count: int) -> list[Got]:
    """So many messages, in the order of their queue."""
    got: list[Got] = []
    async with asyncio.timeout(40):
        while len(got) < count:
            got += await member.pull(count - len(got), 2_000)
    return sorted(got, key=lambda message: message.offset)


async def acknowledge_some(shard: ReplicaStack, leader: str) -> list[bytes]:
    """Acknowledge half of a shared group's messages, kill the leader at once; what is left."""
    await publish(shard, "jobs", *(b"%d" % n for n in range(10)))
    member = await member_of(shard.stacks[leader])
    got = await pulled(member, 10)
    assert await member.ack(*got[::2]) == []
    shard.kill(leader)
    await member.close()
    return bodies_of(got[1::2])


async def rest(stack: Stack) -> list[bytes]:
    """What a group still gets, all of which it acknowledges."""
    member = await member_of(stack)
    try:
        got = await pulled(member, 5)
        assert await member.pull(10, 500) == []
        assert await member.ack(*got) == []
        return bodies_of(got)
    finally:
        await member.close()


def test_an_acknowledgement_of_a_shared_group_is_known_to_the_next_leader(shard: ReplicaStack) -> None:
    for _ in range(ROUNDS):
        leader = shard.wait_leader()
        left = asyncio.run(acknowledge_some(shard, leader))
        after = shard.wait_leader(leader)
        assert asyncio.run(rest(shard.stacks[after])) == left
        shard.start_again(leader)
        shard.wait_in_sync()


async def give_up(shard: ReplicaStack, leader: str, offset: int) -> None:
    """Send a message to the dead letters, and kill the leader at once."""
    await publish(shard, "tasks", b"bad")
    async with asking(shard.stacks[leader]) as client:
        assert (await send_back(client, offset, TO_DEAD_LETTERS)).status == Code.OK
        shard.kill(leader)


async def given_up(registries: list[str]) -> int:
    async with DeadLetters(registries) as letters:
        return (await letters.groups("retrying"))["retrying"].messages


async def give_up_again(stack: Stack, offset: int) -> None:
    async with asking(stack) as client:
        assert (await send_back(client, offset, TO_DEAD_LETTERS)).status == Code.OK


async def make_group(registries: list[str]) -> None:
    async with GroupAdmin(registries) as groups:
        await groups.update("retrying")


def test_what_was_given_up_is_one_dead_letter_though_it_is_given_up_again(shard: ReplicaStack) -> None:
    asyncio.run(make_group(shard.registries))
    for offset in range(ROUNDS):
        leader = shard.wait_leader()
        asyncio.run(give_up(shard, leader, offset))
        after = shard.wait_leader(leader)
        asyncio.run(give_up_again(shard.stacks[after], offset))
        assert asyncio.run(given_up(shard.registries)) == offset + 1
        shard.start_again(leader)
        shard.wait_in_sync()


async def acknowledge_behind_much(shard: ReplicaStack, leader: str) -> list[bytes]:
    """As `acknowledge_some`, behind more than is read at once, and every replica is killed."""
    async with Producer(shard.registries, send_timeout_s=60.0) as producer:
        for _ in range(2):
            await asyncio.gather(*(producer.send(Message("much", os.urandom(10_000))) for _ in range(400)))
    left = await acknowledge_some(shard, leader)
    for name in shard.names:
        if name != leader:
            shard.kill(name)
    return left


def test_all_replicas_are_killed_and_know_what_they_had_told(shard: ReplicaStack) -> None:
    leader = shard.wait_leader()
    left = asyncio.run(acknowledge_behind_much(shard, leader))
    for name in shard.names:
        shard.start_again(name)
    after = shard.wait_leader()
    assert asyncio.run(rest(shard.stacks[after])) == left
    shard.wait_in_sync()
