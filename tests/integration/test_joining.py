"""A broker joins a cluster that runs: nothing is taken away from whoever has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Cli, runner
from mqtt_client import MqttClient, connect_again
from processes import Stack, wait_until
from two_brokers import Cluster, third_broker, two_brokers

from holdmq.client import Admin, Table
from holdmq.mqtt import PubAck, Publish
from holdmq.wire.session_headers import SESSION_TOPIC

BROKERS = ("broker-0", "broker-1", "broker-2")
SESSIONS = 12
RETAINED = 10
ROWS = 20


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[Cluster]:
    for cluster in two_brokers(tmp_path, **{"gateway.workers": 1}):
        cluster.first.start("gateway")
        yield cluster


@pytest.fixture
def third(cluster: Cluster, tmp_path: Any) -> Iterator[Stack]:
    yield from third_broker(cluster, tmp_path)


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return runner(cluster.first)


async def brokers_of(registries: list[str], topic: str) -> set[str]:
    """The brokers whose queues of a topic its route shows to producers."""
    async with Admin(registries) as admin:
        route = await admin.routes.topic(topic)
        return set() if route is None else {queue.broker for queue in route.write_queues}


def connect(cluster: Cluster, number: int) -> MqttClient:
    return MqttClient(cluster.first.mqtt_port, f"device-{number}")


async def test_a_broker_that_joins_takes_no_session_no_retained_message_and_no_row(
    cluster: Cluster, third: Stack, cli: Cli
) -> None:
    assert await brokers_of(cluster.registries, SESSION_TOPIC) == {"broker-0", "broker-1"}, "founded by both"
    for number in range(SESSIONS):
        client = connect(cluster, number)
        client.subscribe(f"to/{number}")
        if number < RETAINED:
            client.send(Publish(f"state/{number}", b"on", 1, retain=True, packet_id=1))
            client.wait_for(PubAck)
        client.close()
    async with Table("prices", cluster.registries) as table:
        await table.create(2)
        for number in range(ROWS):
            await table.put(f"k{number}", b"v")

    third.start("broker")
    for _ in range(2):
        async with Table("prices", cluster.registries) as table:
            await table.create(2)
            assert await table.brokers() == ["broker-0", "broker-1"], "no key has moved"
            found = await table.get_many([f"k{number}" for number in range(ROWS)])
            assert [entry and entry.value for entry in found] == [b"v"] * ROWS
        async with Admin(cluster.registries) as admin:
            assert set(await admin.create_topic("prices", 2, kind="table", order=True)) == {
                "broker-0",
                "broker-1",
            }
        for number in range(SESSIONS):
            client = connect(cluster, number)
            assert client.connack.session_present, number
            client.close()
        reader = MqttClient(cluster.first.mqtt_port, "reader", clean=True, expiry_s=0)
        reader.subscribe("state/+")
        shown = {reader.wait_for(Publish).topic for _ in range(RETAINED)}
        assert shown == {f"state/{number}" for number in range(RETAINED)}
        reader.close()
        listed = json.loads((await asyncio.to_thread(cli, "session", "list", "--json")).stdout)
        assert len(listed) == SESSIONS
        assert (
            len(json.loads((await asyncio.to_thread(cli, "retained", "list", "--json")).stdout)) == RETAINED
        )
        assert third.metric("broker", "holdmq_broker_is_keeper") == 0
        third.restart("broker")
    assert (await asyncio.to_thread(cli, "retained", "drop", "state/1", "--yes")).returncode == 0
    assert (await asyncio.to_thread(cli, "session", "drop", "device-1", "--yes")).returncode == 0
    assert "keeps no sessions and retained messages" in third.log("broker")


async def test_a_newcomer_alone_at_a_registry_that_forgot_all_waits_for_the_keepers(
    cluster: Cluster, third: Stack
) -> None:
    connect(cluster, 1).close()
    third.start("broker")
    for stack in (third, cluster.second, cluster.first):
        stack.stop("broker")
    cluster.first.stop("registry")
    for file in (cluster.first.directory / "registry").iterdir():
        file.unlink()
    cluster.first.start("registry")
    third.start("broker")
    assert await brokers_of(cluster.registries, SESSION_TOPIC) == set()
    for stack in (cluster.first, cluster.second):
        stack.start("broker")
    wait_until(lambda: "keeps no sessions" in third.log("broker").rpartition("broker serves")[2], "decided")
    assert await brokers_of(cluster.registries, SESSION_TOPIC) == {"broker-0", "broker-1"}
    await asyncio.to_thread(connect_again, cluster.first.mqtt_port, "device-1")
