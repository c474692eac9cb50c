"""Retained messages at a worker, together with what comes live."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from retained_clients import keep, silent, take
from tapped_broker import TappedSessions, persistent

from holdmq.mqtt import MQTT_5, Properties, PubAck, Publish, SubAck, Subscribe, Subscription
from holdmq.record.codec import SYS_QOS_SHIFT, SYS_RETAIN, encode_properties, encode_record
from holdmq.wire.codes import RequestCode

Start = Callable[..., Awaitable[Any]]
SCAN = RequestCode.RETAINED_SCAN


async def test_a_message_that_came_live_is_not_followed_by_the_one_it_replaced(start_worker: Start) -> None:
    running = await start_worker()
    retained = running.broker.retained
    await keep(running, {"a/1": b"old", "a/2": b"kept"})
    client = await running.client("s")
    client.send(Subscribe(1, [Subscription("a/#", 1)]))
    assert isinstance(await client.next(), SubAck)
    await take(client, 2)
    # A slice is read before its end, and comes after the message that replaces a part of it.
    retained.scans.holds_answers = True
    client.send(Subscribe(2, [Subscription("a/#", 1)]))
    assert isinstance(await client.next(), SubAck)
    await running.until(lambda: retained.scans.held_answers)
    publisher = await running.client("p")
    publisher.send(
        Publish("a/1", b"new", 1, retain=True, packet_id=1), Publish("a/2", b"passing", 1, packet_id=2)
    )
    await publisher.acked(2)
    live = await take(client, 2)
    retained.release()
    after = await take(client, 1)
    assert [m.payload for m in live] == [b"new", b"passing"]
    assert [(m.payload, m.retain) for m in after] == [(b"kept", True)]
    assert await silent(client)


async def test_a_message_that_came_late_takes_nothing_from_the_one_that_replaced_it(
    start_worker: Start,
) -> None:
    """A broker that was away brings what it had before; the newest one may be published elsewhere since."""
    running = await start_worker()
    retained = running.broker.retained
    publisher = await running.client("p")
    publisher.send(Publish("a/0", b"there is a topic", 1, packet_id=1))
    await publisher.acked(1)
    client = await running.client("s")
    await running.broker.tap.close()
    await running.until(lambda: running.worker.links["b0"].connection is None)
    flags = SYS_RETAIN | 1 << SYS_QOS_SHIFT
    tag = encode_properties([("TAGS", "1")])
    await running.broker.append(encode_record(b"a", 0, b"old", tag, 0, sys_flag=flags))
    await keep(running, {"a/1": b"new"})
    retained.scans.hold()
    client.send(Subscribe(1, [Subscription("a/+", 1)]))
    assert await silent(client)
    await running.broker.tap.listen(running.broker.tap.port)
    assert isinstance(await client.next(), SubAck)
    late = await take(client, 2)
    retained.release()
    after = await take(client, 1)
    assert [(m.payload, m.retain) for m in late] == [(b"there is a topic", False), (b"old", False)]
    assert [(m.payload, m.retain) for m in after] == [(b"new", True)]


async def test_what_another_broker_may_have_replaced_is_asked_for_again(start_worker: Start) -> None:
    """Logs of two brokers have no common order; what is put meanwhile comes live."""
    running = await start_worker()
    retained = running.broker.retained
    await keep(running, {"a/1": b"first", "a/2": b"doubtful", "a/3": b"last"})
    client = await running.client("s", MQTT_5)
    retained.scans.hold()
    await client.subscribe("a/+", "a/2")
    due = running.worker.clients.session("s").outbound.retained
    due.came(b"a/2", "b1", 7)
    retained.release()
    got = await take(client, 4)
    assert sorted(bytes(m.payload) for m in got) == [b"doubtful", b"doubtful", b"first", b"last"]
    assert await silent(client)
    assert [item.after for item in retained.asked if item.topic_filter == "a/+"] == ["", "a/1"]
    first, again = (item for item in retained.asked if item.topic_filter == "a/2")
    assert (first.before, again.after) == (-1, "")
    assert again.before == running.broker.end


async def test_a_qos_0_message_that_no_catch_up_brings_leaves_what_is_kept(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    retained = running.broker.retained
    publisher = await running.client("p")
    publisher.send(Publish("a/0", b"there is a topic", 1, packet_id=1))
    await publisher.acked(1)
    client = await persistent(running)
    retained.scans.hold()
    client.send(Subscribe(1, [Subscription("a/+", 1)]))
    assert isinstance(await client.next(), SubAck)
    await running.until(lambda: retained.held)
    await client.close()
    await running.until(lambda: running.worker.counters.connections == 1)
    retained.scans.held.clear()
    publisher.send(Publish("a/1", b"newest", 0, retain=True), Publish("a/2", b"plain", 1, packet_id=2))
    await publisher.acked(1)
    client = await persistent(running)
    await running.until(lambda: retained.held)
    assert [m.payload for m in await take(client, 1)] == [b"plain"]
    retained.release()
    (message,) = await take(client, 1)
    assert (message.payload, message.retain, message.qos) == (b"newest", True, 0)
    assert await silent(client)


async def test_what_is_kept_after_the_subscription_comes_live_only(start_worker: Start) -> None:
    running = await start_worker()
    retained = running.broker.retained
    await keep(running, {f"a/{n:03}": b"old" for n in range(10)})
    client = await running.client("s", MQTT_5, properties=Properties(receive_maximum=4))
    await client.subscribe("a/#")
    first = [await client.next() for _ in range(4)]
    publisher = await running.client("p")
    publisher.send(Publish("a/009", b"new", 1, retain=True, packet_id=1))
    await publisher.acked(1)
    client.send(*[PubAck(m.packet_id or 0) for m in first])
    got = first + await take(client, 6)
    assert {(m.topic, m.payload) for m in got} == {
        *((f"a/{n:03}", b"old") for n in range(9)), ("a/009", b"new"),
    }  # fmt: skip
    assert await silent(client)
    assert {item.before for item in retained.asked if item.before >= 0}


async def test_what_lags_and_what_is_kept_take_turns(start_worker: Start) -> None:
    running = await start_worker()
    await keep(running, {f"k/{n:03}": b"" for n in range(200)})
    client = await running.client("s", MQTT_5, properties=Properties(receive_maximum=10))
    await client.subscribe("live/#", retain_handling=2)
    publisher = await running.client("p")
    publisher.send(*[Publish("live/x", b"%d" % n, 1, packet_id=n + 1) for n in range(200)])
    await publisher.acked(200)
    client.send(Subscribe(2, [Subscription("k/#", 1)]))
    got: list[Publish] = []
    while len(got) < 400:
        item = await client.next()
        if isinstance(item, Publish):
            got.append(item)
            client.send(PubAck(item.packet_id or 0))
    assert [m.payload for m in got if m.topic == "live/x"] == [b"%d" % n for n in range(200)]
    assert [m.topic for m in got if m.topic != "live/x"] == [f"k/{n:03}" for n in range(200)]
    last_live = max(at for at, m in enumerate(got) if m.topic == "live/x")
    last_kept = max(at for at, m in enumerate(got) if m.topic != "live/x")
    assert min(last_live, last_kept) > 200
