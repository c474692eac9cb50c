"""Mutated packets against a live worker: every connection ends or goes on, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdmq.mqtt import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    Publish,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)

CONNECTIONS = 400


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
async def test_mutated_packets_disturb_nobody(
    start_worker: Callable[..., Awaitable[Any]], version: int
) -> None:
    running = await start_worker(connections_max=CONNECTIONS + 2, drain_s=5)
    steady = await running.client("steady")
    await steady.subscribe("steady/#")
    rng = random.Random(version)
    properties = Properties(user_properties=(("k", "v"),)) if version == MQTT_5 else Properties()
    packets: list[Packet] = [
        Subscribe(2, [Subscription("fuzz/#", 2), Subscription("+/x", 1)]),
        Publish("fuzz/a", b"payload", 1, packet_id=1, properties=properties),
        Publish("fuzz/b", b"payload", 2, packet_id=3),
        PubRel(3),
        PubAck(1),
        PingReq(),
        Unsubscribe(4, ["+/x"]),
    ]
    for n in range(CONNECTIONS):
        connect = encode(
            Connect(client_id=f"f{n % 50}", version=version, will=Will("fuzz/w", b"bye", 1)), version
        )
        data = bytearray(b"".join(encode(rng.choice(packets), version) for _ in range(8)))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            change = rng.randrange(3)
            if change == 0:
                data[at] = rng.randrange(256)
            elif change == 1:
                del data[at : at + rng.randint(1, 4)]
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(connect[: rng.choice((len(connect), len(connect), 5))] + bytes(data))
        if n % 3:
            writer.close()
        else:
            running.clients.append(type("Open", (), {"writer": writer}))
    steady.send(Publish("steady/x", b"still here", 1, packet_id=1))
    got = {(await steady.next()).__class__.__name__ for _ in range(2)}
    assert got == {"AckRun", "Publish"}
    for client in running.clients[1:]:
        client.writer.close()
    await running.until(lambda: running.worker.counters.connections == 1)
    assert running.worker.counters.sessions == 1
    assert running.worker.counters.subscriptions == 1
