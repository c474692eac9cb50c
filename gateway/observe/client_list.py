"""CLIENT_LIST and CLIENT_KICK at a worker: its own clients, found, told and disconnected.

Both look at a slice of the sessions in each turn of the loop, so that clients are served meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from gateway.brokers.turn import Turn
from gateway.ground.worker_name import WorkerName
from gateway.observe.core.client_search import (
    ClientSearch,
    Place,
    WallClock,
    Wants,
    in_flight_of,
    is_selected,
    messages_of,
    subscriptions_of,
    wants_of,
)
from gateway.observe.traffic import CountedSocket, traffic_of
from gateway.session.clients import Clients
from gateway.session.session import Session, close_connection
from holdmq.errors import BusyError
from holdmq.mqtt import ReasonCode
from holdmq.names.networks import packed_address, shown_address
from holdmq.rpc.connection import Request
from holdmq.wire.client_headers import (
    ANSWER_MAX_BYTES,
    FILTERS_MAX,
    ROWS_MAX,
    ClientKickRequest,
    ClientKickResponse,
    ClientListRequest,
    ClientListResponse,
    ClientRow,
)
from holdmq.wire.client_places import check_place, selection_of, sorted_by
from holdmq.wire.codes import RequestCode

SESSIONS_PER_TURN: Final = 2_000
"""Looked at in one turn of the loop: two milliseconds."""
KICKS_PER_TURN: Final = 100
"""Connections closed in one turn: each has a will, filters and an owner to be told."""
KICK_PAUSE_S: Final = 0.01
"""Between two such turns: clients are served, and other workers look through theirs, on the same cores."""
SEARCHES_MAX: Final = 8
"""Searches under way in a worker; past it BUSY."""
KICKS_WAITING_MAX: Final = 1_000_000
"""Clients that wait for their turn to be disconnected: more than a worker has."""
ROW_OVERHEAD_BYTES: Final = 200
"""What a row has beside its texts, roughly."""


class ListedListener(Protocol):
    """A listener by its `name`."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""


class ListedConnection(Protocol):
    """The connection of a session, as it is shown."""

    @property
    def listener(self) -> ListedListener:
        """Where it came in."""

    @property
    def transport(self) -> CountedSocket | None:
        """Its socket; None = that is gone."""


