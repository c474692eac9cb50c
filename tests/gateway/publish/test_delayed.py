"""`$delayed/<seconds>/<topic>` at a worker: what it sends to the broker, and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.ground.delayed import DELAYED_ROOM_BYTES
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Publish
from holdmq.record.codec import decode_properties, decode_record

Start = Callable[..., Awaitable[Any]]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_delayed_publish_waits_at_the_broker_under_its_topic(
    start_worker: Start, version: int, qos: int
) -> None:
    running = await start_worker()
    client = await running.client("c1", version)
    client.send(Publish("$delayed/1/d/x", b"later", qos, packet_id=7 if qos else 0))
    if qos:
        assert await client.acked(1) == [7]
    await running.until(lambda: running.broker.bodies == [b"later"])
    record = decode_record(running.broker.log[0])
    assert (record.topic, record.tag) == (b"d", b"x")
    due_ms = int(decode_properties(record.properties).first("DUE"))
    assert record.born_ms + 1000 <= due_ms <= record.store_ms
    assert running.broker.delayed == [[0]]
    await running.until(lambda: running.worker.links["b0"].producer.delayed_records == 1)


async def test_messages_at_once_and_later_of_one_device_are_acknowledged_in_order(
    start_worker: Start,
) -> None:
    running = await start_worker()
    client = await running.client("c1")
    topics = ["d/x", "$delayed/1/d/x", "d/x", "$delayed/2/d/x", "d/x"]
    client.send(*[Publish(topic, b"%d" % n, 1, packet_id=n) for n, topic in enumerate(topics, 1)])
    assert await client.acked(5) == [1, 2, 3, 4, 5]
    await running.until(lambda: running.broker.bodies == [b"1", b"3", b"5", b"2", b"4"])
    [runs] = running.broker.produced
    assert ([run.records for run in runs], running.broker.delayed) == ([3, 2], [[1]])


@pytest.mark.parametrize(("topic", "code"), [("$delayed/x/d/x", 0x90), ("$delayed/1/$SYS/x", 0x90)])
@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_what_cannot_be_delayed_is_answered_and_goes_nowhere(
    start_worker: Start, version: int, topic: str, code: int
) -> None:
    running = await start_worker()
    client = await running.client("c1", version)
    client.send(Publish(topic, b"no", 1, packet_id=1), Publish("a/b", b"ok", 1, packet_id=2))
    if version == MQTT_5:
        assert (await client.next()).reason_code == code
        assert await client.acked(1) == [2]
    else:
        assert await client.acked(2) == [1, 2]
    assert running.broker.bodies == [b"ok"]
    assert running.worker.counters.refused["publish_topic_name_invalid"] == 1


async def test_a_delayed_message_leaves_room_for_what_the_timer_adds(start_worker: Start) -> None:
    running = await start_worker()
    producer = running.worker.links["b0"].producer
    producer.record_max_bytes = 2000
    client = await running.client("c1", MQTT_5)
    body = b"x" * (2000 - DELAYED_ROOM_BYTES)
    client.send(Publish("$delayed/1/d/x", body, 1, packet_id=1), Publish("d/x", body, 1, packet_id=2))
    assert (await client.next()).reason_code == 0x97
    assert await client.acked(1) == [2]
