"""Shared subscriptions over real processes: two workers, members on both, whatever dies."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import runner
from mqtt_client import MqttClient, bodies, connect_again, numbered
from processes import Stack, running_stack, wait_until

from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    encode,
)

WAIT_S = 100.0
_publishers = itertools.count()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A gateway with two workers, for all tests here."""
    with running_stack(tmp_path_factory.mktemp("shares")) as stack:
        yield stack


def publisher(stack: Stack) -> MqttClient:
    return MqttClient(stack.mqtt_port, f"pub-{next(_publishers)}", clean=True, expiry_s=0)


def member(stack: Stack, name: str, shared: str, **options: object) -> MqttClient:
    qos = int(str(options.pop("qos", 1)))
    client = MqttClient(stack.mqtt_port, name, **options)  # type: ignore[arg-type]
    assert client.subscribe(shared, qos=qos).reason_codes == [qos]
    return client


def connections_by_worker(stack: Stack) -> list[int]:
    text = stack.http("gateway", "/metrics")[1]
    lines = [line for line in text.splitlines() if line.startswith("holdmq_gateway_worker_connections{")]
    return [int(float(line.rsplit(" ", 1)[1])) for line in lines]


def drain(client: MqttClient, seconds: float) -> list[Publish]:
    """What has come and comes within a while, acknowledged."""
    found: list[Publish] = []
    while not client.is_silent(seconds):
        found += client.take(1)
    return found


def test_members_of_both_workers_share_the_messages_of_a_wildcard_filter(stack: Stack, topic: str) -> None:
    members = [member(stack, f"{topic}-{n}", f"$share/g/{topic}/#") for n in range(12)]
    wait_until(lambda: min(connections_by_worker(stack)) > 0, "members on both workers")
    other = member(stack, f"{topic}-alone", f"$share/h/{topic}/#")
    plain = MqttClient(stack.mqtt_port, f"{topic}-plain")
    plain.subscribe(f"{topic}/+")
    sender = publisher(stack)
    for n in range(60):
        sender.publish(f"{topic}/{n % 3}", b"%d" % n)
    assert bodies(plain.take(60)) == bodies(other.take(60)) == numbered(60)
    got: list[list[bytes]] = [[] for _ in members]
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, got)) < 60:
        assert time.monotonic() < deadline, got
        for own, client in zip(got, members, strict=True):
            own += bodies(drain(client, 0.01))
    for own, client in zip(got, members, strict=True):
        own += bodies(drain(client, 0.01))
    assert sorted(itertools.chain(*got), key=int) == numbered(60)
    assert all(got), "each gets some, however slow its worker is"
    for own in got:
        assert own == sorted(own, key=int)


def test_topics_that_come_later_are_in_a_wildcard_filter(stack: Stack, topic: str) -> None:
    client = member(stack, f"{topic}-a", "$share/later/+/late", version=MQTT_3_1_1)
    sender = publisher(stack)
    for n in range(3):
        sender.publish(f"{topic}new{n}/late", b"%d" % n)
    assert bodies(client.take(3)) == numbered(3)
    assert client.unsubscribe("$share/later/+/late").reason_codes == []
    sender.publish(f"{topic}new0/late", b"no more")
    assert client.is_silent()


def test_what_a_member_did_not_acknowledge_goes_to_another(stack: Stack, topic: str) -> None:
    lazy = member(stack, f"{topic}-lazy", f"$share/g/{topic}", receive_max=5)
    sender = publisher(stack)
    sender.publish(topic, *numbered(8))
    held = [lazy.message() for _ in range(5)]
    lazy.send(PubAck(held[1].packet_id or 0))
    assert bytes(lazy.message().payload) == b"5"
    eager = member(stack, f"{topic}-eager", f"$share/g/{topic}")
    assert bodies(eager.take(2)) == [b"6", b"7"]
    lazy.close()
    assert sorted(bodies(eager.take(5))) == [b"0", b"2", b"3", b"4", b"5"]
    assert eager.is_silent()
    lazy = MqttClient(stack.mqtt_port, f"{topic}-lazy")
    assert lazy.connack.session_present
    assert lazy.is_silent()


