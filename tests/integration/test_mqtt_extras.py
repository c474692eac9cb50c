"""What this gateway offers beyond plain MQTT, over two gateways of one installation: delayed publishes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from mqtt_client import MqttClient
from processes import Stack, end_all

from holdmq.mqtt import MQTT_3_1_1, Publish

SHORT_S = 1
"""The shortest delay that is one."""


class Gateways(NamedTuple):
    """The installation, and the ports of its two gateways."""

    stack: Stack
    port: int
    other_port: int


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    directory = tmp_path_factory.mktemp("extras")
    stack = Stack(directory, {"gateway.workers": 1})
    (directory / "other").mkdir()
    other = Stack(directory / "other", {"registry.port": stack.registry_port, "gateway.workers": 1})
    for name in ("registry", "broker", "gateway"):
        stack.start(name, wait=False)
    other.start("gateway", wait=False)
    for name in ("registry", "broker", "gateway"):
        stack.wait_ready(name)
    other.wait_ready("gateway")
    yield Gateways(stack, stack.mqtt_port, other.mqtt_port)
    end_all([other, stack])


@pytest.fixture(autouse=True)
def _ended_clients() -> Iterator[None]:
    yield
    MqttClient.close_all()


def bodies(messages: list[Publish]) -> list[bytes]:
    return [bytes(message.payload) for message in messages]


# $delayed


def test_a_delayed_publish_comes_at_its_time_and_not_before(gateways: Gateways) -> None:
    subscriber = MqttClient(gateways.other_port, "waits", clean=True, expiry_s=0)
    subscriber.subscribe("delayed/#", qos=2)
    publisher = MqttClient(gateways.port, "late", clean=True, expiry_s=0)
    began = time.monotonic()
    for qos in (0, 1, 2):
        publisher.publish(f"$delayed/{SHORT_S}/delayed/{qos}", b"later", qos=qos)
    publisher.publish("delayed/now", b"now")
    publisher.publish("$delayed/0/delayed/none", b"no delay")
    first = subscriber.take(2)
    assert {message.topic for message in first} == {"delayed/now", "delayed/none"}
    later = subscriber.take(3)
    assert time.monotonic() - began >= SHORT_S - 0.1
    assert sorted((message.topic, message.qos) for message in later) == [
        (f"delayed/{qos}", qos) for qos in (0, 1, 2)
    ]


def test_it_survives_a_broker_that_is_killed_and_comes_to_who_was_away(gateways: Gateways) -> None:
    subscriber = MqttClient(gateways.port, "away", version=MQTT_3_1_1)
    subscriber.subscribe("delayed/kept")
    subscriber.close()
    publisher = MqttClient(gateways.port, "before", version=MQTT_3_1_1, clean=True)
    publisher.publish(f"$delayed/{SHORT_S}/delayed/kept", b"once")
    gateways.stack.restart("broker", signal.SIGKILL)
    for name in ("gateway",):
        gateways.stack.wait_ready(name)
    deadline = time.monotonic() + 30
    subscriber = MqttClient(gateways.port, "away", version=MQTT_3_1_1)
    while subscriber.connack.reason_code:
        assert time.monotonic() < deadline
        subscriber = MqttClient(gateways.port, "away", version=MQTT_3_1_1)
    assert bodies(subscriber.take(1)) == [b"once"]
    assert subscriber.is_silent()
