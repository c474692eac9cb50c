"""SESSION_LIST, SESSION_SHOW, SESSION_RECORDS: what is asked of sessions, and changes nothing."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import Any, Final

from broker.kernel.log_reads import record_at
from broker.kernel.lookups import Lookups
from broker.kernel.request_family import HelloOf
from broker.sessions.core.rows import Meta, decode_meta, meta_key
from broker.sessions.core.sessions import OwnedSessions
from broker.sessions.rows import Session, SessionRows, check_client_id
from holdmq.errors import Code, HoldMQError, RemoteError, WireError
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.session_headers import (
    SESSION_TOPIC,
    Content,
    SessionListRequest,
    SessionListResponse,
    SessionRecordsRequest,
    SessionRecordsResponse,
    SessionRow,
    SessionShowRequest,
    SessionShowResponse,
)
from storage.api.store import OrderedStore
from storage.api.tables import Page

ROWS_MAX: Final = 1_000
IDS_PER_TURN: Final = 4_096
"""Open sessions that are looked at in one turn of the loop: one or two milliseconds."""
CONTENT_MAX_BYTES: Final = 6 << 20
"""What one session may have: it fits a frame. Gateways bound what their clients subscribe to."""
RECORDS_MAX: Final = 1_000
RECORDS_MAX_BYTES: Final = 4 << 20


class SessionQueries:
    """`check_ready` raises BUSY while the table of sessions is not open. `hello_of` says who a gateway is."""

    def __init__(
        self,
        store: OrderedStore,
        core: OwnedSessions[Connection],
        rows: SessionRows,
        clock_ms: Callable[[], int],
        check_ready: Callable[[], None],
        hello_of: HelloOf,
    ) -> None:
        self._hello_of = hello_of
        self.core = core
        self.rows = rows
        self.lookups = Lookups(store.reader_pool)
        self._store = store
        self._clock_ms = clock_ms
        self._check_ready = check_ready

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        """Which requests it answers."""
        return {
            RequestCode.SESSION_LIST: self.list_,
            RequestCode.SESSION_SHOW: self.show,
            RequestCode.SESSION_RECORDS: self.records,
        }

    def list_(self, request: Request) -> None:
        """Answer SESSION_LIST with a page of sessions."""
        self._check_ready()
        header = request.header(SessionListRequest)
        count = max(1, min(header.max_count, ROWS_MAX))
        if header.only_open:
            self._answer_open(request, header, count)
            return
        tables = self.rows.tables
        after = meta_key(header.after) if header.after else None
        self.lookups.run(
            request,
            lambda: tables.scan(SESSION_TOPIC, meta_key(header.prefix), after, count),
            lambda page: self._answer_list(request, header, page, count),
        )

    def _answer_list(self, request: Request, header: SessionListRequest, page: Page, count: int) -> None:
        """Stored sessions of a page, and those between them that are not written down."""
        now_ms = self._clock_ms()
        found: dict[str, SessionRow] = {}
        last = page.next_after[1:] if page.next_after is not None else None
        for row in page.rows:
            client_id = row.key[1:]
            meta = self.rows.owed.get(client_id) or decode_meta(row.value)
            if self.core.is_known(client_id) or not self.core.is_over(meta, now_ms):
                found[client_id] = self._row(client_id, meta)

        def merged(others: list[str]) -> None:
            for client_id in others:
                known = self.core.open_session(client_id)
                if known is not None:
                    found[client_id] = self._row(client_id, known[0])
            shown = [found[client_id] for client_id in sorted(found)[:count]]
            is_more = last is not None or len(found) > count
            next_after = (shown[-1].client_id if shown else last) if is_more else None
            request.reply(SessionListResponse(shown, next_after))

        self._find_open(header, last, count, found, merged)

    def _answer_open(self, request: Request, header: SessionListRequest, count: int) -> None:
        """The open ones are all in memory: among very many that are not, the table would be read in vain."""

        def found(client_ids: list[str]) -> None:
            shown = [
                self._row(client_id, known[0])
                for client_id in client_ids[:count]
                if (known := self.core.open_session(client_id)) is not None
            ]
            next_after = client_ids[count - 1] if len(client_ids) > count else None
            request.reply(SessionListResponse(shown, next_after))

        self._find_open(header, None, count + 1, {}, found)

    def _find_open(
        self,
        header: SessionListRequest,
        last: str | None,
        count: int,
        besides: Collection[str],
        done: Callable[[list[str]], None],
    ) -> None:
        """Call `done` with the first `count` open sessions that are asked for, up to `last`, `besides` these.

        There may be very many: it takes turns of the loop, and `done` is called in the last.
        """
        every = self.core.ids()
        loop = asyncio.get_running_loop()

        def look(begin: int, best: list[str]) -> None:
            part = (
                client_id
                for client_id in every[begin : begin + IDS_PER_TURN]
                if client_id > header.after
                and (last is None or client_id <= last)
                and client_id.startswith(header.prefix)
                and client_id not in besides
            )
            best = heapq.nsmallest(count, chain(best, part))
            begin += IDS_PER_TURN
            if begin < len(every):
                loop.call_soon(look, begin, best)
            else:
                done(best)

        look(0, [])

    def _row(self, client_id: str, meta: Meta) -> SessionRow:
        known = self.core.open_session(client_id)
        if known is None:
            ended_ms = meta.ended_ms or self.core.up_since_ms
            return SessionRow(
                client_id, meta.principal, meta.epoch, meta.expiry_s, meta.created_ms, ended_ms, "", True
            )
        meta, connection, is_stored = known
        hello = None if connection is None else self._hello_of(connection)
        owner = "" if hello is None else hello.client_id
        return SessionRow(
            client_id, meta.principal, meta.epoch, meta.expiry_s, meta.created_ms, 0, owner, is_stored
        )

    def show(self, request: Request) -> None:
        """Answer SESSION_SHOW with one session and its filters."""
        self._check_ready()
        client_id = request.header(SessionShowRequest).client_id
        check_client_id(client_id)

        def loaded(found: list[Session] | HoldMQError) -> None:
            session = found if isinstance(found, HoldMQError) else found[0]
            if isinstance(session, HoldMQError):
                request.refuse(session)
                return
            known = self.core.open_session(client_id)
            meta = known[0] if known is not None else session.meta if session is not None else None
            if meta is None or (known is None and self.core.is_over(meta, self._clock_ms())):
                request.reply(SessionShowResponse([]))
                return
            content = Content(b"", []) if session is None else Content(session.state, session.filters)
            body = content.encode()
            if len(body) > CONTENT_MAX_BYTES:
                request.refuse(RemoteError(Code.LIMIT_EXCEEDED, f"the session has {len(body)} bytes"))
                return
            request.reply(SessionShowResponse([self._row(client_id, meta)]), [body], len(body))

        self.rows.load([client_id], loaded)

    def records(self, request: Request) -> None:
        """Answer SESSION_RECORDS with the rows of a session."""
        header = request.header(SessionRecordsRequest)
        positions: list[Any] = header.positions[:RECORDS_MAX]
        if not positions or not all(isinstance(position, int) and position >= 0 for position in positions):
            raise WireError("positions are numbers from 0 on, at least one", Code.MISSING_FIELD)
        limit = self._store.epoch_limit(header.log_epoch)
        end = self._store.confirmed_position if limit is None else min(limit, self._store.confirmed_position)

        def look_up() -> tuple[SessionRecordsResponse, list[memoryview]]:
            parts: list[memoryview] = []
            size = 0
            for at, position in enumerate(positions):
                record = record_at(self._store, position) if position < end else None
                if record is not None:
                    parts.append(record)
                    size += len(record)
                if size >= RECORDS_MAX_BYTES:
                    return SessionRecordsResponse(at + 1, len(parts)), parts
            return SessionRecordsResponse(len(positions), len(parts)), parts

        self.lookups.run(
            request, look_up, lambda found: request.reply(found[0], found[1], sum(map(len, found[1])))
        )
