"""The plainest publisher there is: a window of messages, all their PUBACKs, the next window.

Raw sockets and epoll, about one system call each way per window, packets encoded once: so that the server
is what is measured, and two servers are measured alike. For fleets, pacing and latencies see `fleet`.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass

from holdmq.errors import StartupError
from holdmq.mqtt import Publish, encode
from holdmq.mqtt.protocol import MQTT_3_1_1
from loadtest.swarm import open_client

_PUBACK_BYTES = 4


@dataclass(frozen=True, slots=True)
class Lockstep:
    """What to send: `window` QoS 1 messages of `payload_bytes` from each of `connections`, over and over."""

    connections: int = 200
    window: int = 10
    payload_bytes: int = 100
    seconds: float = 4.0
    topic: str = "devices/{i}/telemetry"

    def measure(self, target: str) -> float:
        """Return the messages per second that ``HOST:PORT`` acknowledged.

        Raises StartupError when the server refuses a connection, closes one, or answers anything but PUBACK.
        """
        sockets: dict[int, socket.socket] = {}
        windows: dict[int, bytes] = {}
        try:
            for number in range(self.connections):
                opened = open_client(target, f"lockstep-{number}")
                sockets[opened.fileno()] = opened
                windows[opened.fileno()] = self._window(number)
            return self._drive(target, sockets, windows)
        finally:
            for opened in sockets.values():
                opened.close()

    def _window(self, number: int) -> bytes:
        topic = self.topic.replace("{i}", str(number))
        payload = b"x" * self.payload_bytes
        return b"".join(
            encode(Publish(topic, payload, qos=1, packet_id=k + 1), MQTT_3_1_1) for k in range(self.window)
        )

    def _drive(self, target: str, sockets: dict[int, socket.socket], windows: dict[int, bytes]) -> float:
        poll = select.epoll()
        try:
            for fd in sockets:
                poll.register(fd, select.EPOLLIN)
            left = dict.fromkeys(sockets, _PUBACK_BYTES * self.window)
            for fd, opened in sockets.items():
                opened.sendall(windows[fd])
            acknowledged, began = 0, time.perf_counter()
            while time.perf_counter() - began < self.seconds:
                for fd, _ in poll.poll(1):
                    data = sockets[fd].recv(65536)
                    if not data or data[0] != 0x40:
                        what = f"answered {data[:8].hex()} to a PUBLISH" if data else "closed a connection"
                        raise StartupError(f"{target} {what}")
                    left[fd] -= len(data)
                    if left[fd] <= 0:
                        acknowledged += self.window
                        left[fd] += _PUBACK_BYTES * self.window
                        sockets[fd].sendall(windows[fd])
            return acknowledged / (time.perf_counter() - began)
        finally:
            poll.close()
