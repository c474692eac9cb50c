"""The RPC server and its connections over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct

import msgpack
import pytest
from rpc_peer import MakePeer, Peer, Raw, Until

from holdmq.errors import BusyError, Code, HoldMQError, RemoteError, RequestTimeout, StartupError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import REQUEST_OVERHEAD_BYTES, Reply, Request
from holdmq.rpc.server import HELLO_MAX_BYTES
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import RESPONSE, Command
from holdmq.wire.headers import Empty, HeartbeatRequest, HelloRequest, QueueBoundsRequest


async def test_a_request_is_answered(client: Client) -> None:
    reply = await client.call(RequestCode.PRODUCE, Empty(), body=[b"a", b"bc"], body_length=3)
    assert bytes(reply.body) == b"abc"
    assert not reply.body.readonly
    header = (await client.call(RequestCode.QUEUE_BOUNDS, QueueBoundsRequest(["t"]))).header(
        QueueBoundsRequest
    )
    assert header.topics == ["t"]


async def test_many_requests_are_answered_in_any_order(client: Client, peer: Peer, until: Until) -> None:
    calls = [asyncio.ensure_future(client.call(RequestCode.PULL, Empty())) for _ in range(50)]
    quick = await client.call(RequestCode.PRODUCE, Empty(), body=[b"x"], body_length=1)
    assert bytes(quick.body) == b"x"
    await until(lambda: len(peer.held) == 50)
    for i, request in reversed(list(enumerate(peer.held))):
        request.reply(QueueBoundsRequest([str(i)]))
    replies = await asyncio.gather(*calls)
    assert [r.header(QueueBoundsRequest).topics for r in replies] == [[str(i)] for i in range(50)]


async def test_a_held_request_costs_no_task(client: Client, peer: Peer, until: Until) -> None:
    await client.call(RequestCode.PRODUCE, Empty())
    before = len(asyncio.all_tasks())
    answers: list[Reply | HoldMQError] = []
    for _ in range(100):
        client.request(RequestCode.PULL, Empty(), answers.append, 30)
    await until(lambda: len(peer.held) == 100)
    assert len(asyncio.all_tasks()) == before
    for request in peer.held:
        request.reply(Empty())
    await until(lambda: len(answers) == 100)
    assert all(isinstance(answer, Reply) for answer in answers)


async def test_a_one_way_request_is_not_answered(client: Client, peer: Peer, until: Until) -> None:
    await client.call(RequestCode.PRODUCE, Empty())
    connection = client.connection
    assert connection is not None
    connection.send_one_way(RequestCode.PULL, Empty())
    await until(lambda: peer.held)
    received = connection.bytes_in
    peer.held[0].reply(Empty())
    await client.call(RequestCode.QUEUE_BOUNDS, QueueBoundsRequest([]))
    assert connection.bytes_in - received < 80


async def test_the_server_may_ask_the_client(peer: Peer, until: Until) -> None:
    asked: list[Request] = []
    client = Client(peer.address, "client", "c", on_request=asked.append)
    await client.call(RequestCode.PRODUCE, Empty())
    (connection,) = peer.server.connections
    call = asyncio.ensure_future(connection.call(RequestCode.HEARTBEAT, HeartbeatRequest({"n": 1}), 60))
    await until(lambda: asked)
    assert asked[0].header(HeartbeatRequest).state == {"n": 1}
    asked[0].reply(Empty())
    assert isinstance(await call, Reply)
    await client.close()


async def test_a_client_that_takes_no_requests_says_so(client: Client, peer: Peer) -> None:
    await client.call(RequestCode.PRODUCE, Empty())
    (connection,) = peer.server.connections
    with pytest.raises(RemoteError) as caught:
        await connection.call(RequestCode.HEARTBEAT, HeartbeatRequest(), 60)
    assert caught.value.code == Code.UNKNOWN_REQUEST


@pytest.mark.parametrize(
    ("code", "answer", "named"),
    [
        (RequestCode.HEARTBEAT, Code.UNKNOWN_REQUEST, "request code 2"),
        (RequestCode.QUEUE_BOUNDS, Code.MISSING_FIELD, "'topics'"),
        (RequestCode.CLUSTER_GET, Code.SYSTEM_ERROR, "the server's log"),
        (RequestCode.BROKER_STATUS, Code.BUSY, "too much"),
    ],
)
async def test_a_refusal_carries_its_code_and_the_connection_stays(
    client: Client, code: RequestCode, answer: Code, named: str
) -> None:
    with pytest.raises(RemoteError, match=named) as caught:
        await client.call(code, Empty())
    assert caught.value.code == answer
    if isinstance(caught.value, BusyError):
        assert caught.value.retry_after_ms == 77
    connection = client.connection
    await client.call(RequestCode.PRODUCE, Empty())
    assert client.connection is connection


async def test_a_code_from_the_future_is_a_system_error(raw: Raw, peer: Peer) -> None:
    await raw.hello()
    (connection,) = peer.server.connections
    call = asyncio.ensure_future(connection.call(RequestCode.HEARTBEAT, Empty(), 60))
    request = await raw.answer()
    assert request is not None
    raw.send(Command(9999, request.opaque, RESPONSE, "new"))
    with pytest.raises(RemoteError, match="SYSTEM_ERROR: new"):
        await call


async def test_no_answer_is_a_timeout_and_a_late_one_is_dropped(
    client: Client, peer: Peer, until: Until
) -> None:
    await client.call(RequestCode.PRODUCE, Empty())
    slow = asyncio.ensure_future(client.call(RequestCode.PULL, Empty(), 60))
    with pytest.raises(RequestTimeout, match="within the deadline"):
        await client.call(RequestCode.PULL, Empty(), 0.05)
    assert not slow.done()
    await until(lambda: len(peer.held) == 2)
    for request in peer.held:
        request.reply(Empty())
    await slow
    await client.call(RequestCode.PRODUCE, Empty())


async def test_a_header_that_cannot_be_encoded_raises_and_leaves_nothing_behind(client: Client) -> None:
    await client.call(RequestCode.PRODUCE, Empty())
    assert client.connection is not None
    with pytest.raises(UnicodeEncodeError):
        await client.call(RequestCode.QUEUE_BOUNDS, QueueBoundsRequest(["\ud800"]))
    assert client.connection._pending == {}


# Connections that break the rules


async def test_nothing_works_before_hello(raw: Raw, peer: Peer) -> None:
    raw.send(Command(RequestCode.PRODUCE, 5))
    answer = await raw.answer()
    assert answer is not None
    assert (answer.code, answer.opaque) == (Code.HELLO_REQUIRED, 5)
    assert await raw.answer() is None
    assert peer.server.refused == 1
    assert not peer.server.connections
    assert peer.closed == []


async def test_another_protocol_version_is_refused(raw: Raw) -> None:
    raw.send(Command(RequestCode.HELLO, 1, 0, "", HelloRequest(99, "client", "c").to_ext()))
    answer = await raw.answer()
    assert answer is not None
    assert answer.code == Code.VERSION_UNSUPPORTED
    assert "99" in answer.remark


async def test_a_silent_peer_is_closed(make_peer: MakePeer, until: Until) -> None:
    peer = await make_peer(hello_timeout_s=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    assert await reader.read() == b""
    assert peer.server.refused == 1
    assert not peer.server.connections
    writer.close()


async def test_a_client_that_said_hello_may_be_silent(make_peer: MakePeer) -> None:
    peer = await make_peer(hello_timeout_s=0.5)
    client = Client(peer.address, "client", "c")
    await client.call(RequestCode.PRODUCE, Empty())
    connection = client.connection
    await asyncio.sleep(0.8)
    await client.call(RequestCode.PRODUCE, Empty())
    assert client.connection is connection
    await client.close()


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "the limit is"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "the limit is"),
        (struct.pack(">II", 300 << 20, 20), "the limit is"),
        (struct.pack(">II", HELLO_MAX_BYTES + 1, 20), "the limit is"),
        (struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff", "not msgpack"),
        (struct.pack(">II", 6, 1) + b"\x90\x00", "seven fields"),
    ],
)
async def test_a_scanner_s_bytes_are_answered_with_the_fault_and_the_end(
    raw: Raw, peer: Peer, client: Client, data: bytes, named: str
) -> None:
    await client.call(RequestCode.PRODUCE, Empty())
    raw.writer.write(data)
    answer = await raw.answer()
    assert answer is not None
    assert (answer.code, answer.opaque, answer.is_response) == (Code.PROTOCOL_ERROR, 0, True)
    assert named in answer.remark
    assert await raw.answer() is None
    assert peer.server.refused == 1
    await client.call(RequestCode.PRODUCE, Empty())


async def test_after_hello_the_limit_is_the_server_s(raw: Raw) -> None:
    await raw.hello()
    raw.send(Command(RequestCode.PRODUCE, 2), bytes(900_000))
    answer = await raw.answer()
    assert answer is not None
    assert answer.code == Code.OK
    raw.writer.write(struct.pack(">II", (1 << 20) + 1, 20))
    refused = await raw.answer()
    assert refused is not None
    assert refused.code == Code.PROTOCOL_ERROR


async def test_half_a_frame_and_silence_disturb_nobody(raw: Raw, peer: Peer, client: Client) -> None:
    await raw.hello()
    raw.writer.write(struct.pack(">II", 1000, 20) + b"half")
    await client.call(RequestCode.PRODUCE, Empty())
    raw.writer.close()
    await client.call(RequestCode.PRODUCE, Empty())


async def test_connections_are_bounded(make_peer: MakePeer) -> None:
    peer = await make_peer(connections_max=2)
    clients = [Client(peer.address, "client", str(i)) for i in range(2)]
    for client in clients:
        await client.call(RequestCode.PRODUCE, Empty())
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    await reader.read()
    assert peer.server.refused == 1
    assert len(peer.server.connections) == 2
    writer.close()
    for client in clients:
        await client.call(RequestCode.PRODUCE, Empty())
        await client.close()


# Backpressure


async def test_outstanding_bytes_pause_reading_until_half_are_answered(
    make_peer: MakePeer, until: Until
) -> None:
    peer = await make_peer(outstanding_max_bytes=100_000)
    client = Client(peer.address, "client", "c")
    await client.call(RequestCode.PRODUCE, Empty())
    calls = [
        asyncio.ensure_future(client.call(RequestCode.PULL, Empty(), 30, [bytes(20_000)], 20_000))
        for _ in range(200)
    ]
    (connection,) = peer.server.connections
    await until(lambda: connection._is_paused)
    await asyncio.sleep(0.1)
    received = len(peer.held)
    # What had come in one read before the pause is taken; 200 requests never are.
    assert 5 <= received < 100
    await asyncio.sleep(0.1)
    assert len(peer.held) == received
    answered = 0
    while not all(call.done() for call in calls):
        assert answered < len(peer.held) or not connection._is_paused
        for request in peer.held[answered:]:
            request.reply(Empty())
        answered = len(peer.held)
        await asyncio.sleep(0.01)
    assert answered == 200
    assert connection._outstanding == 0
    await client.close()


async def test_empty_requests_count_too(make_peer: MakePeer, until: Until) -> None:
    peer = await make_peer(outstanding_max_bytes=10 * REQUEST_OVERHEAD_BYTES)
    client = Client(peer.address, "client", "c")
    calls = [asyncio.ensure_future(client.call(RequestCode.PULL, Empty(), 30)) for _ in range(11)]
    await until(lambda: len(peer.held) == 11)
    (connection,) = peer.server.connections
    assert connection._is_paused
    for request in peer.held:
        request.reply(Empty())
    await asyncio.gather(*calls)
    assert not connection._is_paused
    await client.close()


async def test_a_peer_that_does_not_read_is_not_read(peer: Peer, until: Until) -> None:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", peer.server.port))
    await raw.hello()
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    (connection,) = peer.server.connections
    for i in range(10):
        raw.send(Command(RequestCode.READ, 2 + i))
    await until(lambda: not connection.is_writable)
    sent = connection.bytes_out
    assert connection._is_paused
    raw.send(Command(RequestCode.READ, 99))
    await asyncio.sleep(0.1)
    assert connection.bytes_out == sent
    raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
    total = 0
    while total < 11 * (4 << 20):
        total += len(await raw.reader.read(1 << 20))
    await until(lambda: connection.is_writable)
    assert peer.writable
    assert not connection._is_paused
    raw.writer.close()


async def test_a_busy_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{port}"):
            await Peer().server.listen("127.0.0.1", port)


async def test_draining_answers_what_was_written_and_closes(peer: Peer, client: Client, until: Until) -> None:
    waiting = asyncio.ensure_future(client.call(RequestCode.PULL, Empty(), 30))
    await until(lambda: peer.held)
    peer.held[0].reply(QueueBoundsRequest(["last"]))
    await peer.server.close()
    assert (await waiting).header(QueueBoundsRequest).topics == ["last"]
    assert not peer.server.connections


@pytest.mark.parametrize("seed", range(20))
async def test_random_bytes_after_hello_end_one_connection_only(
    raw: Raw, peer: Peer, client: Client, seed: int
) -> None:
    import random

    await client.call(RequestCode.PRODUCE, Empty())
    await raw.hello()
    rng = random.Random(seed)
    header = msgpack.packb([rng.choice([10, 20, 42, 7]), "x", 1, 1, rng.choice([0, 1, 2]), "", {}])
    frame = bytearray(struct.pack(">II", 4 + len(header) + 5, len(header)) + header + b"12345")
    for _ in range(rng.randrange(1, 6)):
        frame[rng.randrange(len(frame))] = rng.randrange(256)
    raw.writer.write(frame)
    raw.writer.write_eof()
    while await raw.answer() is not None:
        pass
    await client.call(RequestCode.PRODUCE, Empty())
