"""A gateway as the owner of sessions sees one: what it asks for, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdmq.rpc.client import Client
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import (
    END,
    PUT_FILTER,
    PUT_STATE,
    WILL_DONE,
    Content,
    DueWill,
    SessionChange,
    SessionListRequest,
    SessionListResponse,
    SessionOpened,
    SessionOpening,
    SessionOpenRequest,
    SessionOpenResponse,
    SessionRow,
    SessionShowRequest,
    SessionShowResponse,
    SessionTakenRequest,
    SessionWillsRequest,
    SessionWriteRequest,
    SessionWriteResponse,
    decode_content,
)


class Opened(NamedTuple):
    """An answer with what its session has."""

    code: int
    epoch: int
    uid: int
    is_present: bool
    state: bytes
    filters: list[tuple[str, bytes]]


def row_client(wanted: Sequence[SessionOpening], at: int) -> str:
    return wanted[at].client_id


class SessionPeer:
    """One gateway's connection. `on_taken` is called with the pushes, which are in `taken` too."""

    def __init__(self, port: int, name: str = "gateway-1") -> None:
        self.client = Client(f"127.0.0.1:{port}", "gateway", name, on_request=self._pushed)
        self.taken: list[SessionTakenRequest] = []
        self.wills: list[DueWill] = []
        self.on_taken: Callable[[SessionTakenRequest], None] = lambda _taken: None

    def _pushed(self, request: Request) -> None:
        if request.command.code == RequestCode.SESSION_WILLS:
            self.wills += rows(DueWill, request.header(SessionWillsRequest).wills)
            return
        assert request.command.code == RequestCode.SESSION_TAKEN
        self.taken.append(request.header(SessionTakenRequest))
        self.on_taken(self.taken[-1])

    async def open_all(self, *wanted: SessionOpening) -> list[Opened]:
        reply = await self.client.call(RequestCode.SESSION_OPEN, SessionOpenRequest(list(wanted)))
        found: list[Opened] = []
        at = 0
        for row in rows(SessionOpened, reply.header(SessionOpenResponse).sessions):
            content = Content(b"", [])
            if row.length_bytes > 0:
                content = decode_content(reply.body[at : at + row.length_bytes])
                at += row.length_bytes
            elif row.length_bytes < 0:
                content = (await self.show(row_client(wanted, len(found))))[1]
            found.append(Opened(row.code, row.epoch, row.uid, row.is_present, *content))
        return found

    async def open(
        self,
        client_id: str,
        expiry_s: int = 3600,
        *,
        is_clean: bool = False,
        principal: str = "",
        epoch: int = 0,
        will: bytes = b"",
        owns_id: bool = False,
    ) -> Opened:
        wanted = SessionOpening(client_id, is_clean, expiry_s, principal, epoch, will, owns_id)
        return (await self.open_all(wanted))[0]

    async def write(self, *changes: SessionChange) -> list[int]:
        """The indices that were refused."""
        reply = await self.client.call(RequestCode.SESSION_WRITE, SessionWriteRequest(list(changes)))
        return reply.header(SessionWriteResponse).fenced

    async def put_state(self, client_id: str, epoch: int, state: bytes) -> list[int]:
        return await self.write(SessionChange(client_id, epoch, PUT_STATE, "", state, 0))

    async def put_filter(self, client_id: str, epoch: int, name: str, options: bytes = b"o") -> list[int]:
        return await self.write(SessionChange(client_id, epoch, PUT_FILTER, name, options, 0))

    async def end(
        self, client_id: str, epoch: int, expiry_s: int = 3600, state: bytes = b"", will: str = ""
    ) -> list[int]:
        return await self.write(SessionChange(client_id, epoch, END, will, state, expiry_s))

    async def will_done(self, client_id: str, epoch: int) -> list[int]:
        return await self.write(SessionChange(client_id, epoch, WILL_DONE, "", b"", 0))

    async def list(self, prefix: str = "", after: str = "", max_count: int = 1000) -> list[SessionRow]:
        header = SessionListRequest(prefix, after, max_count)
        reply = await self.client.call(RequestCode.SESSION_LIST, header)
        return rows(SessionRow, reply.header(SessionListResponse).sessions)

    async def show(self, client_id: str) -> tuple[list[SessionRow], Content]:
        reply = await self.client.call(RequestCode.SESSION_SHOW, SessionShowRequest(client_id))
        found = rows(SessionRow, reply.header(SessionShowResponse).sessions)
        return found, decode_content(reply.body) if found else Content(b"", [])


def change(client_id: str, epoch: int, kind: str, name: str = "", value: bytes = b"") -> SessionChange:
    return SessionChange(client_id, epoch, kind, name, value, 0)
