from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

import gateway.edge.sockets
from gateway.edge.sockets import READ_BYTES, SOCKET_LOW_BYTES, ClientSocket, Receiver, Sockets, packed_host
from gateway.ground.limits import SOCKET_HIGH_BYTES
from gateway.ground.peer import peer_of
from holdmq.record.codec import NO_HOST, decode_host


class Noting(Receiver):
    """Notes what it is told; `fails` on every byte, if wanted."""

    def __init__(self) -> None:
        self.transport: ClientSocket = None  # type: ignore[assignment]
        self.data = b""
        self.told: list[object] = []
        self.fails = False

    def connection_made(self, transport: ClientSocket) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.fails:
            raise RuntimeError("this receiver fails")
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(("lost", exc))

    def pause_writing(self) -> None:
        self.told.append("full")

    def resume_writing(self) -> None:
        self.told.append("room")


class Served:
    """A listening socket, and who was made for its connections."""

    def __init__(self, sockets: Sockets, family: socket.AddressFamily, address: object) -> None:
        self.sockets = sockets
        self.receivers: list[Noting] = []
        self.listening = socket.socket(family)
        self.listening.bind(address)  # type: ignore[arg-type]
        self.listening.listen(100)
        self.address = self.listening.getsockname()
        self.acceptor = sockets.listen(self.listening, self._make)
        self.clients: list[socket.socket] = []

    def _make(self) -> Noting:
        self.receivers.append(Noting())
        return self.receivers[-1]

    async def connect(self, client: socket.socket | None = None) -> tuple[socket.socket, Noting]:
        client = client or socket.socket(self.listening.family)
        self.clients.append(client)
        known = len(self.receivers)
        client.connect(self.address)
        client.setblocking(False)
        await until(lambda: len(self.receivers) > known and self.receivers[-1].transport is not None)
        return client, self.receivers[-1]


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(40):
        while not holds():
            await asyncio.sleep(0.001)


