"""A broker that had one copy gets others: everything that it had is there, in its log and at its copies."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster_view import listed, messages_of
from etcd_members import etcd_cluster
from mqtt_client import MqttClient
from processes import wait_until
from replica_processes import ReplicaStack

from holdmq.client import Admin, Consumer, Message, Producer, Table
from holdmq.mqtt import PubAck, Publish

LEVELS = 3


def test_a_broker_of_one_copy_becomes_the_leader_of_three(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path / "etcd", 1) as etcd:
        shard = ReplicaStack(tmp_path, etcd, 3, 2)
        try:
            shard.first.start("registry")
            alone = ("--set", "replication.replicas=", "--set", "replication.replica=")
            shard.first.start("broker", *alone)
            shard.first.start("gateway")
            placed = asyncio.run(_fill(shard, 0))
            asyncio.run(_keep_rows(shard))
            _subscribe_and_leave(shard)
            assert shard.first.stop("broker") == 0
            shard.start_replicas()
            shard.wait_in_sync()
            assert shard.leader() == "a", "who has data founds the shard"
            placed |= asyncio.run(_fill(shard, 200))
            # Before anything changes: a row that is written again would be there in any case.
            shard.kill("a")
            after = shard.wait_leader("a")
            asyncio.run(listed(shard.registries, "kept"))
            found = asyncio.run(messages_of(shard.registries, "kept"))
            stored = {(message.queue_id, message.queue_offset): bytes(message.body) for message in found}
            assert stored == placed, f"at {after}"
            assert asyncio.run(_topics(shard)) >= {"kept", "empty"}
            asyncio.run(_check_rows(shard))
            _check_devices(shard)
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


async def _keep_rows(shard: ReplicaStack) -> None:
    """A table's row, and messages whose tags are looked for by more levels than is usual."""
    async with Table("prices", shard.registries) as table:
        await table.create()
        await table.put("bread", b"3.20")
    async with Admin(shard.registries) as admin:
        await admin.create_topic("levels", 1, LEVELS)
    async with Producer(shard.registries) as producer:
        for number in range(6):
            await producer.send(Message("levels", b"%d" % number, f"a/b/{number % 2}/x"))


async def _check_rows(shard: ReplicaStack) -> None:
    async with Table("prices", shard.registries) as table:
        row = await table.get("bread")
        assert row is not None
        assert row.value == b"3.20"
    got: list[bytes] = []
    done = asyncio.Event()

    async def take(message: Message) -> None:
        got.append(bytes(message.body))
        if len(got) == 3:
            done.set()

    filters = {"levels": "a/b/1/#"}
    async with Consumer(shard.registries, "late", take, filters, start="earliest"):
        await done.wait()
    assert got == [b"1", b"3", b"5"]


def _subscribe_and_leave(shard: ReplicaStack) -> None:
    """A device with a session goes away, and a value is retained."""
    device = MqttClient(shard.first.mqtt_port, "away")
    device.subscribe("news/#")
    device.close()
    other = MqttClient(shard.first.mqtt_port, "other", clean=True)
    other.send(Publish("kept-value/x", b"retained", 1, retain=True, packet_id=1))
    assert other.wait_for(PubAck).reason_code == 0
    other.close()


def _check_devices(shard: ReplicaStack) -> None:
    device = _connected(shard, "away")
    assert device.connack.session_present
    device.send(Publish("news/1", b"it is here", 1, packet_id=1))
    assert bytes(device.wait_for(Publish).payload) == b"it is here"
    device.close()
    fresh = _connected(shard, "fresh", clean=True)
    fresh.subscribe("kept-value/#")
    assert bytes(fresh.wait_for(Publish).payload) == b"retained"
    fresh.close()


def _connected(shard: ReplicaStack, client_id: str, *, clean: bool = False) -> MqttClient:
    """A device that connects again while its gateway has not found the new leader."""
    made: list[MqttClient] = []

    def is_accepted() -> bool:
        made[:] = [MqttClient(shard.first.mqtt_port, client_id, clean=clean)]
        return made[0].connack.reason_code == 0

    wait_until(is_accepted, f"{client_id} is accepted")
    return made[0]


async def _topics(shard: ReplicaStack) -> set[str]:
    async with Admin(shard.registries) as admin:
        return {view.topic for view in await admin.topics()}
