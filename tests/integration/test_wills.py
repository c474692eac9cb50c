"""Wills over real processes: published when nobody is left to say that all is well, and once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_view import messages_of
from mqtt_client import MqttClient, bodies
from processes import Stack, end_all, running_stack, wait_until

from broker.sessions.core.wills import LEASE_S
from holdmq.mqtt import MQTT_3_1_1, Disconnect, Properties, Will

TOPIC = "wills"
BACK_S = 6
"""How long a client may take to come back: more than it does on a machine that is busy with other tests."""

DRAIN_TOLD_S = 1.0
"""How long a gateway that drains may take to tell a session's owner of it, on such a machine."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("wills"), **{"gateway.drain_will_min_s": BACK_S}) as stack:
        yield stack


def will(name: str, delay_s: int = 0, **fields: object) -> Will:
    properties = Properties(will_delay_interval=delay_s or None)
    return Will(f"{TOPIC}/{name}", name.encode(), 1, properties=properties, **fields)  # type: ignore[arg-type]


def device(
    stack: Stack, name: str, delay_s: int = 0, *, expiry_s: int = 3600, clean: bool = False
) -> MqttClient:
    return MqttClient(stack.mqtt_port, name, clean=clean, expiry_s=expiry_s, will=will(name, delay_s))


def watcher(stack: Stack, name: str = "watcher") -> MqttClient:
    client = MqttClient(stack.mqtt_port, name, clean=True, expiry_s=0)
    client.subscribe(f"{TOPIC}/#")
    return client


async def in_log(stack: Stack) -> list[bytes]:
    return [message.body for message in await messages_of([stack.registry], TOPIC)]


@pytest.mark.mqtt("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.14.4-3")
def test_a_will_is_published_unless_disconnect_deletes_it(stack: Stack) -> None:
    watching = watcher(stack)
    device(stack, "in-order").disconnect()  # [MQTT-3.1.2-10]
    device(stack, "with-will").disconnect(0x04)  # [MQTT-3.14.4-3]
    assert bodies(watching.take(1)) == [b"with-will"]
    device(stack, "lost").close()
    lost = watching.take(1)[0]
    assert (bytes(lost.payload), lost.topic, lost.qos) == (b"lost", f"{TOPIC}/lost", 1)
    assert lost.properties.will_delay_interval is None
    device(stack, "ends-with-it", 3600, expiry_s=0).close()  # the session ends before the delay does
    assert bodies(watching.take(1)) == [b"ends-with-it"]
    old = MqttClient(stack.mqtt_port, "old", clean=True, version=MQTT_3_1_1, will=will("old"))
    old.close()
    assert bodies(watching.take(1)) == [b"old"]
    anonymous = MqttClient(stack.mqtt_port, "", clean=True, expiry_s=0, will=will("assigned"))
    anonymous.close()
    assert bodies(watching.take(1)) == [b"assigned"]
    assert watching.is_silent(0.2)
    wait_until(lambda: stack.metric("broker", "holdmq_broker_wills") == 0, "no will is left")


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-3.1.3-9")
def test_a_delay_gives_time_to_come_back_and_a_takeover_does_not_lose_the_will(stack: Stack) -> None:
    watching = watcher(stack)
    device(stack, "returns", BACK_S).close()
    closed_at = time.monotonic()
    back = device(stack, "returns", 1)
    assert back.connack.session_present
    device(stack, "stays-away", 1).close()
    assert bodies(watching.take(1)) == [b"stays-away"]
    first = device(stack, "taken", 0)
    second = device(stack, "taken", 3600)
    assert first.wait_for(Disconnect).reason_code == 0x8E
    assert bodies(watching.take(1)) == [b"taken"], "without a delay it is due when its connection is closed"
    third = device(stack, "taken", 3600)
    assert third.connack.session_present
    assert second.wait_for(Disconnect).reason_code == 0x8E
    fourth = device(stack, "taken", 3600, clean=True)
    assert not fourth.connack.session_present
    assert bodies(watching.take(1)) == [b"taken"], "the session of the third one ended"
    left_s = closed_at + BACK_S + 0.2 - time.monotonic()
    assert watching.is_silent(max(0.2, left_s)), "who came back in time has no will published"
    back.disconnect()
    fourth.disconnect()


@pytest.mark.mqtt("MQTT-3.1.2-7", "MQTT-3.1.2-10")
def test_wills_outlive_workers_and_brokers_and_are_published_once(stack: Stack) -> None:
    device(stack, "killed")
    device(stack, "killed-and-back", 3600)
    device(stack, "killed-clean", expiry_s=0, clean=True)
    stack.kill_workers()
    watching = watcher(stack)
    back = device(stack, "killed-and-back", 3600)
    assert back.connack.session_present
    got: list[bytes] = []
    while len(got) < 2:
        got += bodies(watching.take(1, LEASE_S + 50))
    assert sorted(got) == [b"killed", b"killed-clean"]
    stays, ends = device(stack, "stays"), device(stack, "ends")
    pids = stack.workers()
    stack.kill_broker()
    assert stack.workers() == pids
    stays.ping()
    wait_until(
        lambda: stack.metric("broker", "holdmq_broker_wills") == 3, "every connection is claimed again"
    )
    ends.close()
    assert bodies(watching.take(1, 60.0)) == [b"ends"]
    assert watching.is_silent(0.3)
    stored = asyncio.run(in_log(stack))
    assert [stored.count(name) for name in (b"killed", b"killed-clean", b"ends")] == [1] * 3
    assert b"killed-and-back" not in stored
    stays.disconnect()


def test_a_gateway_that_drains_gives_its_clients_time_to_go_elsewhere(stack: Stack, tmp_path: Path) -> None:
    other = Stack(tmp_path, {"registry.port": stack.registry_port})
    try:
        other.start("gateway")
        watching = watcher(other)
        moves, ends = device(stack, "moves"), device(stack, "drained")
        stack.processes["gateway"].send_signal(signal.SIGTERM)
        assert moves.wait_for(Disconnect).reason_code == ends.wait_for(Disconnect).reason_code == 0x8B
        # Whoever is back before the owner has heard of the drain has taken the session over, will and all.
        time.sleep(DRAIN_TOLD_S)
        moved = device(other, "moves")
        assert moved.connack.session_present
        assert bodies(watching.take(1, 60.0)) == [b"drained"]
        assert watching.is_silent(0.3)
        moved.disconnect()
        watching.close()
        stack.processes.pop("gateway").wait(100)
    finally:
        MqttClient.close_all()
        end_all([other])
