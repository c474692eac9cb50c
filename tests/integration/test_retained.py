"""Retained messages over real processes: two brokers share the topics, sessions go on where they were."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from itertools import pairwise

import pytest
from mqtt_client import MqttClient
from processes import wait_until
from two_brokers import Cluster, two_brokers

from holdmq.mqtt import PubAck, PubComp, Publish, PubRec, PubRel, Subscribe, Subscription
from holdmq.wire.retained_headers import retained_owner

BROKERS = ["broker-0", "broker-1"]
RACES = int(os.environ.get("HOLDMQ_TEST_RACES", "40"))
"""Subscriptions that race with a publish; the long form is 2,000."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = two_brokers(tmp_path_factory.mktemp("retained"), **{"gateway.workers": 2})
    cluster = next(made)
    cluster.first.start("gateway")
    try:
        yield cluster
    finally:
        with contextlib.suppress(StopIteration):
            next(made)


@pytest.fixture
def port(cluster: Cluster) -> int:
    return cluster.first.mqtt_port


def keep(port: int, payloads: dict[str, bytes], qos: int = 1) -> None:
    """Publish with RETAIN, and wait for the acknowledgements."""
    client = MqttClient(port, f"keeper-{os.urandom(4).hex()}", clean=True, expiry_s=0)
    items = list(payloads.items())
    for first in range(0, len(items), 500):
        part = items[first : first + 500]
        client.send(
            *[
                Publish(topic, payload, qos, retain=True, packet_id=at)
                for at, (topic, payload) in enumerate(part, 1)
            ]
        )
        for _ in part:
            if qos == 1:
                client.wait_for(PubAck)
            else:
                client.send(PubRel(client.wait_for(PubRec).packet_id or 0))
                client.wait_for(PubComp)
    client.disconnect()


def fresh(port: int, name: str) -> MqttClient:
    return MqttClient(port, name, clean=True, expiry_s=0)


def take_until(client: MqttClient, expected: dict[str, bytes]) -> None:
    """Come back when the newest message of each of these topics came, be it retained or live."""
    found: dict[str, bytes] = {}
    while not expected.items() <= found.items():
        (message,) = client.take(1)
        found[message.topic] = bytes(message.payload)


def test_topics_are_shared_among_the_brokers_and_found_again(cluster: Cluster, port: int) -> None:
    topics = [f"spread/{n}/x" for n in range(200)]
    keep(port, {topic: topic.encode() for topic in topics})
    by_broker = {broker: sum(retained_owner(t, BROKERS) == broker for t in topics) for broker in BROKERS}
    assert min(by_broker.values()) > 50
    for broker, count in by_broker.items():
        stack = cluster.stack_of(broker)
        wait_until(
            lambda stack=stack, count=count: (  # type: ignore[misc]
                stack.metric("broker", "holdmq_broker_retained_messages") == count
            ),
            "the table shows what was acknowledged",
        )
    client = fresh(port, "s")
    for name in ("spread/+/x", "spread/#"):
        client.subscribe(name)
        got = client.take(200)
        assert sorted(m.topic for m in got) == sorted(topics)
        assert all(m.retain and bytes(m.payload) == m.topic.encode() for m in got)
    for topic in topics[:8]:
        client.subscribe(topic)
        assert [m.topic for m in client.take(1)] == [topic]
    assert client.is_silent()
    keep(port, dict.fromkeys(topics, b""))
    other = fresh(port, "t")
    other.subscribe("spread/#")
    assert other.is_silent()


@pytest.mark.mqtt("MQTT-4.4.0-1")
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_goes_on_in_the_middle_of_its_answer(
    cluster: Cluster, port: int, qos: int, dies: bool
) -> None:
    root = f"middle{qos}{dies}"
    expected = {f"{root}/{n:02}": b"%d" % n for n in range(60)}
    keep(port, expected, qos)
    name = f"sub-{root}"
    subscriber = MqttClient(port, name, receive_max=10)
    subscriber.subscribe(f"{root}/+", qos=qos, identifier=9)
    done: list[str] = []
    pending: dict[str, int] = {}
    for turn in range(4):
        for at in range(10):
            message = subscriber.message()
            assert bytes(message.payload) == expected[message.topic]
            assert message.retain
            assert message.properties.subscription_identifiers == (9,)
            if message.topic in pending:
                # Only what was not acknowledged comes again, with DUP and its id.
                packet_id = pending.pop(message.topic)
                if qos == 2 or not dies:
                    assert (message.dup, message.packet_id) == (True, packet_id)
            elif qos == 2 or not dies:
                # What was on its way when the connection was cut has DUP as well.
                assert message.topic not in done
            if at % 3:
                done.append(message.topic)
                subscriber.settle(message)
            else:
                pending[message.topic] = message.packet_id or 0
        subscriber.ping()
        subscriber.close()
        if dies and turn == 1:
            cluster.first.kill_workers()
        subscriber = MqttClient(port, name, receive_max=10)
        assert subscriber.connack.session_present
    while set(done) != expected.keys():
        message = subscriber.message()
        if message.topic in pending:
            packet_id = pending.pop(message.topic)
            if qos == 2 or not dies:
                assert (message.dup, message.packet_id) == (True, packet_id)
        elif qos == 2 or not dies:
            assert message.topic not in done
        done.append(message.topic)
        subscriber.settle(message)
    assert qos == 1 or len(done) == len(expected)
    # Of QoS 1 a worker that died may have sent the last seconds again.
    assert qos == 1 or subscriber.is_silent()
    keep(port, {f"{root}/live": b"live"})
    while (message := subscriber.message()).topic != f"{root}/live":
        assert qos == 1
        subscriber.settle(message)
    assert not message.retain


