"""kill -9 of gateway workers and of the broker under persistent publishers and subscribers, QoS 1 and 2.

Nothing acknowledged is lost, QoS 2 is in the log exactly once and delivered exactly once, and order holds.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from cluster_view import messages_of
from mqtt_client import MqttClient
from processes import Stack, running_stack, wait_until
from session_traffic import Device, Publisher, Subscriber

ROUNDS = int(os.environ.get("HOLDMQ_KILLS", "2"))
"""Kills of each victim; HOLDMQ_KILLS=20 for the long form."""
WORKERS = 2
PROGRESS = 10
"""Messages that every publisher brings to an end between two kills."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("killed"), **{"gateway.workers": WORKERS}) as stack:
        yield stack


@pytest.fixture
def devices() -> Iterator[list[Device]]:
    started: list[Device] = []
    yield started
    for device in started:
        device.stop()
    MqttClient.close_all()


def kill(stack: Stack, victim: str, chance: random.Random) -> None:
    if victim == "broker":
        stack.restart("broker", signal.SIGKILL)
        return
    running = stack.workers()
    killed = running if victim == "all workers" else [chance.choice(running)]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(set(stack.workers()) - set(killed)) >= WORKERS, "new workers")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["a worker", "all workers", "broker"])
def test_sessions_go_on_whatever_is_killed(stack: Stack, devices: list[Device], victim: str) -> None:
    chance = random.Random(victim)
    tree = victim.replace(" ", "-")
    port = stack.mqtt_port
    subscribers = [Subscriber(port, f"{tree}-s{qos}", f"{tree}/#", qos) for qos in (1, 2, 2)]
    subscribers[2].client_id += "-other"
    for subscriber in subscribers:
        devices.append(subscriber)
        subscriber.start()
    wait_until(lambda: all(s.is_subscribed for s in subscribers), "all have subscribed")
    publishers = [Publisher(port, f"{tree}-p{n}", f"{tree}/{n}", 1 + n % 2) for n in range(4)]
    for publisher in publishers:
        devices.append(publisher)
        publisher.start()
    for _ in range(ROUNDS):
        wait_for_progress(publishers)
        time.sleep(chance.uniform(0.0, 0.1))  # where in a message's life the kill strikes
        kill(stack, victim, chance)
    wait_for_progress(publishers)
    for publisher in publishers:
        publisher.hold.set()
    wait_until(lambda: all(p.is_finished for p in publishers), "all is acknowledged")
    wanted = {body for p in publishers for body in p.bodies()}
    wait_until(lambda: all({body for body, _ in s.got} >= wanted for s in subscribers), "all is delivered")
    check_log(publishers, asyncio.run(bodies_of(stack.registry, tree)))
    for subscriber in subscribers:
        check_deliveries(publishers, subscriber)


def wait_for_progress(publishers: list[Publisher]) -> None:
    goals = [publisher.done + PROGRESS for publisher in publishers]
    wait_until(
        lambda: all(p.done >= goal or p.error for p, goal in zip(publishers, goals, strict=True)),
        "every publisher goes on",
    )


def check_log(publishers: list[Publisher], queues: dict[int, list[bytes]]) -> None:
    """QoS 1 at least once, QoS 2 exactly once; the first of each in the order of its publisher."""
    counts = Counter(body for bodies in queues.values() for body in bodies)
    for publisher in publishers:
        bodies = publisher.bodies()
        if publisher.qos == 2:
            assert {b: n for b in bodies if (n := counts[b]) != 1} == {}, "QoS 2 in the log exactly once"
        assert [b for b in bodies if not counts[b]] == [], "nothing is lost"
        [queue] = [bodies for bodies in queues.values() if publisher.bodies()[0] in bodies]
        own = set(bodies)
        assert list(dict.fromkeys(b for b in queue if b in own)) == bodies, "the order of its publisher"


def check_deliveries(publishers: list[Publisher], subscriber: Subscriber) -> None:
    got: dict[bytes, list[bytes]] = defaultdict(list)
    for body, _ in subscriber.got:
        got[body.partition(b":")[0]].append(body)
    for publisher in publishers:
        bodies = got[publisher.client_id.encode()]
        if publisher.qos == subscriber.qos == 2:
            assert bodies == publisher.bodies(), "exactly once, in order"
        else:
            assert set(bodies) == set(publisher.bodies())


async def bodies_of(registry: str, topic: str) -> dict[int, list[bytes]]:
    """The messages of a topic by queue, in their order."""
    queues: dict[int, list[bytes]] = defaultdict(list)
    for message in await messages_of([registry], topic):
        queues[message.queue_id].append(message.body)
    return queues
