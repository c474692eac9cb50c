"""Calls that are made again while it makes sense."""

from __future__ import annotations

from typing import Any

import pytest

from holdmq.client import RouteTable
from holdmq.client.calls import call_until
from holdmq.errors import BusyError, Code, RemoteError, RequestTimeout, TransportError
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header
from holdmq.wire.headers import BrokerStatusResponse, Empty


@pytest.fixture
async def routes(registries: list[str], broker: Any) -> Any:
    made = RouteTable(registries, "test")
    made.start()
    await made.refresh()
    yield made
    await made.close()


def answering_with(broker: Any, *errors: Exception | None) -> list[int]:
    """Let the broker refuse BROKER_STATUS with these errors (None: lose the connection), then answer."""
    left = list(errors)
    asked: list[int] = []
    status = broker.rpc._routes[RequestCode.BROKER_STATUS]

    def handle(request: Request) -> None:
        asked.append(len(left))
        if not left:
            status(request)
            return
        error = left.pop(0)
        if error is None:
            request.connection.close()
        else:
            raise error

    broker.rpc._routes[RequestCode.BROKER_STATUS] = handle
    return asked


async def ask(routes: RouteTable, timeout_s: float = 20.0) -> tuple[Any, list[bool]]:
    repeats: list[bool] = []

    def header(is_repeat: bool) -> tuple[str, Header]:
        repeats.append(is_repeat)
        return "broker-0", Empty()

    reply = await call_until(routes, timeout_s, RequestCode.BROKER_STATUS, header)
    return reply.header(BrokerStatusResponse), repeats


async def test_what_may_pass_is_tried_again_and_a_lost_connection_makes_a_repeat(
    routes: RouteTable, broker: Any
) -> None:
    answering_with(broker, BusyError("later", 1), RemoteError(Code.STORE_FULL, "full"), None)
    status, repeats = await ask(routes)
    assert status.name == broker.name
    assert repeats[:4] == [False, False, False, True], "only who heard nothing cannot know"


async def test_what_is_final_is_raised_at_once(routes: RouteTable, broker: Any) -> None:
    asked = answering_with(broker, RemoteError(Code.KIND_UNFIT, "no table"))
    with pytest.raises(RemoteError, match="no table"):
        await ask(routes)
    assert len(asked) == 1


async def test_the_last_reason_is_raised_when_the_time_is_over(routes: RouteTable, broker: Any) -> None:
    # Its next attempt would begin behind the deadline. One that began just before it would hear nothing.
    asked = answering_with(broker, BusyError("a moment", 1), BusyError("the disk", 600_000))
    with pytest.raises(BusyError, match="the disk"):
        await ask(routes)
    assert len(asked) == 2
    await broker.stop()
    with pytest.raises(TransportError):
        await ask(routes, 0.2)


async def test_silence_until_the_deadline_is_a_timeout(routes: RouteTable, broker: Any) -> None:
    broker.rpc._routes[RequestCode.BROKER_STATUS] = lambda request: None
    with pytest.raises(RequestTimeout, match=r"within 2\.0 s"):
        await ask(routes, 2.0)


async def test_a_broker_that_nobody_knows_is_waited_for(routes: RouteTable) -> None:
    with pytest.raises(TransportError, match="'nobody' is not known"):
        await call_until(routes, 0.2, RequestCode.BROKER_STATUS, lambda _: ("nobody", Empty()))
