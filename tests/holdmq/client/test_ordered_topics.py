from __future__ import annotations

from typing import Any

import pytest
from processes import free_port

from holdmq.client import OrderedTopics
from holdmq.errors import RemoteError, TransportError, UsageError
from registry.server import RegistryServer


async def test_every_registry_is_told_and_any_of_them_is_asked(registries: list[str], registry: Any) -> None:
    other = RegistryServer("test")
    await other.listen("127.0.0.1", 0)
    async with OrderedTopics([*registries, f"127.0.0.1:{other.rpc.port}"]) as ordered:
        await ordered.set("t", {"a": 2})
        await ordered.set("u", {"b": 1})
        for each in (registry, other):
            assert dict(each.tables.order.get("t")) == {"a": 2}
        assert await ordered.get(["t", "none"]) == {"t": {"a": 2}}
    async with OrderedTopics([f"127.0.0.1:{other.rpc.port}"]) as ordered:
        await ordered.set("t", {})
        assert await ordered.get() == {"u": {"b": 1}}
    await other.close()


async def test_a_refusal_and_silence_are_told(
    registries: list[str], broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdmq.client.ordered_topics.CALL_TIMEOUT_S", 2.0)
    absent = f"127.0.0.1:{free_port()}"
    await broker.add_topic("t")
    async with OrderedTopics([*registries, absent]) as ordered:
        with pytest.raises(RemoteError, match="has no topic 'u'"):
            await ordered.set("u", {"broker-0": 2})
        with pytest.raises(TransportError):
            await ordered.set("t", {"broker-0": 2})
        assert await ordered.get() == {"t": {"broker-0": 2}}
    async with OrderedTopics([absent]) as ordered:
        with pytest.raises(TransportError, match="no registry answers"):
            await ordered.get()
    with pytest.raises(UsageError):
        OrderedTopics("127.0.0.1:1")
