"""MQTT 3.1.1 devices on plain sockets: what they send and what was acknowledged, exactly."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from typing import Final

PATIENCE_S: Final = 40.0
"""For what comes at once, but on a machine that is busy with other tests."""


def remaining_length(n: int) -> bytes:
    """The MQTT varint."""
    out = bytearray()
    while True:
        n, digit = n >> 7, n & 0x7F
        out.append(digit | (0x80 if n else 0))
        if not n:
            return bytes(out)


def connect_packet(client_id: str) -> bytes:
    """A clean CONNECT, keepalive 60 s."""
    body = b"\x00\x04MQTT\x04\x02\x00\x3c" + struct.pack("!H", len(client_id)) + client_id.encode()
    return b"\x10" + remaining_length(len(body)) + body


def publish_packet(topic: str, packet_id: int, payload: bytes) -> bytes:
    """A QoS 1 PUBLISH."""
    body = struct.pack("!H", len(topic)) + topic.encode() + struct.pack("!H", packet_id) + payload
    return b"\x32" + remaining_length(len(body)) + body


class Device:
    """One connection that publishes windows of numbered messages and notes which PUBACKs came."""

    def __init__(self, port: int, name: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        self.port = port
        self.sent = 0
        self.acknowledged: list[int] = []
        self.socket: socket.socket | None = None
        self._in_flight: dict[int, int] = {}
        self._buffer = b""

    def connect(self) -> bool:
        """Connect and wait for CONNACK; whether it came."""
        self.close()
        try:
            s = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
            s.settimeout(PATIENCE_S)
            s.sendall(connect_packet(self.name))
            if s.recv(4)[:1] != b"\x20":
                s.close()
                return False
        except OSError:
            return False
        s.setblocking(False)
        self.socket = s
        return True

    def publish(self, count: int) -> None:
        """Send the next `count` messages; the payload is `<name>:<number>`."""
        assert self.socket is not None
        packets = []
        for _ in range(count):
            self.sent += 1
            packet_id = self.sent % 65535 + 1
            self._in_flight[packet_id] = self.sent
            packets.append(publish_packet(self.topic, packet_id, f"{self.name}:{self.sent}".encode()))
        self.socket.setblocking(True)
        self.socket.settimeout(PATIENCE_S)
        self.socket.sendall(b"".join(packets))
        self.socket.setblocking(False)

    @property
    def waits(self) -> bool:
        """Whether PUBACKs are outstanding."""
        return bool(self._in_flight)

    def receive(self) -> None:
        """Take what came; ConnectionError when the connection ended."""
        assert self.socket is not None
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("closed")
        self._buffer += data
        while len(self._buffer) >= 4 and self._buffer[0] == 0x40:
            (packet_id,) = struct.unpack_from("!H", self._buffer, 2)
            self.acknowledged.append(self._in_flight.pop(packet_id))
            self._buffer = self._buffer[4:]

    def close(self) -> None:
        """Drop the connection; what was in flight counts as never acknowledged."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        self._in_flight.clear()
        self._buffer = b""


class Fleet(threading.Thread):
    """Devices that publish windows until they are stopped, reconnecting whenever they are cut off."""

    def __init__(self, port: int, devices: int, window: int, topic: str) -> None:
        super().__init__(name="fleet", daemon=True)
        self.devices = [Device(port, f"d{i}", topic.format(i=i)) for i in range(devices)]
        self.error: BaseException | None = None
        self._window = window
        self._stopping = threading.Event()

    @property
    def acknowledged(self) -> int:
        """PUBACKs received so far."""
        return sum(len(d.acknowledged) for d in self.devices)

    def run(self) -> None:
        """Publish until `stop`."""
        try:
            while not self._stopping.is_set():
                self._turn()
        except BaseException as error:
            self.error = error
            raise

    def stop(self) -> None:
        """Wait for outstanding PUBACKs, as long as PATIENCE_S, then end."""
        self._stopping.set()
        self.join(2 * PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while any(d.waits for d in self.devices) and time.monotonic() < deadline:
            self._receive(0.1)
        for device in self.devices:
            device.close()

    def _turn(self) -> None:
        for device in self.devices:
            if device.socket is None and not device.connect():
                time.sleep(0.05)
                continue
            if not device.waits:
                try:
                    device.publish(self._window)
                except OSError:
                    device.close()
        self._receive(0.05)

    def _receive(self, timeout_s: float) -> None:
        sockets = {d.socket: d for d in self.devices if d.socket is not None}
        if not sockets:
            time.sleep(timeout_s)
            return
        for s in select.select(list(sockets), [], [], timeout_s)[0]:
            try:
                sockets[s].receive()
            except OSError:
                sockets[s].close()
