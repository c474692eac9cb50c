"""Two of three replicas are gone: records are refused by name, reads go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from cluster_view import listed, messages_of
from mqtt_client import MqttClient
from processes import wait_until
from replica_processes import TIMES, ReplicaStack, replica_stack

from holdmq.client.producer import Producer
from holdmq.client.tables import Table
from holdmq.errors import HoldMQError, TransportError
from holdmq.message import Message
from holdmq.mqtt import PubAck, Publish

LAG_S = TIMES["replication.lag_ms"] / 1e3
SHORT_S = 1.0
"""A producer's patience that ends long before the copies are back."""
TOPIC = "few"
NAMED = "1 of the 2 replicas that replication.min_in_sync wants have what the leader has"


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaStack]:
    with replica_stack(tmp_path_factory.mktemp("shard"), "gateway") as stack:
        yield stack
    MqttClient.close_all()


async def send(stack: ReplicaStack, body: bytes, timeout_s: float) -> None:
    async with Producer(stack.registries, send_timeout_s=timeout_s) as producer:
        await producer.send(Message(TOPIC, body), key="k")


def bodies(stack: ReplicaStack) -> list[bytes]:
    """All messages of the topic; none while the leader offers its lease to others."""
    asyncio.run(listed(stack.registries, TOPIC))
    try:
        return [bytes(message.body) for message in asyncio.run(messages_of(stack.registries, TOPIC))]
    except TransportError:
        return []


async def put(stack: ReplicaStack, timeout_s: float) -> None:
    async with Table("few-rows", stack.registries, timeout_s=timeout_s) as table:
        await table.put("n", b"1")


async def create_table(stack: ReplicaStack) -> None:
    async with Table("few-rows", stack.registries, timeout_s=60.0) as table:
        await table.create()


def refused(call: Coroutine[Any, Any, None]) -> str:
    """Why something could not be stored."""
    with pytest.raises(HoldMQError) as caught:
        asyncio.run(call)
    return str(caught.value)


def test_without_enough_replicas_writes_are_refused_by_name_and_go_on_with_the_next_copy(
    shard: ReplicaStack,
) -> None:
    asyncio.run(send(shard, b"before", 60.0))
    asyncio.run(create_table(shard))
    device = MqttClient(shard.first.mqtt_port, "device", clean=True)
    leader = shard.leader()
    epoch = shard.status(leader).epoch  # type: ignore[union-attr]
    copies = [name for name in shard.names if name != leader]
    for name in copies:
        shard.kill(name)
    stack = shard.stacks[leader]
    wait_until(lambda: "records are refused" in stack.log("broker"), "the leader refuses", 10 * LAG_S)

    wait_until(lambda: NAMED in refused(send(shard, b"refused", SHORT_S)), "a producer is told", 10 * LAG_S)
    wait_until(lambda: NAMED in refused(put(shard, SHORT_S)), "a table is told", 10 * LAG_S)
    device.send(Publish(f"{TOPIC}/1", b"published", 1, packet_id=1))
    # Longer than it takes to offer the lead to somebody who may be reached by others.
    until = time.monotonic() + 6 * LAG_S
    while time.monotonic() < until:
        refused(send(shard, b"refused", SHORT_S))
        wait_until(lambda: bodies(shard) == [b"before"], "what there is can be read", 4 * LAG_S)
    assert stack.metric("broker", "holdmq_replication_refused_total") > 0
    status = shard.status(leader)
    assert status is not None
    assert (status.is_serving, status.epoch) == (True, epoch)

    shard.start_again(copies[0])
    asyncio.run(send(shard, b"after", 60.0))
    assert device.wait_for(PubAck).reason_code == 0
    asyncio.run(put(shard, 60.0))
    assert sorted(bodies(shard)) == [b"after", b"before", b"published"]
    shard.start_again(copies[1])
    shard.wait_in_sync()
    assert sorted(bodies(shard)) == [b"after", b"before", b"published"]
