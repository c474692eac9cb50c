"""Bans and clients of a gateway with two brokers: each client is told once, and a broker may be away."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from command_line import Cli, runner
from mqtt_client import MqttClient
from processes import wait_until
from two_brokers import Cluster, two_brokers

from holdmq.wire.session_headers import session_owner

BROKERS = ("broker-0", "broker-1")
BANNED = 0x8A


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    for cluster in two_brokers(tmp_path_factory.mktemp("two"), **{"gateway.workers": 2}):
        cluster.first.start("gateway")
        yield cluster


@pytest.fixture(scope="module")
def cli(cluster: Cluster) -> Cli:
    return runner(cluster.first)


def code_of(cluster: Cluster, client_id: str) -> int:
    client = MqttClient(cluster.first.mqtt_port, client_id, clean=True, expiry_s=0)
    client.close()
    return client.connack.reason_code


def test_workers_with_two_brokers_tell_their_clients_once(cluster: Cluster, cli: Cli, topic: str) -> None:
    clients = [MqttClient(cluster.first.mqtt_port, f"{topic}-{n}", clean=True, expiry_s=0) for n in range(10)]
    for _ in range(2):
        rows = json.loads(cli("client", "list", "--client", f"{topic}-", "--json").stdout)
        assert [row["client_id"] for row in rows] == [f"{topic}-{n}" for n in range(10)]
    kicked = json.loads(cli("client", "kick", "--client", f"{topic}-", "--yes", "--json").stdout)
    assert kicked == {"kicked": 10, "silent": []}
    for client in clients:
        client.close()


def test_a_ban_is_made_and_holds_while_the_broker_that_would_keep_it_is_away(
    cluster: Cluster, cli: Cli, topic: str
) -> None:
    owner = session_owner(f"{topic}-new", BROKERS)
    stack = cluster.stack_of(owner)
    before = next(f"{topic}-{n}" for n in range(100) if session_owner(f"{topic}-{n}", BROKERS) == owner)
    assert cli("ban", "add", "--client", before).returncode == 0
    wait_until(lambda: code_of(cluster, before) == BANNED, "it holds")
    stack.stop("broker", signal.SIGKILL)
    try:
        made = cli("ban", "add", "--client", f"{topic}-new", "--json")
        assert made.returncode == 0, made.stderr
        wait_until(lambda: code_of(cluster, f"{topic}-new") == BANNED, "the new one holds, too")
        assert code_of(cluster, before) == BANNED
    finally:
        stack.start("broker")
    found = {row["value"] for row in json.loads(cli("ban", "list", "--json").stdout)}
    assert found == {before, f"{topic}-new"}
    for value in sorted(found):
        assert cli("ban", "remove", "--client", value).returncode == 0
        wait_until(lambda value=value: code_of(cluster, value) == 0, "it is lifted at both")  # type: ignore[misc]
    assert json.loads(cli("ban", "list", "--json").stdout) == []
