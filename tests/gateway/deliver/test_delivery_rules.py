"""Rules of delivery that MQTT 5.0 sets, over a worker: docs/mqtt-conformance.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from session_bench import Bench

from gateway.deliver.delivery import LiveDelivery
from gateway.ground.counters import Counters
from gateway.session.outbound import Planned
from holdmq.mqtt import (
    MQTT_5,
    FilterTrie,
    Properties,
    PubComp,
    Publish,
    PubRec,
    Subscribe,
    Subscription,
    Will,
    encode_block,
)
from holdmq.mqtt.protocol import PUBLISH
from holdmq.record.codec import SYS_QOS_SHIFT, encode_properties, encode_record

Start = Callable[..., Awaitable[Any]]


@pytest.mark.mqtt("MQTT-3.3.1-3")
async def test_dup_of_a_publish_is_not_passed_on(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("a/#", qos=2)
    publisher = await running.client("p", MQTT_5)
    publisher.send(
        Publish("a/1", b"x", 1, dup=True, packet_id=1), Publish("a/2", b"x", 2, dup=True, packet_id=2)
    )
    assert sorted([(m.qos, m.dup) for m in (await subscriber.next(), await subscriber.next())]) == [
        (1, False),
        (2, False),
    ]


@pytest.mark.mqtt("MQTT-3.8.4-3", "MQTT-3.8.4-4")
async def test_a_replaced_subscription_has_its_new_options_and_misses_nothing(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    publisher = await running.client("p", MQTT_5)
    await subscriber.subscribe("a/#", qos=0)
    sent = []
    for turn in range(20):
        publisher.send(Publish("a/b", b"%d" % turn, 1, packet_id=turn + 1))
        sent.append(b"%d" % turn)
        subscriber.send(
            Subscribe(
                turn + 1,
                [Subscription("a/#", turn % 2)],
                Properties(subscription_identifiers=(turn + 1,)),
            )
        )
    await publisher.acked(20)
    got: list[Publish] = []
    answered = 0
    while not got or got[-1].payload != b"end":
        item = await subscriber.next()
        if isinstance(item, Publish):
            got.append(item)
            continue
        answered += 1
        if answered == 20:
            publisher.send(Publish("a/b", b"end", 1, packet_id=50))
    assert [m.payload for m in got] == [*sent, b"end"]
    assert got[-1].qos == 1
    assert got[-1].properties.subscription_identifiers == (20,)
    assert running.worker.counters.subscriptions == 1


@pytest.mark.mqtt("MQTT-3.1.2-14", "MQTT-3.1.3-10", "MQTT-3.1.2-8")
async def test_a_will_is_published_as_it_was_given(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("wills/#", qos=2, retain_as_published=True)
    said = (("z", "1"), ("a", "2"), ("z", "0"))
    will = Will("wills/1", b"gone", 2, properties=Properties(user_properties=said, content_type="t"))
    dying = await running.client("d", MQTT_5, will=will)
    dying.writer.close()
    got = await subscriber.next()
    assert (got.topic, got.payload, got.qos, got.retain) == ("wills/1", b"gone", 2, False)
    assert got.properties == Properties(user_properties=said, content_type="t")


class Link:
    """What a delivery asks of the link that a record came over."""

    name = "b1"
    clock_ahead_ms = 0


@pytest.mark.mqtt("MQTT-4.3.3-7", "MQTT-4.3.3-13", "MQTT-3.3.1-1", "MQTT-4.4.0-1")
def test_what_was_sent_with_qos_2_does_not_expire_and_what_was_sent_with_qos_1_does() -> None:
    bench = Bench()
    bench.connect(properties=Properties(session_expiry_interval=60))
    outbound = bench.session.outgoing()
    block = encode_block(Properties(message_expiry_interval=5), PUBLISH)
    records = b""
    for packet_id, qos in ((1, 1), (2, 2)):
        record = bytearray(
            encode_record(
                b"a", 0, b"x", encode_properties([("TAGS", "b")], block), 0, sys_flag=qos << SYS_QOS_SHIFT
            )
        )
        record[28:36] = packet_id.to_bytes(8, "big")
        record[56:64] = (1_000).to_bytes(8, "big")
        records += bytes(record)
        bench.push(qos << 1, packet_id)
        assert outbound.inflight is not None
        outbound.inflight[packet_id] = Planned("b1", packet_id, qos << 1, ())
    bench.sent()
    trie: FilterTrie[Any, Any] = FilterTrie()
    delivery = LiveDelivery(trie, Counters(), lambda: 3_600_000)
    delivery.resend(Link(), memoryview(records), bench.session, [1, 2])  # type: ignore[arg-type]
    (again,) = bench.sent()
    assert (again.packet_id, again.qos, again.dup) == (2, 2, True)
    assert again.properties.message_expiry_interval == 0
    assert list(outbound.inflight or {}) == [2]
    bench.feed(PubRec(2), PubComp(2))
    assert outbound.inflight is None
