"""Publishers and readers beside a subscriber that is told when to read: latencies, and whether all came.

Raw sockets and one epoll, as in `relay`; the slow subscriber has a process of its own, so that what it does
keeps nobody else waiting. A payload tells when it was sent, by which publisher, and its number.
"""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdmq.errors import StartupError
from loadtest.child import ChildProcess
from loadtest.swarm import Swarm, payload_of, publish_run, swarm

_PAYLOAD: Final = struct.Struct(">dII")
SIZE_MIN: Final = _PAYLOAD.size
IDS: Final = 60_000
ROOM_S: Final = 0.0005
"""How long the epoll waits while messages are due."""
BEHIND_S: Final = 2.0
"""Seconds of messages that may be unanswered: beyond that the rate is too high for this machine."""
LEVEL_S: Final = 0.2
"""Between two looks at whether the slow subscriber has everything."""
PATIENCE_S: Final = 120.0
"""For what waited to come."""


class MissingError(StartupError):
    """A message did not come: a later one of its publisher did."""


class Order:
    """Checks that the messages of each publisher come in order. `again` counts those that came twice."""

    def __init__(self, who: str) -> None:
        self.came = self.again = 0
        self._who = who
        self._next: dict[int, int] = {}

    def check(self, body: bytes) -> float:
        """Take a PUBLISH, and return when it was sent. MissingError if one before it has not come."""
        sent_at, publisher, number = _PAYLOAD.unpack_from(payload_of(body))
        expected = self._next.get(publisher, 0)
        if number > expected:
            raise MissingError(
                f"{self._who}: message {number} of {publisher} came where {expected} should have"
            )
        if number < expected:
            self.again += 1
        else:
            self._next[publisher] = number + 1
            self.came += 1
        return float(sent_at)


class SlowState(NamedTuple):
    """What the slow subscriber has seen: messages, those that came twice, connections that were closed."""

    came: int
    again: int
    closed: int


class SlowSubscriber:
    """One subscriber whose session outlives its connection; it comes back when the server closes that."""

    def __init__(self, target: str, client_id: str, topic_filter: str) -> None:
        self._order = Order("the slow subscriber")
        self._closed = 0
        self._swarm = Swarm(target, client_id)
        self._swarm.connect(1, subscribe=topic_filter)

    @property
    def state(self) -> SlowState:
        """What it has seen so far."""
        return SlowState(self._order.came, self._order.again, self._closed)

    def step(self, timeout_s: float) -> None:
        """Read once. MissingError; StartupError when it cannot come back."""
        try:
            for _, packet_type, body in self._swarm.step(timeout_s):
                if packet_type == 3:
                    self._order.check(body)
        except MissingError:
            raise
        except (StartupError, ConnectionError):
            self._closed += 1
            self._swarm.drop()
            self._swarm.connect(1, on_message=self._came)

    def _came(self, _number: int, body: bytes) -> None:
        self._order.check(body)

    def close(self) -> None:
        """Close the connection without DISCONNECT."""
        self._swarm.close()


