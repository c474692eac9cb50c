"""Packets of MQTT 5 over a connection, one by one, for tests of what is exchanged before a client is in."""

from __future__ import annotations

import asyncio
from typing import Any

from holdmq.mqtt import SERVER, CheckedTopics, Decoder, encode


class PacketStream:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder: Decoder[bytes] = Decoder(CheckedTopics(bytes), 1 << 20, sender=SERVER, version=5)
        self.got: list[Any] = []

    def send(self, packet: Any) -> None:
        self.writer.write(encode(packet, 5))

    async def next(self) -> Any:
        """The next packet of the gateway; EOFError when it has closed."""
        while not self.got:
            data = await asyncio.wait_for(self.reader.read(65_536), 40)
            if not data:
                raise EOFError
            self.got += self.decoder.feed(data)
        return self.got.pop(0)
