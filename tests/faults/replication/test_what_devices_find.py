"""What MQTT devices find at the new leader when theirs was killed: all that it had told them.

Everything is prepared before one kill, in the middle of a publish. Who comes back does so at another gateway,
which knows nothing but what the new leader's log says.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from broker_stack import produce_body
from cluster_view import messages_of
from mqtt_client import MqttClient, bodies, connect_again, numbered
from processes import Stack, wait_until
from replica_processes import ReplicaStack, replica_stack

from holdmq.client.admin import Admin
from holdmq.client.sessions import SessionAdmin
from holdmq.errors import Code
from holdmq.mqtt import Properties, PubAck, PubComp, Publish, PubRec, PubRel, Will
from holdmq.record.codec import SYS_QOS_SHIFT, encode_record
from holdmq.record.once import Once
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceRequest, ProduceResponse, ProduceRun, RunResult
from holdmq.wire.share_headers import ShareGroupRow

IN_THE_AIR_S = 0.3
"""How long nothing is answered while no copy has it."""
LONG_S = 3600


class Devices(NamedTuple):
    """Who was there before the kill, and what it had in hand.

    `live`, `holder`, `stays` and `watches` are connected to a gateway that outlives the leader; `port` is
    that of the other gateway.
    """

    shard: ReplicaStack
    leader: str
    port: int
    unfinished: list[Publish]
    taken: list[Publish]
    held: list[Publish]
    live: MqttClient
    holder: MqttClient
    stays: MqttClient
    watches: MqttClient

    def back(self, name: str) -> MqttClient:
        """A device that has a session, at the other gateway."""
        return connect_again(self.port, name)

    def stored(self, topic: str) -> list[bytes]:
        """All that the log has of a topic, sorted."""
        found = asyncio.run(messages_of(self.shard.registries, topic))
        return sorted(message.body for message in found)


def fresh(port: int, name: str) -> MqttClient:
    """A device without a session that outlives it."""
    return MqttClient(port, name, clean=True, expiry_s=0)


def mortal(port: int, name: str, delay_s: int) -> MqttClient:
    """A device with a will of its name."""
    will = Will(f"wills/{name}", name.encode(), 1, properties=Properties(will_delay_interval=delay_s or None))
    return MqttClient(port, name, will=will)


async def connected(shard: ReplicaStack) -> set[str]:
    """Clients that the owner of all sessions takes for connected."""
    async with SessionAdmin(shard.registries) as sessions:
        return {view.row.client_id async for view in sessions.list() if not view.row.ended_ms}


async def share(shard: ReplicaStack, name: str) -> ShareGroupRow:
    async with SessionAdmin(shard.registries) as sessions:
        [found] = [view.row async for view in sessions.shares(name)]
        return found


def wait_share(shard: ReplicaStack, name: str, holds: Callable[[ShareGroupRow], bool], what: str) -> None:
    wait_until(lambda: holds(asyncio.run(share(shard, name))), what)


async def publish_once(stack: Stack, producer_id: int) -> RunResult:
    """A gateway's PRODUCE of one and the same QoS 2 publish, from a session that it says nothing else of."""
    once = Once(77, 1, (1, 1), 1, 0).pair()
    record = encode_record(b"once", 0, b"once", once, 1_700_000_000_000, sys_flag=2 << SYS_QOS_SHIFT)
    body = produce_body([record])
    header = ProduceRequest(zlib.crc32(body), [ProduceRun("once", 0, 1, producer_id, 1, 0)], noted=[0])
    client = Client(f"127.0.0.1:{stack.broker_port}", "gateway", f"gateway-{producer_id}")
    try:
        reply = await client.call(RequestCode.PRODUCE, header, 40.0, [body], len(body))
    finally:
        await client.close()
    return rows(RunResult, reply.header(ProduceResponse).results)[0]


# Before the kill


