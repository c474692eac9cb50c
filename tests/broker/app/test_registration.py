from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.app.registration import Registration
from holdmq.wire.headers import BrokerRegisterRequest, BrokerRow, TopicRow
from registry.server import RegistryServer


@pytest.fixture
async def registry() -> AsyncIterator[RegistryServer]:
    server = RegistryServer("test")
    await server.listen("127.0.0.1", 0)
    yield server
    await server.close()


async def until_led(registry: RegistryServer, address: str, epoch: int) -> None:
    async with asyncio.timeout(40):
        while registry.tables.brokers() != [BrokerRow("test", "b", 0, address, epoch)]:
            await asyncio.sleep(0.01)


class Replica:
    """A process of broker b that registers what it is told to."""

    def __init__(
        self, registry: RegistryServer, address: str, epoch: int, name: str = "b", *others: RegistryServer
    ) -> None:
        self.epoch = epoch
        self.made_ms = 100
        self._name = name
        self._address = address
        self.heard: list[int] = []
        self.registration = Registration(
            [f"127.0.0.1:{each.rpc.port}" for each in (registry, *others)],
            name,
            0.05,
            self._current,
            self.heard.append,
        )
        self.registration.start()

    def _current(self) -> BrokerRegisterRequest:
        row = TopicRow("t", 4, 4, 6, "log", 1, False)
        return BrokerRegisterRequest(
            "test", self._name, 0, self._address, 1, [row], self.epoch, made_ms=self.made_ms
        )


async def test_who_leads_no_more_is_refused_and_takes_nobody_out(registry: RegistryServer) -> None:
    old = Replica(registry, "127.0.0.1:1", 3)
    await until_led(registry, "127.0.0.1:1", 3)
    new = Replica(registry, "127.0.0.1:2", 4)
    await until_led(registry, "127.0.0.1:2", 4)
    async with asyncio.timeout(40):
        while old.registration.state()[0]:
            await asyncio.sleep(0.01)
    await old.registration.close()
    await until_led(registry, "127.0.0.1:2", 4)
    await new.registration.close()
    assert registry.tables.size() == 0, "who leads takes itself out"


async def test_a_replica_that_leads_again_says_its_new_epoch(registry: RegistryServer) -> None:
    replica = Replica(registry, "127.0.0.1:1", 3)
    await until_led(registry, "127.0.0.1:1", 3)
    replica.epoch = 5
    replica.registration.changed()
    await until_led(registry, "127.0.0.1:1", 5)
    await replica.registration.close()


async def test_a_broker_hears_how_many_share_the_cluster(registry: RegistryServer) -> None:
    one = Replica(registry, "127.0.0.1:1", 1)
    two = Replica(registry, "127.0.0.1:2", 1, "c")
    async with asyncio.timeout(40):
        while one.heard[-1:] != [2]:
            await asyncio.sleep(0.01)
    await two.registration.close()
    async with asyncio.timeout(40):
        while one.heard[-1] != 1:
            await asyncio.sleep(0.01)
    await one.registration.close()


@pytest.fixture
async def other() -> AsyncIterator[RegistryServer]:
    server = RegistryServer("test")
    await server.listen("127.0.0.1", 0)
    yield server
    await server.close()


async def test_a_registry_hears_from_brokers_whom_another_one_was_told_to_forget(
    registry: RegistryServer, other: RegistryServer
) -> None:
    lost = Replica(registry, "127.0.0.1:9", 0, "lost", other)
    living = Replica(registry, "127.0.0.1:1", 0, "b", other)
    async with asyncio.timeout(40):
        while registry.tables.broker_count + other.tables.broker_count < 4:
            await asyncio.sleep(0.01)
    await lost.registration.close()
    registry.tables.lost("lost", 0.0)
    registry.tables.forget("lost", 1_000)
    async with asyncio.timeout(40):
        while other.tables.order.forgotten.get("lost") is None:
            await asyncio.sleep(0.01)
    await living.registration.close()


async def test_a_broker_that_was_given_up_leaves_every_registry_and_says_why(
    registry: RegistryServer, other: RegistryServer
) -> None:
    registry.tables.forget("b", 1_000)
    old = Replica(registry, "127.0.0.1:1", 0, "b", other)
    async with asyncio.timeout(40):
        while not old.registration.refusal or other.tables.broker_count:
            await asyncio.sleep(0.01)
    is_ready, why = old.registration.state()
    assert not is_ready
    assert "start it with an empty directory" in why
    await old.registration.close()
    new = Replica(registry, "127.0.0.1:1", 0, "b", other)
    new.made_ms = 2_000
    async with asyncio.timeout(40):
        while registry.tables.broker_count + other.tables.broker_count < 2:
            await asyncio.sleep(0.01)
    await new.registration.close()
