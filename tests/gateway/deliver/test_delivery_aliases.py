"""Topic aliases on the way out, as a client with a Topic Alias Maximum sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdmq.mqtt import MQTT_5, SERVER, Properties, PubAck, Publish, PubRec
from holdmq.mqtt.properties import block_bounds, decode_block
from holdmq.mqtt.protocol import PUBLISH

Start = Callable[..., Awaitable[Any]]


def takes(maximum: int, **others: Any) -> Properties:
    return Properties(topic_alias_maximum=maximum, **others)


async def publish(client: Any, *messages: tuple[str, int]) -> None:
    packets = [
        Publish(topic, b"x", qos, packet_id=n if qos else 0) for n, (topic, qos) in enumerate(messages, 1)
    ]
    client.send(*packets)
    await client.acked(sum(1 for packet in packets if packet.qos))


async def packet(client: Any) -> bytes:
    """The next packet as it is on the wire; at most 127 bytes behind its fixed header."""
    first = await asyncio.wait_for(client.reader.readexactly(2), 40)
    return bytes(first + await client.reader.readexactly(first[1]))


async def names(client: Any, count: int) -> list[tuple[str, int | None]]:
    """Topic and alias of the next messages, which are acknowledged."""
    found: list[tuple[str, int | None]] = []
    while len(found) < count:
        data = await packet(client)
        qos = data[0] >> 1 & 3
        after = 4 + int.from_bytes(data[2:4], "big")
        packet_id = int.from_bytes(data[after : after + 2], "big")
        at = after + 2 if qos else after
        start, end = block_bounds(data, at, len(data))
        found.append((data[4:after].decode(), decode_block(data, start, end, PUBLISH, SERVER).topic_alias))
        if qos:
            client.send(PubAck(packet_id) if qos == 1 else PubRec(packet_id, 0x80))
    return found


@pytest.mark.mqtt("MQTT-3.1.2-27")
@pytest.mark.parametrize("maximum", [None, 0])
async def test_who_takes_no_aliases_gets_none(
    start_worker: Start, maximum: int | None
) -> None:  # [MQTT-3.1.2-27]
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5, properties=Properties(topic_alias_maximum=maximum))
    await subscriber.subscribe("plants/#")
    publisher = await running.client("p")
    await publish(publisher, ("plants/1", 1), ("plants/1", 1))
    assert await names(subscriber, 2) == [("plants/1", None), ("plants/1", None)]


@pytest.mark.mqtt("MQTT-3.1.2-26", "MQTT-3.3.2-8", "MQTT-3.3.2-11")
async def test_the_first_topics_get_aliases_over_every_qos(start_worker: Start) -> None:  # [MQTT-3.1.2-26]
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5, properties=takes(2))
    await subscriber.subscribe("plants/#", qos=2)
    publisher = await running.client("p")
    await publish(publisher, ("plants/1", 0), ("plants/1", 1), ("plants/2", 2), ("plants/3", 1))
    await publish(publisher, ("plants/2", 1), ("plants/1", 2), ("plants/3", 0))
    assert sorted(await names(subscriber, 7), key=str) == sorted(
        [
            ("plants/1", 1),
            ("", 1),
            ("plants/2", 2),
            ("plants/3", None),
            ("", 2),
            ("", 1),
            ("plants/3", None),
        ],
        key=str,
    )


@pytest.mark.mqtt("MQTT-3.3.2-7")
async def test_every_connection_has_aliases_of_its_own(start_worker: Start) -> None:  # [MQTT-3.3.2-7]
    running = await start_worker()
    publisher = await running.client("p")
    for _ in range(2):
        subscriber = await running.client("s", MQTT_5, properties=takes(9))
        await subscriber.subscribe("plants/#")
        await publish(publisher, ("plants/1", 1), ("plants/1", 1))
        assert await names(subscriber, 2) == [("plants/1", 1), ("", 1)]


async def test_a_message_that_waits_for_room_has_not_set_its_alias(start_worker: Start) -> None:
    """It is sent by catching up, when others have been; the client decodes all of it."""
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5, properties=takes(9, receive_maximum=1))
    await subscriber.subscribe("plants/#")
    publisher = await running.client("p")
    await publish(publisher, ("plants/1", 1), ("plants/2", 1), ("plants/2", 1), ("plants/1", 1))
    assert [(await names(subscriber, 1))[0] for _ in range(4)] == [
        ("plants/1", 1),
        ("plants/2", 2),
        ("", 2),
        ("", 1),
    ]


async def test_a_message_that_has_room_without_setting_an_alias_is_sent_without(start_worker: Start) -> None:
    running = await start_worker()
    room = 2 + 2 + len("plants/1") + 2 + 1 + 10
    subscriber = await running.client("s", MQTT_5, properties=takes(9, maximum_packet_size=room))
    await subscriber.subscribe("plants/#")
    publisher = await running.client("p")
    publisher.send(Publish("plants/1", b"x" * 10, 1, packet_id=1), Publish("plants/1", b"x", 1, packet_id=2))
    await publisher.acked(2)
    assert await names(subscriber, 2) == [("plants/1", None), ("plants/1", 1)]
    assert running.worker.counters.messages_dropped_size_total == 0
