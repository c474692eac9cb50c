"""Two that share an installation: one that publishes little and measures, one that wants far too much.

Each is a process of its own, an application (SDK) or a fleet of MQTT devices, and is told how much to publish
and for how long.
"""

from __future__ import annotations

import asyncio
import struct
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from holdmq.client import Message, Producer
from holdmq.errors import HoldMQError, StartupError
from holdmq.mqtt import MQTT_5, Connect, Publish, encode
from holdmq.rpc.security import Security

TURN_S: Final = 0.01
"""How often what is due is published."""
DRAIN_S: Final = 60.0
"""How long what was published last may take to be acknowledged."""
SDK: Final = "sdk"
MQTT: Final = "mqtt"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One that publishes as the access key or user `name`, to the registry or gateway `address`.

    At most `waiting_max` messages wait to be acknowledged: what is due beyond them is left out.
    """

    kind: str
    name: str
    secret: str
    address: str
    topic: str
    clients: int
    size_bytes: int
    waiting_max: int


class Round:
    """What one has to do: so many messages a second for so long; and what became of it."""

    def __init__(self, rate: float, seconds: float) -> None:
        self.rate = rate
        self.seconds = seconds
        self.latencies: list[float] = []
        """Of each acknowledged message, in ms, from when it was due."""


class PublishesOnTime(Protocol):
    """An application or a fleet."""

    def publish(self, number: int, due: float, round_: Round) -> bool:
        """Publish a message that was due then; False = too many wait, and it is left out."""

    @property
    def waiting(self) -> int:
        """Messages that are not acknowledged."""

    async def close(self) -> None:
        """End it, whatever waits."""


class Application:
    """A producer, with a task for each message that waits."""

    def __init__(self, neighbour: Neighbour) -> None:
        security = Security(access_key=neighbour.name, secret=neighbour.secret)
        self._producer = Producer([neighbour.address], security=security)
        self._waiting_max = neighbour.waiting_max
        self._stack = AsyncExitStack()
        self._message = bytes(neighbour.size_bytes)
        self._topic = neighbour.topic
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect the producer to its brokers."""
        await self._stack.enter_async_context(self._producer)

    @property
    def waiting(self) -> int:
        """Messages that are not acknowledged."""
        return len(self._tasks)

    def publish(self, number: int, due: float, round_: Round) -> bool:
        """Publish a message that was due then; False = too many wait, and it is left out."""
        if len(self._tasks) >= self._waiting_max:
            return False
        task = asyncio.get_running_loop().create_task(self._send(due, round_))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _send(self, due: float, round_: Round) -> None:
        try:
            await self._producer.send(Message(self._topic, self._message), timeout_s=60.0)
        except HoldMQError:
            return
        round_.latencies.append((time.perf_counter() - due) * 1000)

    async def close(self) -> None:
        """End it, whatever waits."""
        for task in list(self._tasks):
            task.cancel()
        await self._stack.aclose()


class _Device(asyncio.Protocol):
    """One MQTT connection; its acknowledgements come in the order of its messages."""

    def __init__(self, hello: bytes) -> None:
        self.connected = asyncio.get_running_loop().create_future()
        self.is_writable = True
        self.sent: dict[int, tuple[float, Round]] = {}
        self.transport: Any = None
        self._hello = hello
        self._buffer = b""
        self._next_id = 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(self._hello)

    def publish(self, topic: str, payload: bytes, due: float, round_: Round) -> None:
        packet_id = self._next_id
        self._next_id = packet_id % 65_000 + 1
        self.sent[packet_id] = due, round_
        self.transport.write(encode(Publish(topic, payload, 1, packet_id=packet_id), MQTT_5))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 2 and len(self._buffer) >= 2 + self._buffer[1]:
            packet, self._buffer = self._buffer[: 2 + self._buffer[1]], self._buffer[2 + self._buffer[1] :]
            if packet[0] == 0x20:
                if not self.connected.done():
                    self.connected.set_result(packet[3])
            elif packet[0] == 0x40:
                found = self.sent.pop(struct.unpack_from(">H", packet, 2)[0], None)
                if found is not None:
                    found[1].latencies.append((time.perf_counter() - found[0]) * 1000)

    def connection_lost(self, _reason: Exception | None) -> None:
        if not self.connected.done():
            self.connected.set_exception(ConnectionError("the gateway closed the connection"))
        self.is_writable = False

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True


class DeviceFleet:
    """Many MQTT devices of one user, which publish in turn."""

    def __init__(self, neighbour: Neighbour) -> None:
        self._neighbour = neighbour
        self._devices: list[_Device] = []
        self._payload = bytes(neighbour.size_bytes)

    async def open(self) -> None:
        """Connect all devices, one after the other."""
        own = self._neighbour
        host, _, port = own.address.rpartition(":")
        loop = asyncio.get_running_loop()
        for number in range(own.clients):
            hello = Connect(
                client_id=f"{own.name}-{number}", clean_start=True, version=MQTT_5, keep_alive=0,
                username=own.name, password=own.secret.encode(),
            )  # fmt: skip
            packed = encode(hello, MQTT_5)
            _, device = await loop.create_connection(partial(_Device, packed), host, int(port))
            code = await asyncio.wait_for(device.connected, 60.0)
            if code:
                raise StartupError(f"a device of {own.name} was refused: {code:#04x}")
            self._devices.append(device)

    @property
    def waiting(self) -> int:
        """Messages that are not acknowledged."""
        return sum(len(device.sent) for device in self._devices)

    def publish(self, number: int, due: float, round_: Round) -> bool:
        """Publish a message that was due then; False = too many wait, and it is left out."""
        device = self._devices[number % len(self._devices)]
        if not device.is_writable or len(device.sent) * len(self._devices) >= self._neighbour.waiting_max:
            return False
        device.publish(self._neighbour.topic, self._payload, due, round_)
        return True

    async def close(self) -> None:
        """End it, whatever waits."""
        for device in self._devices:
            device.transport.abort()


async def carry_out(publisher: PublishesOnTime, round_: Round) -> float:
    """Publish at an even rate until the round is over, and wait for what was published; how long that took.

    What there is no room for when it is due is left out.
    """
    began = time.perf_counter()
    number = 0
    while True:
        passed = time.perf_counter() - began
        if passed >= round_.seconds and (not publisher.waiting or passed >= round_.seconds + DRAIN_S):
            return passed
        due_now = int(min(passed, round_.seconds) * round_.rate)
        while number < due_now:
            publisher.publish(number, began + number / round_.rate, round_)
            number += 1
        await asyncio.sleep(TURN_S)


def neighbour_process(pipe: Any, neighbour: Neighbour) -> None:
    """The process of one neighbour: told (rate, seconds), it tells latencies and how long it took."""
    try:
        asyncio.run(_neighbour(pipe, neighbour))
    except EOFError:
        return
    except (HoldMQError, OSError) as error:
        pipe.send(StartupError(f"{neighbour.name}: {error}"))


async def _neighbour(pipe: Any, neighbour: Neighbour) -> None:
    publisher: Application | DeviceFleet = (
        Application(neighbour) if neighbour.kind == SDK else DeviceFleet(neighbour)
    )
    await publisher.open()
    pipe.send("open")
    try:
        while True:
            rate, seconds = await asyncio.to_thread(pipe.recv)
            round_ = Round(rate, seconds)
            took_s = await carry_out(publisher, round_)
            pipe.send((round_.latencies, took_s))
    finally:
        await publisher.close()