def prepare_sessions(port: int) -> list[Publish]:
    """A subscriber goes away with two messages done, one half done, three unanswered; more come."""
    subscriber = MqttClient(port, "subscriber", receive_max=4)
    subscriber.subscribe("sessions/+", qos=2)
    subscriber.subscribe("unwanted/+", qos=2)
    subscriber.unsubscribe("unwanted/+")
    publisher = fresh(port, "publisher")
    publisher.publish("sessions/1", *numbered(8), qos=2)
    sent = [subscriber.message() for _ in range(4)]
    for message in (sent.pop(0), sent.pop(1)):
        subscriber.settle(message)
    sent += [subscriber.message() for _ in range(2)]
    subscriber.send(PubRec(sent[0].packet_id or 0))
    assert subscriber.wait_for(PubRel).packet_id == sent[0].packet_id
    subscriber.close()
    MqttClient(port, "ended").disconnect(expiry_s=0)
    MqttClient(port, "expires", expiry_s=1).close()
    publisher.publish("sessions/1", b"8", b"9", qos=2)
    publisher.publish("sessions/1", b"once or more", qos=1)
    publisher.disconnect()
    return sent


def prepare_publishers(port: int) -> None:
    """Publishers go away at each step of QoS 2."""
    for name in ("received", "released", "completed"):
        publisher = MqttClient(port, name)
        publisher.send(Publish("inbound/1", name.encode(), 2, packet_id=5))
        assert publisher.wait_for(PubRec).packet_id == 5
        if name == "completed":
            publisher.send(PubRel(5))
            assert publisher.wait_for(PubComp).packet_id == 5
        publisher.close()


async def prepare_once(shard: ReplicaStack, leader: Stack) -> None:
    async with Admin(shard.registries) as admin:
        await admin.create_topic("once", 1)
    assert (await publish_once(leader, 1)).base_offset == 0


def prepare_retained(port: int) -> None:
    keeper = fresh(port, "keeper")
    for number, (topic, payload, expiry_s) in enumerate(
        (
            ("set", b"1", None),
            ("replaced", b"old", None),
            ("cleared", b"1", None),
            ("later", b"1", None),
            ("replaced", b"new", LONG_S),
            ("cleared", b"", None),
            ("expires", b"1", 1),
        ),
        1,
    ):
        properties = Properties(message_expiry_interval=expiry_s)
        keeper.send(Publish(f"kept/{topic}", payload, 1, True, packet_id=number, properties=properties))
        assert keeper.wait_for(PubAck).reason_code in (0, 0x10)
    keeper.disconnect()


