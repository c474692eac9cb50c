"""Delivery through any MQTT 3.1.1 server: rate and latency from publisher to subscriber.

Raw sockets and one epoll in one process, so that the server is what is measured. Payloads begin with the time
of sending, so latency is taken per delivery on one clock; subscribers of QoS 1 acknowledge.
"""

from __future__ import annotations

import contextlib
import struct
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from loadtest.figures import quantile
from loadtest.swarm import payload_of, publish_run, swarm

_TIME: Final = struct.Struct(">d")
ROOM_S: Final = 0.0005
"""How long the epoll waits while messages are due."""


class Delivered(NamedTuple):
    """`came` of `expected` deliveries came within `seconds`; latencies in ms."""

    came: int
    expected: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Relay:
    """`publishers`, each with `rate` messages a second on a topic of its own, for `seconds`.

    With `is_pairs` subscriber k takes the topic of publisher k, else each takes all. `grace_s`: how long to
    wait for the last deliveries.
    """

    publishers: int = 1
    subscribers: int = 100
    is_pairs: bool = False
    rate: float = 200.0
    seconds: float = 4.0
    payload_bytes: int = 100
    grace_s: float = 20.0

    def measure(self, target: str) -> Delivered:
        """Run against ``HOST:PORT``; StartupError when the server refuses or closes a connection."""
        own = f"{time.time_ns() % 1_000_000_000:09d}"
        with swarm(target, f"s{own}") as receiving, swarm(target, f"p{own}") as sending:
            if self.is_pairs:
                for number in range(self.subscribers):
                    receiving.connect(1, clean=True, subscribe=f"relay{own}/{number}", first=number)
            else:
                receiving.connect(self.subscribers, clean=True, subscribe=f"relay{own}/#")
            sending.connect(self.publishers, clean=True)
            publishers = list(sending.sockets())
            total = int(self.rate * self.seconds) * self.publishers
            expected = total * (1 if self.is_pairs else self.subscribers)
            pad = b"x" * (self.payload_bytes - _TIME.size)
            latencies: list[float] = []
            sent = 0
            began = last = time.perf_counter()
            while len(latencies) < expected and last - began < self.seconds + self.grace_s:
                due = min(total, int((time.perf_counter() - began) * self.rate * self.publishers) + 1)
                while sent < due:
                    k = sent % self.publishers
                    packet_id = sent // self.publishers % 65_000 + 1
                    payload = _TIME.pack(time.perf_counter()) + pad
                    publishers[k].setblocking(True)
                    publishers[k].sendall(publish_run(f"relay{own}/{k}", [payload], packet_id))
                    publishers[k].setblocking(False)
                    sent += 1
                for _, packet_type, body in receiving.step(ROOM_S if sent < total else 0.05):
                    if packet_type == 3:
                        sent_at: float = _TIME.unpack_from(payload_of(body))[0]
                        latencies.append(time.perf_counter() - sent_at)
                for _ in sending.step(0):
                    pass
                last = time.perf_counter()
            with contextlib.suppress(OSError):
                receiving.disconnect()
            return _delivered(latencies, expected, last - began)


def _delivered(latencies: list[float], expected: int, seconds: float) -> Delivered:
    latencies.sort()

    p50, p99, most = (quantile(latencies, share) * 1e3 for share in (0.5, 0.99, 1))
    return Delivered(len(latencies), expected, seconds, p50, p99, most)
