"""`$SYS/…` of one worker, whose totals are its own or what a parent says."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gateway.deliver import system_topics
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Properties, Publish, SubAck, Subscribe, Subscription
from holdmq.record.codec import encode_properties, encode_record

Start = Callable[..., Awaitable[Any]]


async def values(client: Any, count: int) -> dict[str, Publish]:
    got: dict[str, Publish] = {}
    while len(got) < count:
        message = await client.next()
        assert isinstance(message, Publish), message
        got[message.topic] = message
    return got


async def subscribe(client: Any, name: str, handling: int = 0, **options: Any) -> None:
    properties = Properties(subscription_identifiers=(9,)) if client.version == MQTT_5 else Properties()
    client.send(Subscribe(1, [Subscription(name, 1, retain_handling=handling, **options)], properties))
    answer = await client.next()
    assert isinstance(answer, SubAck)
    assert answer.reason_codes == [1]


async def start_allowed(start_worker: Start, **settings: Any) -> Any:
    return await start_worker(access={"sys_topics": True}, **settings)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_who_subscribes_gets_the_numbers_at_once_as_if_they_were_retained(
    start_worker: Start, version: int
) -> None:
    running = await start_allowed(start_worker)
    client = await running.client("s", version)
    await subscribe(client, "$SYS/broker/clients/+")
    message = await client.next()
    assert (message.topic, bytes(message.payload)) == ("$SYS/broker/clients/connected", b"1")
    assert (message.qos, message.retain) == (0, True)
    if version == MQTT_5:
        assert message.properties.subscription_identifiers == (9,)
    assert running.broker.live_terms() == []


async def test_what_changes_is_sent_again_and_nothing_else(start_worker: Start) -> None:
    running = await start_allowed(start_worker, sys_interval_s=1)
    client = await running.client("s", MQTT_5)
    await subscribe(client, "$SYS/broker/#")
    first = await values(client, 11)
    assert all(message.retain for message in first.values())
    running.worker.deliveries.system._due_at = 0.0
    publisher = await running.client("p")
    publisher.send(Publish("a/b", b"x", 1, packet_id=1))
    await publisher.acked(1)
    later: dict[str, Publish] = {}
    # A second may have ended between the connection and the message.
    while "$SYS/broker/messages/received" not in later:
        later |= await values(client, 1)
    assert later["$SYS/broker/messages/received"].payload == b"1"
    assert later["$SYS/broker/clients/connected"].payload == b"2"
    assert not any(message.retain for message in later.values())
    assert "$SYS/broker/version" not in later


async def test_retain_handling_and_retain_as_published_are_kept(start_worker: Start) -> None:
    running = await start_allowed(start_worker, sys_interval_s=1)
    client = await running.client("s", MQTT_5)
    await subscribe(client, "$SYS/broker/uptime", 2, retain_as_published=True)
    # Nothing at once: what comes is a change.
    running.worker.deliveries.system._due_at = 0.0
    assert (await client.next()).retain
    # By one who gets no changes meanwhile: this number stays.
    new = await running.client("new", MQTT_5)
    await subscribe(new, "$SYS/broker/version", 1)
    assert (await new.next()).topic == "$SYS/broker/version"
    await client.close()


async def test_wildcards_do_not_match_them_and_nobody_else_can_say_them(start_worker: Start) -> None:
    running = await start_allowed(start_worker)
    everything = await running.client("all", MQTT_5)
    await everything.subscribe("#", "+/broker/version")
    system = await running.client("sys", MQTT_5)
    await subscribe(system, "$SYS/broker/version")
    assert bytes((await system.next()).payload).startswith(b"HoldMQ ")
    broker = running.broker
    for topic, tag in ((b"|24SYS", "broker/version"), (b"mqtt-other", "$SYS/broker/version")):
        await broker.append(encode_record(topic, 0, b"forged", encode_properties([("TAGS", tag)]), 0))
    await broker.append(encode_record(b"a", 0, b"true", encode_properties([("TAGS", "b")]), 0))
    assert bytes((await everything.next()).payload) == b"true"
    system.send(Subscribe(2, [Subscription("a", 1)]))
    assert isinstance(await system.next(), SubAck)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The ends of a parent and of its worker."""
    parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child.setblocking(False)
    parent.settimeout(40)
    yield parent, child
    parent.close()
    child.close()


async def test_the_parent_s_totals_are_told(
    pair: tuple[socket.socket, socket.socket], start_worker: Start
) -> None:
    parent, child = pair
    running = await start_allowed(start_worker, report=child)
    client = await running.client("s")
    await subscribe(client, "$SYS/gateway/sessions")
    asked = json.loads(parent.recv(1 << 16))
    while "totals" not in asked:
        asked = json.loads(parent.recv(1 << 16))
    parent.send(json.dumps({"numbers": {"sessions": 1234}, "workers": 8, "uptime_s": 5}).encode())
    assert bytes((await client.next()).payload) == b"1234"


async def test_many_subscribers_get_them_over_several_ticks(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_topics, "SENT_PER_TICK", 3)
    running = await start_allowed(start_worker)
    clients = [await running.client(f"c{n}", MQTT_5) for n in range(3)]
    for client in clients:
        await subscribe(client, "$SYS/broker/#")
    for client in clients:
        assert len(await values(client, 11)) == 11


async def test_filters_that_match_nothing_wait_for_their_turn_as_well(start_worker: Start) -> None:
    running = await start_allowed(start_worker)
    client = await running.client("s")
    await subscribe(client, "$SYS/nothing/+")
    session = running.worker.clients.session("s")
    steps = running.worker.deliveries.system._each(
        {"$SYS/a": "1", "$SYS/b": "2"}, [(session, "$SYS/nothing/+")] * 5, []
    )
    assert sum(1 for _ in steps) == 5


async def test_without_a_subscriber_nobody_is_asked(start_worker: Start) -> None:
    running = await start_allowed(start_worker, sys_interval_s=1)
    client = await running.client("s", MQTT_5)
    await subscribe(client, "$SYS/#")
    assert running.worker.deliveries.wanted.system_filters == 1
    await client.close()
    await running.until(lambda: running.worker.deliveries.wanted.system_filters == 0)
    sent = running.worker.counters.messages_out_qos0_total
    running.worker.deliveries.system._due_at = 0.0
    running.worker.deliveries.system.tick(running.worker.now() + 100)
    assert running.worker.counters.messages_out_qos0_total == sent


async def test_there_is_nothing_of_them_to_replay(start_worker: Start) -> None:
    running = await start_allowed(start_worker)
    client = await running.client("s", MQTT_5)
    past = Properties(user_properties=(("from", "earliest"),))
    client.send(Subscribe(1, [Subscription("$SYS/broker/version", 1)], past))
    assert isinstance(await client.next(), SubAck)
    assert (await client.next()).topic == "$SYS/broker/version"
    assert running.broker.located_ms == []
    assert running.worker.counters.replays_total == 0