async def everything(client: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    async with asyncio.timeout(40):
        while len(data) < count:
            part = await loop.sock_recv(client, 1 << 20)
            if not part:
                break
            data += part
    return bytes(data)


@pytest.fixture
async def served() -> AsyncIterator[Callable[..., Served]]:
    made: list[Served] = []
    sockets = Sockets(asyncio.get_running_loop())

    def serve(family: socket.AddressFamily = socket.AF_INET, address: object = ("127.0.0.1", 0)) -> Served:
        made.append(Served(sockets, family, address))
        return made[-1]

    yield serve
    sockets.close()
    await asyncio.sleep(0)
    for each in made:
        for client in each.clients:
            client.close()


async def test_bytes_go_both_ways_without_delay(served: Callable[..., Served]) -> None:
    client, receiver = await served().connect()
    client.send(b"hello")
    await until(lambda: receiver.data == b"hello")
    receiver.transport.write(b"and back")
    assert await everything(client, 8) == b"and back"
    with socket.socket(fileno=os.dup(receiver.transport.fileno())) as own:
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_what_the_kernel_does_not_take_waits_and_leaves_in_order(served: Callable[..., Served]) -> None:
    client, receiver = await served().connect()
    parts = [bytes([n]) * 100_000 for n in range(100)]
    for part in parts:
        receiver.transport.write(part)
    waiting = receiver.transport.get_write_buffer_size()
    assert waiting > SOCKET_HIGH_BYTES
    assert receiver.told == ["full"]
    assert await everything(client, 10_000_000) == b"".join(parts)
    await until(lambda: receiver.told == ["full", "room"])
    assert receiver.transport.get_write_buffer_size() <= SOCKET_LOW_BYTES


async def test_closing_sends_what_was_written_and_aborting_does_not(served: Callable[..., Served]) -> None:
    place = served()
    client, receiver = await place.connect()
    receiver.transport.write(b"x" * 8_000_000)
    receiver.transport.close()
    assert receiver.transport.is_closing()
    assert "lost" not in str(receiver.told)
    assert len(await everything(client, 8_000_001)) == 8_000_000
    await until(lambda: receiver.told[-1] == ("lost", None))
    assert receiver.transport.fileno() == -1

    client, receiver = await place.connect()
    receiver.transport.write(b"x" * 8_000_000)
    receiver.transport.abort()
    assert receiver.told == ["full"]  # nobody hears of the end inside his own call
    await until(lambda: receiver.told[-1] == ("lost", None))
    with suppress(ConnectionResetError):
        assert len(await everything(client, 8_000_001)) < 8_000_000


async def test_our_half_may_be_closed_first(served: Callable[..., Served]) -> None:
    client, receiver = await served().connect()
    receiver.transport.write(b"x" * 8_000_000)
    receiver.transport.write_eof()
    assert len(await everything(client, 8_000_001)) == 8_000_000
    client.send(b"heard")
    await until(lambda: receiver.data == b"heard")
    client.close()
    await until(lambda: receiver.told[-1] == ("lost", None))


async def test_the_end_of_the_peer_is_told_once(served: Callable[..., Served]) -> None:
    place = served()
    client, receiver = await place.connect()
    client.send(b"last words")
    client.close()
    await until(lambda: receiver.told)
    assert receiver.data == b"last words"
    client, reset = await place.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    await until(lambda: reset.told)
    await asyncio.sleep(0)
    assert receiver.told == [("lost", None)]
    ((_, error),) = reset.told  # type: ignore[misc]
    assert isinstance(error, ConnectionResetError)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_what_comes_at_once_is_read_to_its_end(
    served: Callable[..., Served], tmp_path: object, family: socket.AddressFamily
) -> None:
    address = ("127.0.0.1", 0) if family == socket.AF_INET else f"{tmp_path}/s"
    for size in (1, READ_BYTES, 2 * READ_BYTES, 2 * READ_BYTES + 1):
        client, receiver = await served(family, address).connect()
        receiver.transport.pause_reading()
        sent = 0
        while sent < size:
            await asyncio.sleep(0)
            with suppress(BlockingIOError):
                sent += client.send(bytes(size - sent))
            if sent < size:
                receiver.transport.resume_reading()
        client.shutdown(socket.SHUT_WR)
        receiver.transport.resume_reading()
        await until(lambda receiver=receiver: receiver.told)
        assert len(receiver.data) == size
        assert receiver.told == [("lost", None)]
        address = ("127.0.0.1", 0) if family == socket.AF_INET else f"{tmp_path}/{size}"


async def test_what_stands_behind_urgent_data_is_read(served: Callable[..., Served]) -> None:
    client, receiver = await served().connect()
    receiver.transport.pause_reading()
    client.send(b"before")
    client.send(b"!", socket.MSG_OOB)
    client.send(b"behind")
    receiver.transport.resume_reading()
    await until(lambda: receiver.data == b"beforebehind")


async def test_a_socket_that_is_not_read_is_read_later(served: Callable[..., Served]) -> None:
    place = served()
    client, receiver = await place.connect()
    receiver.transport.pause_reading()
    client.send(b"waits")
    other, noticed = await place.connect()
    other.send(b"x")
    await until(lambda: noticed.data)
    assert receiver.data == b""
    receiver.transport.resume_reading()
    await until(lambda: receiver.data == b"waits")


async def test_a_receiver_that_fails_ends_its_own_connection_only(
    served: Callable[..., Served], capsys: pytest.CaptureFixture[str]
) -> None:
    place = served()
    (client, receiver), (other, well) = await place.connect(), await place.connect()
    receiver.fails = True
    client.send(b"x")
    other.send(b"y")
    await until(lambda: receiver.told and well.data)
    assert well.told == []
    assert "this receiver fails" in capsys.readouterr().out


async def test_a_descriptor_that_is_used_again_is_another_connection(served: Callable[..., Served]) -> None:
    place = served()
    for _ in range(50):
        _, first = await place.connect()
        number = first.transport.fileno()
        client = socket.socket()
        first.transport.abort()
        await until(lambda: first.told)  # noqa: B023
        _, second = await place.connect(client)
        # Unless another thread, or the garbage collector, has opened or closed a file meanwhile.
        if second.transport.fileno() == number:
            break
    else:
        pytest.fail("no descriptor is used again")
    client.send(b"new")
    await until(lambda: second.data == b"new")
    assert first.data == b""


async def test_without_a_free_descriptor_connections_wait(
    served: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gateway.edge.sockets, "ACCEPT_PAUSE_S", 0.05)
    place = served()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket()
    place.clients.append(client)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
    try:
        client.connect(place.address)
        async with asyncio.timeout(40):
            while "no connection can be accepted" not in capsys.readouterr().out:
                await asyncio.sleep(0.001)
        assert not place.receivers
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await until(lambda: place.receivers)
    client.send(b"at last")
    await until(lambda: place.receivers[0].data == b"at last")


async def test_a_closed_acceptor_listens_no_more(served: Callable[..., Served]) -> None:
    place = served()
    client, receiver = await place.connect()
    place.acceptor.close()
    place.acceptor.close()
    with pytest.raises(ConnectionRefusedError):
        await place.connect()
    client.send(b"still here")
    await until(lambda: receiver.data == b"still here")


async def test_peers_are_known_by_their_address(served: Callable[..., Served], tmp_path: object) -> None:
    client, receiver = await served().connect()
    assert peer_of("tcp", receiver.transport)[:3] == ("tcp", *client.getsockname())
    path = f"{tmp_path}/s"
    _, receiver = await served(socket.AF_UNIX, path).connect()
    peer = peer_of("unix", receiver.transport)
    assert (peer.address, peer.uid) == ("", os.getuid())
    assert decode_host(packed_host(("::1", 7, 0, 0))) == ("::1", 7)
    assert decode_host(packed_host(("fe80::1%eth0", 7, 0, 2))) == ("fe80::1", 7)
    assert decode_host(packed_host(("::ffff:10.1.2.3", 65535, 0, 0))) == ("10.1.2.3", 65535)
    assert decode_host(packed_host(("::ffff:0:102:304", 7, 0, 0))) == ("::ffff:0:102:304", 7)
    assert packed_host("") is NO_HOST
