"""Bans over real processes: everywhere within a moment, for who is connected too, and after any restart."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from access_files import password_file
from command_line import Cli, runner
from mqtt_client import MqttClient
from processes import Stack, running_stack, wait_until

from holdmq.mqtt import MQTT_3_1_1, Disconnect

BANNED = 0x8A
NOT_AUTHORIZED = 0x87
"""What return code 5 of MQTT 3 is decoded as."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("bans")
    settings = {
        "gateway.workers": 2,
        "gateway.flapping_connects_max": 30,
        "gateway.allow_anonymous": True,
        "access.password_file": password_file(directory / "users", ada="x", eve="y"),
        "broker.bans_max": 20,
    }
    with running_stack(directory, **settings) as stack:
        yield stack


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    return runner(stack)


def connect(stack: Stack, client_id: str, **options: Any) -> MqttClient:
    return MqttClient(stack.mqtt_port, client_id, clean=True, expiry_s=0, **options)


def code_of(stack: Stack, client_id: str, **options: Any) -> int:
    client = connect(stack, client_id, **options)
    client.close()
    return client.connack.reason_code


def ban(cli: Cli, *words: str) -> dict[str, Any]:
    done = cli("ban", "add", *words, "--json")
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def bans(cli: Cli) -> dict[str, dict[str, Any]]:
    return {row["value"]: row for row in json.loads(cli("ban", "list", "--json").stdout)}


def followed(stack: Stack, count: int) -> None:
    wait_until(lambda: stack.metric("gateway", "holdmq_gateway_fleet_bans") == count, f"{count} bans", 5.0)


def test_a_banned_client_is_disconnected_and_refused_by_every_worker_until_the_ban_is_lifted(
    stack: Stack, cli: Cli, topic: str
) -> None:
    mine, other = f"{topic}-mine", f"{topic}-other"
    there = connect(stack, mine)
    stays = connect(stack, other)
    made = ban(cli, "--client", mine, "--reason", "stolen")
    assert (made["kind"], made["value"], made["reason"], made["until_ms"]) == ("client_id", mine, "stolen", 0)
    assert made["by"]
    told = there.next()
    assert isinstance(told, Disconnect)
    assert told.reason_code == 0x98
    assert [code_of(stack, mine) for _ in range(8)] == [BANNED] * 8
    assert code_of(stack, mine, version=MQTT_3_1_1) == NOT_AUTHORIZED
    stays.publish(f"{topic}/x", b"still here")
    assert bans(cli)[mine]["reason"] == "stolen"
    assert cli("ban", "remove", "--client", mine).returncode == 0
    followed(stack, 0)
    assert code_of(stack, mine) == 0
    assert cli("ban", "remove", "--client", mine).returncode == 1


def test_clients_are_banned_by_pattern_and_by_network(stack: Stack, cli: Cli, topic: str) -> None:
    ban(cli, "--pattern", f"{topic}-?x*")
    assert code_of(stack, f"{topic}-1x2") == BANNED
    assert code_of(stack, f"{topic}-12x") == 0
    assert ban(cli, "--address", "127.0.0.1/8")["value"] == "127.0.0.0/8"
    assert code_of(stack, f"{topic}-12x") == BANNED
    assert cli("ban", "remove", "--address", "127.5.5.5/8").returncode == 0
    followed(stack, 1)
    assert code_of(stack, f"{topic}-12x") == 0
    assert cli("ban", "remove", "--pattern", f"{topic}-?x*").returncode == 0
    followed(stack, 0)
    wrong = cli("ban", "add", "--address", "300.0.0.1")
    assert wrong.returncode != 0
    assert "no address and no network" in wrong.stderr
    assert cli("ban", "add", "--client", "a", "--user", "b").returncode == 2
    assert cli("ban", "add", "--client", "a", "--for", "2030-01-01T00:00").returncode == 2


def test_a_user_is_banned_whatever_client_id_it_takes_and_nobody_else_is(
    stack: Stack, cli: Cli, topic: str
) -> None:
    eve = {"username": "eve", "password": b"y"}
    there = connect(stack, f"{topic}-1", **eve)
    ban(cli, "--user", "eve")
    told = there.next()
    assert isinstance(told, Disconnect)
    assert code_of(stack, f"{topic}-2", **eve) == BANNED
    assert code_of(stack, f"{topic}-2", username="eve", password=b"wrong") != BANNED
    assert code_of(stack, f"{topic}-2", username="ada", password=b"x") == 0
    assert code_of(stack, "eve") == 0
    assert cli("ban", "remove", "--user", "eve").returncode == 0
    followed(stack, 0)
    assert code_of(stack, f"{topic}-2", **eve) == 0


def test_a_ban_ends_by_itself(stack: Stack, cli: Cli, topic: str) -> None:
    made = ban(cli, "--client", topic, "--for", "2s")
    assert 0 < made["until_ms"] - time.time() * 1000 <= 2000
    assert code_of(stack, topic) == BANNED
    wait_until(lambda: code_of(stack, topic) == 0, "it is let in", 10.0)
    assert topic not in bans(cli)


def test_a_ban_survives_the_broker_and_the_gateway(stack: Stack, cli: Cli, topic: str) -> None:
    ban(cli, "--client", topic)
    followed(stack, 1)
    stack.stop("broker", signal.SIGKILL)
    assert code_of(stack, topic) == BANNED
    stack.start("broker")
    stack.restart("gateway")
    assert code_of(stack, topic) == BANNED
    assert topic in bans(cli)
    assert cli("ban", "remove", "--client", topic).returncode == 0
    followed(stack, 0)


def test_bans_are_bounded_and_say_by_what(stack: Stack, cli: Cli, topic: str) -> None:
    for n in range(20):
        ban(cli, "--client", f"{topic}-{n}")
    refused = cli("ban", "add", "--client", f"{topic}-more")
    assert refused.returncode == 1
    assert "broker.bans_max (20)" in refused.stderr
    ban(cli, "--client", f"{topic}-3", "--reason", "again")
    assert bans(cli)[f"{topic}-3"]["reason"] == "again"
    assert stack.metric("broker", "holdmq_broker_bans_refused_total") == 1
    for n in range(20):
        assert cli("ban", "remove", "--client", f"{topic}-{n}").returncode == 0
    followed(stack, 0)


def test_bans_that_a_gateway_has_made_are_listed_with_where_they_are(
    stack: Stack, cli: Cli, topic: str
) -> None:
    for _ in range(200):
        if code_of(stack, topic) == BANNED:
            break
    row = bans(cli)[topic]
    assert (row["kind"], row["address"]) == ("flapping", "127.0.0.1")
    assert row["by"] == f"gateway {row['gateway']}"
    admin = f"127.0.0.1:{stack.admin_ports['gateway']}"
    assert cli("ban", "clear", topic, "--admin", admin).returncode == 0
    assert topic not in bans(cli)
