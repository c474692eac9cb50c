"""Brokers that have copies: the route table follows who leads, whatever single registries say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdmq.client import RouteTable
from holdmq.client import route as module
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import BrokerRegisterRequest, TopicRow
from registry.server import RegistryServer

Register = Callable[..., Awaitable[None]]
Until = Callable[[Callable[[], Any]], Awaitable[None]]


@pytest.fixture
async def other() -> AsyncIterator[RegistryServer]:
    """A second registry, which brokers do not register with by themselves."""
    server = RegistryServer("test")
    await server.listen("127.0.0.1", 0)
    yield server
    await server.close()


@pytest.fixture
async def register() -> AsyncIterator[Register]:
    """Register `address` as the leader of broker-0 in `epoch`, over a connection for each registry."""
    clients: dict[str, Client] = {}

    async def run(registry: RegistryServer, address: str, epoch: int, queues: int = 2) -> None:
        where = f"127.0.0.1:{registry.rpc.port}"
        client = clients.setdefault(where, Client(where, "broker", "test"))
        topic = TopicRow("t", queues, queues, 6, "log", 1, False)
        # Each process is in a room of its own.
        row = BrokerRegisterRequest("test", "broker-0", 0, address, 1, [topic], epoch, f"room-{epoch}")
        await client.call(RequestCode.BROKER_REGISTER, row)

    yield run
    for client in clients.values():
        await client.close()


@pytest.fixture
async def table(
    registries: list[str], other: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RouteTable]:
    monkeypatch.setattr(module, "SEEK_MIN_S", 0.01)
    monkeypatch.setattr(module, "SEEK_MAX_S", 0.02)
    monkeypatch.setattr(module, "REFRESH_MIN_S", 0.01)
    table = RouteTable([*registries, f"127.0.0.1:{other.rpc.port}"], "me", refresh_s=3600)
    table._registries._addresses = registries
    table.start()
    assert await table.topic("t") is None
    table._registries._addresses = [*registries, f"127.0.0.1:{other.rpc.port}"]
    yield table
    await table.close()


async def test_a_new_leader_is_followed_at_once(
    table: RouteTable, registry: RegistryServer, make_broker: Any, register: Register, until: Until
) -> None:
    old, new = await make_broker("old"), await make_broker("new")
    await register(registry, f"127.0.0.1:{old.rpc.port}", 3)
    await until(lambda: "broker-0" in table.brokers())
    link = table.link("broker-0")
    await until(lambda: link.is_up)
    assert link.client.hello.name == "old"  # type: ignore[union-attr]
    await register(registry, f"127.0.0.1:{new.rpc.port}", 4)
    await until(lambda: link.is_up and link.client.hello.name == "new")  # type: ignore[union-attr]
    assert table.link("broker-0") is link
    assert table.rooms() == {"broker-0": "room-4"}


async def test_a_registry_that_still_names_who_led_before_is_not_believed(
    table: RouteTable, registry: RegistryServer, make_broker: Any, register: Register, until: Until
) -> None:
    new = await make_broker("new")
    await register(registry, f"127.0.0.1:{new.rpc.port}", 4, queues=8)
    await until(lambda: table.get("t"))
    link = table.link("broker-0")
    await until(lambda: link.is_up)
    # It restarts, and hears of the old leader first.
    registry.tables._epochs.clear()
    await register(registry, "127.0.0.1:1", 3, queues=2)
    await table.refresh()
    assert table.brokers()["broker-0"] == f"127.0.0.1:{new.rpc.port}"
    assert len(table.get("t").write_queues) == 8  # type: ignore[union-attr]
    assert link.is_up
    await register(registry, f"127.0.0.1:{new.rpc.port}", 4, queues=9)
    await until(lambda: len(table.get("t").write_queues) == 9)  # type: ignore[union-attr]
    assert link.client.hello.name == "new"  # type: ignore[union-attr]


@pytest.mark.parametrize("is_connected", [True, False])
async def test_the_other_registries_are_asked_for_a_leader_that_is_lost(
    table: RouteTable,
    registry: RegistryServer,
    other: RegistryServer,
    make_broker: Any,
    register: Register,
    until: Until,
    is_connected: bool,
) -> None:
    old, new = await make_broker("old"), await make_broker("new")
    if not is_connected:
        await old.stop()
    await register(registry, f"127.0.0.1:{old.rpc.port}", 3)
    await until(lambda: "broker-0" in table.brokers())
    told: list[dict[str, str]] = []
    table.on_brokers.append(lambda: told.append(table.brokers()))
    link = table.link("broker-0")
    if is_connected:
        await until(lambda: link.is_up)
        await old.stop()
    # Cut off from the registry that is held, the new leader tells the other one.
    await register(other, f"127.0.0.1:{new.rpc.port}", 4)
    await until(lambda: link.is_up and link.client.hello.name == "new")  # type: ignore[union-attr]
    assert told[-1]["broker-0"] == f"127.0.0.1:{new.rpc.port}"
    await until(lambda: table._seeker is None)
    assert table.get("t") is not None


async def test_nobody_else_is_asked_for_a_broker_without_copies(
    table: RouteTable, registry: RegistryServer, make_broker: Any, register: Register, until: Until
) -> None:
    broker = await make_broker("old")
    await register(registry, f"127.0.0.1:{broker.rpc.port}", 0)
    await until(lambda: "broker-0" in table.brokers())
    link = table.link("broker-0")
    await until(lambda: link.is_up)
    await broker.stop()
    await until(lambda: not link.is_up)
    table.link("broker-0")
    assert table._seeker is None


async def test_queues_of_a_broker_that_has_copies_stay_as_long_as_a_failover_takes(
    table: RouteTable,
    registry: RegistryServer,
    make_broker: Any,
    register: Register,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FAILOVER_S", 1.0)
    table.reroute_s = 0.0
    broker = await make_broker("old")
    await register(registry, f"127.0.0.1:{broker.rpc.port}", 3)
    await until(lambda: table.get("t"))
    link = table.link("broker-0")
    await until(lambda: link.is_up)
    assert (table.patience_s("broker-0"), table.patience_s("another")) == (1.0, 0.0)
    lost_at = asyncio.get_running_loop().time()
    await broker.stop()
    registry.tables.unregister("broker-0", 0, 3)
    registry._changed()
    await until(lambda: "broker-0" not in table.brokers())
    assert not table.is_resting("broker-0", lost_at + 0.9)
    assert table.get("t") is not None
    await until(lambda: table.get("t") is None)
    assert asyncio.get_running_loop().time() - lost_at >= 1.0
    # Whoever leads after that, in whichever epoch, is news.
    registry.tables._epochs.clear()
    await broker.restart()
    await register(registry, f"127.0.0.1:{broker.rpc.port}", 1)
    await until(lambda: table.get("t"))


async def test_epochs_that_begin_again_are_believed_once_the_leader_is_away_for_long(
    table: RouteTable,
    registry: RegistryServer,
    make_broker: Any,
    register: Register,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEAD_DOUBTED_S", 0.3)
    broker = await make_broker("old")
    await register(registry, f"127.0.0.1:{broker.rpc.port}", 7)
    await until(lambda: table.get("t"))
    link = table.link("broker-0")
    await until(lambda: link.is_up)
    await broker.stop()
    registry.tables._epochs.clear()
    new = await make_broker("new")
    await register(registry, f"127.0.0.1:{new.rpc.port}", 1)
    await until(lambda: link.is_up and link.client.hello.name == "new")  # type: ignore[union-attr]
