"""A broker that had one copy gets others: everything that it had is there, in its log and at its copies."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster_view import listed, messages_of
from etcd_members import etcd_cluster
from replica_processes import ReplicaStack

from holdmq.client.admin import Admin
from holdmq.client.producer import Producer
from holdmq.message import Message


def test_a_broker_of_one_copy_becomes_the_leader_of_three(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path / "etcd", 1) as etcd:
        shard = ReplicaStack(tmp_path, etcd, 3, 2)
        try:
            shard.first.start("registry")
            alone = ("--set", "replication.replicas=", "--set", "replication.replica=")
            shard.first.start("broker", *alone)
            placed = asyncio.run(_fill(shard, 0))
            assert shard.first.stop("broker") == 0
            shard.start_replicas()
            shard.wait_in_sync()
            assert shard.leader() == "a", "who has data founds the shard"
            placed |= asyncio.run(_fill(shard, 200))
            shard.kill("a")
            after = shard.wait_leader("a")
            asyncio.run(listed(shard.registries, "kept"))
            found = asyncio.run(messages_of(shard.registries, "kept"))
            stored = {(message.queue_id, message.queue_offset): bytes(message.body) for message in found}
            assert stored == placed, f"at {after}"
            assert asyncio.run(_topics(shard)) >= {"kept", "empty"}
        finally:
            shard.end()


async def _fill(shard: ReplicaStack, first: int) -> dict[tuple[int, int], bytes]:
    async with Admin(shard.registries) as admin:
        await admin.create_topic("empty", 3)
    bodies = [b"%d" % number for number in range(first, first + 200)]
    async with Producer(shard.registries, send_timeout_s=60.0) as producer:
        results = await asyncio.gather(*(producer.send(Message("kept", body)) for body in bodies))
    return {
        (result.queue.queue_id, result.queue_offset): body
        for result, body in zip(results, bodies, strict=True)
    }


async def _topics(shard: ReplicaStack) -> set[str]:
    async with Admin(shard.registries) as admin:
        return {view.topic for view in await admin.topics()}
