"""Wills at a broker over the real store: to whom they are given, and when again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from broker_stack import Stack, Start, broker, refused, start, until
from session_peer import SessionPeer

from broker.sessions import requests as sessions_module
from broker.sessions import wills as wills_module
from broker.sessions.core import sessions as core_module
from holdmq.errors import Code, HoldMQError, StorageError
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import HeartbeatRequest
from holdmq.wire.session_headers import END, DueWill, SessionChange
from holdmq.wire.session_will import DELETE_WILL, HAS_WILL, PUBLISH_WILL, SessionWill

__all__ = ["broker", "start"]

Connect = Callable[..., Awaitable[SessionPeer]]
LEASE_S = 600.0
"""Nobody's lease ends because a machine is busy; where one is to end, a test lets its time pass."""


@pytest.fixture(autouse=True)
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (core_module, wills_module):
        monkeypatch.setattr(module, "LEASE_S", LEASE_S)
    monkeypatch.setattr(sessions_module, "LEASE_CHECK_S", 0.05)
    monkeypatch.setattr(wills_module, "RETRY_S", 0.05)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """A function that connects one more gateway to a broker."""
    peers: list[SessionPeer] = []

    async def run(stack: Stack, name: str = "gateway-1") -> SessionPeer:
        await until(lambda: stack.server.sessions.swept)
        peers.append(SessionPeer(stack.server.rpc.port, name))
        await beat(peers[-1])
        return peers[-1]

    yield run
    for peer in peers:
        await peer.client.close()


async def beat(peer: SessionPeer) -> None:
    await peer.client.call(RequestCode.HEARTBEAT, HeartbeatRequest({}))


async def until_told(peer: SessionPeer, count: int = 1) -> None:
    """Keep `peer` alive until it was told of so many wills: a lease ends in its own time."""
    async with asyncio.timeout(40):
        while len(peer.wills) < count:
            await beat(peer)
            await asyncio.sleep(0.005)


def let_pass(stack: Stack, seconds: float) -> None:
    """What wills wait for, delays and ends of leases, comes so much sooner."""
    sessions = stack.server.sessions
    wills = sessions.core.wills
    for client_id, waiting in wills._wills.items():
        for one in waiting:
            if one.due_at is not None:
                wills._schedule(client_id, one, one.due_at - seconds)
    sessions.wills.look()


def will(delay_s: int = 0, payload: bytes = b"gone") -> bytes:
    return SessionWill(delay_s, 3600, "w", 2, b"", payload, bytes(8)).encode()


def wills(stack: Stack) -> int:
    return int(stack.server.numbers()["wills"])


@contextmanager
def readers_held(stack: Stack) -> Iterator[None]:
    """Nothing is read from disk meanwhile."""
    go_on = threading.Event()
    for _ in range(stack.store.reader_pool._max_workers):
        stack.store.reader_pool.submit(go_on.wait, 60)
    try:
        yield
    finally:
        go_on.set()


async def end_all(peer: SessionPeer, epochs: dict[str, int]) -> None:
    """End connections whose wills are due at once."""
    ends = [SessionChange(name, epoch, END, PUBLISH_WILL, b"", 3600) for name, epoch in epochs.items()]
    assert await peer.write(*ends) == []


async def test_a_will_goes_to_the_gateway_that_tells_of_its_end_and_its_row_goes(
    broker: Stack, connect: Connect
) -> None:
    gateway, other = await connect(broker), await connect(broker, "gateway-2")
    opened = await gateway.open("c", 0, will=will())
    assert wills(broker) == 1
    await gateway.end("c", opened.epoch, 0, will=PUBLISH_WILL)
    await until_told(gateway)
    assert gateway.wills == [DueWill("c", opened.epoch, will())]
    assert other.wills == []
    assert broker.server.numbers()["wills_publishing"] == 1
    await gateway.will_done("c", opened.epoch)
    assert wills(broker) == 0
    assert broker.server.sessions.rows.tables.get_many("%SESSION", ["mc"]) == [None]
    again = await gateway.open("c", 0, will=will())
    await gateway.end("c", again.epoch, 0, will=DELETE_WILL)
    assert wills(broker) == 0
    assert len(gateway.wills) == 1


async def test_a_will_goes_to_another_gateway_when_one_dies_with_it(broker: Stack, connect: Connect) -> None:
    gateway, other = await connect(broker), await connect(broker, "gateway-2")
    opened = await gateway.open("c", will=will())
    await gateway.end("c", opened.epoch, will=PUBLISH_WILL)
    await until_told(gateway)
    await beat(other)
    await gateway.client.close()
    await until_told(other)
    assert other.wills[0].epoch == opened.epoch
    assert broker.server.numbers()["wills_retried_total"] == 1


async def test_a_gateway_that_does_not_tell_in_time_is_told_again(
    broker: Stack, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wills_module, "PUBLISH_TIMEOUT_S", 0.1)
    gateway = await connect(broker)
    opened = await gateway.open("c", will=will())
    await gateway.end("c", opened.epoch, will=PUBLISH_WILL)
    await until_told(gateway, 2)
    await gateway.will_done("c", opened.epoch)
    assert wills(broker) == 0