def prepare_shares(shard: ReplicaStack) -> tuple[list[Publish], MqttClient, list[Publish]]:
    """Members of three groups: `lazy` and `keeper` go away with messages in hand, `holder` stays."""
    port = shard.first.mqtt_port
    lazy = MqttClient(port, "lazy", receive_max=4)
    lazy.subscribe("$share/g/shared/+")
    holder = MqttClient(port, "holder")
    holder.subscribe("$share/h/shared/+")
    keeper = MqttClient(port, "twice", receive_max=2)
    keeper.subscribe("$share/k/shared/+", qos=2)
    publisher = fresh(port, "sharer")
    publisher.publish("shared/1", *numbered(6), qos=2)
    publisher.disconnect()
    taken = [lazy.message() for _ in range(4)]
    lazy.send(*(PubAck(message.packet_id or 0) for message in taken[1:3]))
    taken += [lazy.message() for _ in range(2)]
    lazy.send(PubAck(taken[4].packet_id or 0))
    kept = [keeper.message() for _ in range(2)]
    keeper.send(PubRec(kept[0].packet_id or 0))
    assert keeper.wait_for(PubRel).packet_id == kept[0].packet_id
    held = [holder.message() for _ in range(6)]
    holder.send(PubAck(held[0].packet_id or 0))
    wait_share(shard, "$share/g/", lambda row: row.in_flight == 3, "three of six are acknowledged")
    wait_share(shard, "$share/h/", lambda row: row.in_flight == 5, "one of six is acknowledged")
    lazy.close()
    keeper.close()
    wait_share(shard, "$share/g/", lambda row: row.returned == 3, "what one had goes to the others")
    return kept, holder, held


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devices]:
    # Copies that stand still are waited for: what nobody has is not refused either.
    overrides = {"replication.lag_ms": 10_000}
    with replica_stack(tmp_path_factory.mktemp("devices"), "gateway", **overrides) as shard:
        port = shard.first.mqtt_port
        unfinished = prepare_sessions(port)
        prepare_publishers(port)
        asyncio.run(prepare_once(shard, shard.stacks[shard.leader()]))
        prepare_retained(port)
        taken, holder, held = prepare_shares(shard)
        watches = fresh(port, "watches")
        watches.subscribe("wills/+", qos=2)
        mortal(port, "parted", 0).disconnect()
        mortal(port, "returns", LONG_S).close()
        mortal(port, "waits", LONG_S).close()
        stays = mortal(port, "stays", 0)
        live, cut = MqttClient(port, "live"), MqttClient(port, "cut")
        mortal(port, "mourned", 3).close()
        there = {"holder", "watches", "stays", "live", "cut"}
        wait_until(lambda: asyncio.run(connected(shard)) == there, "who is not there has said so")
        shard.wait_confirmed()
        with shard.paused_copies() as leader:
            for client, name in ((live, b"live"), (cut, b"cut")):
                client.send(Publish("inbound/1", name, 2, packet_id=9))
                assert client.is_silent(IN_THE_AIR_S), "what no copy has is not acknowledged"
            shard.kill(leader)
        cut.close()
        shard.wait_leader(leader)
        other = shard.stacks[shard.names[1]]
        other.start("gateway")
        yield Devices(shard, leader, other.mqtt_port, unfinished, taken, held, live, holder, stays, watches)
        MqttClient.close_all()


# After it


def test_a_session_has_its_subscriptions_and_what_was_on_its_way_exactly_once(after: Devices) -> None:
    publisher = fresh(after.port, "publisher")
    publisher.publish("sessions/1", b"10", qos=2)
    publisher.publish("unwanted/1", b"unwanted", qos=2)
    subscriber = after.back("subscriber")
    half_done, *unanswered = after.unfinished
    assert subscriber.wait_for(PubRel).packet_id == half_done.packet_id
    subscriber.send(PubComp(half_done.packet_id or 0))
    again = subscriber.take(3)
    assert [(m.packet_id, m.payload, m.dup) for m in again] == [
        (m.packet_id, m.payload, True) for m in unanswered
    ]
    rest = subscriber.take(6)
    assert bodies([message for message in rest if message.qos == 2]) == numbered(5, 6)
    assert [message.payload for message in rest if message.qos == 1] == [b"once or more"]
    assert subscriber.is_silent()
    subscriber.disconnect()
    assert after.back("subscriber").is_silent()


def test_sessions_that_ended_or_expired_meanwhile_are_not_there(after: Devices) -> None:
    for name in ("ended", "expires"):
        assert not MqttClient(after.port, name, expiry_s=0).connack.session_present, name


def test_a_publish_with_qos_2_goes_on_at_each_of_its_steps_and_is_stored_once(after: Devices) -> None:
    after.live.wait_for(PubRec)
    cut, received = after.back("cut"), after.back("received")
    cut.send(Publish("inbound/1", b"cut", 2, packet_id=9, dup=True))
    received.send(Publish("inbound/1", b"received", 2, packet_id=5, dup=True))
    for client in (cut, received):
        assert client.wait_for(PubRec).reason_code == 0
    released, completed = after.back("released"), after.back("completed")
    for client, packet_id in ((after.live, 9), (cut, 9), (received, 5), (released, 5)):
        client.send(PubRel(packet_id))
        done = client.wait_for(PubComp)
        assert (done.packet_id, done.reason_code) == (packet_id, 0)
    names = [b"completed", b"cut", b"live", b"received", b"released"]
    assert after.stored("inbound") == names
    # What the log has of it is known though no session says so.
    stack = after.shard.stacks[after.shard.leader()]
    assert asyncio.run(publish_once(stack, 2))[:2] == (Code.OK, 0)
    assert after.stored("once") == [b"once"]
    # Their packet ids are free again.
    for client, packet_id in ((received, 5), (released, 5), (completed, 5), (cut, 9), (after.live, 9)):
        client.send(Publish("inbound/1", b"new", 2, packet_id=packet_id))
        assert client.wait_for(PubRec).reason_code == 0
    assert after.stored("inbound") == sorted(names + [b"new"] * 5)