class ClientList:
    """The clients of one worker; `now` is the loop's clock."""

    def __init__(self, name: WorkerName, clients: Clients, turn: Turn, now: Callable[[], float]) -> None:
        self._name = name
        self._clients = clients
        self._turn = turn
        # Fixed at the start: a place in the list must not move while somebody turns its pages.
        self._clock = WallClock(time.time() * 1000 - now() * 1000)
        self._searches = 0
        self._to_kick: deque[tuple[str, float]] = deque()
        self._loop = asyncio.get_running_loop()

    def answer_in(self, answers: dict[int, Callable[[Request], None]]) -> None:
        """Take the requests of brokers that are meant for it, by their codes."""
        answers[RequestCode.CLIENT_LIST] = self.list_
        answers[RequestCode.CLIENT_KICK] = self.kick

    def list_(self, request: Request) -> None:
        """Answer CLIENT_LIST with the first clients that are wanted."""
        header = request.header(ClientListRequest)
        sort = sorted_by(header.sort)
        after = check_place(header.after, sort)
        wants = self._wants(header.wanted, header.besides)
        if wants is None:
            request.reply(ClientListResponse([], 0, [], [self._name.worker_id], []))
            return
        count = max(1, min(header.max_count, ROWS_MAX))
        search = ClientSearch(wants, sort, after, count, self._clock)

        def done() -> None:
            best, is_more = search.take()
            found, is_cut = self._rows(best, max(0, min(header.filters_max, FILTERS_MAX)))
            end = found[-1].order if found and (is_more or is_cut) else []
            request.reply(ClientListResponse(found, search.total, end, [self._name.worker_id], []))

        self._each(header.wanted, search.look, done)

    def kick(self, request: Request) -> None:
        """Answer CLIENT_KICK once it is known who goes; they go at once, many of them in turns."""
        header = request.header(ClientKickRequest)
        wants = self._wants(header.wanted, header.besides)
        if wants is None:
            request.reply(ClientKickResponse(0, [self._name.worker_id], []))
            return
        chosen: list[tuple[str, float]] = []

        def look(sessions: list[Session]) -> None:
            chosen.extend((s.client_id, s.began_at) for s in sessions if is_selected(s, wants))

        def done() -> None:
            going = chosen[: max(0, KICKS_WAITING_MAX - len(self._to_kick))]
            request.reply(ClientKickResponse(len(going), [self._name.worker_id], []))
            is_idle = not self._to_kick
            self._to_kick.extend(going)
            if is_idle and len(going) > KICKS_PER_TURN:
                self._loop.call_later(KICK_PAUSE_S, self._kick_some)
            elif is_idle:
                self._kick_some()

        self._each(header.wanted, look, done)

    def _wants(self, wanted: list[Any], besides: list[str]) -> list[Wants] | None:
        selection = selection_of(wanted)
        if self._name.worker_id in besides:
            return None
        return wants_of(selection, self._name.gateway, self._clock)

    def _each(
        self, wanted: list[Any], look: Callable[[list[Session]], None], done: Callable[[], None]
    ) -> None:
        """Have all sessions looked at, some in each turn; one that is meant by its whole id alone."""
        selection = selection_of(wanted)
        clients = self._clients
        if selection.exact_id:
            session = clients.session(selection.exact_id)
            look([] if session is None else [session])
            done()
            return
        if self._searches >= SEARCHES_MAX:
            raise BusyError(f"{SEARCHES_MAX} searches are under way in this gateway worker", 200)
        self._searches += 1
        client_ids = clients.client_ids()

        def step(begin: int) -> None:
            part = client_ids[begin : begin + SESSIONS_PER_TURN]
            look([session for client_id in part if (session := clients.session(client_id)) is not None])
            begin += SESSIONS_PER_TURN
            if begin < len(client_ids):
                self._loop.call_soon(step, begin)
            else:
                self._searches -= 1
                done()

        step(0)

    def _kick_some(self) -> None:
        for _ in range(min(KICKS_PER_TURN, len(self._to_kick))):
            client_id, began_at = self._to_kick.popleft()
            session = self._clients.session(client_id)
            if session is not None and session.began_at == began_at:
                close_connection(
                    session,
                    ReasonCode.ADMINISTRATIVE_ACTION,
                    "kicked",
                    "an operator disconnected this client",
                )
        self._turn.settle()
        if self._to_kick:
            self._loop.call_later(KICK_PAUSE_S, self._kick_some)

    def _rows(self, best: list[tuple[Place, Session]], filters_max: int) -> tuple[list[ClientRow], bool]:
        """Rows as long as they have room, and whether some have none."""
        found: list[ClientRow] = []
        left_bytes = ANSWER_MAX_BYTES
        for place, session in best:
            row = self._row(place, session, filters_max)
            texts = (row.client_id, row.client_id, row.user, *(name for name, _ in row.filters))
            left_bytes -= ROW_OVERHEAD_BYTES + sum(map(len, texts))
            if found and left_bytes < 0:
                return found, True
            found.append(row)
        return found, False

    def _row(self, place: Place, session: Session, filters_max: int) -> ClientRow:
        # A session that was accepted has a ClientConnection until it is closed.
        connection = cast("ListedConnection | None", session.connection)
        bytes_out, bytes_in = (-1, -1) if connection is None else traffic_of(connection.transport)
        in_flight = in_flight_of(session)
        messages = messages_of(session)
        return ClientRow(
            order=list(place),
            client_id=session.client_id,
            user=session.principal,
            address=shown_address(packed_address(session.born_host)),
            port=int.from_bytes(session.born_host[-4:], "big"),
            listener="" if connection is None else connection.listener.name,
            version=session.version,
            keep_alive_s=int(session.keep_alive_s),
            is_clean=session.is_clean,
            expiry_s=session.expiry_s,
            connected_ms=self._clock.wall_ms(session.began_at),
            gateway=self._name.gateway,
            worker=self._name.worker,
            subscriptions=subscriptions_of(session),
            filters=_filters(session, filters_max),
            in_flight_in=in_flight[0],
            in_flight_out=in_flight[1],
            messages_in=messages[0],
            messages_out=messages[1],
            bytes_in=bytes_in,
            bytes_out=bytes_out,
        )


def _filters(session: Session, count: int) -> list[Any]:
    outbound = session.outbound
    if outbound is None or not count:
        return []
    names = sorted([*outbound.subscriptions, *(outbound.shared or ())])[:count]
    return [[name, granted.qos] for name in names if (granted := outbound.granted(name)) is not None]
