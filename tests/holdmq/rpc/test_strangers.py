"""Places for connections that have not said HELLO: who has them, and who gets in all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from rpc_peer import HELLO, MakePeer, Peer, Raw, Until
from structlog.testing import capture_logs

from holdmq.config.security import SecuritySection
from holdmq.errors import Code
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.rpc.server import HELLO_MAX_BYTES
from holdmq.rpc.strangers import ADDRESS_SHARE, UNAUTHENTICATED_MAX, Strangers, origin_of
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import RESPONSE, Command
from holdmq.wire.headers import Empty, HelloRequest

SECRET = "s" * 40
PLACES = 16


# The places


def test_the_oldest_makes_room_when_there_is_no_place() -> None:
    strangers: Strangers[int] = Strangers(8)
    assert [strangers.enter(i, f"10.0.0.{i}") for i in range(8)] == [None] * 8
    assert [strangers.enter(i, f"10.0.0.{i}") for i in range(8, 11)] == [0, 1, 2]
    assert len(strangers) == 8
    assert strangers.displaced == 3
    assert 2 not in strangers
    assert 3 in strangers


def test_who_leaves_gives_its_place_back() -> None:
    strangers: Strangers[int] = Strangers(4)
    for i in range(4):
        strangers.enter(i, f"10.0.0.{i}")
    strangers.leave(2)
    strangers.leave(2)
    assert strangers.enter(4, "10.0.0.4") is None
    assert strangers.enter(5, "10.0.0.5") == 0
    for i in range(6):
        strangers.leave(i)
    assert len(strangers) == 0
    assert strangers._by_origin == {}


def test_an_address_takes_places_from_itself_beyond_its_share() -> None:
    strangers: Strangers[int] = Strangers(8)
    assert [strangers.enter(i, "10.0.0.1") for i in range(5)] == [None, None, 0, 1, 2]
    assert len(strangers) == 8 // ADDRESS_SHARE
    assert strangers.enter(10, "10.0.0.2") is None
    assert [strangers.enter(i, "10.0.0.1") for i in range(20, 1_000)][-1] == 997
    assert 10 in strangers


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("unix", "unix"),
        ("2001:db8:0:1:a::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:b::2", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("a:b", "a:b"),
    ],
)
def test_what_a_single_host_has_counts_as_one_address(address: str, origin: str) -> None:
    assert origin_of(address) == origin


# At a server

Knock = Callable[[Peer], Awaitable[Raw]]


@pytest.fixture
async def knock() -> AsyncIterator[Knock]:
    """Connects and says nothing."""
    made: list[Raw] = []

    async def connect(peer: Peer) -> Raw:
        made.append(Raw(*await asyncio.open_connection("127.0.0.1", peer.server.port)))
        return made[-1]

    yield connect
    for raw in made:
        raw.writer.close()


@pytest.fixture
def security(tmp_path: Path) -> ServerSecurity:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[keys.one]\nroles = ["service"]\nsecret = "{SECRET}"\n')
    keys.chmod(0o600)
    return ServerSecurity(allow_anonymous=False, keys_file=str(keys), unauthenticated_max=PLACES)


async def test_strangers_that_fill_their_places_keep_nobody_out(
    make_peer: MakePeer, security: ServerSecurity, knock: Knock, until: Until
) -> None:
    peer = await make_peer(security=security, hello_timeout_s=3600, connections_max=2)
    with capture_logs() as logs:
        silent = [await knock(peer) for _ in range(3 * PLACES)]
        await until(lambda: security.strangers.displaced == 3 * PLACES - PLACES // ADDRESS_SHARE)
    assert len(peer.server.connections) == len(security.strangers) == PLACES // ADDRESS_SHARE
    assert await silent[0].answer() is None, "the first ones made room"
    lines = [line for line in logs if line["event"] == "connection refused"]
    assert 1 <= len(lines) < PLACES, "who is many does not fill the log"
    assert "security.unauthenticated_max" in lines[0]["reason"]
    assert security.numbers()["unauthenticated_displaced_total"] == security.strangers.displaced

    clients = [Client(peer.address, "client", str(i), security=Security("one", SECRET)) for i in range(2)]
    for client in clients:
        await client.call(RequestCode.PRODUCE, Empty())
        for _ in range(PLACES):
            await knock(peer)
    for client in clients:
        connection = client.connection
        await client.call(RequestCode.PRODUCE, Empty())
        assert client.connection is connection, "those that are in stay"
        await client.close()


async def test_strangers_have_no_place_of_those_that_said_hello(
    make_peer: MakePeer, security: ServerSecurity, knock: Knock, until: Until
) -> None:
    peer = await make_peer(security=security, hello_timeout_s=3600, connections_max=1)
    early = await knock(peer)
    await until(lambda: len(security.strangers) == 1)
    first = Client(peer.address, "client", "first", security=Security("one", SECRET))
    await first.call(RequestCode.PRODUCE, Empty())
    assert security.numbers()["unauthenticated_connections"] == 1
    assert await (await knock(peer)).answer() is None, "there is no place that it could get"
    assert early.reader.at_eof() is False
    await first.close()
    await until(lambda: len(peer.server.connections) == 1)
    second = Client(peer.address, "client", "second", security=Security("one", SECRET))
    await second.call(RequestCode.PRODUCE, Empty())
    await second.close()


async def test_the_last_place_is_given_once(make_peer: MakePeer, until: Until) -> None:
    peer = await make_peer(connections_max=1)
    raws = [Raw(*await asyncio.open_connection("127.0.0.1", peer.server.port)) for _ in range(2)]
    await until(lambda: len(peer.server.strangers) == 2)
    await raws[0].hello()
    raws[1].send(Command(RequestCode.HELLO, 7, 0, "", HELLO.to_ext()))
    answer = await raws[1].answer()
    assert answer is not None
    assert (answer.code, answer.opaque, answer.remark) == (Code.LIMIT_EXCEEDED, 7, "1 connections")
    assert await raws[1].answer() is None
    assert len(peer.server.connections) == 1
    assert len(peer.server.strangers) == 0
    for raw in raws:
        raw.writer.close()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (Command(RequestCode.HELLO, 1, 0, "", {"role": "client"}), Code.MISSING_FIELD),
        (
            Command(RequestCode.HELLO, 1, 0, "", HelloRequest(99, "client", "c").to_ext()),
            Code.VERSION_UNSUPPORTED,
        ),
        (Command(RequestCode.HELLO, 1, 0, "", HELLO.to_ext() | {"x": [0] * 64}), Code.PROTOCOL_ERROR),
        (Command(RequestCode.HELLO, 1, RESPONSE), Code.PROTOCOL_ERROR),
        (Command(Code.OK, 1, RESPONSE), Code.PROTOCOL_ERROR),
    ],
)
async def test_a_hello_that_is_none_ends_the_connection(
    raw: Raw, peer: Peer, command: Command, code: Code, until: Until
) -> None:
    raw.send(command)
    answer = await raw.answer()
    assert answer is not None
    assert answer.code == code
    assert await raw.answer() is None
    await until(lambda: not peer.server.connections)


async def test_many_frames_at_once_are_not_read_before_hello(raw: Raw, peer: Peer) -> None:
    raw.writer.writelines([b"\x00\x00\x00\x12\x00\x00\x00\x0e\x97\x00\xa6python\x01\x01\x01\xa0\x80"] * 4_000)
    answer = await raw.answer()
    assert answer is not None
    assert answer.code == Code.PROTOCOL_ERROR
    assert "before HELLO" in answer.remark
    assert peer.server.refused == 1


async def test_after_hello_a_header_may_hold_more(raw: Raw) -> None:
    await raw.hello()
    raw.send(Command(RequestCode.QUEUE_BOUNDS, 2, 0, "", {"topics": ["t"] * 10_000}), bytes(HELLO_MAX_BYTES))
    answer = await raw.answer()
    assert answer is not None
    assert answer.ext_fields["topics"] == ["t"] * 10_000


def test_the_configuration_has_the_same_default() -> None:
    assert SecuritySection().unauthenticated_max == UNAUTHENTICATED_MAX
