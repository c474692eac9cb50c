"""Clients of a gateway's listeners: through TLS, WebSocket and PROXY headers, byte by byte if need be."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable
from typing import Any, Final

from security import Authority
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from gateway.edge.layered import LayeredConnection
from holdmq.mqtt import Connect, encode

CONNECT: Final = encode(Connect(client_id="c"), 4)
CONNACK: Final = b"\x20\x02\x00\x00"
PING, PONG = b"\xc0\x00", b"\xd0\x00"
PROXY_V1: Final = b"PROXY TCP4 203.0.113.7 10.0.0.5 40000 1883\r\n"
PROXY_V2: Final = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11"
    + struct.pack(">H", 12)
    + bytes([203, 0, 113, 7, 10, 0, 0, 5])
    + struct.pack(">HH", 40000, 1883)
)


def client_context(authority: Authority, name: str = "") -> ssl.SSLContext:
    """A client's TLS, with the certificate `name` if it is given."""
    context = ssl.create_default_context(cafile=authority.ca)
    if name:
        own = authority.client(name)
        context.load_cert_chain(own["tls_cert"], own["tls_key"])
    return context


async def connect(running: Any, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a worker, closed at the end of the test."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, **kwargs)
    running.clients.append(type("Open", (), {"writer": writer}))
    return reader, writer


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Everything until the end of the connection."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 40)
    return b""


def the_connection(running: Any) -> LayeredConnection:
    """The only connection of a worker."""
    (shell,) = running.worker.reception.connections
    assert isinstance(shell, LayeredConnection)
    return shell


def refused(running: Any, reason: str) -> Callable[[], bool]:
    """Whether exactly one connection was refused for this reason, here and at its listener."""
    counters = running.worker.counters

    def holds() -> bool:
        (listener,) = running.worker.listeners
        return bool(counters.refused[reason] == 1 and listener.refused == {reason: 1})

    return holds


class WebClient:
    """A WebSocket client on `websockets`' own sans-IO protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self.reader = reader
        self.writer = writer
        self.protocol = ClientProtocol(parse_uri(f"ws://localhost{path}"), subprotocols=[Subprotocol("mqtt")])
        self.events: list[Any] = []

    @classmethod
    async def open(cls, running: Any, path: str = "/mqtt", **kwargs: Any) -> WebClient:
        client = cls(*await connect(running, **kwargs), path)
        client.protocol.send_request(client.protocol.connect())
        client.flush()
        assert isinstance(await client.next(), Response)
        return client

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self.writer.write(data)

    def send(self, data: bytes) -> None:
        self.protocol.send_binary(data)
        self.flush()

    async def next(self) -> Any:
        while not self.events:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 40)
            if data:
                self.protocol.receive_data(data)
            else:
                self.protocol.receive_eof()
            self.events += self.protocol.events_received()
            if not data and not self.events:
                raise EOFError
        return self.events.pop(0)

    async def message(self) -> bytes:
        frame = await self.next()
        assert isinstance(frame, Frame)
        assert frame.opcode is Opcode.BINARY
        return bytes(frame.data)
