from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from broker_stack import Stack

from broker.gateways import requests
from holdmq.errors import BusyError, Code, RemoteError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Request
from holdmq.wire.client_headers import (
    ClientKickRequest,
    ClientKickResponse,
    ClientListRequest,
    ClientListResponse,
    ClientRow,
    ClientSelection,
)
from holdmq.wire.codes import RequestCode

QUESTIONS = (RequestCode.CLIENT_LIST, RequestCode.CLIENT_KICK, RequestCode.CLIENT_BUSIEST)
ANYBODY = list(ClientSelection("m"))
Connect = Callable[..., Awaitable["Worker"]]


class Worker:
    """A gateway worker with these clients; `is_deaf`: it answers nothing."""

    def __init__(self, port: int, name: str, client_ids: list[str]) -> None:
        self.name = name
        self.client_ids = client_ids
        self.is_deaf = False
        self.asked: list[int] = []
        self.client = Client(f"127.0.0.1:{port}", "gateway", name, on_request=self._asked)

    def _asked(self, request: Request) -> None:
        if request.command.code not in QUESTIONS:
            return  # what all gateways are told
        self.asked.append(request.command.code)
        if self.is_deaf:
            return
        if request.command.code == RequestCode.CLIENT_KICK:
            request.reply(ClientKickResponse(len(self.client_ids), [f"id-{self.name}"], []))
            return
        header = request.header(ClientListRequest)
        after = header.after[1] if header.after else ""
        left = sorted(name for name in self.client_ids if name > after)
        shown = [
            ClientRow(
                [name, name], name, "", "", 0, "mqtt", 5, 0, True, 0, 1, "g", 0, 0, [], 0, 0, 0, 0, -1, -1
            )
            for name in left[: header.max_count]
        ]
        end = shown[-1].order if len(shown) < len(left) else []
        request.reply(ClientListResponse(shown, len(self.client_ids), end, [f"id-{self.name}"], []))


@pytest.fixture
async def connect(broker: Stack) -> AsyncIterator[Connect]:
    workers: list[Worker] = []

    async def connect(name: str, *client_ids: str) -> Worker:
        worker = Worker(broker.server.rpc.port, name, list(client_ids))
        workers.append(worker)
        await worker.client.connected(10.0)
        return worker

    yield connect
    for worker in workers:
        await worker.client.close()


async def ask(broker: Stack, *, after: list[str] | None = None, besides: list[str] | None = None,
              count: int = 3) -> ClientListResponse:  # fmt: skip
    request = ClientListRequest(ANYBODY, "client_id", after or [], count, 0, besides or [])
    return (await broker.client.call(RequestCode.CLIENT_LIST, request, 20.0)).header(ClientListResponse)


def ids(answer: ClientListResponse) -> list[str]:
    return [row[1] for row in answer.clients]


async def test_the_pages_of_workers_become_one_list(broker: Stack, connect: Connect) -> None:
    for n in range(3):
        await connect(f"w{n}", *(f"m{m}" for m in range(n, 9, 3)))
    answer = await ask(broker)
    assert ids(answer) == ["m0", "m1", "m2"]
    assert answer.total == 9
    assert answer.end == ["m2", "m2"]
    assert sorted(answer.workers) == ["id-w0", "id-w1", "id-w2"]
    second = await ask(broker, after=answer.end)
    third = await ask(broker, after=second.end)
    assert (ids(second), ids(third), third.end) == (["m3", "m4", "m5"], ["m6", "m7", "m8"], [])


async def test_who_has_answered_elsewhere_is_not_asked_again(broker: Stack, connect: Connect) -> None:
    first, second = await connect("w0", "m1"), await connect("w1", "m2")
    await ask(broker)
    answer = await ask(broker, besides=["id-w0"])
    assert ids(answer) == ["m2"]
    assert (len(first.asked), len(second.asked)) == (1, 2)


async def test_a_worker_that_does_not_answer_is_named_and_the_others_are_answered_for(
    broker: Stack, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "ANSWER_S", 0.2)
    await connect("w0", "m1")
    deaf = await connect("w1", "m2")
    deaf.is_deaf = True
    answer = await ask(broker)
    assert (ids(answer), answer.silent) == (["m1"], ["w1"])
    assert broker.server.numbers()["gateway_questions_unanswered_total"] == 1
    kicked = await broker.client.call(RequestCode.CLIENT_KICK, ClientKickRequest(ANYBODY), 20.0)
    assert kicked.header(ClientKickResponse) == ClientKickResponse(1, ["id-w0"], ["w1"])


async def test_questions_in_hand_are_bounded(
    broker: Stack, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "ASKING_MAX", 1)
    deaf = await connect("w0", "m1")
    deaf.is_deaf = True
    waiting = asyncio.create_task(ask(broker))
    while not deaf.asked:
        await asyncio.sleep(0.01)
    with pytest.raises(BusyError, match="1 questions to gateways"):
        await ask(broker)
    await deaf.client.close()
    assert (await waiting).silent == ["w0"]
    assert broker.server.numbers()["gateway_questions"] == 0


async def test_a_selection_that_cannot_be_is_refused_before_anybody_is_asked(
    broker: Stack, connect: Connect
) -> None:
    worker = await connect("w0", "m1")
    for wrong in (["", "", "", "300.0.0.1"], ["*" * 17]):
        with pytest.raises(RemoteError) as refused:
            await broker.client.call(RequestCode.CLIENT_KICK, ClientKickRequest(wrong), 20.0)
        assert refused.value.code == Code.LIMIT_EXCEEDED
    assert worker.asked == []
