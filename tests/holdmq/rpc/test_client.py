"""The reconnecting RPC client over real sockets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from processes import free_port
from rpc_peer import MakePeer, Peer, Until, why_not

from holdmq.errors import Code, HoldMQError, LeadLostError, RemoteError, TransportError
from holdmq.rpc import client as client_module
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Connection, Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import Empty, QueueBoundsRequest

# Reconnecting


async def test_a_lost_connection_fails_what_waits_and_comes_back(
    client: Client, peer: Peer, until: Until
) -> None:
    await client.call(RequestCode.PRODUCE, Empty())
    waiting = asyncio.ensure_future(client.call(RequestCode.PULL, Empty(), 30))
    await until(lambda: peer.held)
    (connection,) = peer.server.connections
    connection.close()
    with pytest.raises(TransportError, match="lost"):
        await waiting
    assert bytes((await client.call(RequestCode.PRODUCE, Empty(), body=[b"x"], body_length=1)).body) == b"x"
    assert len(peer.closed) == 1
    peer.held[0].reply(Empty())


async def test_ups_and_downs_are_told_in_order(peer: Peer, until: Until) -> None:
    events: list[str] = []
    client = Client(
        peer.address,
        "client",
        "c",
        on_up=lambda _connection, hello: events.append(f"up {hello.name}"),
        on_down=lambda _reason: events.append("down"),
    )
    client.start()
    await until(lambda: events)
    next(iter(peer.server.connections)).close()
    await until(lambda: len(events) == 3)
    assert events == ["up peer", "down", "up peer"]
    await client.close()
    assert events[-1] == "down"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, none of which takes any time."""
    found: list[float] = []
    real = client_module._jittered

    def jittered(pause_s: float) -> float:
        found.append(real(pause_s))
        return 0.0

    monkeypatch.setattr(client_module, "_jittered", jittered)
    return found


async def test_attempts_back_off_with_jitter(pauses: list[float], until: Until) -> None:
    client = Client(f"127.0.0.1:{free_port()}", "client", "c")
    client.start()
    await until(lambda: len(pauses) >= 12)
    await client.close()
    steps = [client_module.BACKOFF_MIN_S * 2**i for i in range(12)]
    for pause, step in zip(pauses, steps, strict=False):
        top = min(step, client_module.BACKOFF_MAX_S)
        assert 0.5 * top <= pause <= 1.5 * top
    assert len({round(pause / min(step, 2.0), 6) for pause, step in zip(pauses, steps, strict=False)}) > 3


async def test_a_new_address_is_connected_to_at_once_whatever_the_old_one_does(peer: Peer) -> None:
    # Nobody accepts there: a host that is gone answers nothing for as long as an attempt may take.
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    full = [socket.socket() for _ in range(4)]
    for one in full:
        one.setblocking(False)
        one.connect_ex(silent.getsockname())
    client = Client(f"127.0.0.1:{silent.getsockname()[1]}", "client", "c")
    client.start()
    await asyncio.sleep(0.05)
    assert client.connection is None
    client.set_address(peer.address)
    async with asyncio.timeout(client_module.CONNECT_TIMEOUT_S / 2):
        while client.connection is None:
            await asyncio.sleep(0.01)
    await client.close()
    for one in (silent, *full):
        one.close()


async def test_without_a_server_a_call_says_why() -> None:
    port = free_port()
    client = Client(f"127.0.0.1:{port}", "client", "c")
    assert f"no connection to 127.0.0.1:{port} within 0.05 s: cannot" in await why_not(client)
    answers: list[Reply | HoldMQError] = []
    client.request(RequestCode.PRODUCE, Empty(), answers.append, 1)
    assert isinstance(answers[0], TransportError)
    await client.close()
    with pytest.raises(TransportError, match="is closed"):
        await client.call(RequestCode.PRODUCE, Empty())


async def test_a_client_follows_its_peer_to_another_address(make_peer: MakePeer, until: Until) -> None:
    one, two = await make_peer(), await make_peer()
    client = Client(one.address, "client", "c")
    await client.call(RequestCode.PRODUCE, Empty())
    client.set_address(one.address)
    assert client.connection is not None
    client.set_address(two.address)
    await client.call(RequestCode.PRODUCE, Empty())
    assert len(two.server.connections) == 1
    await client.close()


async def test_an_attempt_ends_when_the_peer_moves(peer: Peer, until: Until) -> None:
    accepted: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    client = Client(f"127.0.0.1:{silent.sockets[0].getsockname()[1]}", "client", "c")
    client.start()
    await until(lambda: accepted)
    began = asyncio.get_running_loop().time()
    client.set_address(peer.address)
    await client.call(RequestCode.PRODUCE, Empty())
    assert asyncio.get_running_loop().time() - began < client_module.CONNECT_TIMEOUT_S / 2
    await client.close()
    accepted[0].close()
    silent.close()
    await silent.wait_closed()


