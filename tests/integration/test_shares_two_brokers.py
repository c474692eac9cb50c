"""A share group over two brokers: each keeps its part, and one of them dies."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from mqtt_client import MqttClient, connect_again
from processes import wait_until
from two_brokers import Cluster, two_brokers

SHARED = "$share/g/+/x"
TOPICS = 6


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = two_brokers(tmp_path_factory.mktemp("shares"), **{"gateway.workers": 2})
    cluster = next(made)
    cluster.first.start("gateway")
    yield cluster
    MqttClient.close_all()
    made.close()


def test_a_window_of_one_gets_what_two_brokers_have_over_the_death_of_one(cluster: Cluster) -> None:
    port = cluster.first.mqtt_port
    for name in ("a", "b"):
        member = MqttClient(port, name)
        assert member.subscribe(SHARED).reason_codes == [1]
        member.disconnect()
    sent: set[bytes] = set()
    for number in range(12):
        # Each client id has one queue of a topic: together they are at both brokers.
        sender = MqttClient(port, f"pub-{number}", clean=True, expiry_s=0)
        payloads = [b"%d-%d" % (number, n) for n in range(5)]
        sender.publish(f"t{number % TOPICS}/x", *payloads)
        sent.update(payloads)
        sender.disconnect()
    narrow = MqttClient(port, "a", receive_max=1)
    got = [bytes(message.payload) for message in narrow.take(30)]
    assert len(set(got)) == 30
    # Who dies before it was told of an acknowledgement may hand the message out again.
    stacks = cluster.first, cluster.second
    wait_until(
        lambda: sum(stack.metric("broker", "holdmq_broker_share_settled_total") for stack in stacks) == 30,
        "both brokers know what was acknowledged",
    )
    cluster.second.restart("broker", signal.SIGKILL)
    deadline = time.monotonic() + 100
    wide = connect_again(port, "b")
    while set(got) != sent:
        assert time.monotonic() < deadline, sorted(sent - set(got))
        for client in (narrow, wide):
            if not client.is_silent(0.05):
                got += [bytes(message.payload) for message in client.take(1)]
    assert len(got) < len(sent) + 5  # what the dead broker did not know as settled
