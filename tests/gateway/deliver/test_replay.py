"""Subscriptions that begin in the past, at a worker with a broker in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.deliver import replay
from gateway.ground.clock import wall_ms
from holdmq.errors import Code, RemoteError
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
)

Start = Callable[..., Awaitable[Any]]
BEGINNING = "1970-01-01T00:00:00Z"


def moment(store_ms: int) -> str:
    """A time as a subscription names it."""
    return datetime.fromtimestamp(store_ms / 1000, UTC).isoformat(timespec="milliseconds")


async def publish(client: Any, topic: str, *payloads: bytes, qos: int = 1) -> None:
    for payload in payloads:
        client.send(Publish(topic, payload, qos, packet_id=1 if qos else 0))
        if qos:
            await client.acked(1)


async def publish_each_ms(running: Any, client: Any, *messages: tuple[str, bytes]) -> int:
    """Publish while the broker's clock goes on by 1 ms for each; return the first one's store time."""
    first_ms = wall_ms()
    for at, (topic, payload) in enumerate(messages):
        running.broker.stands_at_ms = first_ms + at
        await publish(client, topic, payload)
    return first_ms


async def subscribe(client: Any, start: str | None, *filters: str, qos: int = 1, number: int = 7) -> SubAck:
    properties = Properties(user_properties=() if start is None else (("from", start),))
    client.send(Subscribe(number, [Subscription(f, qos) for f in filters], properties))
    answer = await client.next()
    assert isinstance(answer, SubAck)
    return answer


async def take(client: Any, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        message = await client.next()
        assert isinstance(message, Publish), message
        got.append(bytes(message.payload))
        if message.qos:
            client.send(PubAck(message.packet_id or 0))
    return got


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


async def test_a_replay_gives_what_was_before_and_goes_on_live(start_worker: Start) -> None:
    running = await start_worker()
    publisher = await running.client("p")
    await publish(publisher, "a/x", *numbered(0, 100))
    subscriber = await running.client("s", MQTT_5)
    assert (await subscribe(subscriber, "earliest", "a/#")).reason_codes == [1]
    assert await take(subscriber, 100) == numbered(0, 100)
    await publish(publisher, "a/x", *numbered(100, 110))
    assert await take(subscriber, 10) == numbered(100, 110)
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)
    assert running.worker.counters.replays_total == 1
    assert running.broker.located_ms == [0]


async def test_it_begins_at_the_moment_that_was_asked_for(start_worker: Start) -> None:
    running = await start_worker()
    publisher = await running.client("p")
    first_ms = await publish_each_ms(running, publisher, *(("a/x", body) for body in numbered(0, 20)))
    subscriber = await running.client("s", MQTT_5)
    await subscribe(subscriber, moment(first_ms + 15), "a/x")
    assert await take(subscriber, 5) == numbered(15, 20)
    ago = await running.client("ago", MQTT_5)
    await subscribe(ago, "10", "a/x")
    assert running.broker.located_ms[0] == first_ms + 15
    assert wall_ms() - running.broker.located_ms[1] == pytest.approx(10_000, abs=5_000)


async def test_messages_of_qos_0_and_those_that_come_meanwhile_are_in_their_order_and_once(
    start_worker: Start,
) -> None:
    running = await start_worker()
    publisher = await running.client("p")
    for n in range(0, 40, 2):
        await publish(publisher, "a/x", b"%d" % n, qos=0)
        await publish(publisher, "a/x", b"%d" % (n + 1))
    running.broker.hold_catchup()
    subscriber = await running.client("s", MQTT_5)
    await subscribe(subscriber, "earliest", "a/x")
    for n in range(40, 60, 2):
        await publish(publisher, "a/x", b"%d" % n, qos=0)
        await publish(publisher, "a/x", b"%d" % (n + 1))
    await running.until(lambda: running.broker.held_catchup)
    running.broker.release_catchup()
    assert await take(subscriber, 60) == numbered(0, 60)
    await running.until(lambda: running.worker.counters.lagging_sessions == 0)
    await publish(publisher, "a/x", b"60", qos=0)
    await publish(publisher, "a/x", b"61")
    assert await take(subscriber, 2) == numbered(60, 62)


async def test_other_subscriptions_of_the_session_get_nothing_twice_and_miss_nothing(
    start_worker: Start,
) -> None:
    running = await start_worker()
    publisher = await running.client("p")
    await publish(publisher, "b/x", b"b before")
    subscriber = await running.client("s", MQTT_5)
    await subscribe(subscriber, None, "b/#")
    await publish(publisher, "a/x", *numbered(0, 10))
    await publish(publisher, "b/x", b"b live")
    assert await take(subscriber, 1) == [b"b live"]
    running.broker.hold_catchup()
    await subscribe(subscriber, "earliest", "a/#")
    await publish(publisher, "b/x", b"b meanwhile")
    await running.until(lambda: running.broker.held_catchup)
    running.broker.release_catchup()
    assert await take(subscriber, 11) == [*numbered(0, 10), b"b meanwhile"]
    await publish(publisher, "b/x", b"b after")
    assert await take(subscriber, 1) == [b"b after"]


async def test_a_filter_that_is_subscribed_again_begins_where_it_is_told(start_worker: Start) -> None:
    running = await start_worker()
    publisher = await running.client("p")
    subscriber = await running.client("s", MQTT_5)
    await subscribe(subscriber, None, "a/#")
    first_ms = await publish_each_ms(running, publisher, *(("a/x", body) for body in numbered(0, 6)))
    assert await take(subscriber, 6) == numbered(0, 6)
    await subscribe(subscriber, moment(first_ms + 4), "a/#")
    assert await take(subscriber, 2) == numbered(4, 6)


async def test_a_second_replay_leads_back_only_its_own_filters(start_worker: Start) -> None:
    running = await start_worker(inflight_max=4)
    publisher = await running.client("p")
    turns = [(f"{name}/x", b"%s%d" % (name.encode(), n)) for n in range(10) for name in "ab"]
    first_ms = await publish_each_ms(running, publisher, *turns)
    subscriber = await running.client("s", MQTT_5)
    await subscribe(subscriber, "earliest", "a/#")
    first = [await subscriber.next() for _ in range(4)]
    assert [bytes(m.payload) for m in first] == [b"a0", b"a1", b"a2", b"a3"]
    answer = await subscribe(subscriber, moment(first_ms + 3), "b/#")
    assert answer.reason_codes == [1]
    subscriber.send(*[PubAck(m.packet_id) for m in first])
    got = await take(subscriber, 15)
    assert [x for x in got if x[:1] == b"a"] == [b"a%d" % n for n in range(4, 10)]
    assert [x for x in got if x[:1] == b"b"] == [b"b%d" % n for n in range(1, 10)]


async def test_who_goes_back_while_its_reader_opens_begins_anew(start_worker: Start) -> None:
    running = await start_worker(inflight_max=4)
    publisher = await running.client("p")
    await publish(publisher, "b/x", *numbered(0, 5))
    subscriber = await running.client("s", MQTT_5)
    await subscribe(subscriber, None, "a/#")
    await publish(publisher, "a/x", *[b"a%d" % n for n in range(8)])
    first = [await subscriber.next() for _ in range(4)]
    running.broker.hold_catchup()
    subscriber.send(*[PubAck(m.packet_id) for m in first])
    await running.until(lambda: running.broker.held_catchup)
    await subscribe(subscriber, "earliest", "b/#")
    running.broker.release_catchup()
    assert await take(subscriber, 9) == [*numbered(0, 5), *[b"a%d" % n for n in range(4, 8)]]
    assert running.worker.counters.sessions_behind_total == 0


async def test_a_value_that_says_no_beginning_refuses_the_filters_and_says_why(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    answer = await subscribe(subscriber, "yesterday", "a/#", "b/#")
    assert answer.reason_codes == [0x83, 0x83]
    assert "earliest" in (answer.properties.reason_string or "")
    assert running.worker.counters.refused["subscribe_replay_malformed"] == 1
    assert running.worker.counters.subscriptions == 0


async def test_who_wants_no_explanations_gets_none(start_worker: Start) -> None:
    running = await start_worker()
    terse = await running.client("t", MQTT_5, properties=Properties(request_problem_information=0))
    assert (await subscribe(terse, "yesterday", "a/#")).properties.reason_string is None
    small = await running.client("u", MQTT_5, properties=Properties(maximum_packet_size=64))
    assert (await subscribe(small, "yesterday", "a/#")).properties.reason_string is None


async def test_a_broker_that_cannot_say_where_refuses_the_filters(start_worker: Start) -> None:
    running = await start_worker()
    running.broker.located.refusal = RemoteError(Code.SYSTEM_ERROR, "the disk is gone")
    subscriber = await running.client("s", MQTT_5)
    answer = await subscribe(subscriber, "5", "a/#")
    assert answer.reason_codes == [0x80]
    assert "the disk is gone" in (answer.properties.reason_string or "")
    assert running.worker.counters.refused["subscribe_unspecified_error"] == 1
    running.broker.located.refusal = None
    assert (await subscribe(subscriber, "5", "a/#")).reason_codes == [1]


async def test_while_a_broker_is_away_nothing_can_be_replayed(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker()
    monkeypatch.setattr("gateway.deliver.subscriptions.SUBACK_WAIT_S", 0.1)
    subscriber = await running.client("s", MQTT_5)
    await running.broker.tap.close()
    await running.until(lambda: running.worker.links["b0"].connection is None)
    answer = await subscribe(subscriber, "earliest", "a/#")
    assert answer.reason_codes == [0x80]
    assert "b0 is away" in (answer.properties.reason_string or "")


async def test_beyond_the_bound_of_look_ups_a_replay_is_refused(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "LOCATING_MAX", 1)
    running = await start_worker()
    running.broker.located.hold()
    waiting = await running.client("w", MQTT_5)
    waiting.send(Subscribe(1, [Subscription("a", 1)], Properties(user_properties=(("from", "5"),))))
    await running.until(lambda: running.broker.located_ms)
    other = await running.client("o", MQTT_5)
    assert (await subscribe(other, "5", "a/#")).reason_codes == [0x97]


async def test_what_a_client_sends_behind_a_replay_waits_for_its_turn(start_worker: Start) -> None:
    running = await start_worker()
    await publish(await running.client("p"), "a/x", b"1")
    subscriber = await running.client("s", MQTT_5)
    past = Properties(user_properties=(("from", "earliest"),))
    subscriber.send(
        Subscribe(1, [Subscription("a/#", 1)], past),
        Unsubscribe(2, ["a/#"]),
        Subscribe(3, [Subscription("b/#", 1)]),
    )
    answers = [await subscriber.next() for _ in range(3)]
    # The filter was there when it was taken away, though its SUBACK waited for the broker.
    assert {answer.packet_id: answer.reason_codes for answer in answers} == {1: [1], 2: [0], 3: [1]}


async def test_a_client_that_leaves_while_its_beginning_is_looked_for_harms_nobody(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker()
    monkeypatch.setattr("gateway.deliver.replay.SUBACK_WAIT_S", 1.0)
    running.broker.located.hold()
    gone = await running.client("g", MQTT_5)
    gone.send(Subscribe(1, [Subscription("a", 1)], Properties(user_properties=(("from", "5"),))))
    await running.until(lambda: running.broker.located_ms)
    await gone.close()
    await running.until(lambda: running.worker.deliveries.replays.locating == 0)
    await running.until(lambda: running.worker.counters.subscriptions == 0)
    assert running.worker.counters.lagging_sessions == 0


async def test_mqtt_3_has_no_such_property(start_worker: Start) -> None:
    running = await start_worker()
    await publish(await running.client("p"), "a/x", b"old")
    subscriber = await running.client("s", MQTT_3_1_1)
    await subscriber.subscribe("a/#")
    await publish(await running.client("q"), "a/x", b"new")
    assert await take(subscriber, 1) == [b"new"]