async def test_a_long_pause_ends_when_the_peer_moves(
    peer: Peer, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_jittered", lambda pause_s: 3600.0 if is_first else pause_s)
    is_first = True
    client = Client(f"127.0.0.1:{free_port()}", "client", "c")
    client.start()
    await until(lambda: client.last_error)
    is_first = False
    client.set_address(peer.address)
    await client.call(RequestCode.PRODUCE, Empty())
    await client.close()


async def test_who_leads_no_more_is_left_and_what_waits_is_told(
    make_peer: MakePeer, until: Until, pauses: list[float]
) -> None:
    old, new = await make_peer(), await make_peer()
    downs: list[HoldMQError] = []
    client = Client(old.address, "client", "c", on_down=downs.append, follows_lead=True)
    await client.call(RequestCode.PRODUCE, Empty())
    assert client.connection is not None
    answers: list[Reply | HoldMQError] = []
    for _ in range(3):
        client.connection.request(RequestCode.PULL, Empty(), answers.append, 30)
    await until(lambda: len(old.held) == 3)
    old.held[1].refuse(RemoteError(Code.NOT_LEADER, "the lease ran out"))
    await until(lambda: len(answers) == 3)
    for answer in (*answers, *downs):
        assert isinstance(answer, LeadLostError)
        assert answer.retriable
        assert "leads its shard no more: the lease ran out" in str(answer)
    # It is connected again, as the route may still name it, and asked less and less often.
    for count in range(4, 9):
        await until(lambda: client.connection)
        client.request(RequestCode.PULL, Empty(), answers.append, 30)
        await until(lambda asked=count: len(old.held) == asked)
        old.held[-1].refuse(RemoteError(Code.NOT_LEADER, ""))
        await until(lambda asked=count: len(pauses) == asked - 2)
    for pause, top in zip(pauses, [client_module.BACKOFF_MIN_S * 2**i for i in range(6)], strict=True):
        assert 0.5 * top <= pause <= 1.5 * top
    client.set_address(new.address)
    await client.call(RequestCode.PRODUCE, Empty())
    assert len(new.server.connections) == 1
    await client.close()


async def test_others_are_told_not_leader_as_any_refusal(peer: Peer, client: Client, until: Until) -> None:
    call = asyncio.ensure_future(client.call(RequestCode.PULL, Empty()))
    await until(lambda: peer.held)
    peer.held[0].refuse(RemoteError(Code.NOT_LEADER, "epoch 5"))
    with pytest.raises(RemoteError) as refused:
        await call
    assert (refused.value.code, refused.value.remark) == (Code.NOT_LEADER, "epoch 5")
    assert client.connection is not None


async def test_a_refused_hello_is_told_and_tried_again(peer: Peer, until: Until) -> None:
    peer.refuse_hello = RemoteError(Code.NOT_PERMITTED, "who are you")
    client = Client(peer.address, "client", "c")
    assert "who are you" in await why_not(client)
    peer.refuse_hello = None
    await client.call(RequestCode.PRODUCE, Empty())
    await client.close()


async def test_a_connection_that_ends_right_after_hello_is_made_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_call = Connection.call
    hellos = 0

    async def call(self: Connection, code: RequestCode, *rest: Any) -> Reply:
        nonlocal hellos
        reply = await real_call(self, code, *rest)
        if code == RequestCode.HELLO:
            hellos += 1
            if hellos == 1:
                self.close()  # the answer and the end came in one turn of the loop
        return reply

    monkeypatch.setattr(Connection, "call", call)
    await client.call(RequestCode.PRODUCE, Empty())
    assert hellos == 2


async def test_bad_addresses_are_named() -> None:
    client = Client("nowhere", "client", "c")
    with pytest.raises(TransportError, match="'nowhere' is no address"):
        await client.call(RequestCode.PRODUCE, Empty(), 0.1)
    await client.close()


async def test_unix_sockets_work_the_same(tmp_path: Path) -> None:
    peer = Peer()
    path = str(tmp_path / "rpc.sock")
    await peer.server.listen_unix(path)
    client = Client(f"unix:{path}", "client", "c")
    assert bytes((await client.call(RequestCode.PRODUCE, Empty(), body=[b"u"], body_length=1)).body) == b"u"
    await client.close()
    await peer.server.close()


async def test_large_answers_and_large_requests_at_once_do_not_wait_for_each_other(
    peer: Peer, client: Client, until: Until
) -> None:
    await client.call(RequestCode.QUEUE_BOUNDS, QueueBoundsRequest([]))
    connection = client.connection
    assert connection is not None
    answers: list[Reply | HoldMQError] = []
    body = bytes(900 << 10)
    for _ in range(16):
        connection.request(RequestCode.READ, Empty(), answers.append, 50.0)
    for _ in range(48):
        connection.request(RequestCode.PRODUCE, Empty(), answers.append, 50.0, [body], len(body))
    await until(lambda: len(answers) == 64)
    assert all(isinstance(answer, Reply) for answer in answers)
