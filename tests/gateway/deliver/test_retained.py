"""Retained messages at a worker, beside a broker that answers when a test says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from retained_clients import keep, silent, take
from tapped_broker import TappedBroker

from gateway.persistent import retained_puts
from holdmq.errors import BusyError, Code, RemoteError
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from holdmq.wire.codes import RequestCode
from holdmq.wire.retained_headers import decode_retained

Start = Callable[..., Awaitable[Any]]
PUT, SCAN = RequestCode.RETAINED_PUT, RequestCode.RETAINED_SCAN


def kept(running: Any) -> dict[str, bytes]:
    rows = running.broker.retained.rows
    return {topic: decode_retained(value).payload for topic, (_, value) in rows.items()}


# Publishing


@pytest.mark.mqtt("MQTT-3.3.1-5")
@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_a_retained_publish_is_kept_then_published_and_then_acknowledged(
    start_worker: Start, version: int
) -> None:
    running = await start_worker()
    retained = running.broker.retained
    client = await running.client("p", version)
    retained.puts.hold()
    client.send(Publish("a/b", b"x", 1, retain=True, packet_id=7), Publish("a/b", b"y", 1, packet_id=8))
    await running.until(lambda: retained.held)
    assert running.broker.bodies == []
    running.broker.produce.hold()
    retained.release()
    await running.until(lambda: running.broker.produce.held)
    assert kept(running) == {"a/b": b"x"}
    assert await silent(client)
    running.broker.produce.release()
    assert await client.acked(2) == [7, 8]
    assert running.broker.bodies == [b"x", b"y"]


@pytest.mark.mqtt("MQTT-3.3.1-6", "MQTT-3.3.1-7")
async def test_a_retained_publish_without_payload_takes_the_kept_one_away(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("p")
    client.send(Publish("a", b"x", 0, retain=True), Publish("b", b"y", 0, retain=True))
    await running.until(lambda: kept(running) == {"a": b"x", "b": b"y"})
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("a", retain_handling=2, retain_as_published=True)
    client.send(Publish("a", b"", 1, retain=True, packet_id=1))
    assert await client.acked(1) == [1]
    assert kept(running) == {"b": b"y"}
    # To who is subscribed it is a message as any other.
    message = await subscriber.next()
    assert (message.payload, message.retain) == (b"", True)


@pytest.mark.mqtt("MQTT-3.3.1-8")
async def test_publishes_without_retain_ask_no_owner(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("p")
    await keep(running, {"a": b"kept", "b": b"kept"})
    client.send(*[Publish("a", b"x" if n % 2 else b"", 1, packet_id=n) for n in range(1, 6)])
    await client.acked(5)
    assert running.broker.retained.requests == 0
    assert kept(running) == {"a": b"kept", "b": b"kept"}


async def test_retained_and_other_publishes_keep_their_order(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("p", MQTT_5)
    expiring = Properties(message_expiry_interval=60)
    client.send(
        *[
            Publish(
                f"a/{n % 3}", b"%d" % n, 1, retain=n % 4 < 2, packet_id=n + 1,
                properties=expiring if n % 5 == 0 else Properties(),
            )
            for n in range(40)
        ]
    )  # fmt: skip
    assert await client.acked(40) == list(range(1, 41))
    assert running.broker.bodies == [b"%d" % n for n in range(40)]
    assert kept(running) == {"a/0": b"36", "a/1": b"37", "a/2": b"32"}
    # Neighbours go together.
    assert running.broker.retained.requests == 10


async def test_what_is_kept_has_what_is_needed_to_send_it(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("pub", MQTT_5)
    properties = Properties(message_expiry_interval=60, user_properties=(("k", "v"),), content_type="t")
    client.send(Publish("a", b"x", 2, retain=True, packet_id=1, properties=properties))
    await client.acked(1)
    message = decode_retained(running.broker.retained.rows["a"][1])
    assert (message.qos, message.client_id, message.payload) == (2, "pub", b"x")
    assert message.expires_ms - message.published_ms == 60_000
    assert message.block


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("bound", [{"retained_max": 1}, {"retained_message_max_bytes": 1024}])
async def test_a_message_that_is_not_kept_is_refused_and_not_published(
    tapped_broker: TappedBroker, start_worker: Start, version: int, bound: dict[str, int]
) -> None:
    await tapped_broker.restart(**bound)
    running = await start_worker()
    client = await running.client("p", version)
    client.send(Publish("a/1", b"1", 1, retain=True, packet_id=3))
    assert await client.acked(1) == [3]
    messages = ("a/2", b"2" * 1100), ("a/1", b"3")
    client.send(*[Publish(*message, 1, retain=True, packet_id=n) for n, message in enumerate(messages, 1)])
    codes: list[int] = []
    while len(codes) < 2:
        answer = await client.next()
        codes += [answer.reason_code] if isinstance(answer, PubAck) else [0] * len(answer.packet_ids)
    assert codes == ([0x97, 0] if version == MQTT_5 else [0, 0])
    assert running.broker.bodies == [b"1", b"3"]
    assert kept(running) == {"a/1": b"3"}
    assert running.worker.counters.refused["publish_quota_exceeded"] == 1


async def test_a_topic_that_cannot_be_published_is_not_kept_either(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("p", MQTT_5)
    client.send(
        Publish("$bad", b"x", 1, retain=True, packet_id=1),
        Publish("$delayed/9/a", b"x", 1, retain=True, packet_id=2),
        Publish("a", b"x", 1, retain=True, packet_id=3),
        Publish("$bad", b"x", 1, retain=True, packet_id=4),
    )
    answers = [await client.next() for _ in range(4)]
    refused = [getattr(answer, "reason_code", 0) >= 0x80 for answer in answers]
    assert refused == [True, True, False, True]
    assert set(kept(running)) == {"a"}


async def test_an_owner_under_pressure_is_asked_again(start_worker: Start) -> None:
    running = await start_worker()
    running.broker.retained.puts.refusals = [BusyError("busy", 1), RemoteError(Code.STORE_FULL, "full")]
    client = await running.client("p")
    client.send(Publish("a", b"x", 1, retain=True, packet_id=1))
    assert await client.acked(1) == [1]
    assert kept(running) == {"a": b"x"}


async def test_an_owner_that_was_lost_is_asked_again_when_it_is_back(start_worker: Start) -> None:
    running = await start_worker()
    retained = running.broker.retained
    client = await running.client("p")
    retained.puts.hold()
    client.send(Publish("a", b"x", 1, retain=True, packet_id=1))
    await running.until(lambda: retained.held)
    running.broker.tap.cut()
    await running.until(lambda: len(retained.held) == 2)
    retained.puts.held.pop(0)
    retained.release()
    assert await client.acked(1) == [1]
    assert (kept(running), running.broker.bodies) == ({"a": b"x"}, [b"x"])
    assert running.worker.retained_puts.pending_bytes == 0


async def test_publishers_of_an_owner_that_stays_away_are_closed_unanswered(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_puts, "REROUTE_S", 0.0)
    running = await start_worker()
    retained = running.broker.retained
    retained.puts.hold()
    client = await running.client("p", MQTT_5)
    client.send(Publish("a", b"x", 1, retain=True, packet_id=1))
    farewell = await client.next()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason_code == 0x89
    retained.release()
    await running.until(lambda: running.worker.retained_puts.pending_bytes == 0)
    assert running.broker.bodies == []


async def test_an_answer_that_is_none_makes_the_gateway_ask_over_another_connection(
    start_worker: Start,
) -> None:
    running = await start_worker()
    retained = running.broker.retained
    client = await running.client("p")
    retained.puts.refusals = [RemoteError(Code.SYSTEM_ERROR, "it failed")]
    client.send(Publish("a", b"x", 1, retain=True, packet_id=1))
    with pytest.raises(EOFError):
        await client.next()
    other = await running.client("q")
    other.send(Publish("a", b"y", 1, retain=True, packet_id=1))
    assert await other.acked(1) == [1]


async def test_last_words_that_are_to_be_kept_are_kept(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("p")
    running.broker.retained.puts.hold()
    client.send(Publish("a", b"x", 0, retain=True), Disconnect())
    await running.until(lambda: running.broker.retained.held)
    running.broker.retained.release()
    await running.until(lambda: running.broker.bodies == [b"x"])
    await running.until(lambda: not running.worker.reception.connections)


@pytest.mark.mqtt("MQTT-3.1.2-15")
async def test_a_will_with_retain_is_kept_before_it_is_published(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("p", MQTT_5, will=Will("a", b"gone", 1, retain=True))
    running.broker.retained.puts.hold()
    client.writer.close()
    await running.until(lambda: running.broker.retained.held)
    assert running.broker.bodies == []
    running.broker.retained.release()
    await running.until(lambda: running.broker.bodies == [b"gone"])
    assert kept(running) == {"a": b"gone"}


# Subscribing


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_who_subscribes_gets_what_is_kept_after_the_suback(start_worker: Start, version: int) -> None:
    running = await start_worker()
    await keep(running, {"a/1": b"1", "a/2": b"2", "b": b"3"})
    client = await running.client("s", version)
    client.send(Subscribe(1, [Subscription("a/+", 1), Subscription("b", 0), Subscription("c", 1)]))
    assert isinstance(await client.next(), SubAck)
    got = await take(client, 3)
    assert {(m.topic, m.payload, m.qos, m.retain) for m in got} == {
        ("a/1", b"1", 1, True), ("a/2", b"2", 1, True), ("b", b"3", 0, True),
    }  # fmt: skip
    assert await silent(client)
    await running.until(lambda: running.worker.counters.retained_owed == 0)
    assert running.worker.counters.retained_out_total == 3


@pytest.mark.mqtt("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-4")
@pytest.mark.parametrize(("handling", "at_first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
async def test_retain_handling(start_worker: Start, handling: int, at_first: int, again: int) -> None:
    running = await start_worker()
    await keep(running, {"a": b"x"})
    client = await running.client("s", MQTT_5)
    for count in (at_first, again, again):
        await client.subscribe("a", retain_handling=handling)
        assert len(await take(client, count)) == count
        assert await silent(client)


async def test_one_packet_may_name_a_filter_twice(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {"a": b"x"})
    client = await running.client("s", MQTT_5)
    wanted = Subscription("a", 1, retain_handling=1)
    client.send(Subscribe(1, [wanted, wanted]))
    assert isinstance(await client.next(), SubAck)
    assert len(await take(client, 1)) == 1
    assert await silent(client)


@pytest.mark.mqtt("MQTT-3.3.4-3")
async def test_what_is_kept_comes_with_the_identifier_of_its_subscription(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {"a/1": b"1"})
    client = await running.client("s", MQTT_5)
    for identifier, name in ((7, "a/#"), (8, "+/1")):
        client.send(Subscribe(1, [Subscription(name, 1)], Properties(subscription_identifiers=(identifier,))))
        assert isinstance(await client.next(), SubAck)
        assert (await take(client, 1))[0].properties.subscription_identifiers == (identifier,)


@pytest.mark.mqtt("MQTT-3.8.3-3")
async def test_no_local_leaves_out_what_the_client_published_itself(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {"a/own": b"1"}, client_id="me")
    await keep(running, {"a/other": b"2"}, client_id="you")
    client = await running.client("me", MQTT_5)
    await client.subscribe("a/#", no_local=True)
    assert [m.topic for m in await take(client, 1)] == ["a/other"]
    assert await silent(client)


@pytest.mark.mqtt("MQTT-3.3.2-5", "MQTT-3.3.2-6")
async def test_properties_and_what_is_left_of_an_expiry_come_with_it(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker()
    retained = running.broker.retained
    publisher = await running.client("p", MQTT_5)
    properties = Properties(message_expiry_interval=100, content_type="text")
    publisher.send(
        Publish("a", b"x", 1, retain=True, packet_id=1, properties=properties),
        Publish("b", b"y", 1, retain=True, packet_id=2, properties=properties),
    )
    await publisher.acked(2)
    # No time passes until it is subscribed to.
    running.worker.links["b0"].clock_ahead_ms = 0
    now_ms = decode_retained(retained.rows["a"][1]).published_ms
    monkeypatch.setattr(running.worker.deliveries.retained_delivery, "_wall_ms", lambda: now_ms)
    for topic, ago_s in (("a", 40), ("b", 100)):
        message = decode_retained(retained.rows[topic][1])
        message = message._replace(expires_ms=now_ms + (100 - ago_s) * 1000)
        await retained.keep(topic, message.encode())
    client = await running.client("s", MQTT_5)
    await client.subscribe("+")
    (message,) = await take(client, 1)
    assert message.topic == "a"
    assert message.properties.content_type == "text"
    assert message.properties.message_expiry_interval == 60
    assert await silent(client)


@pytest.mark.mqtt("MQTT-3.1.2-24", "MQTT-3.1.2-25")
async def test_what_is_too_large_for_the_client_is_left_out(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {"a": b"x" * 500, "b": b"y"})
    client = await running.client("s", MQTT_5, properties=Properties(maximum_packet_size=100))
    await client.subscribe("#")
    assert [m.topic for m in await take(client, 1)] == ["b"]
    assert running.worker.counters.messages_dropped_size_total == 1


async def test_a_row_that_is_no_message_is_left_out_and_said(start_worker: Start) -> None:
    running = await start_worker()
    await running.broker.retained.keep("a", b"\xff nothing that we know")
    await keep(running, {"b": b"y"})
    client = await running.client("s")
    await client.subscribe("#")
    assert [m.topic for m in await take(client, 1)] == ["b"]
    assert running.worker.counters.messages_malformed_total == 1


# Slices, windows, sockets


@pytest.mark.mqtt("MQTT-3.3.4-9")
async def test_no_more_is_sent_than_the_window_takes_and_nothing_is_kept_meanwhile(
    start_worker: Start,
) -> None:
    running = await start_worker()
    await keep(running, {f"a/{n:03}": b"%d" % n for n in range(300)})
    client = await running.client("s", MQTT_5, properties=Properties(receive_maximum=8))
    await client.subscribe("a/#")
    first = [await client.next() for _ in range(8)]
    assert [m.topic for m in first] == [f"a/{n:03}" for n in range(8)]
    assert await silent(client)
    asked = len(running.broker.retained.asked)
    assert await silent(client)
    assert len(running.broker.retained.asked) == asked
    client.send(*[PubAck(m.packet_id or 0) for m in first])
    got = first + await take(client, 292)
    assert [m.topic for m in got] == [f"a/{n:03}" for n in range(300)]
    assert all(item.max_count <= 8 for item in running.broker.retained.asked)
    await running.until(lambda: running.worker.counters.retained_owed == 0)


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_long_answer_comes_in_slices_each_message_once(start_worker: Start, qos: int) -> None:
    running = await start_worker(inflight_max=500)
    await keep(running, {f"a/{n:04}": b"x" * 50 for n in range(1000)})
    client = await running.client("s")
    await client.subscribe("a/+", qos=qos)
    assert [m.topic for m in await take(client, 1000)] == [f"a/{n:04}" for n in range(1000)]
    assert await silent(client)


async def test_a_client_that_does_not_read_holds_a_place_and_no_messages(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {f"a/{n:04}": bytes(4000) for n in range(2000)}, qos=0)
    client = await running.client("slow")
    reading = client.writer.transport
    client.send(Subscribe(1, [Subscription("a/#", 0)]))
    assert isinstance(await client.next(), SubAck)
    reading.pause_reading()
    session = running.worker.clients.session("slow")
    await running.until(lambda: session.outbound.is_socket_full)
    due = session.outbound.retained
    await running.until(lambda: not due.is_asking)
    sent = running.worker.counters.retained_out_total
    assert sent < 2000
    (answer,) = due.answers
    assert answer.places["b0"].after == f"a/{sent - 1:04}"
    other = await running.client("other")
    await other.subscribe("a/0000")
    assert len(await take(other, 1)) == 1
    reading.resume_reading()
    assert len(client.got) + len(await take(client, 2000)) >= 2000
    await running.until(lambda: running.worker.counters.retained_owed == 0)


async def test_many_subscriptions_are_asked_for_together(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {f"a/{n}": b"" for n in range(50)})
    client = await running.client("s")
    client.send(Subscribe(1, [Subscription(f"a/{n}", 0) for n in range(60)]))
    assert isinstance(await client.next(), SubAck)
    assert len(await take(client, 50)) == 50
    await running.until(lambda: running.worker.counters.retained_owed == 0)
    assert running.broker.retained.requests <= 3


# Answers that end, or wait for a broker


async def test_unsubscribing_ends_the_answer(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {f"a/{n}": b"" for n in range(100)})
    client = await running.client("s", MQTT_5, properties=Properties(receive_maximum=2))
    await client.subscribe("a/#")
    held = [await client.next() for _ in range(2)]
    client.send(Unsubscribe(5, ["a/#"]))
    await client.next()
    client.send(*[PubAck(m.packet_id or 0) for m in held])
    assert await silent(client)
    assert running.worker.counters.retained_owed == 0


async def test_brokers_that_cannot_answer_are_asked_again(start_worker: Start) -> None:
    running = await start_worker()
    retained = running.broker.retained
    await keep(running, {"a": b"x"})
    retained.puts.refusals = [BusyError("busy", 1), RemoteError(Code.STORE_FAILED, "no")]
    client = await running.client("s")
    await client.subscribe("a")
    assert len(await take(client, 1)) == 1


async def test_an_answer_goes_on_when_a_lost_broker_is_back(start_worker: Start) -> None:
    running = await start_worker()
    retained = running.broker.retained
    await keep(running, {f"a/{n:03}": b"" for n in range(100)})
    client = await running.client("s", MQTT_5, properties=Properties(receive_maximum=10))
    await client.subscribe("a/#")
    got = [await client.next() for _ in range(10)]
    retained.scans.hold()
    client.send(*[PubAck(m.packet_id or 0) for m in got])
    await running.until(lambda: retained.held)
    running.broker.tap.cut()
    retained.scans.let_pass()
    retained.scans.held.clear()
    got += await take(client, 90)
    assert [m.topic for m in got] == [f"a/{n:03}" for n in range(100)]


async def test_a_connection_that_ends_in_the_middle_leaves_nothing_behind(start_worker: Start) -> None:
    running = await start_worker()
    retained = running.broker.retained
    await keep(running, {f"a/{n}": b"" for n in range(100)})
    retained.scans.hold()
    for n in range(5):
        client = await running.client(f"s{n}")
        await client.subscribe("a/#")
    await running.until(lambda: retained.held)
    for client in running.clients:
        client.writer.close()
    await running.until(lambda: not running.worker.reception.connections)
    retained.release()
    other = await running.client("other")
    await other.subscribe("a/1")
    assert len(await take(other, 1)) == 1
    await running.until(lambda: running.worker.counters.retained_owed == 0)


async def test_a_subscription_is_answered_when_it_is_known_who_keeps_messages(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {"a": b"x"})
    puts = running.worker.retained_puts
    brokers, puts.brokers = puts.brokers, []
    client = await running.client("s", MQTT_5)
    await client.subscribe("a")
    assert await silent(client)
    publisher = await running.client("p", MQTT_5)
    publisher.send(Publish("a", b"y", 1, retain=True, packet_id=1))
    assert (await publisher.next()).reason_code == 0x89
    puts.brokers = brokers
    running.worker.deliveries.past.retained.brokers_known()
    assert len(await take(client, 1)) == 1
    await running.until(lambda: not running.worker.counters.retained_owed)