async def test_a_will_that_is_over_while_it_is_read_again_keeps_no_other_back(
    broker: Stack, connect: Connect
) -> None:
    gateway = await connect(broker)
    epochs = {name: (await gateway.open(name, will=will())).epoch for name in ("c", "d")}
    with readers_held(broker):
        await end_all(gateway, epochs)
        await until(lambda: broker.server.numbers()["wills_publishing"] == 2)
        await gateway.will_done("c", epochs["c"])
    await until(lambda: gateway.wills)
    assert [due.client_id for due in gateway.wills] == ["d"]
    assert (wills(broker), broker.server.numbers()["wills_publishing"]) == (1, 1)


async def test_wills_go_once_to_another_gateway_when_theirs_dies_while_they_are_read(
    broker: Stack, connect: Connect
) -> None:
    gateway, other = await connect(broker), await connect(broker, "gateway-2")
    epochs = {name: (await gateway.open(name, will=will())).epoch for name in ("c", "d")}
    connections = broker.server.numbers()["connections"]
    with readers_held(broker):
        await end_all(gateway, epochs)
        await until(lambda: broker.server.numbers()["wills_publishing"] == 2)
        await gateway.client.close()
        await until(lambda: broker.server.numbers()["connections"] < connections)
    await until(lambda: len(other.wills) == 2)
    assert [due.client_id for due in other.wills] == ["c", "d"]
    assert broker.server.numbers()["wills_retried_total"] == 0


async def test_a_lost_gateway_has_the_time_of_its_lease_to_come_back(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    claimed = await gateway.open("claimed", will=will())
    lost = await gateway.open("lost", will=will())
    await gateway.client.close()
    await until(lambda: len(broker.server.sessions.core) == 0)
    gateway = await connect(broker)
    assert (await gateway.open("claimed", epoch=claimed.epoch, will=HAS_WILL)).code == Code.OK
    assert gateway.wills == []
    let_pass(broker, LEASE_S)
    await until_told(gateway)
    assert [due.client_id for due in gateway.wills] == ["lost"]
    await gateway.will_done("lost", lost.epoch)
    assert (await gateway.open("lost", epoch=lost.epoch, will=HAS_WILL)).code == Code.SESSION_FENCED
    assert wills(broker) == 1


async def test_a_silent_gateways_sessions_are_taken_and_their_wills_published_by_others(
    broker: Stack, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, other = await connect(broker), await connect(broker, "gateway-2")
    opened = await silent.open("c", will=will())
    monkeypatch.setattr(core_module, "LEASE_S", 1.5)
    await until_told(other)
    assert [due.client_id for due in other.wills] == ["c"]
    await until(lambda: silent.taken)
    assert (silent.taken[0].client_id, silent.taken[0].epoch) == ("c", opened.epoch)
    assert await silent.put_state("c", opened.epoch, b"late") == [0]


async def test_wills_outlive_their_broker_and_wait_for_a_gateway(start: Start, connect: Connect) -> None:
    stack = await start()
    gateway = await connect(stack)
    stays = await gateway.open("stays", will=will())
    gone = await gateway.open("gone", 0, will=will())
    delayed = await gateway.open("delayed", will=will(3600))
    stack = await start()
    await until(lambda: wills(stack) == 3)
    gateway = await connect(stack)
    assert (await gateway.open("stays", epoch=stays.epoch, will=HAS_WILL)).code == Code.OK
    let_pass(stack, LEASE_S)
    await until_told(gateway)
    assert gateway.wills == [DueWill("gone", gone.epoch, will())]
    assert wills(stack) == 3
    back = await gateway.open("delayed")
    assert back.is_present
    assert back.epoch > delayed.epoch
    assert wills(stack) == 2, "whoever comes back in time has none"


async def test_a_storm_of_reconnects_sends_no_will(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    names = [f"c{n}" for n in range(20)]
    for _ in range(3):
        opened = [await gateway.open(name, will=will(3600)) for name in names]
        for name, session in zip(names, opened, strict=True):
            await gateway.end(name, session.epoch, will=PUBLISH_WILL)
    assert gateway.wills == []
    assert wills(broker) == 20
    assert broker.server.numbers()["wills_cancelled_total"] == 40


async def test_a_will_that_was_deleted_stays_so_when_the_log_refused_that(
    start: Start, connect: Connect
) -> None:
    stack = await start()
    gateway = await connect(stack)
    opened = await gateway.open("c", will=will())
    rows = stack.server.sessions.rows
    append = rows._change_many
    rows._change_many = lambda changes, done: stack.server.sessions._loop.call_soon(  # type: ignore[method-assign]
        done, None, StorageError("no space", operation="write")
    )
    assert await refused(gateway.end("c", opened.epoch, will=DELETE_WILL)) == Code.STORE_FAILED
    assert stack.server.numbers()["wills_owed"] == 1
    rows._change_many = append  # type: ignore[method-assign]
    await until(lambda: not stack.server.numbers()["wills_owed"] and not rows.in_hand_bytes)
    assert wills(await start()) == 0


async def test_what_is_no_will_is_refused(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    assert await refused(gateway.open("c", will=b"y" * (1 << 19))) == Code.RECORD_TOO_LARGE
    with pytest.raises(HoldMQError, match="will"):
        await gateway.open("c", will=b"x")
    assert wills(broker) == 0
