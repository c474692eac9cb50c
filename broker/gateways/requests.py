"""What is asked of gateways: sent on to the gateway workers here, their answers put together.

Each worker gives the first rows of its own, so that what is in memory here is a page of each of a few
workers. A worker that does not answer in time is named, and the others are answered for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from broker.kernel.request_family import RequestFamily
from holdmq.errors import BusyError, HoldMQError
from holdmq.rpc.connection import Connection, Reply, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.ban_headers import LIST_MAX, FlappingListRequest, FlappingListResponse, FlappingRow
from holdmq.wire.busiest_headers import (
    BusiestClientRow,
    ClientBusiestRequest,
    ClientBusiestResponse,
    check_busiest,
    merged_busiest,
)
from holdmq.wire.client_headers import (
    ROWS_MAX,
    ClientKickRequest,
    ClientKickResponse,
    ClientListRequest,
    ClientListResponse,
)
from holdmq.wire.client_places import ClientsPart, check_place, merged, part_of, selection_of, sorted_by
from holdmq.wire.codes import RequestCode
from holdmq.wire.config_headers import (
    GatewayReloadRequest,
    GatewayReloadResponse,
    ReloadedRow,
    merged_reloads,
)
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import HelloRequest

ANSWER_S: Final = 3.0
"""How long a worker has: a search takes it some hundredths of a second."""
AT_A_TIME: Final = 32
"""Workers asked at a time by one request: their answers, of 1 MiB at most, are in memory together."""
ASKING_MAX: Final = 16
"""Requests that wait for workers; past it BUSY."""
WORKER_ID_MAX: Final = 200


class GatewayRequests(RequestFamily):
    """Asks the workers among `connections`, all connections of the broker with what they said in HELLO."""

    def __init__(self, connections: Mapping[Connection, HelloRequest | None]) -> None:
        self.asked = 0
        self.silent = 0
        self.refused = 0
        self.asking = 0
        self._connections = connections
        self._ids: dict[Connection, str] = {}
        """Workers by what they last called themselves: who has answered elsewhere is not asked again."""

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.CLIENT_LIST: self.list_,
            RequestCode.CLIENT_KICK: self.kick,
            RequestCode.FLAPPING_LIST: self.flapping,
            RequestCode.CLIENT_BUSIEST: self.busiest,
            RequestCode.GATEWAY_RELOAD: self.reload,
        }

    def closed(self, connection: Connection) -> None:
        self._ids.pop(connection, None)

    def numbers(self) -> Mapping[str, int | float]:
        return {
            "gateway_questions": self.asking,
            "gateway_questions_total": self.asked,
            "gateway_questions_refused_total": self.refused,
            "gateway_questions_unanswered_total": self.silent,
        }

    def list_(self, request: Request) -> None:
        """Answer CLIENT_LIST with a page of the clients of all workers here."""
        header = request.header(ClientListRequest)
        selection_of(header.wanted)
        sort = sorted_by(header.sort)
        check_place(header.after, sort)
        count = max(1, min(header.max_count, ROWS_MAX))
        found = ClientsPart([], 0, None)

        def took(reply: Reply) -> list[str]:
            nonlocal found
            answer = reply.header(ClientListResponse)
            found = merged((found, part_of(answer, sort)), sort, count)
            return answer.workers

        def done(workers: list[str], silent: list[str]) -> None:
            end = [] if found.end is None else list(found.end)
            request.reply(ClientListResponse(found.clients, found.total, end, workers, silent))

        self._ask(request, header, header.besides, took, done)

    def kick(self, request: Request) -> None:
        """Answer CLIENT_KICK when all workers here know whom to disconnect."""
        header = request.header(ClientKickRequest)
        selection_of(header.wanted)
        kicked = 0

        def took(reply: Reply) -> list[str]:
            nonlocal kicked
            answer = reply.header(ClientKickResponse)
            kicked += answer.kicked
            return answer.workers

        def done(workers: list[str], silent: list[str]) -> None:
            request.reply(ClientKickResponse(kicked, workers, silent))

        self._ask(request, header, header.besides, took, done)

    def flapping(self, request: Request) -> None:
        """Answer FLAPPING_LIST: all workers of a gateway have the same bans, which are told once."""
        header = request.header(FlappingListRequest)
        count = max(1, min(header.max_count, LIST_MAX))
        found: dict[tuple[str, str, str], FlappingRow] = {}

        def took(reply: Reply) -> list[str]:
            answer = reply.header(FlappingListResponse)
            for row in rows(FlappingRow, answer.bans):
                if len(found) < count:
                    found[row.gateway, row.principal, row.address] = row
            return answer.workers

        def done(workers: list[str], silent: list[str]) -> None:
            request.reply(FlappingListResponse(list(found.values()), workers, silent))

        self._ask(request, header, header.besides, took, done)

    def busiest(self, request: Request) -> None:
        """Answer CLIENT_BUSIEST with what the workers here count, added up by names."""
        header = request.header(ClientBusiestRequest)
        check_busiest(header.by, header.sort)
        found: list[BusiestClientRow] = []

        def took(reply: Reply) -> list[str]:
            nonlocal found
            answer = reply.header(ClientBusiestResponse)
            found = merged_busiest([*found, *rows(BusiestClientRow, answer.found)], header.sort)
            return answer.workers

        def done(workers: list[str], silent: list[str]) -> None:
            request.reply(ClientBusiestResponse(found, workers, silent))

        self._ask(request, header, header.besides, took, done)

    def reload(self, request: Request) -> None:
        """Answer GATEWAY_RELOAD with what came of it at each gateway that is meant."""
        header = request.header(GatewayReloadRequest)
        found: list[ReloadedRow] = []

        def took(reply: Reply) -> list[str]:
            nonlocal found
            answer = reply.header(GatewayReloadResponse)
            found = merged_reloads([*found, *rows(ReloadedRow, answer.reloaded)])
            return answer.workers

        def done(workers: list[str], silent: list[str]) -> None:
            request.reply(GatewayReloadResponse(found, workers, silent))

        self._ask(request, header, header.besides, took, done)

    def _ask(
        self,
        request: Request,
        header: Header,
        besides: list[str],
        took: Callable[[Reply], list[str]],
        done: Callable[[list[str], list[str]], None],
    ) -> None:
        """Send a request on; `took` gets each answer and returns who gave it, `done` all those and the
        silent ones."""
        if self.asking >= ASKING_MAX:
            self.refused += 1
            raise BusyError(f"{ASKING_MAX} questions to gateways wait for their answers", 500)
        left_out = set(besides)
        waiting = deque(
            (connection, hello.client_id)
            for connection, hello in self._connections.items()
            if hello is not None and hello.role == "gateway" and self._ids.get(connection) not in left_out
        )
        self.asking += 1

        def told(connection: Connection, result: Reply | HoldMQError) -> list[str]:
            try:
                if isinstance(result, HoldMQError):
                    raise result
                named = [worker[:WORKER_ID_MAX] for worker in took(result)]
            except HoldMQError:
                self.silent += 1
                raise
            if named and connection in self._connections:
                self._ids[connection] = named[0]
            return named

        def over(workers: list[str], silent: list[str]) -> None:
            self.asking -= 1
            done(workers, silent)

        question = _Question(RequestCode(request.command.code), header, waiting, told, over)
        self.asked += len(waiting)
        question.go_on()


class _Question:
    """One request on its way through the workers that `waiting` has, with their names."""

    __slots__ = ("_code", "_header", "_is_over", "_over", "_silent", "_told", "_under_way", "_waiting",
                 "_workers")  # fmt: skip

    def __init__(
        self,
        code: RequestCode,
        header: Header,
        waiting: deque[tuple[Connection, str]],
        told: Callable[[Connection, Reply | HoldMQError], list[str]],
        over: Callable[[list[str], list[str]], None],
    ) -> None:
        self._code = code
        self._header = header
        self._waiting = waiting
        self._told = told
        self._over = over
        self._under_way = 0
        self._is_over = False
        self._workers: list[str] = []
        self._silent: list[str] = []

    def go_on(self) -> None:
        """Ask as many as may be asked at a time; behind the last answer it is over."""
        while self._waiting and self._under_way < AT_A_TIME:
            self._under_way += 1
            self._send(*self._waiting.popleft())
        if not self._waiting and not self._under_way and not self._is_over:
            self._is_over = True
            self._over(self._workers, self._silent)

    def _send(self, connection: Connection, name: str) -> None:
        def answered(result: Reply | HoldMQError) -> None:
            self._under_way -= 1
            try:
                self._workers += self._told(connection, result)
            except HoldMQError:
                self._silent.append(name)
            self.go_on()

        connection.request(self._code, self._header, answered, ANSWER_S)