def test_what_is_in_flight_comes_again_as_it_was_though_its_topic_has_another_one(port: int) -> None:
    keep(port, {"newer/1": b"first", "newer/2": b"stays", "newer/3": b"goes"})
    subscriber = MqttClient(port, "in-flight")
    subscriber.subscribe("newer/#", qos=2)
    first = {m.topic: m for m in (subscriber.message() for _ in range(3))}
    subscriber.close()
    keep(port, {"newer/1": b"second", "newer/3": b""})
    subscriber = MqttClient(port, "in-flight")
    again = {m.topic: m for m in (subscriber.message() for _ in range(3))}
    assert {t: (m.payload, m.packet_id, m.dup, m.retain) for t, m in again.items()} == {
        t: (m.payload, m.packet_id, True, True) for t, m in first.items()
    }
    live = [subscriber.message() for _ in range(2)]
    assert sorted((m.topic, bytes(m.payload), m.retain) for m in live) == [
        ("newer/1", b"second", False), ("newer/3", b"", False),
    ]  # fmt: skip


def test_an_answer_that_had_not_begun_when_its_worker_died_is_given_after_all(
    cluster: Cluster, port: int
) -> None:
    keep(port, {f"unbegun/{n}": b"x" for n in range(5)})
    subscriber = MqttClient(port, "unbegun")
    for name in ("unbegun/1", "unbegun/2"):
        subscriber.subscribe(name)
        subscriber.take(1)
        subscriber.unsubscribe(name)
    subscriber.disconnect()
    subscriber = MqttClient(port, "unbegun")
    subscriber.subscribe("unbegun/+")
    cluster.first.kill_workers()
    subscriber = MqttClient(port, "unbegun")
    assert subscriber.connack.session_present
    assert {m.topic for m in subscriber.take(5)} == {f"unbegun/{n}" for n in range(5)}
    subscriber.disconnect()
    subscriber = MqttClient(port, "unbegun")
    assert subscriber.is_silent()


def test_what_is_kept_outlives_the_brokers(cluster: Cluster, port: int) -> None:
    keep(port, {f"kill/{n}": b"%d" % n for n in range(100)})
    for broker in BROKERS:
        cluster.stack_of(broker).restart("broker", signal.SIGKILL)
    wait_until(lambda: cluster.first.http("gateway", "/readyz")[0] == 200, "both brokers are back")
    client = fresh(port, "after-kill")
    client.subscribe("kill/#")
    # A feed that begins where it was before the kill may bring some as live ones.
    take_until(client, {f"kill/{n}": b"%d" % n for n in range(100)})
    keep(port, {"kill/1": b"again"})
    take_until(client, {"kill/1": b"again"})
    other = fresh(port, "long-after-kill")
    other.subscribe("kill/1")
    take_until(other, {"kill/1": b"again"})


def test_who_subscribes_while_a_message_is_published_gets_it_and_nothing_older_behind_it(port: int) -> None:
    """Perhaps it comes twice, as the retained and as the live one: never not at all."""
    publisher = fresh(port, "racing")
    for number in range(RACES):
        topic = f"race/{number % 7}"
        subscribers = [fresh(port, f"racer-{n}") for n in range(3)]
        for at, subscriber in enumerate(subscribers):
            subscriber.send(Subscribe(1, [Subscription(("race/+", topic, "race/#")[at], at % 2)]))
            if at == number % 4:
                publisher.send(Publish(topic, b"%d" % number, 1, retain=True, packet_id=1))
        if number % 4 == 3:
            publisher.send(Publish(topic, b"%d" % number, 1, retain=True, packet_id=1))
        publisher.wait_for(PubAck)
        for subscriber in subscribers:
            got: list[int] = []
            while not got or got[-1] != number:
                message = subscriber.message()
                subscriber.settle(message)
                if message.topic == topic:
                    got.append(int(message.payload))
            assert all(before <= after for before, after in pairwise(got))
            subscriber.close()


def test_a_slow_subscriber_takes_its_time_and_live_messages_pass_it(port: int) -> None:
    topics = [f"slow/{n:03}" for n in range(300)]
    keep(port, dict.fromkeys(topics, bytes(1000)))
    slow = MqttClient(port, "slow", receive_max=1, clean=True, expiry_s=0)
    slow.subscribe("slow/#")
    fast = fresh(port, "fast")
    fast.subscribe("slow/#")
    assert len(fast.take(300)) == 300
    keep(port, {"slow/000": b"news"})
    assert bytes(fast.take(1)[0].payload) == b"news"
    # Its turn had not come, or it had: then the news is one more.
    got = slow.take(300)
    while {m.topic for m in got} != set(topics) or all(m.retain for m in got):
        got += slow.take(1)
    assert bytes([m for m in got if m.topic == "slow/000"][-1].payload) == b"news"
    assert len(got) <= 302
