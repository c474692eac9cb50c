"""Tenants' MQTT clients over real processes: the same names of two tenants and of nobody never meet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from access_files import password_file, written
from mqtt_client import MqttClient, bodies, connect_again
from packet_stream import PacketStream
from processes import Stack, end_all, wait_until
from security import ADMIN_SECRET, KEYS, SERVICE_SECRET, write_keys

from holdmq.client import Admin, Message, Security, SyncAdmin, SyncProducer, SyncPullConsumer
from holdmq.client.bans import BanAdmin
from holdmq.client.connected import ClientAdmin
from holdmq.client.quotas import QuotaAdmin
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    PubAck,
    Publish,
    PublishRun,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from holdmq.wire.ban_headers import CLIENT_ID, BanRow
from holdmq.wire.client_headers import ClientSelection
from holdmq.wire.quota_headers import TENANT, QuotaRow

ACME = "secret-of-acme-" + "a" * 32
ACME_KEY = f"""
[keys.acme]
secret = "{ACME}"
produce = ["*"]
consume = ["*"]
groups = ["*"]
tenant = "acme"
"""
TENANTS = "ada:acme\nacme-*:acme\nbea:beta\ngus:gamma\n"
ACL = "pattern readwrite #\npattern readwrite $SYS/#\n"
USERS = {"acme": "ada", "beta": "bea", "nobody": "nora"}
VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])
ADMIN = Security("admin", ADMIN_SECRET)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("tenants")
    (directory / "service.secret").write_text(SERVICE_SECRET, encoding="utf-8")
    (directory / "service.secret").chmod(0o600)
    users = dict.fromkeys((*USERS.values(), "acme-2", "eve", "gus"), "x")
    stack = Stack(
        directory,
        {
            "security.keys_file": write_keys(directory / "keys.toml", KEYS + ACME_KEY),
            "client.access_key": "service",
            "client.secret_file": directory / "service.secret",
            "access.password_file": password_file(directory / "users", **users),
            "access.tenants_file": written(directory / "tenants", TENANTS),
            "access.acl_file": written(directory / "acl", ACL),
            "access.reload_interval_s": 0.1,
            "gateway.workers": 2,
        },
    )
    try:
        stack.start_all(("registry", "broker", "gateway"))
        yield stack
    finally:
        end_all([stack])


@pytest.fixture(autouse=True)
def _connections_end() -> Iterator[None]:
    yield
    MqttClient.close_all()


def connect(
    stack: Stack, tenant: str, client_id: str, version: int = MQTT_5, *, clean: bool = True, **options: Any
) -> MqttClient:
    options = {"username": USERS[tenant], "password": b"x", **options}
    return MqttClient(stack.mqtt_port, client_id, version=version, clean=clean, **options)


class Three(NamedTuple):
    """A client of each tenant and of nobody, under one client id."""

    acme: MqttClient
    beta: MqttClient
    nobody: MqttClient

    def named(self) -> list[tuple[str, MqttClient]]:
        return list(zip(self._fields, self, strict=True))


def three(stack: Stack, client_id: str, version: int = MQTT_5, *, clean: bool = True) -> Three:
    return Three(*(connect(stack, tenant, client_id, version, clean=clean) for tenant in USERS))


def told(messages: list[Publish]) -> list[tuple[str, bytes]]:
    """Their topics and payloads."""
    return [(message.topic, bytes(message.payload)) for message in messages]


def of(name: str, count: int) -> list[bytes]:
    """Payloads that say whose they are."""
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_same_ids_and_topics_of_three_never_meet(stack: Stack, version: int, qos: int) -> None:
    no = 0x87 if version == MQTT_5 else 0x80
    readers = three(stack, f"reader-{version}-{qos}", version)
    for reader in readers:
        codes = reader.subscribe("#", "+/+", "$%acme/#", "$%beta/#", qos=qos).reason_codes
        assert codes == [qos, qos, no, no]
    for name, writer in three(stack, f"writer-{version}-{qos}", version).named():
        writer.publish("same/topic", *of(name, 5), qos=qos)
        writer.publish("a.b/c", name.encode(), qos=qos)
        writer.ping()
    for name, reader in readers.named():
        found = told([message for message in reader.take(6) if not message.retain])
        assert [body for topic, body in found if topic == "same/topic"] == of(name, 5)
        assert [body for topic, body in found if topic == "a.b/c"] == [name.encode()]
        assert reader.is_silent(0.2)


def test_what_a_client_may_not_say(stack: Stack) -> None:
    acme = connect(stack, "acme", "sayer")
    for topic in ("$%acme/a/b", "$%beta/a/b", "$SYS/x", "$share/g/x", "$delayed/0/$%beta/x"):
        acme.send(Publish(topic, b"x", 1, packet_id=1))
        assert acme.wait_for(PubAck).reason_code == ReasonCode.TOPIC_NAME_INVALID
    filters = ("$SYS/#", "$%beta/#", "$share/g/$%beta/#", "$share/g/$%acme/x", "$share/g/$SYS/#", "$foo")
    assert acme.subscribe(*filters).reason_codes == [0x87] * len(filters)
    nora = connect(stack, "nobody", "sayer")
    assert nora.subscribe("$SYS/broker/version", "$share/g/$%acme/#").reason_codes == [1, 0x87]
    for tenant in ("acme", "nobody"):
        refused = connect(stack, tenant, "$%acme/sayer")
        assert refused.connack.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        refused = connect(stack, tenant, "sayer-2", will=Will("$%beta/x", b"", 1))
        assert refused.connack.reason_code == ReasonCode.TOPIC_NAME_INVALID


async def test_what_comes_with_connect_and_by_alias_is_the_tenants_too(stack: Stack) -> None:
    readers = three(stack, "early-reader")
    for reader in readers:
        reader.subscribe("early/#")
    early = PacketStream(*await asyncio.open_connection("127.0.0.1", stack.mqtt_port))
    # One write: whose client it is is known long after all of this is here.
    packets = (
        Connect(client_id="early", version=MQTT_5, username="ada", password=b"x"),
        Publish("early/1", b"one", 1, packet_id=1),
        Subscribe(7, [Subscription("early/+", 1)]),
    )
    early.writer.write(b"".join(encode(packet, MQTT_5) for packet in packets))
    kinds: set[type] = set()
    while not kinds >= {ConnAck, SubAck}:
        packet = await early.next()
        assert getattr(packet, "reason_code", 0) == 0
        kinds.add(type(packet))
    early.send(Publish("early/2", b"two", 0, properties=Properties(topic_alias=1)))
    early.send(Publish("", b"three", 0, properties=Properties(topic_alias=1)))
    expected = [("early/1", b"one"), ("early/2", b"two"), ("early/2", b"three")]
    assert told(await asyncio.to_thread(readers.acme.take, 3)) == expected
    assert readers.beta.is_silent(0.2)
    assert readers.nobody.is_silent(0.1)
    early.writer.close()


async def test_aliases_to_a_client_stand_for_the_tenants_words(stack: Stack) -> None:
    reader = PacketStream(*await asyncio.open_connection("127.0.0.1", stack.mqtt_port))
    reader.decoder.allow_topic_aliases(5)
    takes = Properties(topic_alias_maximum=5)
    reader.send(Connect("aliased", MQTT_5, username="ada", password=b"x", properties=takes))
    assert (await reader.next()).reason_code == 0
    reader.send(Subscribe(7, [Subscription("often/#", 0)]))
    assert (await reader.next()).reason_codes == [0]
    writer = connect(stack, "acme", "alias-w")
    await asyncio.to_thread(writer.publish, "often/said", b"1", b"2", b"3")
    topics: list[bytes] = []
    while len(topics) < 3:
        run = await reader.next()
        assert isinstance(run, PublishRun)
        topics += [message[0] for message in run.messages]
    assert topics == [b"often/said"] * 3
    reader.writer.close()


def test_properties_reach_the_tenants_clients_in_its_words(stack: Stack) -> None:
    reader = connect(stack, "acme", "answers", asks_for_response=True)
    assert reader.subscribe("ask/#", identifier=7).reason_codes == [1]
    writer = connect(stack, "acme", "asks")
    asked = Properties(response_topic="replies/1", correlation_data=b"c", user_properties=(("k", "v"),))
    writer.subscribe("replies/#")
    writer.send(Publish("ask/1", b"?", 1, packet_id=1, properties=asked))
    (question,) = reader.take(1)
    assert question.topic == "ask/1"
    assert question.properties.response_topic == "replies/1"
    assert question.properties.subscription_identifiers == (7,)
    reader.publish(question.properties.response_topic or "", b"!")
    assert told(writer.take(1)) == [("replies/1", b"!")]
    assigned = connect(stack, "acme", "", expiry_s=0).connack.properties.assigned_client_identifier
    assert assigned is not None
    assert assigned.startswith("auto-")


def test_no_local_is_about_the_clients_own(stack: Stack) -> None:
    acme = connect(stack, "acme", "local")
    acme.send(Subscribe(9, [Subscription("local/#", 1, no_local=True)]))
    acme.wait_for(SubAck)
    acme.publish("local/1", b"own")
    connect(stack, "acme", "local-other").publish("local/1", b"other's")
    assert bodies(acme.take(1)) == [b"other's"]
    assert acme.is_silent(0.1)


@VERSIONS
def test_retained_messages_are_each_ones_own(stack: Stack, version: int) -> None:
    topic = f"kept-{version}/here"
    for name, writer in three(stack, "keeper", version).named():
        writer.send(Publish(topic, name.encode(), 1, retain=True, packet_id=1))
        assert writer.wait_for(PubAck).reason_code == 0
    for name, reader in three(stack, "kept-r", version).named():
        reader.subscribe(f"kept-{version}/#")
        (found,) = reader.take(1)
        assert (found.topic, found.payload, found.retain) == (topic, name.encode(), True)
        assert reader.is_silent(0.2)
    acme = connect(stack, "acme", "deleter", version)
    acme.send(Publish(topic, b"", 1, retain=True, packet_id=1))
    acme.wait_for(PubAck)
    for name, reader in three(stack, "kept-after", version).named():
        reader.subscribe(topic)
        assert reader.is_silent(0.3) == (name == "acme")


@VERSIONS
def test_wills_are_told_to_their_own(stack: Stack, version: int) -> None:
    readers = three(stack, "mourner", version)
    for reader in readers:
        reader.subscribe("wills/#")
    for tenant in USERS:
        connect(stack, tenant, "dying", version, will=Will("wills/x", tenant.encode(), 1)).close()
    for name, reader in readers.named():
        assert told(reader.take(1)) == [("wills/x", name.encode())]
        assert reader.is_silent(0.2)


def test_a_delayed_will_is_told_by_another_gateway_in_the_tenants_words(stack: Stack) -> None:
    for reader in three(stack, "late-mourner", clean=False):
        reader.subscribe("late/#")
        reader.disconnect()
    delayed = Properties(will_delay_interval=1)
    connect(stack, "acme", "late", clean=False, will=Will("late/x", b"gone", 1, True, delayed)).close()
    stack.restart("gateway")
    for tenant, expected in (("acme", [("late/x", b"gone")]), ("beta", []), ("nobody", [])):
        reader = connect_again(stack.mqtt_port, "late-mourner", username=USERS[tenant], password=b"x")
        assert told(reader.take(len(expected))) == expected
        assert reader.is_silent(0.2)
        reader.disconnect(expiry_s=0)
        after = connect(stack, tenant, "later")
        after.subscribe("late/#")
        assert told(after.take(len(expected))) == expected, "it is retained"
        assert after.is_silent(0.1)


def test_shared_subscriptions_of_one_name_are_three_groups(stack: Stack) -> None:
    members = three(stack, "sharer")
    second = connect(stack, "acme", "sharer-2")
    for member in (*members, second):
        assert member.subscribe("$share/g/shared/#", "$share/all/#").reason_codes == [1, 1]
    for name, writer in three(stack, "share-w").named():
        writer.publish("shared/1", *of(name, 6))
    for name, member in members.named():
        found: list[Publish] = []
        for one in (member, second) if name == "acme" else (member,):
            while not one.is_silent(0.5):
                found += one.take(1)
        assert {message.topic for message in found} == {"shared/1"}
        assert sorted(bodies(found)) == sorted(of(name, 6) * 2)
    assert members.acme.unsubscribe("$share/g/shared/#", "nothing").reason_codes == [0, 0x11]
    second.unsubscribe("$share/g/shared/#")
    connect(stack, "acme", "share-w").publish("shared/1", b"one")
    assert sum(not member.is_silent(0.5) for member in (members.acme, second)) == 1


@VERSIONS
def test_persistent_sessions_of_one_id_go_on_apart_after_a_restart(stack: Stack, version: int) -> None:
    client_id = f"lasting-{version}"
    for client in three(stack, client_id, version, clean=False):
        filters = ("last/#", f"+/every-{version}", "$share/lasting/lost/#")
        assert client.subscribe(*filters, qos=2).reason_codes == [2, 2, 2]
        client.disconnect()
    for name, writer in three(stack, "last-w").named():
        writer.publish("last/1", *of(name, 3), qos=2)
        writer.publish(f"any/every-{version}", name.encode(), qos=2)
        writer.publish("lost/1", name.encode(), qos=2)
    stack.restart("gateway")
    for name, user in USERS.items():
        options = {"version": version, "username": user, "password": b"x"}
        client = connect_again(stack.mqtt_port, client_id, **options)
        single = [(f"any/every-{version}", name.encode()), ("lost/1", name.encode())]
        expected = [("last/1", body) for body in of(name, 3)] + single
        assert sorted(told(client.take(5))) == sorted(expected)
        assert client.is_silent(0.2)
        client.disconnect(expiry_s=0 if version == MQTT_5 else None)


def test_qos_2_under_way_is_sent_again_in_the_tenants_words(stack: Stack) -> None:
    client = connect(stack, "acme", "halfway", clean=False)
    client.subscribe("half/#", qos=2)
    connect(stack, "acme", "half-w").publish("half/1", b"x", qos=2)
    first = client.message()
    client.close()
    client = connect_again(stack.mqtt_port, "halfway", username="ada", password=b"x")
    again = client.message()
    assert (again.topic, again.packet_id, again.dup) == ("half/1", first.packet_id, True)
    client.settle(again)
    client.disconnect(expiry_s=0)


def test_a_takeover_stays_within_the_tenant(stack: Stack) -> None:
    before = three(stack, "taken", clean=False)
    newer = connect(stack, "acme", "taken", clean=False)
    assert before.acme.wait_for(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    before.beta.ping()
    before.nobody.ping()
    assert connect(stack, "acme", "taken", username="acme-2").connack.reason_code == 0x85, "another user's"
    newer.disconnect(expiry_s=0)


def test_applications_and_devices_of_a_tenant_meet(stack: Stack) -> None:
    registries, key = [stack.registry], Security("acme", ACME)
    device = connect(stack, "acme", "device")
    outsiders = connect(stack, "beta", "device"), connect(stack, "nobody", "device")
    for client in (device, *outsiders):
        client.subscribe("meet/#", "x.y/#", "+/meet/#", "$SYS/broker/fake")
    device.publish("meet/42", b"from a device")
    assert bodies(device.take(1)) == [b"from a device"]
    with SyncPullConsumer(registries, security=key) as consumer:
        consumer.assign(["acme%meet"], "earliest")
        found: list[Any] = []
        wait_until(lambda: bool(found.extend(consumer.poll(hold_ms=500)) or found), "the device's message")
        assert [(m.topic, m.tag, m.body) for m in found] == [("acme%meet", "42", b"from a device")]
    with SyncProducer(registries, security=key) as producer:
        producer.send(Message("acme%meet", b"from an application", tag="43"))
        assert told(device.take(1)) == [("meet/43", b"from an application")]
        producer.send(Message("acme%mqtt-other", b"whole", tag="x.y/z"))
        assert told(device.take(1)) == [("x.y/z", b"whole")]
        # Names that would be another's, or the gateway's own.
        producer.send(Message("acme%mqtt-other", b"forged", tag="$%beta/meet/1"))
        producer.send(Message("acme%|24SYS", b"forged", tag="meet/fake"))
    with SyncProducer(registries, security=ADMIN) as producer:
        producer.send(Message("mqtt-other", b"forged", tag="$%acme/meet/1"))
        producer.send(Message("|24|25acme", b"forged", tag="meet/1"))
    for client in (device, *outsiders):
        assert client.is_silent(0.3), client.received


def test_an_application_in_the_tenants_words_and_a_device_say_the_same(stack: Stack) -> None:
    registries, own = [stack.registry], {"security": Security("acme", ACME), "tenant": "acme"}
    device = connect(stack, "acme", "meter-1")
    device.subscribe("yard/#")
    with SyncProducer(registries, **own) as producer:
        producer.send(Message("yard", b"open", "gate", client_id="desk"))
    message = device.message()
    assert (message.topic, message.payload) == ("yard/gate", b"open")
    device.send(Publish("yard/gate", b"is open", 1, packet_id=1))
    assert device.wait_for(PubAck).reason_code < 0x80
    found: list[Message] = []
    with SyncPullConsumer(registries, **own) as consumer:
        consumer.assign(["yard"], "earliest")
        wait_until(lambda: bool(found.extend(consumer.poll(hold_ms=500))) or len(found) > 1, "both")
    said = {(m.topic, m.tag, m.client_id, m.body) for m in found}
    assert said == {("yard", "gate", "desk", b"open"), ("yard", "gate", "meter-1", b"is open")}
    with SyncPullConsumer(registries, security=ADMIN) as consumer:
        consumer.assign(["acme%yard"], "earliest")
        found.clear()
        wait_until(lambda: bool(found.extend(consumer.poll(hold_ms=500))) or len(found) > 1, "both")
    assert {m.client_id for m in found} == {"$%acme/desk", "$%acme/meter-1"}


def test_topics_are_made_by_use_and_a_delay_stays_within_the_tenant(stack: Stack) -> None:
    readers = three(stack, "delayed-r")
    for reader in readers:
        reader.subscribe("later/#")
    connect(stack, "acme", "delayed-w").publish("$delayed/1/later/1", b"late")
    assert told(readers.acme.take(1)) == [("later/1", b"late")]
    assert readers.beta.is_silent(0.2)
    assert readers.nobody.is_silent(0.1)
    with SyncAdmin([stack.registry], security=ADMIN) as admin:
        names = {topic.topic for topic in admin.topics()}
    assert names.intersection({"acme%later", "beta%later", "later"}) == {"acme%later"}


def test_rules_are_in_the_tenants_words(stack: Stack) -> None:
    rules = (
        "user ada\ntopic read own/#\ntopic deny own/secret\ntopic write own/#\ntopic replay past/#\n"
        "user bea\ntopic readwrite $%acme/#\npattern readwrite ids/%u/%c/#\npattern readwrite by/#\n"
    )
    connect(stack, "acme", "past-w").publish("past/1", b"then")
    connect(stack, "beta", "past-w").publish("past/1", b"not its")
    written(stack.directory / "acl", rules)
    try:
        wait_until(
            lambda: connect(stack, "acme", "r").subscribe("past/#", "none/#").reason_codes == [1, 0x87],
            "the gateway has read the rules",
        )
        wait_until(
            lambda: (
                {connect(stack, "beta", f"r{number}").subscribe("a").reason_codes[0] for number in range(16)}
                == {0x87}
            ),
            "every worker has",
        )
        acme = connect(stack, "acme", "ruled")
        filters = ("own/#", "ids/ada/ruled/#", "ids/ada/other/#", "by/#", "$share/s/own/#")
        assert acme.subscribe(*filters).reason_codes == [1, 1, 0x87, 1, 0x87]
        writer = connect(stack, "acme", "ruled-2")
        writer.publish("by/x", b"allowed")
        writer.publish("own/1", b"too")
        writer.publish("ids/ada/ruled-2/x", b"its own")
        assert told(acme.take(2)) == [("by/x", b"allowed"), ("own/1", b"too")]
        bea = connect(stack, "beta", "ruled")
        bea.send(Publish("$%acme/own/1", b"x", 1, packet_id=1))
        assert bea.wait_for(PubAck).reason_code == ReasonCode.TOPIC_NAME_INVALID
        assert bea.subscribe("$%acme/#", "$share/s/$%acme/#").reason_codes == [0x87, 0x87]
        asked = Properties(user_properties=(("from", "earliest"),))
        acme.send(Subscribe(9, [Subscription("past/#", 1)], asked))
        assert acme.wait_for(SubAck).reason_codes == [1]
        assert told(acme.take(1)) == [("past/1", b"then")]
        assert acme.is_silent(0.2)
    finally:
        written(stack.directory / "acl", ACL)


def test_what_is_denied_of_a_filter_is_left_out_within_the_tenant(stack: Stack) -> None:
    written(stack.directory / "acl", f"{ACL}pattern deny hidden/secret\n")
    try:
        reader = connect(stack, "acme", "left")
        wait_until(lambda: reader.subscribe("hidden/secret").reason_codes == [0x80], "the rule is read")
        reader.unsubscribe("hidden/secret")  # what it had before that
        assert reader.subscribe("hidden/#").reason_codes == [1]
        with SyncProducer([stack.registry], security=Security("acme", ACME)) as producer:
            producer.send(Message("acme%hidden", b"no", tag="secret"))
            producer.send(Message("acme%hidden", b"yes", tag="open"))
        assert told(reader.take(1)) == [("hidden/open", b"yes")]
        assert reader.is_silent(0.2)
    finally:
        written(stack.directory / "acl", ACL)


async def test_operators_see_end_and_ban_a_tenants_clients(stack: Stack) -> None:
    clients = three(stack, "seen")
    clients.acme.subscribe("seen/#")
    async with ClientAdmin([stack.registry], security=ADMIN) as admin:
        row = await admin.show("$%acme/seen")
        assert row is not None
        assert (row.tenant, row.user, row.filters) == ("acme", "ada", [["$%acme/seen/#", 1]])
        row = await admin.show("seen")
        assert row is not None
        assert (row.tenant, row.user) == ("", "nora")
        assert (await admin.kick(ClientSelection("$%acme/seen"))).clients == 1
    assert clients.acme.wait_for(Disconnect).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
    clients.beta.ping()
    clients.nobody.ping()
    async with BanAdmin([stack.registry], security=ADMIN) as bans:
        await bans.add(BanRow(CLIENT_ID, "seen"))
        assert clients.nobody.wait_for(Disconnect).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        assert connect(stack, "nobody", "seen").connack.reason_code == ReasonCode.BANNED
        assert connect(stack, "acme", "seen").connack.reason_code == 0
        await bans.add(BanRow(CLIENT_ID, "$%acme/seen"))
        wait_until(
            lambda: connect(stack, "acme", "seen").connack.reason_code == ReasonCode.BANNED, "the ban holds"
        )
        clients.beta.ping()
        for value in ("seen", "$%acme/seen"):
            await bans.remove(CLIENT_ID, value)


def test_who_becomes_anothers_is_disconnected(stack: Stack) -> None:
    eve = connect(stack, "nobody", "eve", username="eve")
    ada = connect(stack, "acme", "stays")
    try:
        written(stack.directory / "tenants", f"{TENANTS}eve:acme\n")
        assert eve.wait_for(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
        ada.ping()
        written(stack.directory / "tenants", "nonsense\n")
        wait_until(
            lambda: stack.metric("gateway", "holdmq_gateway_access_reloads_failed_total") >= 1, "it is read"
        )
        ada.ping()
    finally:
        written(stack.directory / "tenants", TENANTS)


async def test_quotas_of_a_tenant_hold_for_its_clients(stack: Stack) -> None:
    async with QuotaAdmin([stack.registry], security=ADMIN) as admin:
        await admin.set(QuotaRow(TENANT, "beta", connections=1))
        first = connect(stack, "beta", "q-1")
        assert first.connack.reason_code == 0
        assert connect(stack, "beta", "q-2").connack.reason_code == 0x97
        assert connect(stack, "acme", "q-1").connack.reason_code == 0
        assert connect(stack, "nobody", "q-1").connack.reason_code == 0
        await admin.remove(TENANT, "beta")
        first.ping()
        await admin.set(QuotaRow(TENANT, "acme", publish_rate=5))
        acme = connect(stack, "acme", "q-rate")

        def is_held_back() -> bool:
            acme.publish("rate/1", *[b"x"] * 8)
            return stack.metric("gateway", "holdmq_gateway_quota_paused_total") > 0

        wait_until(is_held_back, "its rate holds")
        held = stack.metric("gateway", "holdmq_gateway_quota_paused_total")
        connect(stack, "nobody", "q-rate").publish("rate/1", *[b"x"] * 50)
        assert stack.metric("gateway", "holdmq_gateway_quota_paused_total") == held
        await admin.remove(TENANT, "acme")


async def test_a_device_makes_no_topic_beyond_its_tenants_quota(stack: Stack) -> None:
    registries = [stack.registry]
    async with QuotaAdmin(registries, security=ADMIN) as admin, Admin(registries, security=ADMIN) as topics:
        await admin.set(QuotaRow(TENANT, "gamma", topics=1))
        gus = connect(stack, "nobody", "g", username="gus")

        def publish(topic: str) -> int:
            gus.send(Publish(topic, b"x", 1, packet_id=1))
            return gus.wait_for(PubAck).reason_code

        assert publish("first/1") == 0
        assert publish("second/1") == ReasonCode.QUOTA_EXCEEDED
        assert publish("first/2") == 0
        await admin.remove(TENANT, "gamma")
        await topics.create_topic("beta%mqtt-other")
        await admin.set(QuotaRow(TENANT, "beta", topics=1))
        reader = connect(stack, "beta", "g-reader")
        reader.subscribe("beyond/#")
        connect(stack, "beta", "g").publish("beyond/1", b"in another place")
        assert told(reader.take(1)) == [("beyond/1", b"in another place")]
        await admin.remove(TENANT, "beta")
        assert "beta%beyond" not in {topic.topic for topic in await topics.topics()}
