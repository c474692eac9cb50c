from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.brokers.reader import READS_OUTSTANDING
from gateway.ground.clock import wall_ms
from holdmq.errors import Code
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    encode_block,
)
from holdmq.mqtt.protocol import PUBLISH
from holdmq.record.codec import SYS_COMPRESSED, SYS_QOS_SHIFT, encode_properties, encode_record
from holdmq.wire.command import Command
from holdmq.wire.headers import TermKind

Start = Callable[..., Awaitable[Any]]


async def pair(running: Any, version: int = MQTT_5, **fields: Any) -> tuple[Any, Any]:
    return await running.client("sub", version, **fields), await running.client("pub", MQTT_5)


async def publish(client: Any, *packets: Publish) -> None:
    client.send(*packets)
    owed = sum(1 for packet in packets if packet.qos)
    if owed:
        await client.acked(owed)


@pytest.mark.mqtt("MQTT-3.8.4-8")
@pytest.mark.parametrize(
    ("published", "granted", "got"), [(0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 1, 1), (2, 2, 2)]
)
async def test_the_qos_is_the_smaller_of_publish_and_grant(
    start_worker: Start, published: int, granted: int, got: int
) -> None:
    running = await start_worker()
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#", qos=granted)
    publisher.send(Publish("a/b", b"x", published, packet_id=1 if published else 0))
    assert (await subscriber.next()).qos == got


@pytest.mark.mqtt("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4")
async def test_overlapping_filters_give_one_copy_with_the_best_qos_and_all_ids(start_worker: Start) -> None:
    """[MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    running = await start_worker()
    subscriber, publisher = await pair(running)
    for packet_id, (topic_filter, qos) in enumerate([("a/#", 0), ("a/+", 1), ("+/b", 0)], 1):
        identifier = Properties(subscription_identifiers=(packet_id * 10,))
        subscriber.send(Subscribe(packet_id, [Subscription(topic_filter, qos)], identifier))
        await subscriber.next()
    await publish(publisher, Publish("a/b", b"x", 1, packet_id=1), Publish("a/c/d", b"y", 1, packet_id=2))
    message = await subscriber.next()
    assert message.qos == 1
    assert sorted(message.properties.subscription_identifiers) == [10, 20, 30]
    assert (await subscriber.next()).payload == b"y"


@pytest.mark.mqtt("MQTT-3.8.3-3")
async def test_no_local_removes_only_its_own_subscription(start_worker: Start) -> None:  # [MQTT-3.8.3-3]
    running = await start_worker()
    client = await running.client("both", MQTT_5)
    await client.subscribe("own/#", no_local=True)
    await client.subscribe("own/loud")
    client.send(Publish("own/quiet", b"q"), Publish("own/loud", b"l"))
    message = await client.next()
    assert message.topic == "own/loud"
    other = await running.client("other", MQTT_5)
    other.send(Publish("own/quiet", b"from another"))
    assert (await client.next()).payload == b"from another"


@pytest.mark.mqtt("MQTT-3.3.1-12", "MQTT-3.3.1-13")
@pytest.mark.parametrize("as_published", [False, True])
async def test_retain_is_kept_when_the_subscription_asks_for_it(
    start_worker: Start, as_published: bool
) -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("a/#", retain_as_published=as_published)
    publisher = await running.client("p", MQTT_3_1_1)
    publisher.send(Publish("a/b", b"x", retain=True))
    assert (await subscriber.next()).retain is as_published


@pytest.mark.mqtt(
    "MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20"
)
async def test_properties_of_a_publish_reach_mqtt_5_receivers_unaltered(start_worker: Start) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] … [MQTT-3.3.2-20]"""
    running = await start_worker()
    subscriber, publisher = await pair(running)
    old = await running.client("old", MQTT_3_1_1)
    await subscriber.subscribe("a/#")
    await old.subscribe("a/#")
    sent = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers/1",
        correlation_data=b"\0\1",
        user_properties=(("k", "1"), ("k", "2")),
    )
    await publish(publisher, Publish("a/b", b"x", 1, packet_id=1, properties=sent))
    assert (await subscriber.next()).properties == sent
    assert (await old.next()).payload == b"x"


