"""Publishes to records: what is kept from one publish to the next must not outlive what it was made from."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from session_bench import VERSIONS, Bench, ids

from gateway.brokers.core.producer import BrokerProducer
from gateway.ground.smallest import SmallestMessage
from gateway.ground.targets import HeldSocket, Target
from gateway.publish.ingress import Ingress, Keep
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, PubAck, Publish, encode

Start = Callable[..., Any]


class Link:
    """Whose producer it is."""

    name = "b"

    def added(self, size_bytes: int) -> None:
        """Nothing is sent."""

    def hold(self, socket: HeldSocket) -> None:
        """Nobody is held."""


def ingress_to(places: dict[str, Target]) -> Ingress:
    return Ingress(
        lambda topic, _client_id, _bound: places.get(topic),
        lambda _topic, _client_id: False,
        SmallestMessage(),
        float,
    )


def test_a_full_producer_is_told_of_also_when_a_later_message_waits_for_its_topic() -> None:
    away = BrokerProducer(1, Link())
    ingress = ingress_to({"away": away.target("away", 0)})
    bench = Bench(MQTT_3_1_1)
    bench.connect()
    (run,) = bench.feed(Publish("away/x", b"1", 0), Publish("new/x", b"2", 0))
    assert ingress.publish(bench.session, run) == "new"
    assert ingress.full is away
    away.connected()
    (run,) = bench.feed(Publish("away/x", b"1", 0))
    assert ingress.publish(bench.session, run) is None
    assert ingress.full is None


async def test_who_publishes_to_a_broker_that_is_away_is_held_whatever_else_it_publishes(
    start_worker: Start,
) -> None:
    running = await start_worker()
    worker = running.worker
    client = await running.client("c1")
    client.send(Publish("here/x", b"1", 1, packet_id=1))
    await client.acked(1)
    away = worker.roster.link_to("away")
    locate = worker.ingress._locate
    worker.ingress._uses_other = lambda _topic, _client_id: False
    worker.ingress._locate = lambda topic, client_id, bound: (
        away.producer.target(topic, 0) if topic == "away" else locate(topic, client_id, bound)
    )
    kept = encode(Publish("here/x", b"kept", 0, retain=True), MQTT_3_1_1)
    client.writer.write(encode(Publish("away/x", b"1", 0), MQTT_3_1_1) + kept)
    while not away.held:
        await asyncio.sleep(0.01)


def test_a_plan_whose_queue_is_retired_is_replaced_for_good() -> None:
    producer = BrokerProducer(1, Link())
    places = {"a": producer.target("a", 0)}
    ingress = ingress_to(places)
    bench = Bench(MQTT_3_1_1)
    bench.connect()

    def publish() -> Any:
        (run,) = bench.feed(Publish("a/b", b"1", 0))
        assert ingress.publish(bench.session, run) is None
        return bench.session.inbound.plan  # type: ignore[union-attr]

    first = publish()
    assert publish() is first
    old, places["a"] = places["a"], producer.target("a", 1)
    old.is_retired = True
    old.runs.clear()
    second = publish()
    assert second.target is places["a"]
    assert publish() is second
    assert old not in (plan.target for plan in bench.session.inbound.plans.values())  # type: ignore[union-attr]


def encoded(version: int, packet_id: int = 2, payload: bytes = b"2") -> bytes:
    return encode(Publish("a/b", payload, 1, packet_id=packet_id), version)


class Publishing:
    """A session that has published to `a/b` once, and what its records and receipts are."""

    def __init__(self, version: int = MQTT_5, **section: Any) -> None:
        self.producer = BrokerProducer(1, Link())
        self.producer.connected()
        self.target = self.producer.target("a", 0)
        self.ingress = ingress_to({"a": self.target})
        self.ingress._mark = 1
        self.bench = Bench(version, **section)
        self.bench.connect()
        self.publish(encoded(version, 1, b"1"))

    def publish(self, data: bytes) -> None:
        """As the decoder has it."""
        for run in self.bench.feed(data):
            assert self.ingress.publish(self.bench.session, run) is None

    def again(self, data: bytes) -> bool:
        return self.ingress.publish_like_last(self.bench.session, data, self.bench.now)

    def state(self) -> tuple[object, ...]:
        inbound = self.bench.session.inbound
        run = self.target.run
        assert inbound is not None
        assert run is not None
        counters = self.bench.counters
        return (
            # Without check and born time, which say when it was.
            [record[12:40] + record[48:] for record in run.records],
            [receipt.packet_ids for receipt in run.receipts],
            [receipt.packet_type for receipt in run.receipts],
            (inbound.count, inbound.unsettled, self.producer.pending_bytes),
            (counters.messages_in_qos0_total, counters.messages_in_qos1_total),
            self.bench.session.heard_at,
        )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_publish_like_the_last_one_leaves_what_the_decoders_way_leaves(version: int, qos: int) -> None:
    ways = Publishing(version), Publishing(version)
    for at in range(2, 5):
        data = encode(Publish("a/b", b"%d" % at, qos, packet_id=at * qos), version)
        for way in ways:
            way.bench.now += 1
        ways[0].publish(data)
        # The first one of another QoS has no plan yet.
        if not ways[1].again(data):
            assert at == 2
            assert qos == 0
            ways[1].publish(data)
        assert ways[0].state() == ways[1].state()
    for way in ways:
        for run in way.target.runs:
            for receipt in run.receipts:
                receipt.settle(0)
    assert [ids(way.bench.sent()) for way in ways] == [[1, 2, 3, 4] if qos else [1]] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda way: way.bench.feed(encoded(MQTT_5)[:3]),  # the rest of a packet comes
        lambda way: setattr(way.bench.context, "traced", lambda _session, _items: None),
        lambda way: setattr(way.target, "is_retired", True),
        lambda way: setattr(way.producer, "record_max_bytes", 50),
        lambda way: way.ingress._smallest.told("b", 2),
        lambda way: way.bench.session.inbound.forget_plans(),
        lambda way: way.bench.session.close(0, "x", "x"),
        lambda way: setattr(way.bench.session.inbound, "count", way.bench.context.limits.receive_max),
        lambda way: setattr(way.bench.context.limits, "packet_max_bytes", 5),
    ],
)
def test_a_publish_like_the_last_one_changes_nothing_where_the_decoder_must_look(
    change: Callable[[Publishing], object],
) -> None:
    way = Publishing()
    change(way)
    before = way.state()
    assert not way.again(encoded(MQTT_5))
    assert way.state() == before


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_below_the_least_size_is_answered_and_not_stored(version: int) -> None:
    way = Publishing(version)
    way.ingress._smallest.told("b", 3)
    way.ingress._smallest.told("other", 2)
    data = b"".join(encoded(version, packet_id, b"x" * packet_id) for packet_id in (2, 3, 4))
    (run,) = way.bench.feed(data)
    assert way.ingress.publish(way.bench.session, run) is None
    assert [len(records.records) for records in way.target.runs] == [3]  # with the first of all
    assert way.bench.context.counters.refused["publish_too_small"] == 1
    for records in way.target.runs:
        for receipt in records.receipts:
            receipt.settle(0)
    answers = way.bench.sent()
    assert sorted(ids(answers)) == [1, 2, 3, 4]
    refused = [ack.packet_id for ack in answers if isinstance(ack, PubAck) and ack.reason_code == 0x83]
    assert refused == ([2] if version == MQTT_5 else [])


def test_an_empty_retained_message_deletes_whatever_the_least_size_and_a_short_one_is_not_kept() -> None:
    way = Publishing()
    way.ingress._smallest.told("b", 3)
    packets = [
        Publish("a/b", payload, 1, packet_id=packet_id, retain=True)
        for packet_id, payload in ((2, b"long"), (3, b""), (4, b"no"), (5, b"other"))
    ]
    (run,) = way.bench.feed(b"".join(encode(packet, MQTT_5) for packet in packets))
    kept: list[bytes] = []
    inbound = way.bench.session.inbound
    assert inbound is not None
    while (found := way.ingress.publish(way.bench.session, run)) is not None:
        assert isinstance(found, Keep)
        kept += [payload for _, _, payload, _ in found.messages]
        inbound.kept = deque([0] * len(found.messages))
    assert kept == [b"long", b"", b"other"]
    assert way.bench.context.counters.refused["publish_too_small"] == 1


def test_only_an_undelayed_topic_without_retain_is_published_again_unseen() -> None:
    for topic, retain in (("$delayed/9/a/b", False), ("a/b", True)):
        way = Publishing()
        data = encode(Publish(topic, b"1", 1, packet_id=2, retain=retain), MQTT_5)
        (run,) = way.bench.feed(data)
        inbound = way.bench.session.inbound
        assert inbound is not None
        inbound.kept = deque([0])
        assert way.ingress.publish(way.bench.session, run) is None
        assert not way.again(data)


def test_a_plan_outlives_the_entry_of_its_topic() -> None:
    way = Publishing()
    inbound = way.bench.session.inbound
    assert inbound is not None
    plan = inbound.plan
    # As when the table has gone round twice beneath a client that only repeats itself.
    way.bench.context.topics.entries.clear()
    way.ingress._locate = lambda *_: None
    way.publish(encoded(MQTT_5, 2) + encoded(MQTT_5, 3))
    assert inbound.plan is plan
    assert list(inbound.plans.values()) == [plan]
    assert way.again(encoded(MQTT_5, 4))


async def test_a_client_that_repeats_itself_is_held_while_its_broker_is_away(start_worker: Start) -> None:
    running = await start_worker()
    worker = running.worker
    client = await running.client("c1")
    client.send(Publish("here/x", b"1", 1, packet_id=1))
    await client.acked(1)
    (link,) = worker.links.values()
    link.producer.is_connected = False
    client.send(Publish("here/x", b"2", 1, packet_id=2))
    while not link.held:
        await asyncio.sleep(0.01)
    link.producer.is_connected = True
    link.flush()
    link.release()
    assert await client.acked(1) == [2]
