"""kill -9 of the broker under load: what was acknowledged is in the log, where it was and in order."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Callable

import pytest
from cluster_view import messages_of
from devices import Fleet
from processes import Stack, wait_until

from holdmq.client.producer import Producer
from holdmq.errors import HoldMQError
from holdmq.message import Message

ROUNDS = 20
DEVICES = 20
WINDOW = 10


@pytest.mark.timeout(900)
def test_every_acknowledged_message_survives_twenty_kills_in_place_and_in_order(
    holdmq_stack: Callable[..., Stack],
) -> None:
    chance = random.Random(20)
    stack = holdmq_stack()
    fleet = Fleet(stack.mqtt_port, DEVICES, WINDOW, "devices/{i}/temp")
    fleet.start()
    placed: dict[tuple[int, int], bytes] = {}
    for _ in range(ROUNDS):
        goal = fleet.acknowledged + 100
        wait_until(lambda goal=goal: fleet.acknowledged > goal, "devices publish")  # type: ignore[misc]
        asyncio.run(send_until_killed(stack, chance.uniform(0.05, 0.4), placed))
        stack.start("broker")
    goal = fleet.acknowledged
    wait_until(lambda: fleet.acknowledged > goal, "devices publish again")
    fleet.stop()
    assert fleet.error is None
    stored: dict[str, dict[int, dict[int, bytes]]] = defaultdict(lambda: defaultdict(dict))
    for message in asyncio.run(messages_of([stack.registry], "devices", "applications")):
        stored[message.topic][message.queue_id][message.queue_offset] = message.body
    assert len(placed) >= ROUNDS
    assert fleet.acknowledged > ROUNDS * 100
    for (queue_id, offset), body in placed.items():
        assert stored["applications"][queue_id][offset] == body
    check_devices(fleet, stored["devices"])


async def send_until_killed(stack: Stack, delay_s: float, placed: dict[tuple[int, int], bytes]) -> None:
    """Send through the SDK, noting each acknowledged place, and kill the broker under it.

    The time to its death begins with the first acknowledgement: a busy machine takes long to connect.
    """
    serial = len(placed)
    async with Producer([stack.registry]) as producer:
        first = await producer.send(Message("applications", b"app-first"), timeout_s=100.0)
        placed[first.queue.queue_id, first.queue_offset] = b"app-first"
        kill = asyncio.get_running_loop().call_later(delay_s, stack.stop, "broker", signal.SIGKILL)
        while "broker" in stack.processes:
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


def check_devices(fleet: Fleet, queues: dict[int, dict[int, bytes]]) -> None:
    """Every PUBACKed number is there, offsets are dense, and first occurrences are in order.

    What was not acknowledged when its connection ended may come late: its device is elsewhere by then.
    """
    seen: dict[str, list[int]] = defaultdict(list)
    for messages in queues.values():
        assert sorted(messages) == list(range(len(messages)))
        for offset in sorted(messages):
            name, _, number = messages[offset].decode().partition(":")
            seen[name].append(int(number))
    for device in fleet.devices:
        first_seen = list(dict.fromkeys(seen[device.name]))
        assert set(device.acknowledged) <= set(first_seen), f"{device.name} lost acknowledged messages"
        acknowledged = set(device.acknowledged)
        in_order = [number for number in first_seen if number in acknowledged]
        assert in_order == device.acknowledged, f"{device.name}'s messages are out of order"
        assert in_order == sorted(in_order)
