"""A peer for tests of the RPC: a real server that answers when a test says so, and a raw socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdmq.errors import BusyError, Code, HoldMQError, TransportError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import Command
from holdmq.wire.frame import FrameDecoder, encode_frame
from holdmq.wire.headers import PROTOCOL_VERSION, Empty, HelloRequest, HelloResponse, QueueBoundsRequest

Until = Callable[[Callable[[], Any]], Awaitable[None]]
HELLO = HelloRequest(PROTOCOL_VERSION, "client", "test")


class Peer:
    """A server whose requests stay in `held` until a test answers them."""

    def __init__(self, **settings: Any) -> None:
        self.held: list[Request] = []
        self.closed: list[Connection] = []
        self.writable: list[Connection] = []
        self.refuse_hello: HoldMQError | None = None
        self.server = Server(
            {
                RequestCode.PULL: self.held.append,
                RequestCode.PRODUCE: self._echo,
                RequestCode.QUEUE_BOUNDS: lambda request: request.reply(request.header(QueueBoundsRequest)),
                RequestCode.BROKER_STATUS: self._busy,
                RequestCode.CLUSTER_GET: self._fail,
                RequestCode.READ: self._large,
            },
            self._hello,
            frame_max_bytes=1 << 20,
            on_closed=self.closed.append,
            on_writable=self.writable.append,
            **settings,
        )

    def _hello(self, _connection: Connection, _hello: HelloRequest) -> HelloResponse:
        if self.refuse_hello is not None:
            raise self.refuse_hello
        return HelloResponse(PROTOCOL_VERSION, "peer", "test", 0)

    def _echo(self, request: Request) -> None:
        body = bytes(request.body)
        request.reply(Empty(), [body], len(body))

    def _busy(self, _request: Request) -> None:
        raise BusyError("too much", 77)

    def _fail(self, _request: Request) -> None:
        raise ZeroDivisionError

    def _large(self, request: Request) -> None:
        request.reply(Empty(), [bytes(4 << 20)], 4 << 20)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@pytest.fixture
async def until() -> Until:
    async def wait(condition: Callable[[], Any]) -> None:
        for _ in range(8000):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it did not come true")

    return wait


async def why_not(client: Client) -> str:
    """Why a client gets no connection: what a call that waits for one says, once it was tried."""
    client.start()
    async with asyncio.timeout(60):
        while client.last_error is None:
            await asyncio.sleep(0.005)
    with pytest.raises(TransportError) as caught:
        await client.call(RequestCode.PRODUCE, Empty(), 0.05)
    return str(caught.value)


MakePeer = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def make_peer() -> AsyncIterator[MakePeer]:
    made: list[Peer] = []

    async def make(**settings: Any) -> Peer:
        peer = Peer(**settings)
        await peer.server.listen("127.0.0.1", 0)
        made.append(peer)
        return peer

    yield make
    for peer in made:
        await peer.server.close()


@pytest.fixture
async def peer(make_peer: MakePeer) -> Peer:
    return await make_peer()


@pytest.fixture
async def client(peer: Peer) -> AsyncIterator[Client]:
    client = Client(peer.address, "client", "test")
    yield client
    await client.close()


class Raw:
    """A bare socket that speaks frames, or does not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = FrameDecoder(16 << 20)

    def send(self, command: Command, body: bytes = b"") -> None:
        self.writer.writelines(encode_frame(command, [body], len(body)))

    async def answer(self) -> Command | None:
        """The next frame's command; None at the end of the connection."""
        while data := await self.reader.read(65536):
            frames = self.decoder.receive_data(data)
            if frames:
                return frames[0][0]
        return None

    async def hello(self) -> None:
        self.send(Command(RequestCode.HELLO, 1, 0, "", HELLO.to_ext()))
        answer = await self.answer()
        assert answer is not None
        assert answer.code == Code.OK


@pytest.fixture
async def raw(peer: Peer) -> AsyncIterator[Raw]:
    connection = Raw(*await asyncio.open_connection("127.0.0.1", peer.server.port))
    yield connection
    connection.writer.close()
    with contextlib.suppress(ConnectionError):
        await connection.writer.wait_closed()
