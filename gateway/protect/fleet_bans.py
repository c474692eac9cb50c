"""Bans that hold in the whole fleet, as brokers have them: followed, looked at with each CONNECT, enforced.

A broker that connects is asked for all of its bans, and pushes what changes. What a broker had stays in force
while it is away. Clients that are connected are looked through, some in a turn, soon after a ban is new.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.brokers.turn import Turn
from gateway.ground.addresses import shown_key
from gateway.ground.counters import Counters
from gateway.ground.worker_name import WorkerName
from gateway.protect.core.flapping import Bans
from gateway.session.clients import Clients
from gateway.session.session import Session, close_connection
from holdmq.errors import HoldMQError
from holdmq.mqtt import ReasonCode
from holdmq.names.networks import packed_address
from holdmq.rpc.connection import Connection, Reply, Request
from holdmq.service import telemetry
from holdmq.wire.ban_headers import (
    LIST_MAX,
    BanChangedRequest,
    BanListRequest,
    BanListResponse,
    BanRow,
    FlappingListRequest,
    FlappingListResponse,
    FlappingRow,
)
from holdmq.wire.bans import BanIndex, BanKey, key_of
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import HelloResponse

if TYPE_CHECKING:
    from holdmq.client.route import Link, RouteTable

ANSWER_S: Final = 5.0
RETRY_S: Final = 1.0
"""How soon a broker that could not tell its bans is asked again."""
GATHER_S: Final = 0.1
"""How long a new ban waits for others before clients are looked through: many are made one by one."""
SESSIONS_PER_TURN: Final = 500
"""Looked at in one turn of the loop: a millisecond or two."""
PRINCIPAL_MAX: Final = 1_000
"""Characters of a client that are told: a thousand of them fit an answer."""

log = telemetry.get_logger()


class FleetBans:
    """The bans of all brokers; call `follow` before the routes are started."""

    def __init__(self, clients: Clients, counters: Counters, turn: Turn) -> None:
        self._clients = clients
        self._counters = counters
        self._turn = turn
        self._index = BanIndex()
        self._brokers: dict[Connection, str] = {}
        self._told: dict[Connection, dict[BanKey, BanRow]] = {}
        """What a broker has told so far that is still asked for all of them."""
        self._is_looking = False
        self._is_new = False
        self._loop = asyncio.get_running_loop()

    def follow(self, routes: RouteTable) -> None:
        """Ask every broker that connects, and hear what changes."""
        routes.on_up.append(self._up)
        routes.on_down.append(self._down)
        routes.answers[RequestCode.BAN_CHANGED] = self._changed

    def bars(self, session: Session, is_known: bool = True) -> bool:
        """Whether a client is banned by its address, and its id and user, if any.

        Not `is_known`: it may be a tenant's, and go by another id then.
        """
        if self._of(session, is_known) is None:
            return False
        self._counters.fleet_banned_total += 1
        return True

    def _of(self, session: Session, is_known: bool = True) -> BanRow | None:
        if not len(self._index):
            return None
        address = packed_address(session.born_host)
        client_id = session.client_id if is_known else ""
        return self._index.find(client_id, session.principal, address, time.time_ns() // 1_000_000)

    # What brokers say

    def _up(self, link: Link, connection: Connection, _hello: HelloResponse) -> None:
        for other in [other for other, name in self._brokers.items() if name == link.name]:
            del self._brokers[other]
        self._brokers[connection] = link.name
        self._ask_all(connection)

    def _down(self, link: Link, _reason: HoldMQError) -> None:
        for connection in [one for one, name in self._brokers.items() if name == link.name]:
            del self._brokers[connection]
            self._told.pop(connection, None)

    def _ask_all(self, connection: Connection) -> None:
        if connection in self._brokers:
            self._told[connection] = {}
            self._ask(connection, "")

    def _ask(self, connection: Connection, after: str) -> None:
        def answered(result: Reply | HoldMQError) -> None:
            told = self._told.get(connection)
            if told is None:
                return
            try:
                if isinstance(result, HoldMQError):
                    raise result
                answer = result.header(BanListResponse)
                told.update((key_of(ban), ban) for ban in rows(BanRow, answer.bans))
            except HoldMQError as error:
                del self._told[connection]
                log.debug("a broker did not tell its bans", reason=str(error))
                self._loop.call_later(RETRY_S, self._ask_all, connection)
                return
            if answer.next_after is not None:
                self._ask(connection, answer.next_after)
                return
            del self._told[connection]
            self._index.replace(self._brokers[connection], told.values())
            self._look_soon()

        connection.request(RequestCode.BAN_LIST, BanListRequest(after), answered, ANSWER_S)

    def _changed(self, request: Request) -> None:
        header = request.header(BanChangedRequest)
        broker = self._brokers.get(request.connection)
        if broker is None:
            return
        told = self._told.get(request.connection)
        for ban in rows(BanRow, header.made):
            self._index.put(broker, ban)
            if told is not None:
                told[key_of(ban)] = ban
        for lifted in rows(BanRow, header.lifted):
            self._index.drop(broker, key_of(lifted))
            if told is not None:
                told.pop(key_of(lifted), None)
        if header.made:
            self._look_soon()
        self._counters.fleet_bans = len(self._index)

    # Who is connected already

    def _look_soon(self) -> None:
        self._counters.fleet_bans = len(self._index)
        self._is_new = True
        if not self._is_looking and len(self._index):
            self._is_looking = True
            self._loop.call_later(GATHER_S, self._look)

    def _look(self) -> None:
        self._is_new = False
        self._look_on(self._clients.client_ids(), 0)

    def _look_on(self, client_ids: list[str], begin: int) -> None:
        kicked = 0
        for client_id in client_ids[begin : begin + SESSIONS_PER_TURN]:
            session = self._clients.session(client_id)
            if session is not None and self._of(session) is not None:
                kicked += 1
                self._counters.fleet_banned_total += 1
                close_connection(
                    session, ReasonCode.ADMINISTRATIVE_ACTION, "banned", "an operator banned this client"
                )
        if kicked:
            self._turn.settle()
        begin += SESSIONS_PER_TURN
        if begin < len(client_ids):
            self._loop.call_soon(self._look_on, client_ids, begin)
            return
        self._is_looking = False
        if self._is_new:
            self._look_soon()


class FlappingBans:
    """Tells operators of the bans that this gateway has made by itself; `now` is the loop's clock."""

    def __init__(self, name: WorkerName, bans: Bans, now: Callable[[], float]) -> None:
        self._name = name
        self._bans = bans
        self._now = now

    def answer_in(self, answers: dict[int, Callable[[Request], None]]) -> None:
        """Take the request of brokers that is meant for it, by its code."""
        answers[RequestCode.FLAPPING_LIST] = self._list

    def _list(self, request: Request) -> None:
        header = request.header(FlappingListRequest)
        now = self._now()
        found = [ban for ban in self._bans.all() if ban.until > now]
        if self._name.worker_id in header.besides:
            found = []
        shown = [
            FlappingRow(
                self._name.gateway,
                ban.key[0][:PRINCIPAL_MAX],
                shown_key(ban.key[1]),
                ban.connects,
                int(ban.until - now) + 1,
            )
            for ban in found[: max(1, min(header.max_count, LIST_MAX))]
        ]
        request.reply(FlappingListResponse(shown, [self._name.worker_id], []))
