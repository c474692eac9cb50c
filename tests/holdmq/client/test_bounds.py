"""Bounds of queues, asked of brokers that are away for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdmq.client import RouteTable
from holdmq.client.bounds import Bounds, queue_bounds
from holdmq.errors import Code, RemoteError
from holdmq.message import TopicQueue
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode


@pytest.fixture
async def routes(registries: list[str], broker: Any) -> Any:
    made = RouteTable(registries, "test")
    made.start()
    await made.refresh()
    yield made
    await made.close()


@pytest.mark.parametrize("is_refused", [True, False])
async def test_who_asks_while_a_leader_changes_waits_for_the_next_one(
    routes: RouteTable, broker: Any, is_refused: bool
) -> None:
    answer = broker.rpc._routes[RequestCode.QUEUE_BOUNDS]
    asked: list[Request] = []

    def handle(request: Request) -> None:
        asked.append(request)
        if len(asked) > 2:
            answer(request)
        elif is_refused:
            raise RemoteError(Code.NOT_LEADER, "another replica leads")
        else:
            request.connection.close()

    broker.rpc._routes[RequestCode.QUEUE_BOUNDS] = handle
    await broker.add_topic("t", queues=1)
    queue = TopicQueue("t", "broker-0", 0)
    async with asyncio.timeout(20):
        found = await queue_bounds(routes, [queue], 15.0)
    assert found == {queue: Bounds(1, 0, 0)}
    assert len(asked) == 3