def test_retained_messages_are_as_they_were_left_and_can_be_changed(after: Devices) -> None:
    client = fresh(after.port, "reader")
    client.subscribe("kept/+")
    got = client.take(3)
    assert {m.topic: (m.payload, m.retain) for m in got} == {
        "kept/set": (b"1", True), "kept/replaced": (b"new", True), "kept/later": (b"1", True)
    }  # fmt: skip
    [replaced] = [m for m in got if m.topic == "kept/replaced"]
    assert LONG_S - 300 < (replaced.properties.message_expiry_interval or 0) <= LONG_S
    assert client.is_silent()
    for packet_id, (topic, payload) in enumerate((("set", b"2"), ("later", b"")), 1):
        client.send(Publish(f"kept/{topic}", payload, 1, retain=True, packet_id=packet_id))
        assert client.wait_for(PubAck).reason_code == 0
    late = fresh(after.port, "late")
    late.subscribe("kept/+")
    assert {m.topic: m.payload for m in late.take(2)} == {"kept/set": b"2", "kept/replaced": b"new"}
    assert late.is_silent()


def test_a_shared_subscription_gives_others_what_was_not_acknowledged_and_nothing_else(
    after: Devices,
) -> None:
    eager = MqttClient(after.port, "eager")
    eager.subscribe("$share/g/shared/+")
    assert sorted(bodies(eager.take(3))) == [b"0", b"3", b"5"]
    assert eager.is_silent()
    # Of another group one is still there that has some in hand: they stay with it while it is.
    wait_share(after.shard, "$share/h/", lambda row: row.in_flight == 5, "the new leader knows who has what")
    assert after.holder.is_silent()
    mate = MqttClient(after.port, "mate")
    mate.subscribe("$share/h/shared/+")
    assert mate.is_silent()
    after.holder.send(*(PubAck(message.packet_id or 0) for message in after.held[1:3]))
    after.holder.close()
    assert sorted(bodies(mate.take(3))) == [b"3", b"4", b"5"]
    assert mate.is_silent()


def test_a_shared_subscription_with_qos_2_leaves_a_message_with_who_has_it(after: Devices) -> None:
    other = MqttClient(after.port, "other")
    other.subscribe("$share/k/shared/+", qos=2)
    assert bodies(other.take(4)) == numbered(4, 2)
    assert other.is_silent()
    twice = after.back("twice")
    begun, untouched = after.taken
    assert twice.wait_for(PubRel).packet_id == begun.packet_id
    twice.send(PubComp(begun.packet_id or 0))
    again = twice.message()
    assert (again.payload, again.packet_id, again.dup) == (untouched.payload, untouched.packet_id, True)
    twice.settle(again)
    assert twice.is_silent()


def test_a_will_is_published_once_or_not_at_all_if_its_device_comes_back(after: Devices) -> None:
    assert bodies(after.watches.take(1)) == [b"mourned"]
    assert after.back("returns").connack.session_present
    leader = after.shard.stacks[after.shard.leader()]
    wait_until(lambda: leader.metric("broker", "holdmq_broker_wills") == 2, "those that wait are left")
    after.stays.ping()
    after.stays.close()
    assert bodies(after.watches.take(1)) == [b"stays"]
    assert after.watches.is_silent()
    assert after.stored("wills") == [b"mourned", b"stays"]
    assert leader.metric("broker", "holdmq_broker_wills") == 1
