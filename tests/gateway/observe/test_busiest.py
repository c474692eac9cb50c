"""Who of a worker's users and clients carried most: those that are here, and those that left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from session_bench import Bench

from gateway.ground.counters import Counters
from gateway.ground.worker_name import WorkerName
from gateway.observe import busiest as module
from gateway.observe.busiest import BusiestClients
from gateway.session.clients import Clients
from holdmq.errors import BusyError, WireError
from holdmq.mqtt import MQTT_5, Publish
from holdmq.wire.busiest_headers import BusiestClientRow, ClientBusiestRequest, ClientBusiestResponse


class Carrier:
    """A connection of a client whose socket nobody counts."""

    transport = None

    def __init__(self, clients: Clients, client_id: str, user: str, messages: int) -> None:
        bench = Bench(MQTT_5)
        bench.connect(client_id=client_id)
        bench.feed(Publish("a/b", b"", 0))
        self.session = bench.session
        self.session.principal = user
        self.session.connection = self  # type: ignore[assignment]
        assert self.session.inbound is not None
        self.session.inbound.messages = messages
        clients.add(self.session)


class Question:
    """CLIENT_BUSIEST, and what it was answered with."""

    def __init__(self, by: str, sort: str = "messages_in", besides: list[str] | None = None) -> None:
        self._header = ClientBusiestRequest(by, sort, besides or [])
        self.answer: asyncio.Future[list[BusiestClientRow]] = asyncio.get_running_loop().create_future()

    def header(self, _kind: Any) -> ClientBusiestRequest:
        return self._header

    def reply(self, response: ClientBusiestResponse) -> None:
        self.answer.set_result(response.found)


async def ask(busiest: BusiestClients, by: str, **more: Any) -> dict[str, tuple[int, int]]:
    question = Question(by, **more)
    busiest.busiest(question)  # type: ignore[arg-type]
    return {row.name: (row.connections, row.messages_in) for row in await question.answer}


async def test_users_are_added_up_over_connections_that_are_here_and_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SESSIONS_PER_TURN", 1)
    clients = Clients(Counters())
    busiest = BusiestClients(WorkerName("host", 0, "host-0"), clients)
    for client_id, user, messages in (("a", "fleet", 5), ("b", "fleet", 7), ("c", "other", 20)):
        carrier = Carrier(clients, client_id, user, messages)
        if client_id == "b":
            busiest.losing(carrier)
            busiest.ended(carrier)
            clients.remove(carrier.session)
    assert await ask(busiest, "user") == {"other": (1, 20), "fleet": (2, 12)}
    assert await ask(busiest, "client") == {"c": (1, 20), "b": (1, 7), "a": (1, 5)}
    assert await ask(busiest, "client", besides=["host-0"]) == {}


async def test_questions_are_bounded_and_a_wrong_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_PER_TURN", 1)
    clients = Clients(Counters())
    for number in range(3):
        Carrier(clients, f"c{number}", "", number)
    busiest = BusiestClients(WorkerName("host", 0, "host-0"), clients)
    under_way = [Question("user") for _ in range(module.ASKING_MAX)]
    for question in under_way:
        busiest.busiest(question)  # type: ignore[arg-type]
    with pytest.raises(BusyError):
        await ask(busiest, "user")
    await asyncio.gather(*(question.answer for question in under_way))
    assert await ask(busiest, "user") == {"": (3, 3)}
    with pytest.raises(WireError, match="user, client are counted, not 'address'"):
        await ask(busiest, "address")
