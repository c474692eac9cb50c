"""A lean client of nsqd: what it costs here is less than in its usual Python client.

The protocol: https://nsq.io/clients/tcp_protocol_spec.html
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, Self

from holdmq.errors import StartupError

RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2
ID_AT: Final = 10
"""In a message: behind its time and the count of its deliveries."""
ID_BYTES: Final = 16
MESSAGES_READY: Final = 2_500
"""What nsqd allows a connection to have unfinished, at most."""


class NsqConnection:
    """One connection to nsqd; a caller at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Self:
        """Connect to the server at ``HOST:PORT``."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
        writer.write(b"  V2")
        return cls(reader, writer)

    async def close(self) -> None:
        """End the connection to the server."""
        self._writer.close()
        await self._writer.wait_closed()

    async def publish(self, topic: str, bodies: list[bytes]) -> None:
        """Have messages stored by one MPUB, and wait for its answer."""
        parts = [b"".join((len(body).to_bytes(4, "big"), body)) for body in bodies]
        size = 4 + sum(map(len, parts))
        self._writer.write(b"MPUB %s\n%s" % (topic.encode(), struct.pack(">II", size, len(parts))))
        self._writer.writelines(parts)
        await self._answer()

    async def subscribe(self, topic: str, channel: str) -> None:
        """Begin to read a channel."""
        self._writer.write(b"SUB %s %s\n" % (topic.encode(), channel.encode()))
        await self._answer()
        self._writer.write(b"RDY %d\n" % MESSAGES_READY)

    async def consume(self, count: int) -> None:
        """Read so many messages and finish each of them."""
        finished: list[bytes] = []
        while count:
            kind, data = await self._frame()
            if kind == MESSAGE:
                finished.append(b"FIN %s\n" % data[ID_AT : ID_AT + ID_BYTES])
                count -= 1
            if len(finished) >= MESSAGES_READY // 10 or not count:
                self._writer.write(b"".join(finished))
                finished.clear()

    async def _answer(self) -> None:
        while (await self._frame())[0] != RESPONSE:
            continue

    async def _frame(self) -> tuple[int, bytes]:
        while True:
            size, kind = struct.unpack(">II", await self._reader.readexactly(8))
            data = await self._reader.readexactly(size - 4)
            if kind == ERROR:
                raise StartupError(f"nsqd refuses: {data.decode()}")
            if kind != RESPONSE or data != b"_heartbeat_":
                return kind, data
            self._writer.write(b"NOP\n")
