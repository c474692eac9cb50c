"""Bounds that have no configuration key: each is reached once."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from gateway.brokers.core.producer import PENDING_MAX_BYTES
from gateway.edge import stragglers
from gateway.edge.connection import BROKER
from gateway.ground.limits import SEND_STALLED_S
from gateway.protect import gate
from gateway.publish import ingress, topics
from holdmq.errors import Code, RemoteError
from holdmq.mqtt import MQTT_5, Connect, Publish, Subscribe, Subscription, Unsubscribe, encode

Start = Callable[..., Awaitable[Any]]


async def test_plans_of_a_connection_are_bounded_and_its_messages_are_not(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress, "PLANS_MAX", 2)
    running = await start_worker()
    client = await running.client("c")
    client.send(*[Publish(f"a/{n}", b"%d" % n, 1, packet_id=n + 1) for n in range(9)])
    assert await client.acked(9) == list(range(1, 10))
    assert len(running.worker.clients.session("c").inbound.plans) <= 2


async def test_with_too_many_topics_in_the_making_publishes_to_new_ones_are_refused(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TOPIC_WAITERS_MAX", 0)
    running = await start_worker()
    client = await running.client("c", MQTT_5)
    client.send(Publish("fresh/x", b"", 1, packet_id=1))
    assert (await client.next()).reason_code == 0x97


async def test_refused_topics_are_remembered_up_to_a_bound(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "REFUSED_MAX", 2)
    running = await start_worker()
    running.broker.creates.refusal = RemoteError(Code.TOPIC_UNKNOWN, "off")
    client = await running.client("c", MQTT_5)
    for n in range(5):
        client.send(Publish(f"t{n}/x", b"", 1, packet_id=1))
        assert (await client.next()).reason_code == 0x87
    assert len(running.worker.topics._refused) <= 2


async def test_a_topic_limit_of_the_broker_sends_messages_to_the_shared_topic(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("c")
    client.send(Publish("mqtt-other/seed", b"", 1, packet_id=1))
    await client.acked(1)
    running.broker.creates.refusal = RemoteError(Code.TOPIC_LIMIT, "topics_max")
    client.send(Publish("fresh/x", b"kept", 1, packet_id=2))
    assert await client.acked(1) == [2]
    assert running.broker.bodies[-1] == b"kept"
    assert list(running.broker.topics) == ["mqtt-other"]


async def test_a_client_that_makes_up_topics_gets_so_many_and_loses_no_message(start_worker: Start) -> None:
    running = await start_worker(topic_creates_per_minute_max=2)
    reader = await running.client("r")
    await reader.subscribe("#")
    client, other = await running.client("c"), await running.client("d")
    client.send(*(Publish(f"t{n}/x", b"%d" % n, 1, packet_id=n) for n in range(1, 5)))
    assert await client.acked(4) == [1, 2, 3, 4]
    assert set(running.broker.topics) == {"t1", "t2", "mqtt-other"}
    assert running.worker.counters.topics_diverted_total >= 2
    other.send(Publish("t9/x", b"9", 1, packet_id=9))
    assert await other.acked(1) == [9]
    assert "t9" in running.broker.topics
    got = [await reader.next() for _ in range(5)]
    assert sorted(message.topic for message in got) == ["t1/x", "t2/x", "t3/x", "t4/x", "t9/x"]


async def test_far_beyond_connections_max_connections_are_just_closed(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "CONNECTIONS_OVER", 0)
    running = await start_worker(connections_max=1)
    await running.client("c")
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(1), 40) == b""
    writer.close()
    assert running.worker.counters.refused["connections_max"] == 1


async def test_subacks_that_wait_for_a_broker_are_bounded(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.brokers.reader.WAITING_MAX", 0)
    running = await start_worker()
    running.broker.filters.holds_answers = True
    client = await running.client("s")
    client.send(Subscribe(1, [Subscription("a/#", 1)]))
    assert (await client.next()).reason_codes == [1]


async def test_past_the_pending_bytes_sockets_are_not_read_until_the_broker_answers(
    start_worker: Start,
) -> None:
    running = await start_worker()
    client = await running.client("c")
    client.send(Publish("a/b", b"", 1, packet_id=1))
    await client.acked(1)
    running.broker.produce.hold()
    link = running.worker.links["b0"]
    sent = 1
    while sent * (2 << 20) <= PENDING_MAX_BYTES + (2 << 20):
        sent += 1
        client.send(Publish("a/b", b"x" * (2 << 20), 1, packet_id=sent))
        await client.writer.drain()
    await running.until(lambda: link.held)
    client.send(Publish("a/b", b"y", 1, packet_id=sent + 1))
    await asyncio.sleep(0.05)
    assert running.worker.counters.messages_in_qos1_total <= sent
    running.broker.produce.release()
    assert await client.acked(sent) == list(range(2, sent + 2))


async def test_a_closed_connection_that_does_not_read_is_reset(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "LINGER_S", 0.0)
    running = await start_worker()
    _, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.transport.pause_reading()
    writer.write(encode(Connect(client_id="deaf"), 4))
    await running.until(lambda: running.worker.counters.sessions == 1)
    session = running.worker.clients.session("deaf")
    session.send(b"\xd0\x00" * (8 << 20))
    running.worker.turn.settle()
    session.connection.close(0x8B, "test", "ends")
    await running.until(lambda: running.worker.counters.refused["does_not_read"] == 1)
    await running.until(lambda: running.worker.counters.connections == 0)
    writer.close()


async def deaf(running: Any, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]:
    """A client that reads nothing and is sent more than the kernel takes; its session."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1 << 10)
    writer.transport.pause_reading()
    writer.write(encode(Connect(client_id="deaf", **fields), 4))
    await running.until(lambda: running.worker.counters.sessions == 1)
    session = running.worker.clients.session("deaf")
    session.send(b"\xd0\x00" * (8 << 20))
    running.worker.turn.settle()
    assert running.worker.reception.stragglers.stalled
    return reader, writer, session


