"""The owner of sessions in memory, beside tests/gateway's MemoryBroker: the broker's own core over a dict."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from broker.sessions.core.rows import (
    FoundSession,
    RowChange,
    decode_meta,
    filter_key,
    meta_key,
    state_key,
    will_key,
)
from broker.sessions.core.sessions import OwnedSessions
from holdmq.mqtt import MQTT_5, Properties
from holdmq.rpc.connection import Connection, Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import (
    DueWill,
    SessionChange,
    SessionOpening,
    SessionOpenRequest,
    SessionOpenResponse,
    SessionTakenRequest,
    SessionWillsRequest,
    SessionWriteRequest,
    SessionWriteResponse,
)
from holdmq.wire.session_state import SessionState, decode_state

NOW_MS = 1_000_000
HOUR = Properties(session_expiry_interval=3600)


async def persistent(running: Any, client_id: str = "c", version: int = MQTT_5, **fields: Any) -> Any:
    """A client of a worker of tests/gateway whose session outlives its connection."""
    if version == MQTT_5:
        fields = {"properties": HOUR, **fields}
    return await running.client(client_id, version, clean_start=False, **fields)


class SessionTable:
    """`refusals` answer the next SESSION_WRITEs; while `holds` is set they are done, and wait in `held`.

    While `holds_opens` is set SESSION_OPENs wait in `held_opens`, and nothing is decided.
    """

    def __init__(self) -> None:
        uids = itertools.count(1)
        self.core: OwnedSessions[Connection] = OwnedSessions(100, NOW_MS, lambda: next(uids))
        self.rows: dict[str, bytes] = {}
        self.refusals: list[Exception] = []
        self.open_refusals: list[Exception] = []
        self.holds_opens = False
        self.held_opens: list[Request] = []
        self.holds = False
        self.held: list[Callable[[], None]] = []
        self.writes: list[list[SessionChange]] = []

    def routes(self) -> dict[RequestCode, Callable[[Request], None]]:
        return {RequestCode.SESSION_OPEN: self.open, RequestCode.SESSION_WRITE: self.write}

    def state(self, client_id: str) -> SessionState:
        return decode_state(self.rows.get(state_key(client_id), b""))

    def filters(self, client_id: str) -> list[str]:
        prefix = filter_key(client_id, "")
        return [key.removeprefix(prefix) for key in self.rows if key.startswith(prefix)]

    def release(self) -> None:
        self.holds = False
        held, self.held = self.held, []
        for answer in held:
            answer()

    def release_opens(self) -> None:
        self.holds_opens = False
        held, self.held_opens = self.held_opens, []
        for request in held:
            self.open(request)

    def open(self, request: Request) -> None:
        if self.holds_opens:
            self.held_opens.append(request)
            return
        if self.open_refusals:
            raise self.open_refusals.pop(0)
        wanted = rows(SessionOpening, request.header(SessionOpenRequest).sessions)
        now = asyncio.get_running_loop().time()
        openings = [self.core.open(row, request.connection, now) for row in wanted]

        def answer() -> None:
            self.run()
            if any(opening.answer is None for opening in openings):
                asyncio.get_running_loop().call_later(0.01, answer)
                return
            parts = [b"" if o.content is None else o.content.encode() for o in openings]
            answers = [
                o.answer._replace(length_bytes=len(part))
                for o, part in zip(openings, parts, strict=True)
                if o.answer is not None
            ]
            request.reply(SessionOpenResponse(answers), parts, sum(map(len, parts)))

        answer()

    def write(self, request: Request) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        changes = rows(SessionChange, request.header(SessionWriteRequest).changes)
        self.writes.append(changes)
        fenced = []
        for at, change in enumerate(changes):
            made = self.core.change(change, request.connection, asyncio.get_running_loop().time(), NOW_MS)
            if made is None:
                fenced.append(at)
            else:
                self._apply(made)
        self.run()
        answer = SessionWriteResponse(fenced)
        if self.holds:
            self.held.append(lambda: request.reply(answer))
        else:
            request.reply(answer)

    def gone(self, connection: Connection) -> None:
        self._apply(self.core.owner_gone(connection, asyncio.get_running_loop().time(), NOW_MS))
        self.run()

    def run(self) -> None:
        core, now = self.core, asyncio.get_running_loop().time()
        core.handle_deadline(now)
        while core.to_read or core.taken or core.done:
            taken, core.taken = core.taken, []
            for owner, client_id, epoch, by_operator in taken:
                push = SessionTakenRequest(client_id, epoch, 500, by_operator)
                owner.send_one_way(RequestCode.SESSION_TAKEN, push)
            core.done.clear()
            to_read, core.to_read = core.to_read, []
            for opening in to_read:
                core.loaded(opening, self._found(opening.wanted.client_id), NOW_MS, now)
                self._apply(opening.changes)
                core.settled(opening, None, now)
        for key, owner in core.wills.take_due(now, 100):
            connection = owner or next(iter(core.leased(now)))
            wills = [DueWill(*key, self.rows[will_key(*key)])]
            connection.send_one_way(RequestCode.SESSION_WILLS, SessionWillsRequest(wills))

    def _apply(self, changes: list[RowChange]) -> None:
        for _, key, value in changes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def _found(self, client_id: str) -> FoundSession | None:
        meta = self.rows.get(meta_key(client_id))
        if meta is None:
            return None
        filters = [(name, self.rows[filter_key(client_id, name)]) for name in self.filters(client_id)]
        return FoundSession(decode_meta(meta), self.rows.get(state_key(client_id), b""), filters)
