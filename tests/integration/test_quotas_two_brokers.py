"""Quotas of a cluster of two brokers: each has them and grants its part, and one that was away is named."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from access_files import password_file
from command_line import Cli, runner
from mqtt_client import MqttClient
from processes import wait_until
from two_brokers import Cluster, two_brokers

from holdmq.client import Message, Producer

RATE = 400
SECONDS = 6.0
QUOTA_EXCEEDED = 0x97


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("quotas")
    users = password_file(directory / "users", ada="x")
    settings = {"access.password_file": users, "broker.register_interval_s": 1, "gateway.workers": 2}
    for cluster in two_brokers(directory, **settings):
        cluster.first.start("gateway")
        yield cluster


@pytest.fixture(scope="module")
def cli(cluster: Cluster) -> Cli:
    return runner(cluster.first)


def shared_by_two(cluster: Cluster) -> None:
    both = (cluster.first, cluster.second)
    parts = "holdmq_broker_quota_parts"
    wait_until(lambda: all(stack.metric("broker", parts) == 2 for stack in both), "both know", 20.0)


def view(cli: Cli, whose: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli("quota", "show", whose, "--json").stdout)
    return found


async def stored(cluster: Cluster) -> int:
    """How many messages to a tenant's topic are stored in SECONDS, by 50 who send as fast as they can."""
    count = 0
    async with Producer(cluster.registries) as producer:
        end = time.monotonic() + SECONDS

        async def one() -> None:
            nonlocal count
            while time.monotonic() < end:
                await producer.send(Message("acme%load", b"x"), timeout_s=20.0)
                count += 1

        await asyncio.gather(*(one() for _ in range(50)))
    return count


def test_two_brokers_together_grant_the_rate_of_a_tenant(cluster: Cluster, cli: Cli) -> None:
    shared_by_two(cluster)
    assert cli("topic", "create", "acme%load").returncode == 0
    assert cli("quota", "set", "tenant:acme", "--publish-rate", str(RATE)).returncode == 0
    count = asyncio.run(stored(cluster))
    # With the burst of a second, and what each broker lent last.
    assert RATE * SECONDS * 0.6 <= count <= RATE * (SECONDS + 2.5), count
    assert cli("quota", "remove", "tenant:acme").returncode == 0


def test_a_user_has_its_connections_at_both_brokers_together(cluster: Cluster, cli: Cli, topic: str) -> None:
    shared_by_two(cluster)
    assert cli("quota", "set", "user:ada", "--connections", "20").returncode == 0
    codes = []
    clients = []
    for n in range(60):
        client = MqttClient(
            cluster.first.mqtt_port, f"{topic}-{n}", clean=True, expiry_s=0, username="ada", password=b"x"
        )
        clients.append(client)
        codes.append(client.connack.reason_code)
    assert set(codes) == {0, QUOTA_EXCEEDED}
    assert codes.count(0) == 20
    assert view(cli, "user:ada")["used"]["connections"] == 20
    for client in clients:
        client.close()
    assert cli("quota", "remove", "user:ada").returncode == 0


def test_a_broker_that_was_away_is_named_until_the_quota_is_set_again(cluster: Cluster, cli: Cli) -> None:
    assert cli("quota", "set", "user:eve", "--connections", "1").returncode == 0
    cluster.second.stop("broker", signal.SIGKILL)
    gone = "holdmq_broker_quota_parts"
    wait_until(lambda: cluster.first.metric("broker", gone) == 1, "the other one is alone", 60.0)
    assert cli("quota", "set", "user:eve", "--connections", "2").returncode == 0
    cluster.second.start("broker")
    shared_by_two(cluster)
    wait_until(lambda: view(cli, "user:eve")["lacking"] == ["broker-1"], "it is named", 20.0)
    assert view(cli, "user:eve")["quota"]["connections"] == 2
    assert "broker-1 has another quota, or none" in cli("quota", "list").stderr
    assert cli("quota", "set", "user:eve", "--connections", "2").returncode == 0
    assert view(cli, "user:eve")["lacking"] == []
    assert cli("quota", "remove", "user:eve").returncode == 0