@pytest.mark.mqtt("MQTT-3.3.2-5", "MQTT-3.3.2-6")
async def test_an_expired_message_is_not_delivered_and_the_rest_of_an_interval_is_told(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("a/#")
    now = wall_ms()
    # No time passes until it is delivered.
    monkeypatch.setattr(running.worker.deliveries.delivery, "_wall_ms", lambda: now)
    running.worker.links["b0"].clock_ahead_ms = 0
    running.broker.stands_at_ms = now - 50_000
    for expiry_s, body in ((10, b"late"), (100, b"in time")):
        block = encode_block(Properties(message_expiry_interval=expiry_s), PUBLISH)
        await running.broker.append(
            encode_record(b"a", 0, body, encode_properties([("TAGS", "b")], block), now)
        )
    message = await subscriber.next()
    assert message.payload == b"in time"
    assert message.properties.message_expiry_interval == 50
    assert running.worker.counters.messages_expired_total == 1


@pytest.mark.mqtt("MQTT-3.1.2-25")
async def test_packets_beyond_the_clients_maximum_are_left_out(
    start_worker: Start,
) -> None:  # [MQTT-3.1.2-25]
    running = await start_worker()
    subscriber, publisher = await pair(running, properties=Properties(maximum_packet_size=100))
    await subscriber.subscribe("a/#")
    await publish(
        publisher, Publish("a/b", b"x" * 200, 1, packet_id=1), Publish("a/b", b"small", 1, packet_id=2)
    )
    assert (await subscriber.next()).payload == b"small"
    assert running.worker.counters.messages_dropped_size_total == 1


@pytest.mark.mqtt("MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-6", "MQTT-3.11.3-1")
async def test_after_unsuback_nothing_comes_and_the_broker_forgets_the_filter(start_worker: Start) -> None:
    running = await start_worker()
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#", "b/#")
    subscriber.send(Unsubscribe(2, ["a/#", "never"]))
    answer = await subscriber.next()
    assert isinstance(answer, UnsubAck)
    assert answer.reason_codes == [0, 0x11]
    await publish(publisher, Publish("a/b", b"no", 1, packet_id=1), Publish("b/b", b"yes", 1, packet_id=2))
    assert (await subscriber.next()).payload == b"yes"
    await running.until(lambda: all(t.topic != "a" for t in running.broker.live_terms()))
    subscriber.writer.close()
    await running.until(lambda: running.broker.live_terms() == [])
    assert running.worker.counters.filters == 0


async def test_suback_waits_for_the_broker_but_not_for_a_silent_one(start_worker: Start) -> None:
    running = await start_worker()
    running.broker.filters.holds_answers = True
    client = await running.client("s")
    client.send(Subscribe(1, [Subscription("a/#", 1)]))
    await running.until(lambda: any(t.kind == TermKind.TOPIC for t in running.broker.live_terms()))
    assert not client.got
    running.worker.deliveries.subscriptions.expire(running.worker.now() + 60)
    running.worker.turn.settle()
    assert (await client.next()).reason_codes == [1]
    assert running.worker.counters.suback_late_total == 1


async def test_two_sessions_share_a_term_and_the_second_ones_end_leaves_it(start_worker: Start) -> None:
    running = await start_worker()
    one, two = await running.client("one"), await running.client("two")
    await one.subscribe("a/x")
    await two.subscribe("a/x")
    assert len(running.broker.live_terms()) == 2
    two.writer.close()
    await running.until(lambda: running.worker.counters.sessions == 1)
    publisher = await running.client("p")
    await publish(publisher, Publish("a/x", b"1", 1, packet_id=1))
    assert (await one.next()).payload == b"1"


async def test_sdk_records_and_compressed_ones_are_mqtt_messages(start_worker: Start) -> None:
    import zlib

    running = await start_worker()
    subscriber = await running.client("s")
    await subscriber.subscribe("#")
    body = b"squeeze me " * 1000
    for flags, raw, properties in (
        (SYS_COMPRESSED | 1 << SYS_QOS_SHIFT, zlib.compress(body), encode_properties([("TAGS", "t/1")])),
        (0, b"no tag", b""),
        (SYS_COMPRESSED, b"not zlib", b""),
    ):
        await running.broker.append(encode_record(b"sdk", 0, raw, properties, 0, sys_flag=flags))
    await running.broker.append(encode_record(b"%SYSTEM", 0, b"hidden", b"", 0))
    await running.broker.append(encode_record(b"sdk", 0, b"last", b"", 0))
    got = [await subscriber.next() for _ in range(3)]
    assert [(m.topic, m.payload, m.qos) for m in got] == [
        ("sdk/t/1", body, 1),
        ("sdk", b"no tag", 0),
        ("sdk", b"last", 0),
    ]
    assert running.worker.counters.messages_malformed_total == 1


def malformed() -> dict[str, bytes]:
    tag = encode_properties([("TAGS", "t")])
    magic = bytearray(encode_record(b"bad", 0, b"", tag, 0))
    magic[4:8] = b"XXXX"
    return {
        "magic": bytes(magic),
        "mqtt block": encode_record(b"bad", 0, b"", tag + b"\0\xff\x01\x02", 0),
        "text": encode_record(b"bad", 0, b"", b"TAGS\x01\xff\xfe\x02", 0),
        "wildcard": encode_record(b"bad", 0, b"", encode_properties([("TAGS", "a/#")]), 0),
        "pairs": encode_record(b"bad", 0, b"", tag + b"nonsense", 0),
        "body": encode_record(b"bad", 0, b"not zlib", tag, 0, sys_flag=SYS_COMPRESSED),
    }


@pytest.mark.parametrize("kind", malformed())
async def test_a_record_that_cannot_be_delivered_is_left_out_and_everything_behind_it_comes(
    start_worker: Start, kind: str
) -> None:
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("#", no_local=True)
    connection = running.worker.links["b0"].connection
    records = [malformed()[kind], encode_record(b"good", 0, b"behind", b"", 0)]
    running.worker.intake.live(running.worker.links["b0"], memoryview(b"".join(records)), 0, 2)
    message = await subscriber.next()
    assert (message.topic, message.payload) == ("good", b"behind")
    assert running.worker.counters.messages_malformed_total == 1
    assert running.worker.links["b0"].connection is connection


async def test_lines_about_malformed_records_are_bounded(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.deliver.delivery.MALFORMED_LOGGED_PER_S", 2)
    running = await start_worker()
    said: list[int] = []
    monkeypatch.setattr(
        "gateway.deliver.delivery.log.error", lambda *_, position, **__: said.append(position)
    )
    records = malformed()["magic"] * 5
    running.worker.intake.live(running.worker.links["b0"], memoryview(records), 0, 5)
    assert len(said) == 2
    assert running.worker.counters.messages_malformed_total == 5


async def test_what_is_cut_off_ends_an_answer(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await running.client("s")
    await subscriber.subscribe("#")
    good = encode_record(b"good", 0, b"first", b"", 0)
    for rest in (good[:50], b"\0\0\0\0" + good, b"\0"):
        running.worker.intake.live(running.worker.links["b0"], memoryview(good + rest), 0, 2)
        assert (await subscriber.next()).payload == b"first"
    assert running.worker.counters.messages_malformed_total == 3


# Lagging


@pytest.mark.mqtt("MQTT-3.3.4-9", "MQTT-4.6.0-5")
async def test_a_full_window_leaves_the_live_feed_and_comes_back_with_nothing_lost(
    start_worker: Start,
) -> None:
    running = await start_worker(inflight_max=4)
    worker = running.worker
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#")
    await publish(publisher, *[Publish("a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(50)])
    await running.until(lambda: worker.counters.lagging_sessions == 1)
    got: list[bytes] = []
    while len(got) < 50:
        message = await subscriber.next()
        got.append(message.payload)
        subscriber.send(PubAck(message.packet_id))
        if len(got) == 20:  # live traffic goes on meanwhile
            publisher.send(*[Publish("a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(50, 80)])
    while len(got) < 80:
        message = await subscriber.next()
        got.append(message.payload)
        subscriber.send(PubAck(message.packet_id))
    assert got == [b"%d" % n for n in range(80)]
    await running.until(lambda: worker.counters.lagging_sessions == 0)
    await running.until(lambda: worker.deliveries.past.catchup.readers == 0)
    await publish(publisher, Publish("a/b", b"live again", 1, packet_id=99))
    assert (await subscriber.next()).payload == b"live again"


async def test_a_subscription_made_while_lagging_does_not_get_older_messages(start_worker: Start) -> None:
    running = await start_worker(inflight_max=2)
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#")
    await publish(publisher, *[Publish("a/b", b"a%d" % n, 1, packet_id=n + 1) for n in range(4)])
    await publish(publisher, Publish("new/x", b"before", 1, packet_id=9))
    await running.until(lambda: running.worker.counters.lagging_sessions == 1)
    other = await running.client("other")
    await other.subscribe("new/#")  # so that the live reader has scanned past "before"
    await publish(publisher, Publish("new/x", b"before too", 1, packet_id=10))
    assert (await other.next()).payload == b"before too"
    got = [await subscriber.next() for _ in range(2)]
    await subscriber.subscribe("new/#")
    await publish(publisher, Publish("new/x", b"after", 1, packet_id=11))
    subscriber.send(*[PubAck(message.packet_id) for message in got])
    while len(got) < 5:
        message = await subscriber.next()
        got.append(message)
        subscriber.send(PubAck(message.packet_id))
    assert [m.payload for m in got] == [b"a0", b"a1", b"a2", b"a3", b"after"]


async def test_a_subscription_made_in_the_middle_of_a_turn_misses_nothing(start_worker: Start) -> None:
    running = await start_worker(inflight_max=2)
    broker = running.broker
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#")
    await publish(publisher, *[Publish("a/b", b"a%d" % n, 1, packet_id=n + 1) for n in range(3)])
    await running.until(lambda: running.worker.counters.lagging_sessions == 1)
    got = [await subscriber.next() for _ in range(2)]
    broker.hold_catchup()
    subscriber.send(*[PubAck(message.packet_id) for message in got])
    await running.until(lambda: broker.held_catchup)
    # The turn's reader is open and does not know this filter.
    await subscriber.subscribe("new/#")
    await publish(publisher, *[Publish("new/x", b"new%d" % n, 1, packet_id=n + 1) for n in range(2)])
    broker.release_catchup()
    while len(got) < 5:
        message = await subscriber.next()
        got.append(message)
        subscriber.send(PubAck(message.packet_id))
    assert [m.payload for m in got] == [b"a0", b"a1", b"a2", b"new0", b"new1"]
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)


async def test_catch_up_readers_are_bounded_and_every_session_gets_its_turn(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.deliver.catchup.CATCHUP_READERS_MAX", 2)
    running = await start_worker(inflight_max=2)
    subscribers = [await running.client(f"s{n}") for n in range(6)]
    for subscriber in subscribers:
        await subscriber.subscribe("a/#")
    publisher = await running.client("p")
    await publish(publisher, *[Publish("a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(12)])
    await running.until(lambda: running.worker.counters.lagging_sessions == 6)

    async def read_all(subscriber: Any) -> list[bytes]:
        got = []
        while len(got) < 12:
            message = await subscriber.next()
            got.append(message.payload)
            subscriber.send(PubAck(message.packet_id))
        return got

    everything = await asyncio.gather(*[read_all(subscriber) for subscriber in subscribers])
    assert everything == [[b"%d" % n for n in range(12)]] * 6
    readers = {opened.reader_id for opened in running.broker.opened if opened.reader_id}
    assert len(readers) <= 2
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)


async def test_a_lagging_session_goes_on_after_the_connection_to_the_broker_was_lost(
    start_worker: Start,
) -> None:
    running = await start_worker(inflight_max=2)
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#")
    await publish(publisher, *[Publish("a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(8)])
    await running.until(lambda: running.worker.counters.lagging_sessions == 1)
    running.broker.tap.cut()
    await running.until(lambda: running.worker.links["b0"].connection is None)
    got = []
    while len(got) < 8:
        message = await subscriber.next()
        got.append(message.payload)
        subscriber.send(PubAck(message.packet_id))
    assert got == [b"%d" % n for n in range(8)]


async def test_a_log_that_was_cut_below_the_position_is_followed_from_its_end(
    start_worker: Start, tmp_path: Path
) -> None:
    running = await start_worker()
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#")
    await publish(publisher, Publish("a/b", b"1", 1, packet_id=1))
    assert (await subscriber.next()).payload == b"1"
    await running.broker.save(tmp_path / "saved")
    await publish(publisher, Publish("a/b", b"2", 1, packet_id=2))
    assert (await subscriber.next()).payload == b"2"
    link = running.worker.links["b0"]
    await running.until(lambda: link.reader.position == running.broker.end)
    await running.broker.go_back(tmp_path / "saved")
    await running.until(lambda: running.worker.counters.offset_ahead_total == 1 and link.reader.is_open)
    assert running.broker.bodies == [b"1"]
    await publish(publisher, Publish("a/b", b"3", 1, packet_id=3))
    assert (await subscriber.next()).payload == b"3"


async def test_qos_0_is_dropped_for_a_socket_that_is_full_and_counted(start_worker: Start) -> None:
    running = await start_worker()
    slow, publisher = await pair(running)
    await slow.subscribe("a/#", qos=0)
    session = running.worker.clients.session("sub")
    session.outbound.is_socket_full = True
    await publish(publisher, Publish("a/b", b"1", 1, packet_id=1))
    await running.until(lambda: running.worker.counters.messages_dropped_slow_total == 1)
    session.outbound.is_socket_full = False
    await publish(publisher, Publish("a/b", b"2", 1, packet_id=2))
    assert (await slow.next()).payload == b"2"


async def test_a_reader_that_the_broker_forgot_is_opened_again(start_worker: Start) -> None:
    running = await start_worker()
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#")
    running.broker.server.reads._open.clear()
    reader = running.worker.links["b0"].reader
    reader._read(reader._generation, running.worker.links["b0"].connection)
    await running.until(lambda: len([o for o in running.broker.opened if o.reader_id == 0]) == 2)
    await running.until(lambda: running.worker.links["b0"].reader.is_open)
    await publish(publisher, Publish("a/b", b"1", 1, packet_id=1))
    assert (await subscriber.next()).payload == b"1"


async def test_a_read_that_fails_is_not_jumped_over_by_the_next_one(start_worker: Start) -> None:
    running = await start_worker()
    broker = running.broker
    subscriber, publisher = await pair(running)
    await subscriber.subscribe("a/#")

    def fail(answer: Command) -> None:
        answer.code, answer.remark, answer.ext_fields = Code.SYSTEM_ERROR, "the disk", {}

    for n in range(3):
        # Its records are lost with it; the broker's reader has gone on, and the second read is answered.
        broker.reads.alters.append(fail)
        await broker.append(encode_record(b"a", 0, b"%d" % n, encode_properties([("TAGS", "b")]), 0))
        await publish(publisher, Publish("a/b", b"%d and more" % n, 0))
        assert (await subscriber.next()).payload == b"%d" % n
        assert (await subscriber.next()).payload == b"%d and more" % n
        assert not broker.reads.alters
    link = running.worker.links["b0"]
    assert link.connection is not None
    # Opening again leaves nothing outstanding.
    await running.until(lambda: len(link.connection._pending) == READS_OUTSTANDING)


async def test_a_topic_created_with_other_key_levels_changes_the_terms_of_its_filters(
    start_worker: Start,
) -> None:
    from holdmq.names.topics import filter_terms

    running = await start_worker()
    client = await running.client("s")
    await client.subscribe("deep/a/b/#")
    assert sorted(running.broker.live_terms()) == sorted(filter_terms("deep/a/b/#", 1))
    await running.broker.stack.create("deep", 4, 2)
    await running.worker.routes.refresh()
    wanted = sorted(filter_terms("deep/a/b/#", 2))
    await running.until(lambda: sorted(running.broker.live_terms()) == wanted)
    client.send(Unsubscribe(2, ["deep/a/b/#"]))
    await running.until(lambda: running.broker.live_terms() == [])
