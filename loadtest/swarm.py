"""Many plain MQTT clients in one thread: raw sockets and one epoll, for what fleets are too heavy for.

Each client's state is a few numbers, so that what is measured is the server. MQTT 3.1.1; acknowledgements of
QoS 1 are sent as messages come.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from holdmq.errors import StartupError
from holdmq.mqtt import Connect, Subscribe, Subscription, encode
from holdmq.mqtt.protocol import MQTT_3_1_1
from loadtest.source_address import PER_ADDRESS_MAX, bind_source

KEEP_ALIVE_S: Final = 3_600
ANSWER_S: Final = 60.0
"""How long a client that stands alone waits for the server."""
OnMessage = Callable[[int, bytes], None]
"""Told of a message: the client's number, and topic and payload as they lie in its PUBLISH."""


class Swarm:
    """Clients of ``HOST:PORT``, by number. Ids are `prefix` and the number, 23 bytes in all."""

    def __init__(self, target: str, prefix: str) -> None:
        host, _, port = target.rpartition(":")
        self.address = (host, int(port))
        self.target = target
        self.prefix = prefix
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._numbers: dict[int, int] = {}
        self._rest: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def sockets(self) -> list[socket.socket]:
        """The clients' sockets, in the order of their making."""
        return list(self._sockets.values())

    def client_id(self, number: int) -> str:
        """The id of a client."""
        return f"{self.prefix}-{number:0{22 - len(self.prefix)}d}"

    def connect(
        self,
        count: int,
        *,
        clean: bool = False,
        subscribe: str | None = None,
        in_flight: int = 200,
        first: int = 0,
        on_message: OnMessage | None = None,
    ) -> float:
        """Connect clients, and subscribe each to `subscribe` with QoS 1 (`{id}`: its id); seconds it took.

        `in_flight` connections are made at a time. Raises StartupError when the server refuses one.
        """
        waiting: dict[int, int] = {}
        began = time.perf_counter()
        made = 0
        wanted = 2 if subscribe else 1
        while made < count or waiting:
            while made < count and len(waiting) < in_flight:
                number = first + made
                client = self._open(number)
                client_id = self.client_id(number)
                data = encode(Connect(client_id, MQTT_3_1_1, clean, KEEP_ALIVE_S), MQTT_3_1_1)
                if subscribe is not None:
                    topic_filter = subscribe.replace("{id}", client_id)
                    data += encode(Subscribe(1, [Subscription(topic_filter, 1)]), MQTT_3_1_1)
                client.sendall(data)
                client.setblocking(False)
                waiting[number] = wanted
                made += 1
            for number, packet_type, payload in self.step(0.1):
                if packet_type == 2 and payload[1]:
                    raise StartupError(f"{self.target} refused a connection with {payload[1]}")
                if packet_type == 9 and payload[-1] >= 0x80:
                    raise StartupError(f"{self.target} refused a subscription")
                if packet_type == 3 and on_message is not None:
                    on_message(number, payload)
                if packet_type in (2, 9) and number in waiting:
                    waiting[number] -= 1
                    if not waiting[number]:
                        del waiting[number]
        return time.perf_counter() - began

    def _open(self, number: int) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if number >= PER_ADDRESS_MAX:
            bind_source(client, number)
        client.connect(self.address)
        self._sockets[client.fileno()] = client
        self._numbers[client.fileno()] = number
        self._poll.register(client.fileno(), select.EPOLLIN)
        return client

    def step(self, timeout_s: float) -> Iterator[tuple[int, int, bytes]]:
        """Read once; client's number, type and body of each packet that came. PUBLISHes are acknowledged."""
        for fd, _ in self._poll.poll(timeout_s):
            client, number = self._sockets[fd], self._numbers[fd]
            data = self._rest.pop(fd, b"") + client.recv(1 << 18)
            if not data:
                raise StartupError(f"{self.target} closed a connection")
            acks = bytearray()
            pos, end = 0, len(data)
            while end - pos >= 2:
                length, at, shift = 0, pos + 1, 0
                while at < end:
                    digit = data[at]
                    at += 1
                    length |= (digit & 0x7F) << shift
                    shift += 7
                    if digit < 0x80:
                        break
                else:
                    break
                if end - at < length:
                    break
                first = data[pos]
                if first >> 4 == 3 and first & 6:
                    id_at = at + 2 + (data[at] << 8 | data[at + 1])
                    acks += b"\x40\x02" + data[id_at : id_at + 2]
                yield number, first >> 4, data[at : at + length]
                pos = at + length
            if pos < end:
                self._rest[fd] = data[pos:]
            if acks:
                client.setblocking(True)
                client.sendall(acks)
                client.setblocking(False)

    def disconnect(self) -> None:
        """Close all connections with DISCONNECT."""
        for client in self._sockets.values():
            client.setblocking(True)
            client.sendall(b"\xe0\x00")
        self.drop()

    def drop(self) -> None:
        """Close all connections without a word."""
        for client in self._sockets.values():
            client.close()
        self._sockets.clear()
        self._numbers.clear()
        self._rest.clear()

    def close(self) -> None:
        """Drop all, for good."""
        self.drop()
        self._poll.close()


def open_client(target: str, client_id: str) -> socket.socket:
    """A client without a session, connected to ``HOST:PORT``; StartupError when it is refused."""
    host, _, port = target.rpartition(":")
    client = socket.create_connection((host, int(port)), ANSWER_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(encode(Connect(client_id, MQTT_3_1_1, keep_alive=KEEP_ALIVE_S), MQTT_3_1_1))
    answer = client.recv(4)
    if answer[:1] != b"\x20" or answer[3:] != b"\0":
        client.close()
        raise StartupError(f"{target} refused a connection: {answer.hex() or 'closed'}")
    return client


@contextmanager
def swarm(target: str, prefix: str) -> Iterator[Swarm]:
    """A swarm, closed at the end."""
    made = Swarm(target, prefix)
    try:
        yield made
    finally:
        made.close()


def payload_of(body: bytes) -> bytes:
    """The payload of a QoS 1 PUBLISH without properties, from its body."""
    return body[4 + (body[0] << 8 | body[1]) :]


def publish_run(topic: str, payloads: Sequence[bytes], first_id: int) -> bytes:
    """QoS 1 PUBLISHes with packet ids from `first_id` on (1–65,535, not past it)."""
    raw = topic.encode()
    head = struct.pack(">H", len(raw)) + raw
    out = []
    for at, payload in enumerate(payloads):
        length = len(head) + 2 + len(payload)
        size = bytes((length,)) if length < 0x80 else bytes((length & 0x7F | 0x80, length >> 7))
        out.append(b"".join((b"\x32", size, head, (first_id + at).to_bytes(2, "big"), payload)))
    return b"".join(out)
