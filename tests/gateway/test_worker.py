from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    SERVER,
    AckRun,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    PublishRun,
    SubAck,
    Subscribe,
    Subscription,
    TopicTable,
    encode,
    publishes,
)

Start = Callable[..., Awaitable[Any]]


class Client:
    """A raw MQTT client: sends packets, collects what comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.reader = reader
        self.writer = writer
        self.version = version
        self.decoder: Decoder[bytes] = Decoder(TopicTable(bytes), 1 << 24, sender=SERVER, version=version)
        self.got: list[Any] = []
        self.is_closed = False

    @classmethod
    async def open(cls, port: int, client_id: str, version: int = MQTT_3_1_1, **fields: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = cls(reader, writer, version)
        client.send(Connect(client_id=client_id, version=version, **fields))
        assert isinstance(await client.next(), ConnAck)
        return client

    def send(self, *packets: Packet) -> None:
        self.writer.write(b"".join(encode(packet, self.version) for packet in packets))

    async def next(self) -> Any:
        while not self.got:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 5)
            if not data:
                self.is_closed = True
                raise EOFError
            for item in self.decoder.feed(data):
                self.got += publishes(item) if isinstance(item, PublishRun) else [item]
        return self.got.pop(0)

    async def acked(self, count: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < count:
            item = await self.next()
            ids += item.packet_ids if isinstance(item, AckRun) else [item.packet_id]
        return ids

    async def subscribe(self, *filters: str, qos: int = 1, **options: Any) -> SubAck:
        self.send(Subscribe(1, [Subscription(f, qos, **options) for f in filters]))
        answer = await self.next()
        assert isinstance(answer, SubAck)
        return answer

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def test_a_publish_is_acknowledged_when_the_log_has_it(start_worker: Start) -> None:
    running = await start_worker()
    running.broker.hold = True
    client = await Client.open(running.port, "c1")
    client.send(Publish("devices/1/temp", b"21", 1, packet_id=7))
    while not running.broker.held:
        await asyncio.sleep(0.01)
    assert not client.got
    running.broker.release()
    assert await client.acked(1) == [7]
    assert running.broker.bodies == [b"21"]
    await client.close()


async def test_a_subscriber_receives_what_another_client_publishes(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await Client.open(running.port, "s", MQTT_5)
    assert (await subscriber.subscribe("devices/#")).reason_codes == [1]
    publisher = await Client.open(running.port, "p")
    publisher.send(*[Publish("devices/1/temp", b"%d" % n, 1, packet_id=n + 1) for n in range(20)])
    assert await publisher.acked(20) == list(range(1, 21))
    got = [await subscriber.next() for _ in range(20)]
    assert [message.payload for message in got] == [b"%d" % n for n in range(20)]
    assert {message.topic for message in got} == {"devices/1/temp"}
    await subscriber.close()
    await publisher.close()


async def test_a_busy_broker_delays_and_reorders_nothing(start_worker: Start) -> None:
    running = await start_worker()
    client = await Client.open(running.port, "c1")
    client.send(Publish("d/x", b"first", 1, packet_id=1))
    assert await client.acked(1) == [1]
    running.broker.verdicts = [[2], [18]]
    for n in range(2, 6):
        client.send(Publish("d/x", b"%d" % n, 1, packet_id=n))
        await client.writer.drain()
        await asyncio.sleep(0.01)
    assert await client.acked(4) == [2, 3, 4, 5]
    assert running.broker.bodies == [b"first", b"2", b"3", b"4", b"5"]
    await client.close()


async def test_what_was_unanswered_is_sent_again_with_the_same_sequences(start_worker: Start) -> None:
    running = await start_worker()
    broker = running.broker
    client = await Client.open(running.port, "c1")
    client.send(Publish("d/x", b"1", 1, packet_id=1))
    await client.acked(1)
    broker.hold = True
    client.send(Publish("d/x", b"2", 1, packet_id=2))
    while not broker.held:
        await asyncio.sleep(0.01)
    broker.held.clear()
    for connection in list(broker.server.connections):
        connection.close()
    broker.hold = False
    assert await client.acked(1) == [2]
    assert broker.bodies == [b"1", b"2"]
    assert [run.first_sequence for runs in broker.produced for run in runs] == [0, 1]
    await client.close()


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_a_final_refusal_answers_the_publish(start_worker: Start, version: int) -> None:
    running = await start_worker()
    client = await Client.open(running.port, "c1", version)
    running.broker.verdicts = [[16]]
    client.send(Publish("d/x", b"no", 1, packet_id=1))
    answer = await client.next()
    if version == MQTT_5:
        assert isinstance(answer, PubAck)
        assert answer.reason_code == 0x87
    else:
        assert answer.packet_ids == [1]
    assert running.broker.bodies == []
    assert running.worker.counters.snapshot()["connections"] == 1
    await client.close()


async def test_the_older_connection_of_a_client_id_is_closed(start_worker: Start) -> None:
    running = await start_worker()
    older = await Client.open(running.port, "same", MQTT_5)
    newer = await Client.open(running.port, "same", MQTT_5)
    farewell = await older.next()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason_code == 0x8E
    newer.send(Publish("d/x", b"alive", 1, packet_id=1))
    assert await newer.acked(1) == [1]
    await older.close()
    await newer.close()
