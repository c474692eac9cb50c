"""``holdmq session`` against real processes with MQTT clients."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from command_line import Cli, process_runner, runner
from mqtt_client import MqttClient
from processes import Stack, running_stack, wait_until

from holdmq.mqtt import Disconnect


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(autouse=True)
def _ended_clients() -> Iterator[None]:
    yield
    MqttClient.close_all()


def test_sessions_are_listed_connected_or_not(stack: Stack) -> None:
    cli = runner(stack)
    MqttClient(stack.mqtt_port, "list-here")
    MqttClient(stack.mqtt_port, "list-away").disconnect()
    MqttClient(stack.mqtt_port, "list-clean", clean=True, expiry_s=0)
    wait_until(lambda: len(listed(cli, "--offline")) == 1, "the end is known")
    assert [(row["client_id"], bool(row["owner"]), row["is_stored"]) for row in listed(cli)] == [
        ("list-away", False, True),
        ("list-clean", True, False),
        ("list-here", True, True),
    ]
    shown = process_runner(stack)("session", "list", "--prefix", "list-", "--count", "2")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "list-away" in shown.stdout
    assert "list-here" not in shown.stdout


def test_a_client_id_is_shown_and_does_nothing(stack: Stack) -> None:
    MqttClient(stack.mqtt_port, "odd-[red]\u202ex")
    for arguments in (("list", "--prefix", "odd-"), ("show", "odd-[red]\u202ex")):
        shown = runner(stack)("session", *arguments)
        assert shown.returncode == 0, shown.stderr
        assert "odd-[red]\\u202ex" in shown.stdout
        assert "\u202e" not in shown.stdout


def listed(cli: Cli, *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(
        cli("session", "list", "--prefix", "list-", "--json", *arguments).stdout
    )
    return found


def test_a_session_is_shown_with_what_it_has(stack: Stack) -> None:
    cli = runner(stack)
    client = MqttClient(stack.mqtt_port, "shown")
    client.subscribe("a/+", "b", qos=2)
    client.publish("b", b"x", qos=1)
    client.message()
    client.close()

    def planned() -> list[dict[str, object]]:
        shown = json.loads(cli("session", "show", "shown", "--json").stdout)
        return list(shown["planned"])

    wait_until(lambda: len(planned()) == 1, "the end is written")
    assert planned()[0]["broker"] == "broker-0"
    text = cli("session", "show", "shown").stdout
    assert "subscribes to a/+ with QoS 2" in text
    assert "1 deliveries under way" in text
    missing = cli("session", "show", "nobody")
    assert (missing.returncode, missing.stderr) == (1, "nobody has no session\n")


def test_a_dropped_session_is_disconnected_and_gone(stack: Stack) -> None:
    cli = runner(stack)
    client = MqttClient(stack.mqtt_port, "dropped")
    client.subscribe("a")
    assert cli("session", "drop", "dropped", "--yes").stdout == "dropped is gone\n"
    assert client.wait_for(Disconnect).reason_code == 0x98
    assert cli("session", "drop", "dropped", "--yes").stdout == "dropped had no session\n"
    assert not MqttClient(stack.mqtt_port, "dropped").connack.session_present


def test_a_kicked_client_is_disconnected_and_finds_its_session_again(stack: Stack) -> None:
    cli = runner(stack)
    client = MqttClient(stack.mqtt_port, "kicked")
    client.subscribe("a")
    assert cli("session", "kick", "kicked").stdout == "kicked is disconnected, its session stays\n"
    assert client.wait_for(Disconnect).reason_code == 0x98

    def is_away() -> bool:
        return cli("session", "kick", "kicked").returncode == 1

    wait_until(is_away, "its gateway wrote its last")
    again = cli("session", "kick", "kicked", "--json")
    assert (again.returncode, again.stdout) == (1, '{"kicked": null}\n')
    assert MqttClient(stack.mqtt_port, "kicked").connack.session_present
