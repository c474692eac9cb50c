from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdmq.client.lost_brokers import LostBrokers, broker_loss
from holdmq.errors import TransportError
from holdmq.wire.forget_headers import BrokerForgetResponse, LostTopicRow
from holdmq.wire.headers import BrokerRow, TopicRow
from registry.core.tables import KeptHere
from registry.server import RegistryServer


@pytest.fixture
async def both() -> AsyncIterator[list[RegistryServer]]:
    """Two registries that knew broker b, which has gone."""
    servers = [RegistryServer("test"), RegistryServer("test")]
    for server in servers:
        await server.listen("127.0.0.1", 0)
        row = TopicRow("t", 4, 4, 6, "log", 1, True)
        server.tables.register(BrokerRow("test", "b", 0, "h:1"), [row], "b", 0.0, KeptHere(100, 7, 2))
        server.tables.connection_closed("b")
    yield servers
    for server in servers:
        await server.close()


def addresses(servers: list[RegistryServer]) -> list[str]:
    return [f"127.0.0.1:{server.rpc.port}" for server in servers]


async def test_all_registries_forget_a_broker_as_of_one_time(both: list[RegistryServer]) -> None:
    async with LostBrokers(addresses(both)) as lost:
        seen = await lost.look("b")
        assert (seen.sessions, seen.retained, seen.forgotten_ms, seen.told) == (7, 2, 0, [])
        assert seen.topics == [LostTopicRow("t", 4, True, 0)]
        done = await lost.forget("b")
        assert (done.told, done.refused, done.silent) == (addresses(both), {}, {})
        assert (done.sessions, done.topics) == (7, seen.topics), "what was lost is told once more"
        again = await lost.forget("b")
    rows = [server.tables.order.forgotten.get("b") for server in both]
    assert rows[0] == rows[1] is not None
    assert again.forgotten_ms == done.forgotten_ms


async def test_one_that_was_away_is_named_and_hears_the_same_time_later(both: list[RegistryServer]) -> None:
    async with LostBrokers(addresses(both[:1])) as lost:
        first = await lost.forget("b")
    async with LostBrokers(addresses(both)) as lost:
        assert (await lost.look("b")).told == addresses(both[:1])
        assert (await lost.forget("b")).told == addresses(both)
    row = both[1].tables.order.forgotten.get("b")
    assert row is not None
    assert row.forgotten_ms == first.forgotten_ms


async def test_no_registry_is_told_while_the_broker_is_registered_at_one(both: list[RegistryServer]) -> None:
    both[1].tables.register(BrokerRow("test", "b", 0, "h:1"), [], "b", 0.0, KeptHere(100))
    async with LostBrokers(addresses(both)) as lost:
        found = await lost.forget("b")
        assert list(found.refused) == addresses(both[1:])
        assert "it lives" in found.refused[addresses(both)[1]]
        assert not (await lost.look("never")).is_known
    assert len(both[0].tables.order.forgotten) == 0


def test_the_registry_that_heard_of_it_last_knows_its_numbers() -> None:
    early = BrokerForgetResponse("b", True, 0, "c", 9_000, 1, 1)
    late = BrokerForgetResponse("b", True, 0, "c", 10, 5, 6, 1, 4, [LostTopicRow("t", 4, True, 0)])
    anew = BrokerForgetResponse("b", True, 0)
    found = broker_loss("b", {"x": early, "y": late, "z": anew, "away": TransportError("no")})
    assert (found.sessions, found.retained, found.silent_ms, found.topics_total) == (5, 6, 10, 1)
    assert (found.answering, found.silent) == (["x", "y", "z"], {"away": "no"})
    assert broker_loss("b", {"z": anew}).sessions is None
