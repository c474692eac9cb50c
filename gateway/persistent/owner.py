"""One broker as the owner of sessions: CONNECTs and changes of rows leave once a turn, one write at a time.

What is told of a session keeps its order: a write that the owner cannot take now is sent again before
anything newer. After a lost connection the sessions are claimed again first, as the owner has ended them
with it.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from gateway.persistent.wills import will_of
from gateway.session.cursor import WrittenState
from gateway.session.session import CLOSED, Session
from holdmq.errors import BusyError, Code, HoldMQError, RemoteError, RequestTimeout, TransportError, WireError
from holdmq.rpc.connection import Reply
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import (
    END,
    PUT_STATE,
    WILL_DONE,
    Content,
    SessionChange,
    SessionOpened,
    SessionOpening,
    SessionOpenRequest,
    SessionOpenResponse,
    SessionShowRequest,
    SessionWriteRequest,
    SessionWriteResponse,
    decode_content,
)
from holdmq.wire.session_will import HAS_WILL, NO_WILL

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.persistent.rows import SessionWriter

OPENINGS_PER_REQUEST: Final = 100
"""CONNECTs of one request, whose answer keeps the loop for some ms; it comes when the last one is decided."""
OPEN_EVERY_S: Final = 0.004
"""CONNECTs that come within this time of the last request travel together: a request costs its owner as much
as ten sessions in it, and a client waits ten times as long for the log."""
CHANGES_PER_WRITE: Final = 500
"""Some milliseconds of this loop and of the owner's; the next write leaves when this one is answered."""
WRITE_MAX_BYTES: Final = 1 << 20
"""What one write carries: the header of a frame holds 4 MiB."""
PENDING_MAX_BYTES: Final = 16 << 20
"""Changes that wait for their owner; past it who changes more is closed."""
OPEN_TIMEOUT_S: Final = 10.0
WRITE_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.1

OnWritten = Callable[[bool], None]
"""Told whether the row has it; False = the session was opened elsewhere, or the owner is away for long."""

log = telemetry.get_logger()


class _RowUpdate:
    """A change of a row; `session` None = its connection is gone. `written` for a state."""

    __slots__ = ("on_written", "row", "session", "size", "written")

    def __init__(self, row: SessionChange, session: Session | None, on_written: OnWritten | None) -> None:
        self.row = row
        self.session = session
        self.on_written = on_written
        self.size = len(row.client_id) + len(row.name) + len(row.value) + 32
        self.written: WrittenState | None = None


class ClaimedSessions(Protocol):
    """The sessions of a worker, which hears here what their owner says of them."""

    def claims(self, owner: SessionOwner) -> list[SessionOpening]:
        """The sessions that are open at an owner."""

    def opening_of(self, session: Session, will: bytes) -> SessionOpening:
        """What the owner is asked when a client connects."""

    def opened(self, session: Session, owner: SessionOwner, answer: SessionOpened, content: Content) -> None:
        """A session is open at its owner: restore what it has, and go on."""

    def not_opened(self, session: Session, owner: SessionOwner, error: HoldMQError) -> None:
        """The owner refused a CONNECT, or did not answer."""

    def fenced(self, client_id: str, epoch: int) -> None:
        """The session was opened anew elsewhere, or dropped: its connection ends."""


