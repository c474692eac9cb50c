"""Routing rules at a worker: what is stored where, and that subscribers do not see the difference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.publish import topics
from holdmq.mqtt import MQTT_5, Publish
from holdmq.record.codec import decode_record, encode_properties, encode_record

Start = Callable[..., Awaitable[Any]]
RULE = [{"filter": "sensors/#", "topic": "mqtt-tree-sensors"}]


async def tree(broker: Any, name: str, tag: str, body: bytes) -> None:
    """Somebody else's record in a tree."""
    await broker.append(encode_record(name.encode(), 0, body, encode_properties([("TAGS", tag)]), 0))


async def appear(broker: Any, name: str, key_levels: int = 2) -> None:
    await broker.stack.create(name, 4, key_levels)


@pytest.mark.parametrize("topic_filter", ["sensors/1/temp", "sensors/1/#", "sensors/+/temp", "+/1/temp", "#"])
async def test_a_tree_is_stored_in_one_topic_and_read_as_if_it_were_not(
    start_worker: Start, topic_filter: str
) -> None:
    running = await start_worker(routes=RULE)
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe(topic_filter)
    publisher = await running.client("p")
    publisher.send(
        Publish("sensors/1/temp", b"21", 1, packet_id=1),
        Publish("other/1/temp", b"x", 1, packet_id=2),
        Publish("sensors/1/temp", b"22", 1, packet_id=3),
    )
    assert await publisher.acked(3) == [1, 2, 3]
    assert sorted(running.broker.topics) == ["mqtt-tree-sensors", "other"]
    assert running.broker.topics["mqtt-tree-sensors"].key_levels == 2
    stored = [decode_record(raw) for raw in running.broker.log]
    assert [r.tag for r in stored if r.topic == b"mqtt-tree-sensors"] == [b"sensors/1/temp"] * 2
    got = [message for message in [await subscriber.next() for _ in range(2)] if message.topic[0] == "s"]
    if topic_filter in ("#", "+/1/temp"):
        got.append(await subscriber.next())
        got = [message for message in got if message.topic == "sensors/1/temp"]
    assert [bytes(message.payload) for message in got] == [b"21", b"22"]
    assert {message.topic for message in got} == {"sensors/1/temp"}


async def test_what_was_published_before_the_rule_is_read_too(start_worker: Start) -> None:
    running = await start_worker(routes=RULE)
    await appear(running.broker, "mqtt-tree-sensors")
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("sensors/1")
    await running.broker.append(encode_record(b"sensors", 0, b"old", encode_properties([("TAGS", "1")]), 0))
    await tree(running.broker, "mqtt-tree-sensors", "sensors/1", b"new")
    assert [bytes((await subscriber.next()).payload) for _ in range(2)] == [b"old", b"new"]


async def test_a_gateway_without_the_rule_reads_the_tree_once_it_is_there(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("sensors/1", "fleet/+/state")
    before = len(running.broker.live_terms())
    for name, levels in (("mqtt-tree-sensors", 2), ("mqtt-tree-flat", 1)):
        await appear(running.broker, name, levels)
    await running.worker.routes.refresh()
    await running.until(lambda: len(running.broker.live_terms()) == before + 4)
    await tree(running.broker, "mqtt-tree-sensors", "sensors/1", b"1")
    await tree(running.broker, "mqtt-tree-flat", "fleet/7/state", b"2")
    await tree(running.broker, "mqtt-tree-flat", "fleet/7/other", b"no")
    got = [await subscriber.next() for _ in range(2)]
    assert [(m.topic, bytes(m.payload)) for m in got] == [("sensors/1", b"1"), ("fleet/7/state", b"2")]
    # Of the reader's terms none is lost or doubled.
    await subscriber.close()
    await running.until(lambda: running.broker.live_terms() == [])


async def test_a_first_level_with_the_name_of_a_tree_shares_the_other_topic(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("mqtt-tree-x/#")
    publisher = await running.client("p")
    publisher.send(Publish("mqtt-tree-x/1", b"mine", 1, packet_id=1))
    assert await publisher.acked(1) == [1]
    assert list(running.broker.topics) == ["mqtt-other"]
    assert (await subscriber.next()).topic == "mqtt-tree-x/1"


async def test_where_no_more_topics_may_be_made_a_tree_shares_the_other_topic(start_worker: Start) -> None:
    running = await start_worker(routes=RULE, mqtt_topics_max=1)
    subscriber = await running.client("s", MQTT_5)
    await subscriber.subscribe("sensors/#", "one/#")
    publisher = await running.client("p")
    publisher.send(Publish("one/1", b"1", 1, packet_id=1), Publish("sensors/1", b"2", 1, packet_id=2))
    assert await publisher.acked(2) == [1, 2]
    assert "mqtt-tree-sensors" not in running.broker.topics
    assert {(await subscriber.next()).topic for _ in range(2)} == {"one/1", "sensors/1"}


async def test_more_trees_than_are_read_are_said(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(topics, "TREES_READ_MAX", 2)
    running = await start_worker(routes=RULE)
    for name in ("mqtt-tree-b", "mqtt-tree-a"):
        await appear(running.broker, name)
    await running.worker.routes.refresh()
    await running.until(lambda: running.worker.topics.trees == (("mqtt-tree-sensors", 2), ("mqtt-tree-a", 2)))
    assert "mqtt-tree-b" in capsys.readouterr().out