async def test_a_client_that_takes_nothing_is_closed_and_one_that_takes_something_is_not(
    start_worker: Start,
) -> None:
    running = await start_worker()
    stragglers = running.worker.reception.stragglers
    look_at = stragglers.each_second
    # The worker's own look, at its own time, would lie between those of this test.
    running.worker.clock._next_second = math.inf
    reader, writer, session = await deaf(running)
    now = running.worker.now()
    look_at(now + SEND_STALLED_S - 1)
    unsent = session.connection.unsent_bytes()
    while session.connection.unsent_bytes() >= unsent:
        writer.transport.resume_reading()
        await reader.read(1 << 16)
    writer.transport.pause_reading()
    assert stragglers.stalled
    look_at(now + SEND_STALLED_S)
    look_at(now + 2 * SEND_STALLED_S - 1)
    assert running.worker.counters.refused["send_stalled"] == 0
    look_at(now + 2 * SEND_STALLED_S + 1)
    assert running.worker.counters.refused["send_stalled"] == 1
    assert running.worker.counters.sessions == 0
    writer.close()


async def test_who_takes_nothing_is_not_spared_its_keep_alive_and_who_waits_for_us_is(
    start_worker: Start,
) -> None:
    running = await start_worker()
    _, writer, session = await deaf(running, keep_alive=60)
    session.connection.pause(BROKER)
    assert session.is_held
    session.connection.resume(BROKER)
    assert not session.is_held
    session.connection.handle(session.handle_deadline(running.worker.now() + 120))
    assert running.worker.counters.refused["keep_alive"] == 1
    writer.close()


async def test_levels_of_filters_with_plus_are_given_back_with_their_filters(start_worker: Start) -> None:
    running = await start_worker(plus_levels_per_client_max=6)
    client = await running.client("c", MQTT_5)
    granted = await client.subscribe("a/+/c", "+/b/#", "plain/#")
    assert granted.reason_codes == [1, 1, 1]
    refused = await client.subscribe("+")
    assert refused.reason_codes == [0x97]
    assert "6 levels" in refused.properties.reason_string
    assert running.worker.counters.refused["subscribe_plus_levels_exceeded"] == 1
    assert (await client.subscribe("a/+/c")).reason_codes == [1]  # again: it has it
    client.send(Unsubscribe(9, ["a/+/c", "a/+/c", "x/+/y"]))
    await client.next()
    assert (await client.subscribe("+/+/+")).reason_codes == [1]
    outbound = running.worker.clients.session("c").outbound
    assert (outbound.plus_levels, outbound.asked) == (6, None)


async def test_filters_sent_in_one_go_are_counted_as_if_they_came_one_by_one(start_worker: Start) -> None:
    running = await start_worker(filters_per_client_max=3, plus_levels_per_client_max=4)
    client = await running.client("c", MQTT_5)
    client.send(*(Subscribe(n, [Subscription(f"+/{n}", 1), Subscription(f"{n}", 1)]) for n in range(1, 9)))
    codes = [code for _ in range(8) for code in (await client.next()).reason_codes]
    assert codes == [1, 1, 1, *[0x97] * 13]
    assert len(running.worker.deliveries.wanted.trie) == 3


async def test_a_publish_is_compared_with_no_more_levels_than_a_client_may_have(start_worker: Start) -> None:
    running = await start_worker(plus_levels_per_client_max=512)
    client = await running.client("c", MQTT_5)
    choose = Random(1)
    filters = ["/".join(["+", *choose.choices("+a", k=127)]) for _ in range(50)]
    assert (await client.subscribe(*filters)).reason_codes == [1] * 4 + [0x97] * 46
    publisher = await running.client("p")
    publisher.send(Publish("/".join("a" * 128), b"x", 1, packet_id=1))
    assert (await client.next()).payload == b"x"
    assert running.worker.deliveries.wanted.trie.steps <= 512 + 1
