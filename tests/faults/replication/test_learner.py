"""A replica that begins anew has what the log has given up by then: tables, topics, retained messages."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path

from cluster_view import listed, messages_of
from mqtt_client import MqttClient
from processes import wait_until
from replica_processes import ReplicaStack, replica_stack

from holdmq.client.admin import Admin
from holdmq.client.producer import Producer
from holdmq.client.tables import Table
from holdmq.errors import OffsetError
from holdmq.message import Message
from holdmq.mqtt import PubAck, Publish

SEGMENT = 1 << 20


def test_tables_topics_and_retained_messages_follow_though_their_records_have_gone(tmp_path: Path) -> None:
    with replica_stack(
        tmp_path,
        "gateway",
        **{
            "storage.segment_size_bytes": SEGMENT,
            "storage.retention_segments": 3,
            "storage.retention_interval_ms": 100,
        },
    ) as shard:
        asyncio.run(_prepare(shard))
        client = MqttClient(shard.first.mqtt_port, "keeper")
        client.send(Publish("places/1", b"here", 1, retain=True, packet_id=1))
        client.wait_for(PubAck)
        client.close()
        leader = shard.leader()
        asyncio.run(_fill(shard))
        wait_until(lambda: _first_of(shard, leader) > SEGMENT, "retention takes segments")
        copy = next(name for name in shard.names if name != leader)
        shard.kill(copy)
        shutil.rmtree(shard.stacks[copy].directory / "store")
        asyncio.run(_fill(shard))
        shard.start_again(copy)
        shard.wait_in_sync()
        assert _first_of(shard, copy) > SEGMENT, "it began where the leader's log begins"
        shard.switch(leader, copy)
        assert shard.wait_leader(leader) == copy
        asyncio.run(listed(shard.registries, "early"))
        assert asyncio.run(_row(shard)) == b"v1"
        other = _connected(shard.first.mqtt_port, "other")
        other.subscribe("places/#")
        assert bytes(other.message().payload) == b"here"
        other.close()
        # What was kept for the copy goes now: who reads meanwhile is told that it has gone.
        wait_until(lambda: _is_at_rest(shard, copy), "retention has taken what it takes")
        wait_until(lambda: _is_read(shard), "what is left is read whole")


def _is_read(shard: ReplicaStack) -> bool:
    """Whether there are messages, none of which retention took while they were read."""
    try:
        return bool(asyncio.run(messages_of(shard.registries, "filling")))
    except OffsetError:
        return False


def test_the_log_is_kept_for_a_copy_while_it_fetches_it(tmp_path: Path) -> None:
    """Retention takes a segment in a tenth of a second; a copy of five of them takes seconds."""
    with replica_stack(
        tmp_path,
        **{
            "storage.segment_size_bytes": SEGMENT,
            "storage.retention_segments": 4,
            "storage.retention_interval_ms": 100,
            "replication.catch_up_bytes_per_s": 2 * SEGMENT,
            "replication.fetch_max_bytes": SEGMENT // 4,
        },
    ) as shard:
        leader = shard.leader()
        copy = next(name for name in shard.names if name != leader)
        asyncio.run(_fill(shard))
        wait_until(lambda: _first_of(shard, leader) > SEGMENT, "retention takes segments")
        shard.kill(copy)
        shutil.rmtree(shard.stacks[copy].directory / "store")
        said = len(shard.stacks[copy].log("broker"))
        shard.start_again(copy)

        def begun_at() -> list[int]:
            lines = [json.loads(line) for line in shard.stacks[copy].log("broker")[said:].splitlines()]
            return [line["position"] for line in lines if "begins anew" in line["event"]]

        wait_until(lambda: bool(begun_at()), "it begins anew")
        asyncio.run(_fill(shard))
        shard.wait_in_sync()
        assert len(set(begun_at())) == 1, "what it was to fetch next was there"
        first = _first_of(shard, copy)
        wait_until(lambda: _first_of(shard, leader) > first, "and goes when it has it")


def _connected(port: int, client_id: str) -> MqttClient:
    """Connect as devices do: again, while the gateway has no connection to the new leader yet."""
    found: list[MqttClient] = []

    def is_accepted() -> bool:
        try:
            found.append(MqttClient(port, client_id))
        except ConnectionError:
            return False
        return found[-1].connack.reason_code == 0

    wait_until(is_accepted, "a device is accepted")
    return found[-1]


def _first_of(shard: ReplicaStack, name: str) -> int:
    status = shard.status(name)
    return -1 if status is None else status.first


def _is_at_rest(shard: ReplicaStack, name: str) -> bool:
    """Whether retention takes nothing for several of its intervals."""
    first = _first_of(shard, name)
    time.sleep(0.5)
    return _first_of(shard, name) == first


async def _prepare(shard: ReplicaStack) -> None:
    async with Admin(shard.registries) as topics:
        await topics.create_topic("early", 2)
    async with Table("rows", shard.registries) as table:
        await table.create(2)
        await table.put("k1", b"v1")


async def _row(shard: ReplicaStack) -> bytes | None:
    async with Table("rows", shard.registries) as table:
        row = await table.get("k1")
        return None if row is None else bytes(row.value)


async def _fill(shard: ReplicaStack) -> None:
    async with Producer(shard.registries, send_timeout_s=60.0) as producer:
        for _ in range(8):
            await asyncio.gather(*(producer.send(Message("filling", b"x" * 4000)) for _ in range(250)))