def _slow_subscriber(pipe: Any, target: str, client_id: str, topic_filter: str) -> None:
    """The slow subscriber's process. It is told `read`, `stall`, `state` (and tells it) or `end`."""
    try:
        slow = SlowSubscriber(target, client_id, topic_filter)
        pipe.send(slow.state)
        is_reading = True
        while True:
            if not is_reading or pipe.poll():
                word = pipe.recv()
                if word == "end":
                    slow.close()
                    return
                if word == "state":
                    pipe.send(slow.state)
                else:
                    is_reading = word == "read"
            else:
                slow.step(0.005)
    except EOFError:
        return
    except StartupError as error:
        pipe.send(error)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`rate` messages a second, of one publisher for all readers, or of one for each (`is_pairs`)."""

    readers: int
    rate: float
    is_pairs: bool
    payload_bytes: int = 100

    @property
    def publishers(self) -> int:
        """The number of clients that publish."""
        return self.readers if self.is_pairs else 1

    @property
    def copies(self) -> int:
        """The number of readers that get a message."""
        return 1 if self.is_pairs else self.readers


class SlowTraffic:
    """One load against ``HOST:PORT``, whose messages the slow subscriber gets, all of them."""

    def __init__(self, load: LoadPlan, target: str) -> None:
        self.sent = self.answered = 0
        self._load = load
        self._pad = b"x" * (load.payload_bytes - SIZE_MIN)
        self._orders = [Order(f"reader {number}") for number in range(load.readers)]
        own = f"{time.time_ns() % 1_000_000_000:09d}"
        self._topic = f"stall{own}"
        with ExitStack() as stack:
            self._slow = ChildProcess(_slow_subscriber, target, f"slow{own}", f"{self._topic}/#")
            stack.callback(self._slow.end)
            self._slow.told()
            self._receiving = stack.enter_context(swarm(target, f"r{own}"))
            self._sending = stack.enter_context(swarm(target, f"p{own}"))
            for number in range(load.readers):
                wanted = number if load.is_pairs else "#"
                self._receiving.connect(1, clean=True, subscribe=f"{self._topic}/{wanted}", first=number)
            self._sending.connect(load.publishers, clean=True)
            self._publishers = self._sending.sockets()
            self._stack = stack.pop_all()

    def run(self, seconds: float) -> list[float]:
        """Publish at the load's rate for so long; latencies of what readers got meanwhile, in ms.

        StartupError when messages are not answered in time.
        """
        latencies: list[float] = []
        first = self.sent
        began = now = time.perf_counter()
        while now - began < seconds:
            due = first + int((now - began) * self._load.rate) + 1
            while self.sent < due:
                self._publish()
            self._receive(latencies)
            now = time.perf_counter()
        return latencies

    def _publish(self) -> None:
        load = self._load
        if self.sent - self.answered > BEHIND_S * load.rate + load.publishers:
            raise StartupError(f"{load.rate:g} messages/s are more than is carried here; choose a lower rate")
        number, publisher = divmod(self.sent, load.publishers)
        client = self._publishers[publisher]
        payload = _PAYLOAD.pack(time.perf_counter(), publisher, number) + self._pad
        client.setblocking(True)
        client.sendall(publish_run(f"{self._topic}/{publisher}", [payload], number % IDS + 1))
        client.setblocking(False)
        self.sent += 1

    def _receive(self, latencies: list[float]) -> None:
        for reader, packet_type, body in self._receiving.step(ROOM_S):
            if packet_type == 3:
                sent_at = self._orders[reader].check(body)
                latencies.append((time.perf_counter() - sent_at) * 1e3)
        for _, packet_type, _ in self._sending.step(0):
            self.answered += packet_type == 4

    def stall(self) -> SlowState:
        """Have the slow subscriber read nothing from now on; what it has seen."""
        self._slow.tell("stall")
        return self._state()

    def read(self) -> list[float]:
        """Have it read again, and go on until it has all that was sent when it was asked.

        Returns the latencies of the readers meanwhile. StartupError when something does not come.
        """
        self._slow.tell("read")
        latencies: list[float] = []
        deadline = time.perf_counter() + PATIENCE_S
        while True:
            sent = self.sent
            latencies += self.run(LEVEL_S)
            came = self._state().came
            if came >= sent:
                return latencies
            if time.perf_counter() > deadline:
                raise StartupError(
                    f"after {PATIENCE_S:g} s the slow subscriber has {came:,} of {sent:,} messages"
                )

    def finish(self) -> SlowState:
        """Publish nothing more, and wait for all to come to all; StartupError if something does not."""
        expected = self.sent * self._load.copies
        deadline = time.perf_counter() + PATIENCE_S
        while True:
            self._receive([])
            came = sum(order.came for order in self._orders)
            if came >= expected and (state := self._state()).came >= self.sent:
                return state
            if time.perf_counter() > deadline:
                raise StartupError(
                    f"after {PATIENCE_S:g} s the readers have {came:,} of {expected:,} messages"
                )

    def _state(self) -> SlowState:
        self._slow.tell("state")
        state: SlowState = self._slow.told()
        return state

    def close(self) -> None:
        """End all connections, and the slow subscriber's process."""
        self._stack.close()