def test_while_nobody_is_there_messages_wait_over_restarts_of_everything(stack: Stack, topic: str) -> None:
    shared = f"$share/g/{topic}/+"
    for name in ("a", "b"):
        member(stack, f"{topic}-{name}", shared).disconnect()
    sender = publisher(stack)
    sender.publish(f"{topic}/1", *numbered(50))
    sender.publish(f"{topic}/1", b"qos 0 is not kept", qos=0)
    sender.ping()
    stack.restart("broker", signal.SIGKILL)
    stack.kill_workers()
    sender = publisher(stack)
    sender.publish(f"{topic}/2", *numbered(50, 50))
    back = connect_again(stack.mqtt_port, f"{topic}-b")
    assert bodies(back.take(100)) == numbered(100)
    sender.publish(f"{topic}/1", b"live")
    assert bodies(back.take(1)) == [b"live"]
    assert back.is_silent()


@pytest.mark.mqtt("MQTT-4.8.2-4")
def test_qos_2_stays_with_the_session_that_has_it(stack: Stack, topic: str) -> None:
    shared = f"$share/g/{topic}"
    first = member(stack, f"{topic}-a", shared, qos=2, receive_max=2)
    sender = publisher(stack)
    sender.publish(topic, *numbered(2), qos=2)
    got = [first.message() for _ in range(2)]
    first.send(PubRec(got[0].packet_id or 0))
    first.wait_for(PubRel)
    first.close()
    second = member(stack, f"{topic}-b", shared, qos=2)
    sender.publish(topic, b"2", qos=2)
    assert bodies(second.take(1)) == [b"2"]
    assert second.is_silent()
    first = MqttClient(stack.mqtt_port, f"{topic}-a", receive_max=2)
    assert first.wait_for(PubRel).packet_id == got[0].packet_id
    first.send(PubComp(got[0].packet_id or 0))
    again = first.message()
    assert (again.payload, again.packet_id, again.dup) == (b"1", got[1].packet_id, True)
    first.send(PubRec(again.packet_id or 0))
    first.send(PubComp(first.wait_for(PubRel).packet_id))
    second.disconnect()
    sender.publish(topic, b"3", qos=2)
    assert bodies(first.take(1)) == [b"3"]


@pytest.mark.mqtt("MQTT-4.8.2-6")
def test_a_refused_message_is_settled(stack: Stack, topic: str) -> None:
    shared = f"$share/g/{topic}"
    first = member(stack, f"{topic}-a", shared, qos=2)
    sender = publisher(stack)
    sender.publish(topic, b"1")
    sender.publish(topic, b"2", qos=2)
    first.send(PubAck(first.message().packet_id or 0, 0x83))
    first.send(PubRec(first.message().packet_id or 0, 0x83))
    first.ping()
    first.disconnect()
    second = member(stack, f"{topic}-b", shared, qos=2)
    assert second.is_silent()


def test_a_group_lives_as_long_as_a_session_holds_it(stack: Stack, topic: str) -> None:
    shared = f"$share/g/{topic}"
    client = member(stack, f"{topic}-a", shared)
    sender = publisher(stack)
    client.disconnect(expiry_s=0)
    sender.publish(topic, b"to nobody")
    client = member(stack, f"{topic}-a", shared)
    client.disconnect()
    sender.publish(topic, b"kept")
    client = MqttClient(stack.mqtt_port, f"{topic}-a", clean=True)
    assert client.subscribe(shared).reason_codes == [1]
    assert client.is_silent()
    sender.publish(topic, b"new")
    assert bodies(client.take(1)) == [b"new"]


