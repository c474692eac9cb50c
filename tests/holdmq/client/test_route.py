from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from processes import free_port

from holdmq.client import RouteTable, TopicQueue
from holdmq.client import route as module
from holdmq.errors import RemoteError, TransportError, UsageError
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import ForgottenRow
from holdmq.wire.headers import BrokerRow, RouteRow, TopicRow
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


async def test_changes_are_told_by_topic(registries: list[str], broker: Any) -> None:
    routes = RouteTable(registries, "me")
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
    await routes.close()


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
        await routes.ensure_topic("t", timeout_s=2.0)
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
    routes.reroute_s = 3600.0
    await gone.stop()
    await until(lambda: "c" not in routes.brokers() or routes.refresh_soon())
    route = routes.get("t")
    assert route is not None
    assert len(route.read_queues) == 3
    # The while is over.
    routes.reroute_s = 0.0
    routes._forget_absent()
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
    registries: list[str], registry: RegistryServer, broker: Any
) -> None:
    await broker.add_topic("t")
    table = RouteTable([f"127.0.0.1:{free_port()}", *registries], "me")
    assert await table.topic("t") is not None
    await registry.close()
    with pytest.raises(TransportError, match=r"no registry answers: .*; "):
        await table.refresh()
    assert table.get("t") is not None
    table.link("broker-0")
    assert len((await table.ensure_topic("fresh")).write_queues) == 2
    await table.close()


@pytest.fixture
async def holding(registries: list[str]) -> AsyncIterator[RouteTable]:
    """Never asks by itself within a test, but for what a registry holds."""
    table = RouteTable(registries, "me", refresh_s=3600)
    table.start()
    yield table
    await table.close()


async def test_a_change_is_known_at_once_through_a_held_request(
    holding: RouteTable, registry: RegistryServer, broker: Any, until: Any
) -> None:
    holding.follow(["t"])
    await until(lambda: len(registry.holds) == 1)
    await broker.add_topic("t", 1)
    await until(lambda: holding.get("t"))
    await until(lambda: len(registry.holds) == 1)
    await broker.add_topic("t", 3)
    await until(lambda: len(holding.get("t").read_queues) == 3)  # type: ignore[union-attr]
    await until(lambda: len(registry.holds) == 1)
    await broker.add_topic("foreign", 1)
    await asyncio.sleep(0)
    assert len(registry.holds) == 1


async def test_a_topic_that_is_followed_later_is_part_of_the_held_request(
    holding: RouteTable, registry: RegistryServer, broker: Any, until: Any
) -> None:
    await until(lambda: len(registry.holds) == 1)
    holding.follow(["late"])
    await until(lambda: any(h.topics == ("late",) for h in registry.holds._by_connection.values()))
    await broker.add_topic("late", 1)
    await until(lambda: holding.get("late"))


async def test_a_registry_that_cannot_hold_is_asked_at_intervals(
    registries: list[str], registry: RegistryServer, broker: Any, until: Any
) -> None:
    registry.holds._held_max = 0
    table = RouteTable(registries, "me", refresh_s=0.3)
    asked = 0
    answer = registry._answer_routes

    def counted(*args: Any) -> None:
        nonlocal asked
        asked += 1
        answer(*args)

    registry._answer_routes = counted  # type: ignore[method-assign]
    table.follow(["t"])
    table.start()
    await until(lambda: table.version >= 0)
    await asyncio.sleep(1)
    assert asked <= 5
    await broker.add_topic("t")
    await until(lambda: table.get("t"))
    await table.close()


async def test_a_registry_that_comes_back_empty_takes_nothing_away(
    registries: list[str], registry: RegistryServer, broker: Any, until: Any
) -> None:
    await broker.add_topic("t")
    table = RouteTable(registries, "me", refresh_s=3600)
    table.start()
    assert await table.topic("t") is not None
    link = table.link("broker-0")
    await until(lambda: link.is_up)
    await registry.close()
    again = RegistryServer("test")
    await again.listen("127.0.0.1", int(registries[0].rpartition(":")[2]))
    await until(lambda: not table.brokers())
    assert table.get("t") is not None
    assert len((await table.ensure_topic("fresh")).write_queues) == 2
    await broker.register()
    await until(table.brokers)
    await table.close()
    await again.close()


