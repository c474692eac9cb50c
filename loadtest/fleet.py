"""A process's share of a fleet: connects along the ramp, keeps alive, publishes, counts.

All devices of a process share its counters and its few tasks. Times are `perf_counter`: uvloop's own
clock stands still within a turn, and counts milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from loadtest.device import Device, Publisher
from loadtest.histogram import Latencies
from loadtest.plan import FleetPlan, PublishPlan
from loadtest.source_address import PER_ADDRESS_MAX, bind_source, is_loopback

CONNECTING_MAX: Final = 1000
"""Connections being made at a time, by all processes: below a listener's usual backlog of 1024."""

CONNECT_TIMEOUT_S: Final = 10.0
"""From the first SYN to CONNACK: a device in the field gives up about then."""

SETTLE_S: Final = 5.0
"""After the run, time for what is on its way to be acknowledged."""

TICK_S: Final = 0.002
"""Pace of a given rate: a message is at most this late by our own doing."""


@dataclass(slots=True)
class Tally:
    """What a share of a fleet saw. Seconds in `*_by_second` count from its start."""

    connected: int = 0
    resumed: int = 0
    """Of these, those whose session was still there."""
    lost: int = 0
    sent: int = 0
    acknowledged: int = 0
    skipped: int = 0
    unanswered: int = 0
    connect_s: float = 0.0
    publish_s: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    connected_by_second: Counter[int] = field(default_factory=Counter)
    done_by_second: Counter[int] = field(default_factory=Counter)
    connect_latency: Latencies = field(default_factory=Latencies)
    publish_latency: Latencies = field(default_factory=Latencies)

    def pack(self) -> dict[str, Any]:
        """Return plain values, for another process."""
        return {
            name: value.encode() if isinstance(value := getattr(self, name), Latencies) else value
            for name in self.__slots__
        }

    def add(self, packed: dict[str, Any]) -> None:
        """Add another share: counts and histograms add up, durations take the longer one."""
        for name, value in packed.items():
            own = getattr(self, name)
            if isinstance(own, Latencies):
                own.add(value)
            elif isinstance(own, Counter):
                own.update(value)
            elif isinstance(own, float):
                setattr(self, name, max(own, value))
            else:
                setattr(self, name, own + value)