@pytest.mark.mqtt("MQTT-4.8.2-3")
def test_the_qos_is_the_lower_of_publish_and_subscription(stack: Stack, topic: str) -> None:
    client = member(stack, f"{topic}-a", f"$share/g/{topic}", qos=1)
    sender = publisher(stack)
    for qos in range(3):
        sender.publish(topic, b"%d" % qos, qos=qos)
    assert sorted((bytes(m.payload), m.qos) for m in client.take(3)) == [(b"0", 0), (b"1", 1), (b"2", 1)]
    assert client.subscribe(f"$share/g/{topic}", qos=0, identifier=9).reason_codes == [0]
    sender.publish(topic, b"x", qos=2)
    message = client.take(1)[0]
    assert (message.qos, message.properties.subscription_identifiers) == (0, (9,))
    assert client.subscribe(f"$share/g/{topic}", qos=2).reason_codes == [2]
    sender.publish(topic, b"y", qos=2)
    assert client.take(1)[0].qos == 2


@pytest.mark.mqtt("MQTT-3.8.3-4", "MQTT-4.8.2-2")
def test_what_is_malformed_ends_the_connection(stack: Stack) -> None:
    client = MqttClient(stack.mqtt_port, "malformed")
    assert client.connack.properties.shared_subscription_available in (None, 1)
    packet = bytearray(encode(Subscribe(1, [Subscription("$share/g/t", 1)]), MQTT_5))
    packet[-1] |= 4  # [MQTT-3.8.3-4]
    client.send_bytes(bytes(packet))
    assert client.wait_for(Disconnect).reason_code == 0x82
    client = MqttClient(stack.mqtt_port, "malformed")
    packet = bytearray(encode(Subscribe(1, [Subscription("$share/g/t", 1)]), MQTT_5))
    client.send_bytes(bytes(packet).replace(b"/g/", b"/+/"))  # [MQTT-4.8.2-2]
    assert client.wait_for(Disconnect).reason_code == 0x8F


def test_people_are_shown_the_groups_and_a_dropped_session_holds_none(stack: Stack, topic: str) -> None:
    shared = f"$share/g/{topic}"

    def run(*arguments: str) -> Any:
        done = runner(stack)("session", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    client = member(stack, f"{topic}-a", shared, receive_max=1)
    member(stack, f"{topic}-b", shared).disconnect()
    sender = publisher(stack)
    sender.publish(topic, b"x", b"y")
    client.message()

    def shown() -> tuple[object, ...]:
        (row,) = run("shares", "--prefix", shared, "--json")
        return row["name"], row["sessions"], row["online"], row["in_flight"], row["behind_bytes"] > 0

    # The worker of the one that left says so in its own time.
    wait_until(lambda: shown() == (shared, 2, 1, 1, True), "one of two is there, and has one of two")
    assert list(run("show", f"{topic}-b", "--json")["filters"]) == [shared]
    run("drop", f"{topic}-b", "--yes", "--json")
    run("drop", f"{topic}-a", "--yes", "--json")
    wait_until(lambda: run("shares", "--prefix", shared, "--json") == [], "nobody holds the group")


def test_members_and_brokers_die_and_every_message_comes(stack: Stack, topic: str) -> None:
    shared = f"$share/g/{topic}/#"
    for name in ("a", "b", "c"):
        member(stack, f"{topic}-{name}", shared, receive_max=4).disconnect()
    sender = publisher(stack)
    sender.publish(f"{topic}/1", *numbered(40))
    sender.publish(f"{topic}/2", *numbered(20, 40), qos=2)
    seen: list[bytes] = []
    first = MqttClient(stack.mqtt_port, f"{topic}-a", receive_max=4)
    seen += bodies(first.take(10))
    second = MqttClient(stack.mqtt_port, f"{topic}-b", receive_max=4)
    seen += bodies(second.take(10))
    first.close()
    stack.restart("broker", signal.SIGKILL)
    third = connect_again(stack.mqtt_port, f"{topic}-c")
    deadline = time.monotonic() + WAIT_S
    while set(seen) != set(numbered(60)):
        assert time.monotonic() < deadline, sorted(set(numbered(60)) - set(seen))
        for client in (second, third):
            if not client.is_silent(0.05):
                seen += bodies(client.take(1))
    twice = [body for body in seen if int(body) >= 40]
    assert len(twice) == len(set(twice))