async def test_pages_that_change_meanwhile_are_asked_for_anew(
    registries: list[str], registry: RegistryServer, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await broker.add_topic(name)
    monkeypatch.setattr(registry.tables, "routes", partial(registry.tables.routes, max_bytes=1))
    answer = registry._answer_routes
    churn = 2

    def changing(request: Any, header: Any) -> None:
        nonlocal churn
        answer(request, header)
        if header.after == "a" and churn:
            churn -= 1
            registry.tables.changes.note(["a"], False)

    monkeypatch.setattr(registry, "_answer_routes", changing)
    table = RouteTable(registries, "me", follow_all=True)
    await table.refresh()
    assert sorted(route.topic for route in table.all()) == ["a", "b", "c"]
    assert (churn, table.version) == (0, registry.tables.version)
    churn = 100
    await table.refresh()
    assert sorted(route.topic for route in table.all()) == ["a", "b", "c"]
    assert table.version < registry.tables.version
    await table.close()


async def test_queues_of_an_ordered_topic_stay_however_long_their_broker_is_away(
    routes: RouteTable, make_broker: Any, until: Any
) -> None:
    one, two = await make_broker("a"), await make_broker("b")
    for each in (one, two):
        each.topics["t"] = TopicRow("t", 2, 2, 6, "log", 1, True)
        await each.register()
    route = await routes.topic("t")
    assert route is not None
    assert route.order
    await two.stop()
    await until(lambda: len(routes.get("t").read_queues) == 2)  # type: ignore[union-attr]
    assert routes.get("t").write_queues == route.write_queues  # type: ignore[union-attr]
    fresh = RouteTable(routes._registries._addresses, "late")
    late = await fresh.topic("t")
    assert late is not None
    assert late.write_queues == route.write_queues
    await fresh.close()


async def test_queues_of_a_broker_that_was_given_up_go_at_once_and_do_not_come_back(
    routes: RouteTable, make_broker: Any, until: Any, registry: Any
) -> None:
    one, two = await make_broker("a"), await make_broker("b")
    for each in (one, two):
        each.topics["t"] = TopicRow("t", 2, 2, 6, "log", 1, True)
        await each.register()
    await routes.topic("t")
    routes.link("b")
    await two.stop()
    await until(lambda: "b" not in routes.brokers())
    registry.tables.forget("b", 1_000)
    registry._changed()
    await until(lambda: routes.is_given_up("b"))
    route = routes.get("t")
    assert route is not None
    assert {queue.broker for queue in route.write_queues} == {"a"}
    assert "b" not in routes._links
    # A registry that was away meanwhile has its rows still.
    rows = [RouteRow("t", name, 2, 2, 6, "log", 1, True) for name in "ab"]
    routes._apply(rows, [BrokerRow("test", "a", 0, routes.brokers()["a"])], 7)
    assert {queue.broker for queue in routes.get("t").write_queues} == {"a"}  # type: ignore[union-attr]
    routes._apply(rows, [], 8, [ForgottenRow("b", 1_000, True)])
    assert not routes.is_given_up("b")


async def test_a_silent_broker_does_not_delay_a_topic_that_another_one_has(
    routes: RouteTable, make_broker: Any
) -> None:
    one, two = await make_broker("a"), await make_broker("b")
    one.rpc._routes[RequestCode.TOPIC_CREATE] = lambda request: None
    route = await routes.ensure_topic("fresh", timeout_s=3600)
    assert {queue.broker for queue in route.write_queues} == {"b"}
    assert "fresh" in two.topics


async def test_a_topic_waits_for_the_first_broker_to_register(routes: RouteTable, make_broker: Any) -> None:
    creating = asyncio.ensure_future(routes.ensure_topic("t", timeout_s=30.0))
    await routes.refresh()
    assert not creating.done()
    await make_broker("a")
    assert len((await creating).write_queues) == 2