class SessionOwner:
    """The sessions of one worker at one broker."""

    __slots__ = (
        "_changes",
        "_flush_due",
        "_is_claimed",
        "_is_writing",
        "_link",
        "_loop",
        "_open_at",
        "_opening",
        "_opens",
        "_retry",
        "_rows",
        "_sessions",
        "_states",
        "_turn",
        "is_given_up",
        "pending_bytes",
    )

    def __init__(self, link: BrokerLink, sessions: ClaimedSessions, rows: SessionWriter, turn: Turn) -> None:
        self._link = link
        self._sessions = sessions
        self._rows = rows
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._opens: list[Session] = []
        self._open_at = 0.0
        self._opening: asyncio.TimerHandle | None = None
        self._changes: deque[_RowUpdate] = deque()
        self._states: dict[Session, None] = {}
        self._flush_due = False
        self._is_writing = False
        self._is_claimed = False
        self._retry: asyncio.TimerHandle | None = None
        self.pending_bytes = 0
        self.is_given_up = False
        """Whether an operator gave the broker up: it has no sessions any more."""

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._link.name

    @property
    def is_up(self) -> bool:
        """Whether the broker can be asked."""
        return self._link.connection is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._changes and not self._states and not self._is_writing

    # What sessions want

    def open(self, session: Session) -> None:
        """Ask for a session, together with others; `sessions` hears `opened` or `not_opened`."""
        self._opens.append(session)
        if self._opening is None:
            self._opening = self._loop.call_at(self._open_at, self._send_opens)

    def change(
        self, session: Session, kind: str, name: str, value: bytes, on_written: OnWritten | None = None
    ) -> bool:
        """Have a row changed; False: too much waits, or there is nobody to take it."""
        if self.is_given_up or (self.pending_bytes > PENDING_MAX_BYTES and kind != END):
            return False
        row = SessionChange(session.client_id, session.epoch, kind, name, value, session.expiry_s)
        self._add(_RowUpdate(row, None if kind == END else session, on_written))
        return True

    def will_done(self, client_id: str, epoch: int) -> None:
        """The log has a will, or never will."""
        if self.is_given_up:
            return
        self._add(_RowUpdate(SessionChange(client_id, epoch, WILL_DONE, "", b"", 0), None, None))

    def _add(self, change: _RowUpdate) -> None:
        self._changes.append(change)
        self.pending_bytes += change.size
        self._flush_soon()

    def want_state(self, session: Session) -> None:
        """Have a session's state written, as it is when it leaves."""
        if self.is_given_up:
            return
        self._states[session] = None
        self._flush_soon()

    def forget(self, session: Session) -> None:
        """The connection is gone: its state goes with its end, if at all."""
        self._states.pop(session, None)

    # Connection

    def up(self) -> None:
        """The broker is there (again): claim what was open before."""
        self._is_claimed = False
        self._is_writing = False
        self._claim()

    def down(self) -> None:
        """The connection is gone; its requests have failed."""
        self._is_claimed = False

    def _claim(self) -> None:
        connection = self._link.connection
        if connection is None:
            return
        ended = {
            change.row.client_id: SessionOpening(
                change.row.client_id,
                False,
                change.row.expiry_s,
                "",
                change.row.epoch,
                HAS_WILL if change.row.name != NO_WILL else b"",
            )
            for change in self._changes
            if change.row.kind == END and (change.row.expiry_s or change.row.name != NO_WILL)
        }
        claims = [*self._sessions.claims(self), *ended.values()]
        left = len(range(0, len(claims), OPENINGS_PER_REQUEST))
        is_failed = False

        def claimed(part: list[SessionOpening], result: Reply | HoldMQError) -> None:
            nonlocal left, is_failed
            left -= 1
            if isinstance(result, HoldMQError):
                is_failed = True
            else:
                answers = rows(SessionOpened, result.header(SessionOpenResponse).sessions)
                for claim, answer in zip(part, answers, strict=False):
                    if answer.code == Code.SESSION_FENCED:
                        self._sessions.fenced(claim.client_id, claim.epoch)
                    elif answer.code != Code.OK:
                        is_failed = True
            if left or connection is not self._link.connection:
                return
            if is_failed:
                self._loop.call_later(RETRY_S, self._claim_again, connection)
            else:
                self._is_claimed = True
                self._flush_soon()

        for at in range(0, len(claims), OPENINGS_PER_REQUEST):
            part = claims[at : at + OPENINGS_PER_REQUEST]
            connection.request(
                RequestCode.SESSION_OPEN,
                SessionOpenRequest(part),
                functools.partial(claimed, part),
                OPEN_TIMEOUT_S,
            )
        if not claims:
            self._is_claimed = True
        self._flush_soon()

    def _claim_again(self, connection: object) -> None:
        if connection is self._link.connection:
            self._claim()

    # Sending

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._is_claimed and not self._is_writing and self._retry is None:
            self._write()

    def _send_opens(self) -> None:
        self._opening = None
        self._open_at = self._loop.time() + OPEN_EVERY_S
        opens = [session for session in self._opens if session.state != CLOSED]
        self._opens = []
        some: list[Session] = []
        wills: list[bytes] = []
        size = 0
        for session in opens:
            some.append(session)
            wills.append(will_of(session))
            size += len(wills[-1])
            if len(some) == OPENINGS_PER_REQUEST or size >= WRITE_MAX_BYTES:
                self._send_some(some, wills)
                some, wills, size = [], [], 0
        if some:
            self._send_some(some, wills)

    def _send_some(self, opens: list[Session], wills: list[bytes]) -> None:
        connection = self._link.connection
        if connection is None:
            self._not_opened(opens, TransportError(f"broker {self.name} is away"))
            return
        wanted = [self._sessions.opening_of(*pair) for pair in zip(opens, wills, strict=True)]
        connection.request(
            RequestCode.SESSION_OPEN,
            SessionOpenRequest(wanted),
            functools.partial(self._opened, opens),
            OPEN_TIMEOUT_S,
        )

    def _not_opened(self, opens: list[Session], error: HoldMQError) -> None:
        for session in opens:
            self._sessions.not_opened(session, self, error)

    def _opened(self, opens: list[Session], result: Reply | HoldMQError) -> None:
        if isinstance(result, HoldMQError):
            self._not_opened(opens, result)
            return
        try:
            answers = rows(SessionOpened, result.header(SessionOpenResponse).sessions)
        except WireError as error:
            self._not_opened(opens, error)
            return
        at = 0
        for session, answer in zip(opens, answers, strict=False):
            content: Content | None = Content(b"", [])
            try:
                if answer.length_bytes > 0:
                    content = decode_content(result.body[at : at + answer.length_bytes])
                    at += answer.length_bytes
                elif answer.length_bytes < 0:
                    content = None
            except WireError as error:
                self._sessions.not_opened(session, self, error)
                continue
            if answer.code != Code.OK:
                self._sessions.not_opened(session, self, RemoteError(Code(answer.code), answer.reason))
            elif content is None:
                self._ask_content(session, answer)
            else:
                self._sessions.opened(session, self, answer, content)
        self._turn.settle()

    def _ask_content(self, session: Session, answer: SessionOpened) -> None:
        """The answer to a CONNECT had no room for what the session has."""
        connection = self._link.connection
        if connection is None:
            self._sessions.not_opened(session, self, TransportError(f"broker {self.name} is away"))
            return

        def shown(result: Reply | HoldMQError) -> None:
            try:
                if isinstance(result, HoldMQError):
                    raise result
                self._sessions.opened(session, self, answer, decode_content(result.body))
            except HoldMQError as error:
                self._sessions.not_opened(session, self, error)
            self._turn.settle()

        connection.request(
            RequestCode.SESSION_SHOW, SessionShowRequest(session.client_id), shown, OPEN_TIMEOUT_S
        )

    def _write(self) -> None:
        connection = self._link.connection
        if connection is None:
            return
        changes: list[_RowUpdate] = []
        size = 0
        while self._changes and len(changes) < CHANGES_PER_WRITE and size < WRITE_MAX_BYTES:
            changes.append(self._changes.popleft())
            size += changes[-1].size
        while self._states and len(changes) < CHANGES_PER_WRITE and size < WRITE_MAX_BYTES:
            session = next(iter(self._states))
            del self._states[session]
            change = self._state_of(session)
            if change is not None:
                changes.append(change)
                size += change.size
        if not changes:
            return
        self._is_writing = True
        connection.request(
            RequestCode.SESSION_WRITE,
            SessionWriteRequest([change.row for change in changes]),
            functools.partial(self._written, changes, connection),
            WRITE_TIMEOUT_S,
        )

    def _state_of(self, session: Session) -> _RowUpdate | None:
        cursor = session.cursor
        if session.state == CLOSED or cursor is None:
            return None
        value = self._rows.state_of(session)
        row = SessionChange(session.client_id, session.epoch, PUT_STATE, "", value, session.expiry_s)
        change = _RowUpdate(row, session, None)
        change.written = cursor.begin_write(session.unreleased)
        self.pending_bytes += change.size
        return change

    def _written(self, changes: list[_RowUpdate], connection: object, result: Reply | HoldMQError) -> None:
        if connection is self._link.connection:
            self._is_writing = False
        if isinstance(result, Reply):
            try:
                fenced = set(result.header(SessionWriteResponse).fenced)
            except WireError as error:
                self._send_again(changes)
                self._connect_again(error)
                return
            for at, change in enumerate(changes):
                self._done(change, at not in fenced)
            self._turn.settle()
        elif isinstance(result, RequestTimeout):
            self._send_again(changes)
            self._connect_again(result)
            return
        elif isinstance(result, RemoteError) and not result.retriable:
            log.error("changes of sessions are refused", broker=self.name, reason=str(result))
            for change in changes:
                self._done(change, False)
            self._turn.settle()
        else:
            self._send_again(changes)
            if isinstance(result, RemoteError) and self._retry is None:
                wait_s = result.retry_after_ms / 1e3 if isinstance(result, BusyError) else RETRY_S
                self._retry = self._loop.call_later(wait_s, self._retry_now)
        self._flush_soon()

    def _retry_now(self) -> None:
        self._retry = None
        self._flush_soon()

    def _send_again(self, changes: list[_RowUpdate]) -> None:
        """Before everything newer; a state is made anew when it leaves."""
        if self.is_given_up:
            for change in changes:
                if change.on_written is not None and change.session is not None:
                    change.on_written(False)
            return
        for change in reversed(changes):
            session, written = change.session, change.written
            if written is None:
                self._changes.appendleft(change)
                continue
            self.pending_bytes -= change.size
            if session is not None and session.cursor is not None and session.state != CLOSED:
                session.cursor.failed(written)
                self._states[session] = None

    def _connect_again(self, error: HoldMQError) -> None:
        connection = self._link.connection
        if connection is not None:
            log.warning("the owner of sessions does not answer", broker=self.name, reason=str(error))
            connection.close(TransportError(str(error)))

    def _done(self, change: _RowUpdate, is_written: bool) -> None:
        self.pending_bytes -= change.size
        session = change.session
        if session is not None and session.state == CLOSED:
            return
        if session is not None and not is_written:
            self._sessions.fenced(session.client_id, session.epoch)
            return
        if session is not None and change.written is not None:
            self._rows.state_written(session, change.written)
        if change.on_written is not None:
            change.on_written(is_written)

    def give_up(self) -> None:
        """The owner has been away for long: who waits for it is closed, as with publishes."""
        for change in self._changes:
            if change.on_written is not None and change.session is not None:
                change.on_written(False)
                change.on_written = None

    def abandon(self) -> None:
        """The owner never comes back: who waits for it is told so, and nothing is kept for it."""
        self.is_given_up = True
        changes, self._changes = self._changes, deque()
        self._states.clear()
        self.pending_bytes = 0
        for change in changes:
            if change.on_written is not None and change.session is not None:
                change.on_written(False)
        opens, self._opens = self._opens, []
        self._not_opened(opens, TransportError(f"broker {self.name} was given up"))
