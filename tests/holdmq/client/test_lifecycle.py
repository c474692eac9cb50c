from __future__ import annotations

import asyncio

import pytest

from holdmq.client import Consumer, Message, Producer, RouteTable
from holdmq.client.lifecycle import RoutedClient
from holdmq.errors import TransportError, UsageError

NOWHERE = ["127.0.0.1:1"]


class _CannotFinish(RoutedClient):
    async def _finish(self, timeout_s: float | None) -> None:
        raise TransportError("the last words did not arrive")


async def test_a_client_that_cannot_finish_leaves_no_connection_behind() -> None:
    client = _CannotFinish(NOWHERE, "c", None, None, "", "")
    client.routes.start()
    assert "routes" in _names_of_tasks()

    with pytest.raises(TransportError, match="last words"):
        await client.close()
    assert "routes" not in _names_of_tasks()


async def test_routes_of_another_cluster_are_not_shared() -> None:
    routes = RouteTable(NOWHERE, "c", cluster="plant")
    for cluster in ("", "plant"):
        assert Producer(routes=routes, cluster=cluster).routes.cluster_name == "plant"
    with pytest.raises(UsageError, match="of the cluster 'plant', not 'office'"):
        Producer(routes=routes, cluster="office")
    with pytest.raises(UsageError, match="cluster name 'a b' must be"):
        Producer(NOWHERE, cluster="a b")
    await routes.close()


async def test_a_consumer_without_topics_may_still_be_given_one() -> None:
    async def handle(message: Message) -> None:
        raise AssertionError(message)

    consumer = Consumer(NOWHERE, "g", handle)
    with pytest.raises(UsageError, match="needs a topic"):
        await consumer.start()

    consumer.subscribe("t")
    with pytest.raises(TransportError):
        await consumer.start(timeout_s=0.1)


def _names_of_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}
