from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdmq.client import RouteTable, TopicQueue
from holdmq.client import route as module
from holdmq.errors import RemoteError, TransportError, UsageError
from registry.server import RegistryServer


@pytest.fixture
async def routes(registries: list[str]) -> AsyncIterator[RouteTable]:
    table = RouteTable(registries, "me", reroute_s=0.3)
    table.start()
    yield table
    await table.close()


async def test_a_route_names_every_queue_of_every_broker(routes: RouteTable, make_broker: Any) -> None:
    for name in ("b", "a"):
        await (await make_broker(name)).add_topic("t", 2, key_levels=2)
    route = await routes.topic("t")
    assert route is not None
    assert route.read_queues == tuple(TopicQueue("t", b, i) for b in "ab" for i in range(2))
    assert route.key_levels == 2
    assert routes.get("t") is route
    assert set(routes.brokers()) == {"a", "b"}
    assert await routes.topic("none") is None


async def test_perm_decides_what_may_be_written_and_read(routes: RouteTable, broker: Any) -> None:
    await broker.add_topic("r", perm=4)
    await broker.add_topic("w", perm=2)
    read_only, write_only = await routes.topic("r"), await routes.topic("w")
    assert read_only is not None
    assert write_only is not None
    assert (len(read_only.read_queues), len(read_only.write_queues)) == (2, 0)
    assert (len(write_only.read_queues), len(write_only.write_queues)) == (0, 2)


async def test_changes_are_told_by_topic(routes: RouteTable, broker: Any) -> None:
    told: list[frozenset[str]] = []
    brokers: list[int] = []
    routes.on_routes.append(told.append)
    routes.on_brokers.append(lambda: brokers.append(1))
    routes.follow(["t", "u"])
    await broker.add_topic("t", 1)
    await routes.refresh()
    await routes.refresh()
    assert told == [frozenset({"t"})]
    await broker.add_topic("u", 1)
    await broker.add_topic("t", 2)
    await routes.refresh()
    assert told[1:] == [frozenset({"t", "u"})]
    assert len(brokers) == 1


async def test_all_topics_are_followed_when_asked(registries: list[str], broker: Any) -> None:
    await broker.add_topic("t")
    table = RouteTable(registries, "me", follow_all=True)
    await table.refresh()
    assert [route.topic for route in table.all()] == ["t"]
    await table.close()


async def test_routes_are_refreshed_by_themselves_and_soon_on_demand(
    registries: list[str], broker: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_MIN_S", 0.01)
    table = RouteTable(registries, "me", refresh_s=0.05)
    table.follow(["t"])
    table.start()
    await broker.add_topic("t")
    await until(lambda: table.get("t"))
    await table.close()
    table = RouteTable(registries, "me", refresh_s=3600)
    table.start()
    await until(lambda: table.version >= 0)
    table.follow(["t"])
    table.refresh_soon()
    await until(lambda: table.get("t"))
    await table.close()


async def test_a_created_topic_has_its_route_before_any_registry_knows_it(
    routes: RouteTable, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def register() -> None:
        return None

    monkeypatch.setattr(broker, "register", register)
    route = await routes.ensure_topic("fresh")
    assert len(route.write_queues) == 2
    await routes.refresh()
    assert routes.get("fresh") == route


async def test_many_who_need_a_topic_create_it_once(routes: RouteTable, broker: Any) -> None:
    created = await asyncio.gather(*(routes.ensure_topic("t") for _ in range(20)))
    assert len(set(created)) == 1
    with pytest.raises(UsageError, match="system topic"):
        await routes.ensure_topic("%SESSION")


async def test_a_topic_that_may_not_be_created_is_refused(routes: RouteTable, broker: Any) -> None:
    broker.auto_create = False
    with pytest.raises(RemoteError, match="TOPIC_UNKNOWN"):
        await routes.ensure_topic("t")


async def test_without_a_broker_the_error_says_so(routes: RouteTable) -> None:
    with pytest.raises(TransportError, match="no broker is registered"):
        await routes.ensure_topic("t")
    with pytest.raises(TransportError, match="'x' is not known"):
        routes.link("x")


async def test_queues_of_an_absent_broker_stay_for_a_while(
    routes: RouteTable, make_broker: Any, until: Any
) -> None:
    for name in "ab":
        await (await make_broker(name)).add_topic("t", 1)
    gone = await make_broker("c")
    await gone.add_topic("t", 1)
    await routes.topic("t")
    await gone.stop()
    await until(lambda: "c" not in routes.brokers() or routes.refresh_soon())
    route = routes.get("t")
    assert route is not None
    assert len(route.read_queues) == 3
    await until(lambda: len(routes.get("t").read_queues) == 2)  # type: ignore[union-attr]
    assert routes.is_resting("c", 0.0)


async def test_a_broker_that_only_the_registry_lost_keeps_its_queues(
    routes: RouteTable, broker: Any, until: Any
) -> None:
    await broker.add_topic("t", 1)
    await routes.topic("t")
    link = routes.link("broker-0")
    await until(lambda: link.is_up)
    await broker._registration.close()
    await until(lambda: not routes.brokers() or routes.refresh_soon())
    await asyncio.sleep(0.5)
    assert routes.get("t") is not None


async def test_a_deleted_topic_is_gone_at_once(routes: RouteTable, broker: Any) -> None:
    await broker.add_topic("t")
    assert await routes.topic("t") is not None
    del broker.topics["t"]
    await broker.register()
    await routes.refresh()
    assert routes.get("t") is None


async def test_any_registry_will_do_and_the_loss_of_all_is_survived(
    registries: list[str], registry: RegistryServer, broker: Any, unused_tcp_port: int
) -> None:
    await broker.add_topic("t")
    table = RouteTable([f"127.0.0.1:{unused_tcp_port}", *registries], "me")
    assert await table.topic("t") is not None
    await registry.close()
    with pytest.raises(TransportError, match=r"no registry answers: .*; "):
        await table.refresh()
    assert table.get("t") is not None
    table.link("broker-0")
    assert len((await table.ensure_topic("fresh")).write_queues) == 2
    await table.close()
