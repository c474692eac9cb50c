"""Connected MQTT clients of all gateways: found, shown, disconnected. See docs/clients.md."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls
from holdmq.errors import Code, HoldMQError, UsageError, WireError
from holdmq.wire.busiest_headers import (
    BusiestClientRow,
    ClientBusiestRequest,
    ClientBusiestResponse,
    check_busiest,
    merged_busiest,
)
from holdmq.wire.client_headers import (
    FILTERS_MAX,
    ROWS_MAX,
    ClientKickRequest,
    ClientKickResponse,
    ClientListRequest,
    ClientListResponse,
    ClientRow,
    ClientSelection,
)
from holdmq.wire.client_places import ClientsPart, check_place, merged, part_of, sorted_by
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows

TIMEOUT_S: Final = 10.0
"""Deadline of one request, retries included; a broker waits 3 s for a gateway."""
EVERYBODY: Final = ClientSelection("")


class ClientPage(NamedTuple):
    """A part of the clients. `total` are wanted; `next_after`: ask again behind it, None = that was all.

    `silent` are gateway workers that did not answer: what they have is missing.
    """

    clients: list[ClientRow]
    total: int
    next_after: str | None
    silent: list[str]


class Busiest(NamedTuple):
    """Users or clients that carried most; what `silent` gateway workers know is missing."""

    rows: list[BusiestClientRow]
    silent: list[str]


class Kicked(NamedTuple):
    """How many clients are disconnected, or will be in a moment; `silent` as in ClientPage."""

    clients: int
    silent: list[str]


class ClientAdmin(AdminCalls):
    """Asks gateways for their clients: `async with ClientAdmin(["host:9876"]) as clients`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. Every call raises TransportError when
    no broker answers within `timeout_s`, RemoteError when what is wanted cannot be.
    """

    KIND = "clients"
    TIMEOUT_S = TIMEOUT_S

    async def page(
        self,
        selection: ClientSelection = EVERYBODY,
        *,
        sort: str = "client_id",
        after: str = "",
        count: int = 100,
        filters_max: int = 0,
    ) -> ClientPage:
        """Return at most `count` (1,000) clients in order, behind `after`, a page's `next_after`.

        `sort`: one of `holdmq.wire.client_places.SORTS`, with "-" before it for the largest first.
        `filters_max`: so many subscriptions of each are told. Raises UsageError for what is no `sort`, and no
        `after`.
        """
        place = _place_of(after)
        try:
            order = sorted_by(sort)
            check_place(place, order)
        except WireError as error:
            raise UsageError(str(error)) from error
        found = ClientsPart([], 0, None)
        workers: list[str] = []
        silent: dict[str, None] = {}
        count = max(1, min(count, ROWS_MAX))
        request = ClientListRequest(list(selection), sort, place, count, filters_max)
        errors: list[HoldMQError] = []
        brokers = await self._live_brokers()
        for broker in brokers:
            asked = ClientListRequest(**{**request.to_ext(), "besides": workers})
            try:
                answer = (await self.call(RequestCode.CLIENT_LIST, broker, asked)).header(ClientListResponse)
            except HoldMQError as error:
                errors.append(_known(error))
                continue
            found = merged((found, part_of(answer, order)), order, count)
            workers += answer.workers
            silent.update(dict.fromkeys(answer.silent))
        if len(errors) == len(brokers):
            raise errors[0]
        next_after = None if found.end is None else json.dumps(found.end)
        return ClientPage(found.clients, found.total, next_after, list(silent))

    async def show(self, client_id: str) -> ClientRow | None:
        """Return a client with its subscriptions; None: it is not connected."""
        page = await self.page(ClientSelection("", exact_id=client_id), count=2, filters_max=FILTERS_MAX)
        # While it is taken over by its next connection there are two for a moment.
        return max(page.clients, key=lambda row: row.connected_ms, default=None)

    async def busiest(self, by: str, *, sort: str = "messages_in", count: int = 20) -> Busiest:
        """Return the users or clients that sent and got most since their gateway workers were started.

        `by`: user or client, `sort`: one of `holdmq.wire.busiest_headers.BUSIEST_SORTS`. At most `count`
        (1,000). Raises UsageError for another `by` or `sort`.
        """
        try:
            check_busiest(by, sort)
        except WireError as error:
            raise UsageError(str(error)) from error
        found: list[BusiestClientRow] = []
        workers: list[str] = []
        silent: dict[str, None] = {}
        errors: list[HoldMQError] = []
        brokers = await self._live_brokers()
        for broker in brokers:
            request = ClientBusiestRequest(by, sort, workers)
            try:
                reply = await self.call(RequestCode.CLIENT_BUSIEST, broker, request)
                answer = reply.header(ClientBusiestResponse)
            except HoldMQError as error:
                errors.append(_known(error))
                continue
            found = merged_busiest([*found, *rows(BusiestClientRow, answer.found)], sort)
            workers += answer.workers
            silent.update(dict.fromkeys(answer.silent))
        if len(errors) == len(brokers):
            raise errors[0]
        return Busiest(found[: max(1, count)], list(silent))

    async def kick(self, selection: ClientSelection) -> Kicked:
        """Disconnect the clients of a selection, whose sessions stay; they may connect again.

        Raises UsageError for a selection of everybody: say client_id="*".
        """
        if selection == EVERYBODY:
            raise UsageError("say which clients to disconnect; * as the client id means all of them")
        kicked = 0
        workers: list[str] = []
        silent: dict[str, None] = {}
        errors: list[HoldMQError] = []
        brokers = await self._live_brokers()
        for broker in brokers:
            request = ClientKickRequest(list(selection), workers)
            try:
                answer = (await self.call(RequestCode.CLIENT_KICK, broker, request)).header(
                    ClientKickResponse
                )
            except HoldMQError as error:
                errors.append(_known(error))
                continue
            kicked += answer.kicked
            workers += answer.workers
            silent.update(dict.fromkeys(answer.silent))
        if len(errors) == len(brokers):
            raise errors[0]
        return Kicked(kicked, list(silent))


def _known(error: HoldMQError) -> HoldMQError:
    """Return the error of one broker among several; what is wrong with the question itself is raised."""
    if not error.retriable and error.code != Code.UNKNOWN_REQUEST:
        raise error
    return error


def _place_of(after: str) -> list[object]:
    if not after:
        return []
    try:
        place = json.loads(after)
    except ValueError as error:
        raise UsageError("after: only what the page before gave as next") from error
    if not isinstance(place, list):
        raise UsageError("after: only what the page before gave as next")
    return place
