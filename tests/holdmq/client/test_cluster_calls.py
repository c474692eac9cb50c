"""What everything that asks brokers shares."""

from __future__ import annotations

from typing import Any

import pytest

from holdmq.client import RouteTable
from holdmq.client.cluster_calls import ClusterCalls, known, read_each
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import RESPONSE, Command
from holdmq.wire.headers import BrokerStatusResponse, Empty

Answers = dict[str, Reply | HoldMQError]

REPLY = Reply(Command(Code.OK, 1, RESPONSE, "", {}), memoryview(b"found"))
UNKNOWN = RemoteError(Code.GROUP_UNKNOWN, "no such group here")
LOST = TransportError("the broker is away")


def over(routes: RouteTable | None, *registries: str) -> ClusterCalls:
    return ClusterCalls("test", registries, "", "console", routes, None, 10.0, "", "")


def test_brokers_that_do_not_know_are_left_out_unless_none_does() -> None:
    some: Answers = {"a": UNKNOWN, "b": REPLY}
    assert known(some, (Code.GROUP_UNKNOWN,)) == {"b": REPLY}
    with pytest.raises(RemoteError, match="no such group"):
        known({"a": UNKNOWN}, (Code.GROUP_UNKNOWN,))


def test_another_error_of_any_broker_is_raised() -> None:
    answers: Answers = {"a": UNKNOWN, "b": REPLY, "c": LOST}
    with pytest.raises(TransportError, match="away"):
        known(answers, (Code.GROUP_UNKNOWN,))
    with pytest.raises(RemoteError, match="no such group"):
        known(answers)


def test_answers_are_read_and_errors_stay_what_they_are() -> None:
    assert read_each({"a": REPLY, "b": LOST}, lambda reply: bytes(reply.body)) == {"a": b"found", "b": LOST}


async def test_every_live_broker_is_asked_over_routes_that_stay_open(
    registries: list[str], broker: Any
) -> None:
    routes = RouteTable(registries, "test")
    try:
        async with over(routes) as calls:
            answers = known(await calls._ask_all(RequestCode.BROKER_STATUS, Empty()))
            assert [r.header(BrokerStatusResponse).name for r in answers.values()] == ["broker-0"]
        await routes.refresh()
        assert routes.link("broker-0").is_up
    finally:
        await routes.close()


async def test_no_broker_is_an_error_and_one_that_is_unknown_is_its_answer(registries: list[str]) -> None:
    async with over(None, *registries) as calls:
        with pytest.raises(TransportError, match="no broker is registered"):
            await calls._ask_all(RequestCode.BROKER_STATUS, Empty())
        calls.timeout_s = 0.1
        answers = await calls._ask_each(RequestCode.BROKER_STATUS, {"nobody": Empty()})
        assert isinstance(answers["nobody"], TransportError)
