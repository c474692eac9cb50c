from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.joining.cluster import ClusterInquiry
from holdmq.wire.headers import BrokerRow, TopicRow
from holdmq.wire.session_headers import SESSION_TOPIC
from registry.core.tables import KeptHere
from registry.server import RegistryServer


@pytest.fixture
async def both() -> AsyncIterator[list[RegistryServer]]:
    """Two registries that know the keepers a and b, of which b has gone."""
    servers = [RegistryServer("test"), RegistryServer("test")]
    for server in servers:
        await server.listen("127.0.0.1", 0)
        row = TopicRow(SESSION_TOPIC, 4, 4, 6, "table", 1, True)
        for name in "ab":
            server.tables.register(BrokerRow("test", name, 0, f"{name}:1"), [row], name, 0.0, KeptHere(100))
        server.tables.connection_closed("b")
    yield servers
    for server in servers:
        await server.close()


async def keepers(servers: list[RegistryServer], name: str) -> set[str]:
    registries = [f"127.0.0.1:{server.rpc.port}" for server in servers]
    found = await ClusterInquiry(registries, "test", name, None).look(40.0)
    assert found is not None
    return set(found.keepers)


async def test_a_keeper_that_was_given_up_is_none_whatever_a_registry_says_that_was_away(
    both: list[RegistryServer],
) -> None:
    assert await keepers(both, "b") == {"a", "b"}, "absent, it keeps its keys"
    both[0].tables.forget("b", 1_000)
    assert await keepers(both, "b") == {"a"}, "one that begins anew under its name takes none over"
    row = TopicRow("t", 4, 4, 6, "log", 1, False)
    both[0].tables.register(BrokerRow("test", "b", 0, "b:2"), [row], "b", 0.0, KeptHere(2_000))
    assert await keepers(both, "b") == {"a"}, "after its next start, too"
