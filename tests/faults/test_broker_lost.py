"""A broker lost for good, with its disk, is given up: its clients and topics go on at the others."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest
from command_line import run_here
from mqtt_client import MqttClient
from processes import Stack, wait_until

from holdmq.client import Table
from holdmq.mqtt import Disconnect, PubAck, Publish, ReasonCode
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import ForgottenRow
from holdmq.wire.header import rows
from holdmq.wire.headers import RouteGetRequest, RouteGetResponse, RouteRow
from holdmq.wire.retained_headers import RETAINED_TOPIC, retained_owner
from holdmq.wire.session_headers import SESSION_TOPIC, session_owner

StackMaker = Callable[..., Stack]

BROKERS = ("broker-0", "broker-1")
DEVICES = [f"device-{number}" for number in range(20)]
STATES = [f"state/{number}" for number in range(20)]
NUMBERS = itertools.count()
LOST = [name for name in DEVICES if session_owner(name, BROKERS) == "broker-1"]
LOST_STATES = [topic for topic in STATES if retained_owner(topic, BROKERS) == "broker-1"]


class TwoOfEach:
    """Two registries and two brokers, the first with a gateway."""

    def __init__(self, make: StackMaker) -> None:
        other = make(services=("registry",))
        one = make(services=("registry",))
        self.registries = [one.registry, other.registry]
        self.one_registry, self.other_registry = one, other
        both = {"client.registries": ",".join(self.registries), "broker.register_interval_s": 30}
        # Started side by side, so that both keep sessions and retained messages.
        self.staying = make(services=(), **both, **{"gateway.workers": 2})
        self.lost = make(services=(), **both, **{"broker.name": "broker-1"})
        for stack in (self.staying, self.lost):
            stack.start("broker", wait=False)
        for stack in (self.staying, self.lost):
            stack.wait_ready("broker")
        self.staying.start("gateway")

    def connect(self, client_id: str) -> MqttClient:
        return MqttClient(self.staying.mqtt_port, client_id)

    def cli(self, *arguments: str) -> tuple[int, str, str]:
        done = run_here(*arguments, f"--set=client.registries={','.join(self.registries)}")
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def cluster(holdmq_stack: StackMaker) -> Iterator[TwoOfEach]:
    yield TwoOfEach(holdmq_stack)
    MqttClient.close_all()


async def route_of(registry: str, topics: list[str]) -> tuple[set[str], list[ForgottenRow]]:
    """The brokers that a registry has rows of, and those that it knows to be given up."""
    client = Client(registry, "client", "test")
    try:
        answer = (await client.call(RequestCode.ROUTE_GET, RouteGetRequest(topics))).header(RouteGetResponse)
    finally:
        await client.close()
    return {row.broker for row in rows(RouteRow, answer.routes)}, rows(ForgottenRow, answer.forgotten)


def is_told(registry: str) -> bool:
    brokers, forgotten = asyncio.run(route_of(registry, [SESSION_TOPIC, RETAINED_TOPIC]))
    return brokers == {"broker-0"} and [row.broker for row in forgotten] == ["broker-1"]


def put_retained(client: MqttClient, topic: str) -> None:
    client.send(Publish(topic, b"on", 1, retain=True, packet_id=1))
    assert client.wait_for(PubAck).reason_code < ReasonCode.UNSPECIFIED_ERROR


@pytest.mark.timeout(600)
def test_what_a_lost_broker_kept_goes_on_at_the_others_once_it_is_given_up(cluster: TwoOfEach) -> None:
    assert 0 < len(LOST) < len(DEVICES)
    assert 0 < len(LOST_STATES) < len(STATES)
    devices = {name: cluster.connect(name) for name in DEVICES}
    for (name, device), topic in zip(devices.items(), STATES, strict=True):
        device.subscribe(f"to/{name}")
        put_retained(device, topic)

    async def make_table() -> None:
        async with Table("prices", cluster.registries) as table:
            await table.create(2)
            for number in range(20):
                await table.put(f"k{number}", b"v")

    asyncio.run(make_table())
    assert cluster.cli("topic", "create", "plan", "--queues", "4", "--order")[0] == 0
    code, _, error = cluster.cli("broker", "forget", "broker-1", "--accept-loss")
    assert (code, "it lives" in error) == (1, True)
    # Registries have its counts with its next registration.
    cluster.lost.restart("broker")
    wait_until(lambda: all(device_works(name, devices) for name in DEVICES), "all is well")
    cluster.lost.stop("broker", signal.SIGKILL)
    cluster.other_registry.stop("registry")

    lost_id = next(n for n in (f"new-{i}" for i in range(100)) if session_owner(n, BROKERS) == "broker-1")
    wait_until(
        lambda: cluster.connect(lost_id).connack.reason_code == ReasonCode.SERVER_UNAVAILABLE, "refused"
    )
    code, out, error = cluster.cli("broker", "forget", "broker-1", "--json")
    found = json.loads(out)
    assert code == 2
    assert (found["sessions"], found["retained"]) == (len(LOST), len(LOST_STATES))
    assert {row["topic"] for row in found["topics"]} >= {SESSION_TOPIC, RETAINED_TOPIC, "prices"}
    assert cluster.connect(lost_id).connack.reason_code == ReasonCode.SERVER_UNAVAILABLE, "only looked"

    staying = next(name for name in DEVICES if name not in LOST)
    devices[staying].send(Publish(LOST_STATES[0], b"waits", 1, retain=True, packet_id=9))
    code, out, error = cluster.cli("broker", "forget", "broker-1", "--accept-loss")
    assert (code, cluster.registries[1] in error) == (1, True), "a registry was away"
    assert devices[staying].wait_for(PubAck).reason_code < ReasonCode.UNSPECIFIED_ERROR
    for name in LOST:
        assert devices[name].wait_for(Disconnect).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        devices[name] = cluster.connect(name)
        assert devices[name].connack.reason_code == ReasonCode.SUCCESS
        assert not devices[name].connack.session_present
        devices[name].subscribe(f"to/{name}")
    assert cluster.connect(lost_id).connack.reason_code == ReasonCode.SUCCESS
    assert all(device_works(name, devices) for name in DEVICES)
    for name in set(DEVICES) - set(LOST):
        devices[name] = cluster.connect(name)
        assert devices[name].connack.session_present, "its owner lives"
    assert all(device_works(name, devices) for name in DEVICES)
    for device in devices.values():
        device.publish("plan/x", b"by key")
    for topic in STATES:
        put_retained(devices[DEVICES[0]], topic)
    reader = MqttClient(cluster.staying.mqtt_port, "reader", clean=True, expiry_s=0)
    reader.subscribe("state/+")
    assert {reader.wait_for(Publish).topic for _ in STATES} == set(STATES)

    async def use_table() -> None:
        async with Table("prices", cluster.registries) as table:
            assert await table.brokers() == ["broker-0"]
            for number in range(20):
                await table.put(f"k{number}", b"w")
            assert [e and e.value for e in await table.get_many([f"k{n}" for n in range(20)])] == [b"w"] * 20

    asyncio.run(use_table())

    cluster.other_registry.start("registry")
    wait_until(lambda: is_told(cluster.registries[1]), "the registry that was away has heard of it")
    code, out, _ = cluster.cli("broker", "forget", "broker-1", "--accept-loss")
    assert (code, "is given up since" in out) == (0, True), "again"

    cluster.lost.start("broker", wait=False)
    wait_until(lambda: "this broker was given up" in cluster.lost.log("broker"), "its old store is refused")
    status, text = cluster.lost.http("broker", "/readyz")
    assert (status, "start it with an empty directory" in text) == (503, True)
    assert all(is_told(registry) for registry in cluster.registries)
    cluster.lost.stop("broker")

    shutil.rmtree(cluster.lost.directory / "store")
    cluster.lost.start("broker")
    assert cluster.lost.metric("broker", "holdmq_broker_is_keeper") == 0
    for registry in cluster.registries:
        brokers, forgotten = asyncio.run(route_of(registry, [SESSION_TOPIC]))
        assert brokers == {"broker-0"}
        assert [(row.broker, row.is_back) for row in forgotten] == [("broker-1", True)]
    for name in DEVICES:
        devices[name] = cluster.connect(name)
        assert devices[name].connack.session_present
    for sender in DEVICES:
        assert all(device_works(name, devices, sender) for name in DEVICES), "over both brokers"


def device_works(name: str, devices: dict[str, MqttClient], by: str = DEVICES[0]) -> bool:
    """Whether a device gets what another one publishes for it now."""
    body = b"%d" % next(NUMBERS)
    devices[by].publish(f"to/{name}", body)
    while True:
        message = devices[name].message()
        devices[name].settle(message)
        if message.payload == body:
            return message.topic == f"to/{name}"
