"""What this gateway offers beyond plain MQTT, over two gateways of one installation."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from command_line import command
from mqtt_client import MqttClient, bodies, connect_again, numbered
from processes import Stack, end_all

from holdmq.mqtt import (
    MQTT_3_1_1,
    Properties,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)

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
    stack = Stack(
        directory,
        {
            "gateway.workers": 2,
            "access.sys_topics": "true",
            "gateway.sys_interval_s": 1,
            "gateway.response_prefix": "answers",
            "gateway.routes": '[{"filter": "routed/#", "topic": "mqtt-tree-routed"}]',
        },
    )
    (directory / "other").mkdir()
    other = Stack(directory / "other", {"registry.port": stack.registry_port, "gateway.workers": 1})
    stack.start_all()
    other.start("gateway")
    yield Gateways(stack, stack.mqtt_port, other.mqtt_port)
    end_all([other, stack])


# $delayed


def test_a_delayed_publish_comes_at_its_time_and_not_before(gateways: Gateways) -> None:
    subscriber = MqttClient(gateways.other_port, "waits", clean=True, expiry_s=0)
    subscriber.subscribe("delayed/#", qos=2)
    publisher = MqttClient(gateways.port, "late", clean=True, expiry_s=0)
    publisher.publish("$delayed/3600/delayed/hour", b"later")
    began = time.monotonic()
    for qos in (0, 1, 2):
        publisher.publish(f"$delayed/{SHORT_S}/delayed/{qos}", b"later", qos=qos)
    publisher.publish("delayed/now", b"now")
    publisher.publish("$delayed/0/delayed/none", b"no delay")
    came: dict[tuple[str, int], float] = {}
    for _ in range(5):
        (message,) = subscriber.take(1)
        came[message.topic, message.qos] = time.monotonic() - began
    delayed = {(f"delayed/{qos}", qos) for qos in (0, 1, 2)}
    assert came.keys() == delayed | {("delayed/now", 1), ("delayed/none", 1)}
    assert all(came[one] >= SHORT_S - 0.1 for one in delayed)


def test_it_survives_a_broker_that_is_killed_and_comes_to_who_was_away(gateways: Gateways) -> None:
    subscriber = MqttClient(gateways.port, "away", version=MQTT_3_1_1)
    subscriber.subscribe("delayed/kept")
    subscriber.close()
    publisher = MqttClient(gateways.port, "before", version=MQTT_3_1_1, clean=True)
    publisher.publish(f"$delayed/{SHORT_S}/delayed/kept", b"once")
    gateways.stack.restart("broker", signal.SIGKILL)
    gateways.stack.wait_ready("gateway")
    subscriber = connect_again(gateways.port, "away", version=MQTT_3_1_1)
    assert bodies(subscriber.take(1)) == [b"once"]
    assert subscriber.is_silent()


def test_a_delayed_message_of_qos_2_that_a_session_sends_again_is_released_once(
    gateways: Gateways,
) -> None:
    subscriber = MqttClient(gateways.other_port, "counts", clean=True, expiry_s=0)
    subscriber.subscribe("delayed/once", qos=2)
    publisher = MqttClient(gateways.port, "unsure")
    publish = Publish(f"$delayed/{SHORT_S}/delayed/once", b"once", 2, packet_id=7)
    publisher.send(publish)
    assert publisher.wait_for(PubRec).packet_id == 7
    publisher.close()  # as if PUBREC had not come
    publisher = connect_again(gateways.other_port, "unsure")
    publisher.send(replace(publish, dup=True))
    assert publisher.wait_for(PubRec).reason_code == 0
    publisher.send(PubRel(7))
    assert publisher.wait_for(PubComp).packet_id == 7
    assert bodies(subscriber.take(1)) == [b"once"]
    assert subscriber.is_silent(SHORT_S)


# Replay


def subscribe_from(client: MqttClient, start: str, *filters: str, qos: int = 1) -> SubAck:
    past = Properties(user_properties=(("from", start),))
    client.send(Subscribe(50_000, [Subscription(name, qos) for name in filters], past))
    return client.wait_for(SubAck)


def test_a_subscription_begins_at_a_time_in_the_past_at_any_gateway(gateways: Gateways) -> None:
    publisher = MqttClient(gateways.port, "historian", clean=True, expiry_s=0)
    publisher.publish("past/x", *numbered(50), qos=0)
    publisher.publish("past/x", b"50")
    time.sleep(0.01)  # a store time has milliseconds
    moment = datetime.now(UTC).isoformat()
    publisher.publish("past/x", *numbered(9, 51), qos=2)
    for start, first in (("earliest", 0), ("3600", 0), (moment, 51), ("0", 60)):
        subscriber = MqttClient(gateways.other_port, f"reads {start}", clean=True, expiry_s=0)
        assert subscribe_from(subscriber, start, "past/+").reason_codes == [1]
        assert bodies(subscriber.take(60 - first)) == numbered(60 - first, first)
        assert subscriber.is_silent(0.1)
        subscriber.disconnect()


def test_a_replay_survives_reconnects_and_disturbs_no_other_subscription(gateways: Gateways) -> None:
    publisher = MqttClient(gateways.port, "archive", clean=True, expiry_s=0)
    publisher.publish("history/x", *numbered(40), qos=2)
    subscriber = MqttClient(gateways.port, "reader", receive_max=6)
    subscriber.subscribe("news/#", qos=2)
    publisher.publish("news/1", b"news 1", qos=2)
    assert bodies(subscriber.take(1)) == [b"news 1"]
    assert subscribe_from(subscriber, "earliest", "history/#", qos=2).reason_codes == [2]
    got = bodies(subscriber.take(10))
    subscriber.close()  # in the middle, with others on their way
    publisher.publish("news/1", b"news 2", qos=2)
    while len(got) < 41:
        subscriber = MqttClient(gateways.other_port, "reader", receive_max=6)
        assert subscriber.connack.session_present
        before = len(got)
        got += bodies(subscriber.take(min(12, 41 - before)))
        if before < 30:
            subscriber.disconnect()
    assert got == [*numbered(40), b"news 2"]
    publisher.publish("history/x", b"40", qos=2)
    assert bodies(subscriber.take(1)) == [b"40"]
    assert subscriber.is_silent()


def test_what_a_suback_promised_is_replayed_though_the_worker_is_killed(gateways: Gateways) -> None:
    publisher = MqttClient(gateways.other_port, "chronicle", clean=True, expiry_s=0)
    publisher.publish("chronicle/x", *numbered(30))
    subscriber = MqttClient(gateways.port, "survivor", receive_max=1)
    subscriber.subscribe("news/2", qos=2)
    publisher.publish("news/2", b"news", qos=2)
    assert bodies(subscriber.take(1)) == [b"news"]
    subscriber.disconnect()  # its row says where it stands
    subscriber = MqttClient(gateways.port, "survivor", receive_max=1)
    subscribe_from(subscriber, "earliest", "chronicle/#")
    for worker in gateways.stack.workers():
        os.kill(worker, signal.SIGKILL)
    with contextlib.suppress(ConnectionError):
        while True:
            subscriber.next()
    subscriber = connect_again(gateways.port, "survivor")
    assert bodies(subscriber.take(30)) == numbered(30)
    assert subscriber.is_silent()


# $SYS


def test_a_client_sees_the_numbers_of_all_workers_of_its_gateway(gateways: Gateways) -> None:
    others = [MqttClient(gateways.port, f"counted {n}", clean=True, expiry_s=0) for n in range(20)]
    watcher = MqttClient(gateways.port, "watcher", clean=True, expiry_s=0)
    watcher.subscribe("$SYS/broker/clients/connected", "$SYS/gateway/workers")
    first = watcher.take(2)
    assert {message.topic: message.retain for message in first} == {
        "$SYS/broker/clients/connected": True,
        "$SYS/gateway/workers": True,
    }
    # What the workers reported last may be a second old, and count whom the test before has left behind.
    told = {message.topic: bytes(message.payload) for message in first}
    while told["$SYS/broker/clients/connected"] != b"%d" % (len(others) + 1):
        told |= {message.topic: bytes(message.payload) for message in watcher.take(1)}
    others.pop().disconnect()
    while told["$SYS/broker/clients/connected"] != b"%d" % (len(others) + 1):
        told |= {message.topic: bytes(message.payload) for message in watcher.take(1)}
    assert told["$SYS/gateway/workers"] == b"2"
    assert watcher.subscribe("$SYS/gateway/workers").reason_codes == [1]
    while (again := watcher.take(1)[0]).topic != "$SYS/gateway/workers":
        pass
    assert bytes(again.payload) == b"2"


def test_sys_is_refused_where_it_is_not_allowed(gateways: Gateways) -> None:
    stranger = MqttClient(gateways.other_port, "stranger", clean=True, expiry_s=0)
    assert stranger.subscribe("$SYS/#").reason_codes == [0x87]


# Requests and responses


def test_a_request_at_one_gateway_is_answered_at_another(gateways: Gateways) -> None:
    """4.10: the gateway says where answers may go; topic and correlation data are passed on as they are."""
    responder = MqttClient(gateways.other_port, "responder", clean=True, expiry_s=0)
    assert responder.connack.properties.response_information is None
    responder.subscribe("requests/add")
    requesters = [
        MqttClient(gateways.port, f"asks {n}", clean=True, expiry_s=0, asks_for_response=True)
        for n in range(2)
    ]
    for n, requester in enumerate(requesters):
        place = requester.connack.properties.response_information
        assert place == f"answers/asks {n}"
        requester.subscribe(f"{place}/#")
        for at in range(3):
            properties = Properties(
                response_topic=f"{place}/sum", correlation_data=bytes((n, at, 0, 255)), content_type="numbers"
            )
            requester.send(Publish("requests/add", b"%d %d" % (n, at), 0, properties=properties))
    for request in responder.take(6):
        asked = request.properties
        assert asked.content_type == "numbers"
        total = sum(map(int, bytes(request.payload).split()))
        answer = Properties(correlation_data=asked.correlation_data)
        responder.send(Publish(asked.response_topic or "", b"%d" % total, 0, properties=answer))
    for n, requester in enumerate(requesters):
        answers = {
            message.properties.correlation_data: bytes(message.payload) for message in requester.take(3)
        }
        assert answers == {bytes((n, at, 0, 255)): b"%d" % (n + at) for at in range(3)}
        assert requester.is_silent(0.1)


# Routing rules


def test_a_tree_in_one_topic_is_read_at_a_gateway_that_does_not_know_the_rule(gateways: Gateways) -> None:
    subscriber = MqttClient(gateways.other_port, "rules")
    subscriber.subscribe("routed/+/x")
    publisher = MqttClient(gateways.port, "ruled", clean=True, expiry_s=0)
    # The other gateway hears of the new topic a moment after its first message.
    while True:
        publisher.publish("routed/0/x", b"first")
        if not subscriber.is_silent(0.1):
            break
    publisher.publish("routed/1/x", *numbered(10))
    publisher.publish("routed/1/y", b"no")
    got: list[bytes] = []
    while len(got) < 10:
        got += [body for body in bodies(subscriber.take(1)) if body != b"first"]
    assert got == numbered(10)
    subscriber.disconnect()
    publisher.publish("routed/2/x", *numbered(10, 10), qos=2)
    subscriber = MqttClient(gateways.port, "rules")
    assert [(m.topic, bytes(m.payload)) for m in subscriber.take(10)] == [
        ("routed/2/x", body) for body in numbered(10, 10)
    ]
    arguments = ("sub", "routed/2/+", "--from", "earliest", "--count", "10")
    found = subprocess.run(
        command(gateways.stack, *arguments), capture_output=True, text=True, timeout=150, check=True
    )
    assert found.stdout.split("\n")[:-1] == [f"routed/2/x {n}" for n in range(10, 20)]
