"""``holdmq retained`` against real processes with an MQTT client."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from command_line import Cli, runner
from mqtt_client import MqttClient
from processes import Stack, running_stack

from holdmq.mqtt import Properties, PubAck, Publish


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), **{"gateway.workers": 1}) as stack:
        client = MqttClient(stack.mqtt_port, "pub", clean=True, expiry_s=0)
        expiring = Properties(message_expiry_interval=3600)
        client.send(
            *[Publish(f"d/{n}/s", b"state %d" % n, 1, retain=True, packet_id=n + 1) for n in range(5)],
            Publish("d/raw", b"\xff\x00", 1, retain=True, packet_id=9, properties=expiring),
        )
        for _ in range(6):
            client.wait_for(PubAck)
        yield stack
        MqttClient.close_all()


@pytest.fixture
def cli(stack: Stack) -> Cli:
    return runner(stack)


def test_topics_are_listed_by_filter(cli: Cli) -> None:
    found = json.loads(cli("retained", "list", "d/+/s", "--json").stdout)
    assert [(row["topic"], row["payload_bytes"], row["qos"]) for row in found] == [
        (f"d/{n}/s", 7, 1) for n in range(5)
    ]
    assert len(json.loads(cli("retained", "list", "--count", "2", "--json").stdout)) == 2
    shown = cli("retained", "list").stdout
    assert "d/raw" in shown
    assert "pub" in shown


def test_a_message_is_shown_as_it_is(cli: Cli) -> None:
    assert cli("retained", "show", "d/1/s").stdout == "state 1\n"
    found = json.loads(cli("retained", "show", "d/raw", "--json").stdout)
    assert (found["payload_base64"], found["client_id"]) == ("/wA=", "pub")
    assert found["expires_ms"] - found["published_ms"] == 3_600_000
    missing = cli("retained", "show", "nothing")
    assert (missing.returncode, missing.stderr) == (1, "nothing has no retained message\n")


def test_a_message_is_dropped_once(cli: Cli, stack: Stack) -> None:
    refused = cli("retained", "drop", "d/4/s", "--json", stdin="n\n")
    assert (refused.returncode, refused.stdout.strip()) == (1, "")
    assert "d/4/s away for good?" in refused.stderr
    assert json.loads(cli("retained", "drop", "d/4/s", "--yes", "--json").stdout) == {"dropped": "d/4/s"}
    assert cli("retained", "drop", "d/4/s", "--yes").stdout == "d/4/s had no retained message\n"
    client = MqttClient(stack.mqtt_port, "sub", clean=True, expiry_s=0)
    client.subscribe("d/4/s")
    assert client.is_silent()


def test_a_filter_that_is_none_is_refused(cli: Cli) -> None:
    refused = cli("retained", "list", "a/#/b")
    assert refused.returncode != 0
    assert "# before its last level" in refused.stderr
