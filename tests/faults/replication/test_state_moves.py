"""A broker that has data gets copies, loses its machine, and goes back to one copy: with all that it knew."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from cluster_view import listed, messages_of
from etcd_members import etcd_cluster
from group_peer import GroupPeer
from replica_processes import ReplicaStack

from holdmq.client.producer import Producer
from holdmq.message import Message
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.headers import TopicCreateRequest


async def use(stack: ReplicaStack, port: int) -> None:
    """Let a broker learn of a topic with two key levels, of a group, its offsets, and of messages."""
    client = Client(f"127.0.0.1:{port}", "client", "test")
    await client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("deep", 2, key_levels=2))
    await client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", retry_max_times=3))
    await client.close()
    async with Producer(stack.registries, send_timeout_s=60.0) as producer:
        await asyncio.gather(*(producer.send(Message("deep", b"%d" % n)) for n in range(300)))
    member = GroupPeer(port, "member")
    await member.join("deep")
    while not (await member.lease(0, topic="deep"))[0].generation:
        await asyncio.sleep(0.05)
    assert await member.report(0, 5, topic="deep", wait_for_disk=True) == []
    await member.client.close()


async def known(stack: ReplicaStack, port: int) -> tuple[object, ...]:
    """What a broker that serves knows of it."""
    await listed(stack.registries, "deep")
    member = GroupPeer(port, "asks")
    offsets = [(row.queue_id, row.offset) for row in await member.offsets("deep")]
    await member.client.close()
    messages = await messages_of(stack.registries, "deep")
    places = sorted((m.queue_id, m.queue_offset, str(m.message_id), bytes(m.body)) for m in messages)
    return offsets, places


def test_files_of_one_copy_move_into_the_log_of_three_and_back(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path / "etcd", 1) as etcd:
        shard = ReplicaStack(tmp_path, etcd, 3, 2)
        try:
            first = shard.first
            settings = list(first._sets)
            first.set("replication.replicas", "")
            first.start("registry")
            first.start("broker")
            asyncio.run(use(shard, first.broker_port))
            before = asyncio.run(known(shard, first.broker_port))
            assert len(before[1]) == 300  # type: ignore[arg-type]
            first.stop("broker")
            config = first.directory / "store" / "config"
            assert (config / "topic.json").exists()

            first._sets[:] = settings
            for stack in shard.stacks.values():
                stack.start("broker", wait=False)
            assert shard.wait_leader() == "a"
            shard.wait_in_sync()
            assert asyncio.run(known(shard, first.broker_port)) == before
            assert (config / "before-log" / "topic.json").exists()
            assert not (config / "topic.json").exists()

            shard.kill("a")
            shutil.rmtree(first.directory / "store")
            leader = shard.wait_leader("a")
            assert asyncio.run(known(shard, shard.stacks[leader].broker_port)) == before
            shard.start_again("a")
            shard.wait_in_sync()
            for _ in range(5):  # a machine that has much to do may need more than a second for it
                shard.switch(leader, "a")
                leader = shard.wait_leader(leader)
                shard.wait_in_sync()
                if leader == "a":
                    break
            assert leader == "a"
            assert asyncio.run(known(shard, first.broker_port)) == before
            for name in shard.names:
                shard.stacks[name].stop("broker")

            # One copy again; a registry remembers that somebody led.
            first.set("replication.replicas", "")
            first.restart("registry")
            first.start("broker")
            assert asyncio.run(known(shard, first.broker_port)) == before
            assert (config / "topic.json").exists()
            assert not (config / "home.json").exists()
        finally:
            shard.end()