class Fleet:
    """The devices of one process. `connect`, then `publish` or a pause, then `leave`."""

    def __init__(self, plan: FleetPlan, publish: PublishPlan | None = None) -> None:
        self.tally = Tally()
        self.last_connected_at = 0.0
        """When a device was accepted last, as `perf_counter` counts."""
        self.is_running = False
        self.is_paced = publish is not None and publish.rate > 0
        self._plan = plan
        self._keep_alive_s = plan.keep_alive_s
        self._publish = publish
        self._devices: list[Device] = []
        self._left = 0
        self._loop = asyncio.get_running_loop()
        self._began = perf_counter()
        self._stopped = asyncio.Event()
        self._waiting: dict[Device, asyncio.Future[None]] = {}

    def stop(self) -> None:
        """End what is going on early; what was seen is still told."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    # Connecting

    async def connect(self) -> None:
        """Connect every device along the ramp; failures are counted by reason."""
        plan = self._plan
        self._began = perf_counter()
        places = asyncio.Semaphore(_places(plan))
        async with asyncio.TaskGroup() as tasks:
            for k in range(plan.devices):
                wait = self._began + plan.ramp_s * k / plan.devices - perf_counter()
                if wait > 0:
                    await self.stay(wait)
                if self.is_stopped:
                    break
                await places.acquire()
                tasks.create_task(self._connect_one(plan.first + k, places))
        self.tally.connect_s = perf_counter() - self._began

    async def reconnect(self, seconds: float, pause_s: float) -> None:
        """Connect those that are not connected, at once; who fails tries again after a pause, for so long."""
        plan = self._plan
        self._began = perf_counter()
        self._devices = [device for device in self._devices if device.is_connected]
        there = {device.number for device in self._devices}
        places = asyncio.Semaphore(_places(plan))
        async with asyncio.TaskGroup() as tasks:
            for number in range(plan.first, plan.first + plan.devices):
                if number not in there:
                    tasks.create_task(self._until_connected(number, places, seconds, pause_s))
        self.tally.connect_s = perf_counter() - self._began

    async def _until_connected(
        self, number: int, places: asyncio.Semaphore, seconds: float, pause_s: float
    ) -> None:
        while perf_counter() < self._began + seconds and not self.is_stopped:
            await places.acquire()
            if await self._connect_one(number, places):
                return
            await self.stay(pause_s * (0.5 + random.random()))  # noqa: S311 # not all of them at once again

    def cut(self) -> None:
        """Reset every connection without a word."""
        for device in self._devices:
            device.cut()
        self._devices = []

    @property
    def present(self) -> int:
        """Devices that are connected now."""
        return sum(device.is_connected for device in self._devices)

    async def _connect_one(self, number: int, places: asyncio.Semaphore) -> bool:
        plan, began = self._plan, perf_counter()
        device: Device = (
            Publisher(self, self._publish, number, began)
            if self._publish is not None
            else Device(self, plan, number, began)
        )
        accepted: asyncio.Future[None] = self._loop.create_future()
        self._waiting[device] = accepted
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connect(device)
                await accepted
            if device.is_connected:
                self._devices.append(device)
        except TimeoutError:
            device.fail("no CONNACK in time")
        except OSError as error:
            self._waiting.pop(device, None)
            self.tally.failures[_named(error)] += 1
        finally:
            places.release()
        return device.is_connected

    async def _connect(self, device: Device) -> None:
        plan = self._plan
        if plan.in_all <= PER_ADDRESS_MAX or not is_loopback(plan.host):
            await self._loop.create_connection(lambda: device, plan.host, plan.port)
            return
        connection = socket.socket()
        try:
            connection.setblocking(False)
            bind_source(connection, device.number)
            await self._loop.sock_connect(connection, (plan.host, plan.port))
            await self._loop.create_connection(lambda: device, sock=connection)
        except BaseException:
            connection.close()
            raise

    def device_connected(self, device: Device, took_s: float) -> None:
        tally = self.tally
        self.last_connected_at = perf_counter()
        if device.server_keep_alive_s:
            self._keep_alive_s = device.server_keep_alive_s  # [MQTT-3.1.2-21]
        tally.connected += 1
        tally.resumed += device.is_resumed
        tally.connect_latency.record(took_s)
        tally.connected_by_second[int(perf_counter() - self._began)] += 1
        self._accepted(device)

    def device_failed(self, device: Device, reason: str) -> None:
        if device.is_connected:
            self.tally.lost += 1
        self.tally.failures[reason] += 1
        self._accepted(device)

    def _accepted(self, device: Device) -> None:
        accepted = self._waiting.pop(device, None)
        if accepted is not None and not accepted.done():
            accepted.set_result(None)

    # Staying

    async def stay(self, seconds: float) -> None:
        """Stay connected for so long, or until `stop`."""
        # Not wait_for: Python 3.11's may swallow a cancellation that meets the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    async def keep_alive(self) -> None:
        """Ping every device three times in two keep alives, a share of them each second; until cancelled."""
        began, turn = perf_counter(), 0
        while True:
            await asyncio.sleep(1)
            # A turn that comes late has the shares of those that it missed: servers do not wait.
            due = int(perf_counter() - began)
            if self._keep_alive_s:
                self.ping_shares(turn + 1, due)
            turn = due

    def ping_shares(self, first: int, last: int) -> None:
        """Ping the devices whose turn is one of these seconds, none of them twice."""
        interval = max(1, int(self._keep_alive_s * 2 / 3))
        for turn in range(max(first, last - interval + 1), last + 1):
            for device in self._devices[turn % interval :: interval]:
                device.ping()

    async def leave(self) -> None:
        """Disconnect every device of the fleet."""
        for start in range(0, len(self._devices), 500):
            for device in self._devices[start : start + 500]:
                device.leave()
            await asyncio.sleep(0)
        # Closing is finished by the loop's next turns.
        await asyncio.sleep(0.05)

    # Publishing

    async def publish(self) -> None:
        """Publish as the plan says, then wait for what is on its way: acknowledgements, or QoS 0's bytes."""
        plan = self._publish
        assert plan is not None
        self._left = plan.count or 1 << 62
        publishers = [d for d in self._devices if isinstance(d, Publisher)]
        self._began = perf_counter()
        self.is_running = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(plan.seconds):
                await self._drive(plan, publishers)
        self.is_running = False
        self.tally.skipped += sum(p.owed for p in publishers)
        deadline = perf_counter() + SETTLE_S
        while any(p.in_flight or p.unsent_bytes for p in publishers if p.is_connected):
            if perf_counter() > deadline:
                break
            await asyncio.sleep(0.01)
        self.tally.publish_s = perf_counter() - self._began
        self.tally.unanswered = sum(p.in_flight for p in publishers)

    async def _drive(self, plan: PublishPlan, publishers: list[Publisher]) -> None:
        began, due, turn = perf_counter(), 0, 0
        now = began
        if plan.qos and not self.is_paced:
            for publisher in publishers:
                publisher.fill(now)
        while not self.is_stopped and self._left > 0 and any(p.is_connected for p in publishers):
            if self.is_paced:
                now = perf_counter()
                # Each message is due at its own moment, however late this turn comes; none is after the end.
                while due < min(
                    (now - began) * plan.rate, plan.seconds * plan.rate, self._left + self.tally.sent
                ):
                    publishers[turn].due(began + due / plan.rate)
                    turn = (turn + 1) % len(publishers)
                    due += 1
            elif not plan.qos:
                for publisher in publishers:
                    publisher.fill(perf_counter())
            await asyncio.sleep(TICK_S if plan.qos or self.is_paced else 0)

    def claim(self, wanted: int) -> int:
        taken = min(wanted, self._left) if self.is_running else 0
        self._left -= taken
        return taken

    def sent(self, messages: int) -> None:
        self.tally.sent += messages
        if self._publish is not None and not self._publish.qos:
            self.tally.done_by_second[int(perf_counter() - self._began)] += messages

    def settled(self, started: float, now: float, messages: int) -> None:
        tally = self.tally
        tally.acknowledged += messages
        tally.publish_latency.record(now - started, messages)
        tally.done_by_second[int(now - self._began)] += messages

    def refused(self, reason: str) -> None:
        self.tally.refusals[reason] += 1

    def skipped(self, messages: int) -> None:
        self.tally.skipped += messages


def _places(plan: FleetPlan) -> int:
    """This process's share of the connections that may be under way."""
    return max(1, CONNECTING_MAX * plan.devices // plan.in_all)


def _named(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files here (raise ulimit -n, or use more --processes)"
    return os.strerror(error.errno) if error.errno else str(error)
