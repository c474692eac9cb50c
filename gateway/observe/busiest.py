"""CLIENT_BUSIEST at a worker: which users and clients sent and got most, since it was started.

What connections carry is in their sessions and in the kernel already: nothing is counted for this, and an
idle client costs nothing. Who asks has the sessions looked through, a slice in each turn of the loop; what
those that have left carried is in two sketches.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final, Protocol, cast

from gateway.ground.worker_name import WorkerName
from gateway.observe.core.client_search import messages_of
from gateway.observe.core.heavy_hitters import HeavyHitters, Traffic
from gateway.observe.traffic import UNKNOWN, CountedSocket, traffic_of
from gateway.session.clients import Clients
from gateway.session.session import Session
from holdmq.errors import BusyError
from holdmq.rpc.connection import Request
from holdmq.wire.busiest_headers import (
    ROWS_MAX,
    BusiestClientRow,
    ClientBusiestRequest,
    ClientBusiestResponse,
    check_busiest,
    order_of,
)
from holdmq.wire.codes import RequestCode

LEFT_MAX: Final = 1_000
"""Names of each kind that are kept of clients that left: some 0.3 MiB a worker."""
COUNTED_MAX: Final = 10_000
"""Names that an answer is chosen from, exactly counted up to so many: some 3 MiB while it is made."""
SESSIONS_PER_TURN: Final = 500
"""Looked at in one turn of the loop, with a question to the kernel for each: two milliseconds."""
ASKING_MAX: Final = 2
"""Questions under way in a worker; past it BUSY."""

KINDS: Final[dict[str, Callable[[Session], str]]] = {
    "user": lambda session: session.principal,
    "client": lambda session: session.client_id,
}


class CountedConnection(Protocol):
    """A client's connection, with its socket."""

    @property
    def session(self) -> Session:
        """The session that it carries."""

    @property
    def transport(self) -> CountedSocket | None:
        """Its socket; None = that is gone."""


class BusiestClients:
    """Answers for one worker; hears of every connection that ends."""

    def __init__(self, name: WorkerName, clients: Clients) -> None:
        self._name = name
        self._clients = clients
        self._left = {kind: HeavyHitters(LEFT_MAX) for kind in KINDS}
        self._asking = 0
        self._losing = UNKNOWN
        self._loop = asyncio.get_running_loop()

    def answer_in(self, answers: dict[int, Callable[[Request], None]]) -> None:
        """Take the request of brokers that is meant for it, by its code."""
        answers[RequestCode.CLIENT_BUSIEST] = self.busiest

    # Connections

    def losing(self, connection: CountedConnection) -> None:
        """The socket of a client is about to go: what it carried cannot be asked for later."""
        self._losing = traffic_of(connection.transport)

    def ended(self, connection: CountedConnection) -> None:
        """A session is over: what its connection carried counts for those that left."""
        told = self._losing if self._losing != UNKNOWN else traffic_of(connection.transport)
        self._losing = UNKNOWN
        session = connection.session
        if session.began_at > 0:
            traffic = _traffic(session, told)
            for kind, name_of in KINDS.items():
                self._left[kind].add(name_of(session), traffic)

    # Questions

    def busiest(self, request: Request) -> None:
        """Answer CLIENT_BUSIEST with those that carried most."""
        header = request.header(ClientBusiestRequest)
        check_busiest(header.by, header.sort)
        if self._name.worker_id in header.besides:
            request.reply(ClientBusiestResponse([], [self._name.worker_id], []))
            return
        if self._asking >= ASKING_MAX:
            raise BusyError(f"{ASKING_MAX} questions are under way in this gateway worker", 200)
        self._asking += 1
        name_of = KINDS[header.by]
        found = HeavyHitters(COUNTED_MAX)
        for name, traffic, error in self._left[header.by]:
            found.add(name, traffic, error)
        client_ids = self._clients.client_ids()

        def step(begin: int) -> None:
            for client_id in client_ids[begin : begin + SESSIONS_PER_TURN]:
                session = self._clients.session(client_id)
                if session is not None and session.connection is not None:
                    connection = cast("CountedConnection", session.connection)
                    found.add(name_of(session), _traffic(session, traffic_of(connection.transport)))
            begin += SESSIONS_PER_TURN
            if begin < len(client_ids):
                self._loop.call_soon(step, begin)
                return
            self._asking -= 1
            rows = [BusiestClientRow(name, *traffic, error) for name, traffic, error in found]
            best = heapq.nlargest(ROWS_MAX, rows, key=order_of(header.sort))
            request.reply(ClientBusiestResponse(best, [self._name.worker_id], []))

        step(0)


def _traffic(session: Session, told: tuple[int, int]) -> Traffic:
    bytes_out, bytes_in = told
    return Traffic(1, *messages_of(session), max(0, bytes_in), max(0, bytes_out))
