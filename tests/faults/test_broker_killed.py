"""kill -9 of the broker under load: what was acknowledged is in the log, where it was and in order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

import pytest
from devices import Fleet
from processes import Processes, wait_until

from holdmq.client.producer import Producer
from holdmq.client.pull_consumer import PullConsumer
from holdmq.errors import HoldMQError
from holdmq.message import Message

ROUNDS = 20
DEVICES = 20
WINDOW = 10


@pytest.mark.timeout(300)
def test_every_acknowledged_message_survives_twenty_kills_in_place_and_in_order(tmp_path: Path) -> None:
    chance = random.Random(20)
    with Processes(tmp_path, gateway__workers=2) as processes:
        processes.start()
        registry = f"127.0.0.1:{processes.ports['registry']}"
        fleet = Fleet(processes.ports["gateway"], DEVICES, WINDOW, "devices/{i}/temp")
        fleet.start()
        placed: dict[tuple[int, int], bytes] = {}
        for _ in range(ROUNDS):
            before = fleet.acknowledged
            wait_until(lambda before=before: fleet.acknowledged > before + 100, "devices publish")  # type: ignore[misc]
            asyncio.run(send_until_killed(processes, registry, chance.uniform(0.05, 0.4), placed))
            processes.start("broker")
        wait_until(lambda before=fleet.acknowledged: fleet.acknowledged > before, "devices publish again")  # type: ignore[misc]
        fleet.stop()
        assert fleet.error is None
        stored = asyncio.run(read_all(registry, ["devices", "applications"]))
    assert len(placed) > ROUNDS
    assert fleet.acknowledged > ROUNDS * 100
    for (queue_id, offset), body in placed.items():
        assert stored["applications"][queue_id][offset] == body
    check_devices(fleet, stored["devices"])


async def send_until_killed(
    processes: Processes, registry: str, delay_s: float, placed: dict[tuple[int, int], bytes]
) -> None:
    """Send through the SDK, noting each acknowledged place, and kill the broker under it."""
    serial = len(placed)
    async with Producer([registry]) as producer:
        kill = asyncio.get_running_loop().call_later(delay_s, processes.kill, "broker")
        while "broker" in processes.running:
            bodies = [b"app-%d" % (serial + i) for i in range(50)]
            serial += len(bodies)
            for done in await asyncio.gather(*(send(producer, body) for body in bodies)):
                if done is not None:
                    placed[done[0], done[1]] = done[2]
        kill.cancel()


async def send(producer: Producer, body: bytes) -> tuple[int, int, bytes] | None:
    try:
        result = await producer.send(Message("applications", body), timeout_s=0.5)
    except HoldMQError:
        return None
    return result.queue.queue_id, result.queue_offset, body


async def read_all(registry: str, topics: list[str]) -> dict[str, dict[int, dict[int, bytes]]]:
    """Every message of these topics: topic → queue → offset → body."""
    stored: dict[str, dict[int, dict[int, bytes]]] = defaultdict(lambda: defaultdict(dict))
    async with PullConsumer([registry]) as consumer:
        await consumer.assign(topics, "earliest")
        while messages := await consumer.poll(hold_ms=500):
            for message in messages:
                stored[message.topic][message.queue_id][message.queue_offset] = message.body
    return stored


def check_devices(fleet: Fleet, queues: dict[int, dict[int, bytes]]) -> None:
    """Every PUBACKed number is there, offsets are dense, and first occurrences are in order."""
    seen: dict[str, list[int]] = defaultdict(list)
    for messages in queues.values():
        assert sorted(messages) == list(range(len(messages)))
        for offset in sorted(messages):
            name, _, number = messages[offset].decode().partition(":")
            seen[name].append(int(number))
    for device in fleet.devices:
        first_seen = list(dict.fromkeys(seen[device.name]))
        assert set(device.acknowledged) <= set(first_seen), f"{device.name} lost acknowledged messages"
        assert first_seen == sorted(first_seen), f"{device.name}'s messages are out of order"
        assert device.acknowledged == sorted(device.acknowledged)
