"""Registries that are asked: what one call leaves open, another one or the end closes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdmq.client import registries as module
from holdmq.client.registries import Registries, of_cluster
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import BrokerRow, Empty, RouteRow


async def test_a_call_that_is_cancelled_while_it_closes_what_it_tried_leaves_no_connection(
    registries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Client] = []
    closing = asyncio.Event()

    class SlowToClose(Client):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            made.append(self)

        async def close(self) -> None:
            closing.set()
            await asyncio.sleep(0.05)
            await super().close()

    monkeypatch.setattr(module, "Client", SlowToClose)
    asked = Registries(registries, "client", "me", "test")
    calls = [asyncio.create_task(asked.call(RequestCode.CLUSTER_GET, Empty())) for _ in range(2)]
    # The first answer's connection is kept; the other call closes its own, and is cancelled meanwhile.
    await closing.wait()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await asked.close()
    assert [client.connection for client in made] == [None, None]


def test_an_answer_of_all_clusters_is_cut_to_the_one_that_is_wanted() -> None:
    """As a registry gives it that does not know the word."""
    brokers = [BrokerRow("plant", "a", 0, "h:1"), BrokerRow("office", "b", 0, "h:2")]
    routes = [RouteRow("t", name, 4, 4, 6, "log", 1) for name in ("a", "b", "absent")]
    assert of_cluster("", routes, brokers) == (routes, brokers)
    assert of_cluster("plant", routes, brokers) == ([routes[0], routes[2]], [brokers[0]])
    assert of_cluster("none", routes, brokers) == ([routes[2]], [])
