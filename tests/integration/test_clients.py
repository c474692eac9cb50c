"""Connected clients over real processes: found whichever worker they are at, shown, sorted, disconnected."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Cli, runner
from mqtt_client import MqttClient
from processes import Stack, running_stack, wait_until

from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Disconnect

CLIENTS = 40


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("clients"), **{"gateway.workers": 3}) as stack:
        yield stack


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    return runner(stack)


def listed(cli: Cli, *words: str) -> list[dict[str, Any]]:
    done = cli("client", "list", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["client_id"] for row in rows]


@pytest.fixture
def fleet(stack: Stack, topic: str) -> Iterator[dict[str, MqttClient]]:
    """Clean sessions over all workers, every other one of MQTT 3.1.1; the first begins and ends a minute."""
    clients = {}
    for n in range(CLIENTS):
        name = f"{topic}-{n:02}"
        version = MQTT_5 if n % 2 else MQTT_3_1_1
        clients[name] = MqttClient(stack.mqtt_port, name, clean=True, expiry_s=0, version=version)
    yield clients
    for client in clients.values():
        client.close()


def test_clean_sessions_of_all_workers_are_listed_once_and_in_order(
    cli: Cli, fleet: dict[str, MqttClient], topic: str
) -> None:
    rows = listed(cli, "--client", f"{topic}-")
    assert names(rows) == sorted(fleet)
    assert {row["worker"] for row in rows} == {0, 1, 2}
    one = rows[1]
    assert (
        one["protocol"],
        one["address"],
        one["clean_start"] if "clean_start" in one else one["is_clean"],
    ) == (
        "5",
        "127.0.0.1",
        True,
    )
    assert abs(one["connected_ms"] - time.time() * 1000) < 60_000
    assert (
        names(listed(cli, "--client", f"{topic}-", "--sort=-client_id", "--count", "3"))
        == sorted(fleet)[:-4:-1]
    )


def test_a_client_that_left_is_in_no_list(cli: Cli, fleet: dict[str, MqttClient], topic: str) -> None:
    fleet[f"{topic}-07"].disconnect()
    wait_until(lambda: f"{topic}-07" not in names(listed(cli, "--client", f"{topic}-")), "it is gone")
    assert len(listed(cli, "--client", f"{topic}-")) == CLIENTS - 1
    assert cli("client", "show", f"{topic}-07").returncode == 1


def test_clients_are_found_by_what_is_known_of_them(
    cli: Cli, fleet: dict[str, MqttClient], topic: str
) -> None:
    assert len(listed(cli, "--client", f"{topic}-1")) == 10
    assert names(listed(cli, "--client", f"{topic}-?5")) == [f"{topic}-{n}5" for n in range(4)]
    assert names(listed(cli, "--client", f"{topic}-*5")) == [f"{topic}-{n}5" for n in range(4)]
    mine = ("--client", f"{topic}-")
    assert len(listed(cli, *mine, "--protocol", "3.1.1")) == CLIENTS // 2
    assert len(listed(cli, *mine, "--address", "127.0.0.0/8")) == CLIENTS
    assert listed(cli, *mine, "--address", "10.0.0.0/8") == []
    assert listed(cli, *mine, "--user", "somebody") == []
    assert listed(cli, *mine, "--gateway", "elsewhere") == []
    assert len(listed(cli, *mine, "--since", "1h")) == CLIENTS
    assert listed(cli, *mine, "--until", "1h") == []
    wrong = cli("client", "list", "--address", "300.1.1.1")
    assert wrong.returncode != 0
    assert "no address and no network" in wrong.stderr


def test_a_client_is_shown_with_its_subscriptions_and_its_messages(
    stack: Stack, cli: Cli, topic: str
) -> None:
    subscriber = MqttClient(stack.mqtt_port, f"{topic}-s", clean=True, expiry_s=0)
    subscriber.subscribe(f"{topic}/#")
    publisher = MqttClient(stack.mqtt_port, f"{topic}-p", clean=True, expiry_s=0)
    publisher.publish(f"{topic}/a", *[b"x"] * 5)
    subscriber.take(5)
    shown = json.loads(cli("client", "show", f"{topic}-s", "--json").stdout)
    assert shown["filters"] == [[f"{topic}/#", 1]]
    assert (shown["subscriptions"], shown["messages_out"], shown["messages_in"]) == (1, 5, 0)
    assert shown["bytes_in"] > 0
    assert shown["rates"] == {"messages_in": 0.0, "messages_out": 0.0, "bytes_in": 0.0, "bytes_out": 0.0}
    sent = json.loads(cli("client", "show", f"{topic}-p", "--json").stdout)
    assert (sent["messages_in"], sent["in_flight_in"]) == (5, 0)
    assert "subscribes to" in cli("client", "show", f"{topic}-s").stdout
    assert names(listed(cli, "--client", f"{topic}-", "--sort=-messages_out"))[0] == f"{topic}-s"
    subscriber.close()
    publisher.close()


def test_many_are_disconnected_at_once_after_a_look_at_how_many_they_are(
    cli: Cli, fleet: dict[str, MqttClient], topic: str
) -> None:
    mine = ("--client", f"{topic}-1*")
    assert json.loads(cli("client", "kick", *mine, "--dry-run", "--json").stdout)["would_kick"] == 10
    assert len(listed(cli, "--client", f"{topic}-")) == CLIENTS
    assert json.loads(cli("client", "kick", *mine, "--yes", "--json").stdout)["kicked"] == 10
    told = fleet[f"{topic}-11"].next()
    assert isinstance(told, Disconnect)
    assert told.reason_code == 0x98
    wait_until(lambda: len(listed(cli, "--client", f"{topic}-")) == CLIENTS - 10, "they are gone")
    assert json.loads(cli("client", "kick", f"{topic}-20", "--json").stdout)["kicked"] == 1
    assert cli("client", "kick", f"{topic}-20", "--json").returncode == 1
    assert cli("client", "kick", "--yes").returncode == 2


def test_the_busiest_users_and_clients_are_told_with_those_that_left(
    cli: Cli, stack: Stack, topic: str
) -> None:
    heavy = MqttClient(stack.mqtt_port, f"{topic}-heavy", clean=True, expiry_s=0)
    light = MqttClient(stack.mqtt_port, f"{topic}-light", clean=True, expiry_s=0)
    gone = MqttClient(stack.mqtt_port, f"{topic}-gone", clean=True, expiry_s=0)
    heavy.publish(f"{topic}/x", *[bytes(500)] * 400)
    light.publish(f"{topic}/x", b"1")
    gone.publish(f"{topic}/x", *[bytes(500)] * 300)
    gone.disconnect()

    def busiest(*words: str) -> dict[str, dict[str, Any]]:
        done = cli("client", "busiest", "--json", "--count", "1000", *words)
        assert done.returncode == 0, done.stderr
        return {
            row["name"]: row for row in json.loads(done.stdout) if not row["name"] or topic in row["name"]
        }

    wait_until(lambda: f"{topic}-gone" in busiest("--by", "client"), "those that left are counted")
    by_client = busiest("--by", "client")
    assert list(by_client) == [f"{topic}-heavy", f"{topic}-gone", f"{topic}-light"]
    assert [row["messages_in"] for row in by_client.values()] == [400, 300, 1]
    assert 300 * 500 < by_client[f"{topic}-gone"]["bytes_in"] < 300 * 600
    # Nobody is asked for a password here: all are one user, the one without a name.
    nobody = busiest("--by", "user", "--sort", "bytes_in")[""]
    assert nobody["messages_in"] >= 701
    assert nobody["connections"] >= 3
    done = cli("client", "busiest", "--by", "address")
    assert done.returncode != 0
    assert "user, client are counted, not 'address'" in done.stderr
    heavy.disconnect()
    light.disconnect()
