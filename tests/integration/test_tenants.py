"""Tenants over real processes: a tenant's key reaches, lists and learns nothing of another's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from mqtt_client import MqttClient
from processes import Stack, end_all, wait_until
from security import ADMIN_SECRET, KEYS, SERVICE_SECRET, write_keys

from holdmq.client import Admin, Message, Security, SyncAdmin, SyncProducer, SyncPullConsumer
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Publish, ReasonCode
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header

ACME, BETA = "secret-of-acme-" + "a" * 32, "secret-of-beta-" + "b" * 32
TENANTS = "".join(
    f"""
[keys.{name}]
secret = "{secret}"
roles = ["client", "reader"]
produce = ["*"]
consume = ["*"]
groups = ["*"]
tenant = "{name}"
"""
    for name, secret in (("acme", ACME), ("beta", BETA))
)


class Fields(Header):
    """A header of any fields, as who does not use the SDK sends it."""

    def __init__(self, found: dict[str, Any]) -> None:
        object.__setattr__(self, "found", found)

    def to_ext(self) -> dict[str, Any]:
        return dict(vars(self)["found"])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("tenants")
    (directory / "service.secret").write_text(SERVICE_SECRET, encoding="utf-8")
    (directory / "service.secret").chmod(0o600)
    stack = Stack(
        directory,
        {
            "security.keys_file": write_keys(directory / "keys.toml", KEYS + TENANTS),
            "client.access_key": "service",
            "client.secret_file": directory / "service.secret",
        },
    )
    try:
        stack.start_all(("registry", "broker", "gateway"))
        with SyncAdmin([stack.registry], security=Security("admin", ADMIN_SECRET)) as admin:
            for topic in ("orders", "acme%orders", "beta%orders"):
                admin.create_topic(topic)
        yield stack
    finally:
        end_all([stack])


def test_a_tenant_uses_its_own_topics_and_reaches_none_of_others(stack: Stack) -> None:
    registries, acme, beta = [stack.registry], Security("acme", ACME), Security("beta", BETA)
    with SyncProducer(registries, security=acme) as producer:
        producer.send(Message("acme%orders", b"of acme"))
        for other in ("orders", "beta%orders"):
            with pytest.raises(HoldMQError):
                producer.send(Message(other, b"not mine"))
    with SyncPullConsumer(registries, security=acme) as consumer:
        consumer.assign(["acme%orders"], "earliest")
        found: list[bytes] = []
        wait_until(
            lambda: bool(found.extend(m.body for m in consumer.poll(hold_ms=500)) or found), "its message"
        )
        assert found == [b"of acme"]
    with SyncPullConsumer(registries, security=beta) as consumer:
        consumer.assign(["acme%orders", "beta%orders"], "earliest")
        assert consumer.poll(hold_ms=500) == []


def test_a_tenant_lists_its_own_and_learns_no_other_name(stack: Stack) -> None:
    with SyncAdmin([stack.registry], security=Security("acme", ACME)) as admin:
        assert {topic.topic for topic in admin.topics()} == {"acme%orders"}
        assert {topic for topic in admin.cluster().topics if "orders" in topic} == {"acme%orders"}
        assert {queue.topic for queue in admin.queue_bounds(["acme%orders"])} == {"acme%orders"}
        with pytest.raises(HoldMQError) as refused:
            admin.create_topic("acme%more")
        assert refused.value.code == Code.NOT_PERMITTED


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.MESSAGE_FIND, {"topic": "acme%orders", "key": "k"}),
        (RequestCode.QUEUE_BOUNDS, {"topics": ["acme%orders"]}),
        (RequestCode.TABLE_SCAN, {"topic": "%RETAIN", "prefix": ""}),
        (RequestCode.TABLE_SCAN, {"topic": "%SESSION", "prefix": ""}),
        (RequestCode.OFFSET_GET, {"group": "acme%readers"}),
        (RequestCode.GROUP_MEMBERS, {"group": "acme%readers"}),
        (RequestCode.DLQ_LIST, {"group": "acme%readers"}),
        (RequestCode.TOPIC_CREATE, {"topic": "acme%orders", "by_use": True}),
        (RequestCode.MESSAGE_GET, {"message_ids": ["0" * 32]}),
        (RequestCode.READ_OPEN, {}),
        (RequestCode.STATISTICS, {}),
        (RequestCode.BACKLOG, {}),
        (RequestCode.SESSION_LIST, {}),
        (RequestCode.CLIENT_LIST, {}),
        (RequestCode.CONNECTION_LIST, {}),
        (RequestCode.RETAINED_SCAN, {"filter": "#"}),
    ],
)
def test_a_client_that_asks_the_broker_without_the_sdk_is_refused(
    stack: Stack, code: RequestCode, header: dict[str, object]
) -> None:
    async def ask() -> None:
        async with Admin([stack.registry], security=Security("beta", BETA)) as admin:
            (broker,) = (await admin.cluster()).brokers
            client = Client(broker.address, "client", "beta", security=Security("beta", BETA))
            try:
                await client.call(code, Fields(header), 5.0)
            finally:
                await client.close()

    with pytest.raises(RemoteError) as refused:
        asyncio.run(ask())
    assert refused.value.code == Code.NOT_PERMITTED


@pytest.mark.parametrize(
    "topic_filter", ["$%acme/#", "$%acme/orders/#", "$%acme/orders", "$share/g/$%acme/#"]
)
def test_a_device_cannot_subscribe_to_what_is_a_tenants(stack: Stack, topic_filter: str) -> None:
    device = MqttClient(stack.mqtt_port, "spy", clean=True, expiry_s=0)
    try:
        assert device.subscribe(topic_filter).reason_codes == [ReasonCode.NOT_AUTHORIZED]
        with SyncProducer([stack.registry], security=Security("acme", ACME)) as producer:
            producer.send(Message("acme%orders", b"of acme", tag="1"))
            producer.send(Message("acme%orders", b"of acme"))
        assert device.is_silent(1.0), "a device was given a tenant's message"
    finally:
        device.close()


def test_wildcards_and_publishes_of_a_device_do_not_meet_a_tenants_topics(stack: Stack) -> None:
    device = MqttClient(stack.mqtt_port, "spy", clean=True, expiry_s=0)
    try:
        device.subscribe("#", "+/#", "+/1", "+", "acme%orders/#")
        with SyncProducer([stack.registry], security=Security("acme", ACME)) as producer:
            producer.send(Message("acme%orders", b"of acme", tag="1"))
            producer.send(Message("acme%orders", b"of acme"))
        assert device.is_silent(1.0), "a device was given a tenant's message"
        device.publish("acme%orders/1", b"of a device")
        assert device.message().payload == b"of a device"
    finally:
        device.close()
    with SyncPullConsumer([stack.registry], security=Security("acme", ACME)) as consumer:
        consumer.assign(["acme%orders"], "earliest")
        found: list[bytes] = []
        wait_until(
            lambda: bool(found.extend(m.body for m in consumer.poll(hold_ms=500))) or len(found) > 1,
            "its own",
        )
        assert set(found) == {b"of acme"}


@pytest.mark.parametrize(
    "topic_filter", ["$share/g/#", "$share/g/+/#", "$share/g/+/1", "$share/g/acme%orders/#"]
)
def test_a_shared_subscription_with_wildcards_meets_no_tenants_topic(stack: Stack, topic_filter: str) -> None:
    device = MqttClient(stack.mqtt_port, "sharer", clean=True, expiry_s=0)
    try:
        assert device.subscribe(topic_filter).reason_codes == [1]
        with SyncProducer([stack.registry], security=Security("acme", ACME)) as producer:
            producer.send(Message("acme%orders", b"of acme", tag="1"))
        device.publish("acme%orders/1", b"the last")
        got: list[Publish] = []
        while not got or got[-1].payload != b"the last":
            got.append(device.message())
            device.settle(got[-1])
        assert [(m.topic, bytes(m.payload)) for m in got] == [("acme%orders/1", b"the last")]
        assert device.is_silent(), device.received
    finally:
        device.close()


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_device_cannot_take_a_client_id_that_counts_as_a_tenants(stack: Stack, version: int) -> None:
    device = MqttClient(stack.mqtt_port, "$%acme/pump", version=version)
    try:
        assert device.connack.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    finally:
        device.close()
    own = MqttClient(stack.mqtt_port, "acme%pump", version=version)
    own.close()
    assert own.connack.reason_code == 0
