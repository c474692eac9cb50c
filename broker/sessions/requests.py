"""SESSION_OPEN, SESSION_WRITE, SESSION_DROP, SESSION_KICK; questions are in `broker.sessions.queries`.

The shell around `broker.sessions.core.sessions`: this broker owns the sessions of the client ids that
`session_owner` gives it. Rows live in the table `%SESSION`, so they survive what the log survives.
Source: mqtt.md, Sessions are cursors.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from broker.kernel.request_family import HelloOf, RequestFamily
from broker.sessions.core.counts import CountedRow, SessionQuotas, SessionUse
from broker.sessions.core.openings import Opening
from broker.sessions.core.rows import META, RowChange, decode_meta, meta_key
from broker.sessions.core.sessions import TAKEOVER_S, OwnedSessions
from broker.sessions.core.wills import WillKey
from broker.sessions.queries import SessionQueries
from broker.sessions.rows import CLIENT_ID_BYTES_MAX, Session, SessionRows, check_client_id
from broker.sessions.wills import DueWills
from holdmq.errors import BusyError, Code, HoldMQError, RecordError, RemoteError, StorageError, WireError
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import (
    CHANGES_MAX,
    KINDS,
    OPENINGS_MAX,
    SESSION_QUEUES,
    SESSION_TOPIC,
    WILL_DONE,
    SessionChange,
    SessionDropRequest,
    SessionDropResponse,
    SessionKickRequest,
    SessionKickResponse,
    SessionOpened,
    SessionOpening,
    SessionOpenRequest,
    SessionOpenResponse,
    SessionTakenRequest,
    SessionWriteRequest,
    SessionWriteResponse,
)
from holdmq.wire.session_will import HAS_WILL, WILL_BYTES_MAX, decode_will
from storage.api.store import OrderedStore

READ_MAX: Final = 256
"""Sessions that one look-up reads: some milliseconds of a reader thread."""
SWEEP_ROWS: Final = 1_000
SWEEP_INTERVAL_S: Final = 60.0
"""Between two passes over all sessions for those that have expired: nobody sees one that is not gone yet."""
RETRY_S: Final = 1.0
"""How often ends that the log refused are written again."""
LEASE_CHECK_S: Final = 1.0
ROWS_MAX: Final = 1_000
CONTENTS_MAX_BYTES: Final = 1 << 20
"""Contents in one answer to SESSION_OPEN; what has no room is asked for by SESSION_SHOW."""
FILTER_BYTES_MAX: Final = (32 << 10) - CLIENT_ID_BYTES_MAX - 2
"""Together they are a row's key, of at most 32 KiB."""
VALUE_MAX_BYTES: Final = 512 << 10
"""A state or the options of a filter: as a row it fits the smallest record_max_bytes."""
HELD_MAX: Final = 100_000
"""Openings in hand: as many as a storm of all gateways has under way."""

log = structlog.get_logger("holdmq.broker")


class TopicsLike(Protocol):
    """Makes topics that do not exist yet."""

    def require(
        self, name: str, queues: int, done: Callable[[HoldMQError | None], None], *, is_table: bool = False
    ) -> None:
        """Have a system topic."""


class _SweepPage(NamedTuple):
    """`users` are filled in the first pass only, which counts them."""

    rows: int
    users: list[CountedRow]
    expired: list[str]
    next_after: str | None


class SessionTable(RequestFamily):
    """The sessions that this broker owns. Call `start` before the first request."""

    def __init__(
        self,
        store: OrderedStore,
        topics: TopicsLike,
        clock_ms: Callable[[], int],
        hello_of: HelloOf,
        use: SessionUse,
        quotas: SessionQuotas,
        sweep_interval_s: float = SWEEP_INTERVAL_S,
        user_max: int = 0,
    ) -> None:
        now_ms = clock_ms()
        self.core: OwnedSessions[Connection] = OwnedSessions(
            now_ms << 20, now_ms, lambda: secrets.randbits(63), use, quotas, user_max=user_max
        )
        self.rows = SessionRows(store)
        self.queries = SessionQueries(store, self.core, self.rows, clock_ms, self._check_ready, hello_of)
        self.wills = DueWills(store, self.core, self.rows, clock_ms)
        self.sweep_interval_s = sweep_interval_s
        self.swept = 0
        self._store = store
        self._topics = topics
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._told: dict[Opening[Connection], Callable[[Opening[Connection]], None]] = {}
        self._is_ready = False
        self._is_keeper = False
        self.opened = asyncio.Event()
        """Set when the table is there."""
        self._is_closed = False
        self._is_settling = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._counted = 0
        self._heard_bytes: dict[Connection, int] = {}

    # The part

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.SESSION_OPEN: self.open,
            RequestCode.SESSION_WRITE: self.write,
            RequestCode.SESSION_DROP: self.drop,
            RequestCode.SESSION_KICK: self.kick,
            **self.queries.routes(),
        }

    def start(self, is_keeper: bool) -> None:
        """Have the table, and begin to look for what has expired.

        A broker that is no keeper has no table, and takes no session: it answers as one without any.
        """
        self._is_keeper = is_keeper
        if not is_keeper:
            self._have_table(None)
            return
        self._topics.require(SESSION_TOPIC, SESSION_QUEUES, self._have_table, is_table=True)

    def _have_table(self, error: HoldMQError | None) -> None:
        if self._is_closed:
            return
        if error is not None:
            log.error("the table of sessions cannot be made; trying again", reason=str(error))
            self._after("start", RETRY_S, self.start, self._is_keeper)
            return
        self.wills.recover(self._have_wills)

    def _have_wills(self, error: HoldMQError | None) -> None:
        if self._is_closed:
            return
        if error is not None:
            log.error("the wills of before cannot be read; trying again", reason=str(error))
            self._after("start", RETRY_S, self.start, self._is_keeper)
            return
        self._is_ready = True
        self.opened.set()
        self._sweep(None)
        self._look_at_leases(self._loop.time())

    def _look_at_leases(self, before: float) -> None:
        """Find the gateways that are silent; what we slept through is not their silence."""
        now = self._loop.time()
        if now - before > 2 * LEASE_CHECK_S:
            self.core.extend_leases(now - before)
        for owner in self.core.owners():
            if self._heard_bytes.get(owner) != owner.bytes_in:
                self._heard_bytes[owner] = owner.bytes_in
                self.core.heard(owner, now)
        changes: list[RowChange] = []
        for owner in self.core.silent(now):
            changes += self.core.lease_over(owner, now, self._clock_ms())
        if changes:
            self._write_ends(changes)
        self._settle()
        self.wills.each_second(now)
        self._after("leases", LEASE_CHECK_S, self._look_at_leases, now)

    def heard(self, connection: Connection) -> None:
        """A gateway says that it is there."""
        self.core.heard(connection, self._loop.time())

    def _after(self, name: str, delay_s: float, work: Callable[..., None], *args: object) -> None:
        known = self._timers.pop(name, None)
        if known is not None:
            known.cancel()
        self._timers[name] = self._loop.call_later(delay_s, work, *args)

    def release_all(self) -> None:
        """Draining: what is connected ends when its gateway's connection does; write nothing after that."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self.wills.close()

    def closed(self, connection: Connection) -> None:
        changes = self.core.owner_gone(connection, self._loop.time(), self._clock_ms())
        if changes and not self._is_closed:
            for at in range(0, len(changes), ROWS_MAX):
                self._write_ends(changes[at : at + ROWS_MAX])
        self.wills.closed(connection)
        self._heard_bytes.pop(connection, None)
        self._settle()

    def numbers(self) -> Mapping[str, int | float]:
        core, counts = self.core, self.core.counts
        return {
            "sessions_open": len(core),
            "sessions_stored": core.stored,
            "sessions_opening": len(self._told),
            "session_takeovers_waiting": core.taking,
            "session_changes_in_hand_bytes": self.rows.in_hand_bytes,
            "session_ends_owed": len(self.rows.owed),
            "session_opens_total": counts.opens,
            "session_takeovers_total": counts.takeovers,
            "session_takeover_timeouts_total": counts.takeover_timeouts,
            "session_fenced_total": counts.fenced,
            "session_foreign_total": counts.foreign,
            "session_refused_total": counts.refused,
            "session_foreign_ended_total": counts.foreign_ended,
            "session_user_full_total": counts.user_full,
            "session_users": len(core.use.users),
            "session_expired_total": counts.expired,
            "session_dropped_total": counts.dropped,
            "session_kicked_total": counts.kicked,
            "session_appends_total": self.rows.appends,
            "session_appends_refused_total": self.rows.refused,
            "session_changes_total": self.rows.changes,
            "session_sweeps_total": self.swept,
            **self.wills.numbers(),
        }

    # Requests

    def open(self, request: Request) -> None:
        """SESSION_OPEN: answered when every session of it is decided."""
        self._check_ready()
        if not self._is_keeper:
            raise BusyError("this broker keeps no sessions: refresh the route", 100)
        wanted = rows(SessionOpening, request.header(SessionOpenRequest).sessions)
        if not 0 < len(wanted) <= OPENINGS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {OPENINGS_MAX} sessions in one SESSION_OPEN")
        for opening in wanted:
            _check_opening(opening)
        if len(self._told) + len(wanted) > HELD_MAX:
            raise BusyError(f"{HELD_MAX} sessions are being opened", 100)
        self.rows.check_room()
        request.let_go()
        left = len(wanted)
        openings: list[Opening[Connection]] = []

        def told(_opening: Opening[Connection]) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._answer_openings(request, openings)

        now = self._loop.time()
        self.core.heard(request.connection, now)
        for row in wanted:
            opened = self.core.open(row, request.connection, now)
            openings.append(opened)
            self._told[opened] = told
        self._settle()

    @staticmethod
    def _answer_openings(request: Request, openings: Sequence[Opening[Connection]]) -> None:
        answers: list[SessionOpened] = []
        parts: list[bytes] = []
        room = CONTENTS_MAX_BYTES
        for opening in openings:
            answer = opening.answer
            assert answer is not None
            if opening.content is not None:
                part = opening.content.encode()
                if len(part) > room:
                    answer = answer._replace(length_bytes=-1)
                else:
                    room -= len(part)
                    parts.append(part)
                    answer = answer._replace(length_bytes=len(part))
            answers.append(answer)
        request.reply(SessionOpenResponse(answers), parts, sum(map(len, parts)))

    def write(self, request: Request) -> None:
        """SESSION_WRITE: answered when the log has the changes."""
        self._check_ready()
        wanted = rows(SessionChange, request.header(SessionWriteRequest).changes)
        if not 0 < len(wanted) <= CHANGES_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {CHANGES_MAX} changes in one SESSION_WRITE")
        for change in wanted:
            self._check_change(change)
        self.rows.check_room()
        request.let_go()
        now, now_ms = self._loop.time(), self._clock_ms()
        self.core.heard(request.connection, now)
        fenced: list[int] = []
        changes = []
        for at, change in enumerate(wanted):
            made = self.core.change(change, request.connection, now, now_ms)
            if change.kind == WILL_DONE:
                self.wills.done(WillKey(change.client_id, change.epoch))
            if made is None:
                fenced.append(at)
            else:
                changes += made

        def done(error: StorageError | None) -> None:
            if error is not None:
                self._owe(changes)
                request.refuse(error)
            else:
                request.reply(SessionWriteResponse(fenced))

        if changes:
            self.rows.write(changes, done)
        else:
            done(None)
        self._settle()

    def _check_change(self, change: SessionChange) -> None:
        check_client_id(change.client_id)
        if change.kind not in KINDS:
            raise WireError(f"a change of the kind {change.kind!r}", Code.MISSING_FIELD)
        if not 0 <= change.expiry_s <= 0xFFFFFFFF:
            raise RemoteError(Code.LIMIT_EXCEEDED, "an expiry is out of range")
        size = len(change.value)
        if size > VALUE_MAX_BYTES or len(change.name.encode()) > FILTER_BYTES_MAX:
            raise RemoteError(
                Code.RECORD_TOO_LARGE, f"{size} bytes of a session, {len(change.name)} of a filter"
            )

    def drop(self, request: Request) -> None:
        """SESSION_DROP: answered when it is gone."""
        self._check_ready()
        client_id = request.header(SessionDropRequest).client_id
        check_client_id(client_id)

        def told(opening: Opening[Connection]) -> None:
            if opening.answer is not None:
                request.refuse(RemoteError(Code(opening.answer.code), opening.answer.reason))
            else:
                request.reply(SessionDropResponse(opening.was_present))

        self._told[self.core.drop(client_id, self._loop.time())] = told
        self._settle()

    def kick(self, request: Request) -> None:
        """SESSION_KICK: answered when the client's gateway is told."""
        self._check_ready()
        client_id = request.header(SessionKickRequest).client_id
        check_client_id(client_id)
        was_connected = self.core.kick(client_id)
        self._settle()
        request.reply(SessionKickResponse(was_connected))

    def _check_ready(self) -> None:
        if not self._is_ready or self._is_closed:
            raise BusyError("the table of sessions is not open", 100)

    # What the core wants

    def _settle(self) -> None:
        """Do what the core wants until it wants nothing more."""
        if self._is_settling:
            return
        self._is_settling = True
        core = self.core
        try:
            while core.taken or core.done or core.to_read:
                taken, core.taken = core.taken, []
                for owner, client_id, epoch, by_operator in taken:
                    push = SessionTakenRequest(client_id, epoch, int(TAKEOVER_S * 1000), by_operator)
                    owner.send_one_way(RequestCode.SESSION_TAKEN, push)
                done, core.done = core.done, []
                for opening in done:
                    told = self._told.pop(opening, None)
                    if told is not None:
                        told(opening)
                to_read, core.to_read = core.to_read, []
                for at in range(0, len(to_read), READ_MAX):
                    self._read(to_read[at : at + READ_MAX])
        finally:
            self._is_settling = False
        deadline = core.next_deadline()
        if deadline is not None and "takeovers" not in self._timers:
            self._after("takeovers", max(0.0, deadline - self._loop.time()), self._deadline)
        self.wills.look()

    def _deadline(self) -> None:
        self._timers.pop("takeovers", None)
        self.core.handle_deadline(self._loop.time())
        self._settle()

    def _read(self, openings: Sequence[Opening[Connection]]) -> None:
        def loaded(found: list[Session] | HoldMQError) -> None:
            if isinstance(found, HoldMQError):
                self._settled(openings, found)
                return
            now_ms = self._clock_ms()
            decided = []
            for opening, session in zip(openings, found, strict=True):
                if isinstance(session, HoldMQError):
                    self._settled([opening], session)
                else:
                    self.core.loaded(opening, session, now_ms, self._loop.time())
                    decided.append(opening)
            changes = [change for opening in decided for change in opening.changes]
            if changes and not self._is_closed:
                self.rows.write(changes, lambda error: self._settled(decided, error))
            else:
                self._settled(decided, None)

        self.rows.load([opening.wanted.client_id for opening in openings], loaded)

    def _settled(self, openings: Sequence[Opening[Connection]], error: HoldMQError | None) -> None:
        failure = None if error is None else (error.code, str(error))
        now, now_ms = self._loop.time(), self._clock_ms()
        gone: set[Connection] = set()
        for opening in openings:
            self.core.settled(opening, failure, now)
            if failure is not None and opening.was_open is not None and opening.was_open.expiry_s:
                # It was taken from its connection, and did not get to the next one.
                ended = opening.was_open._replace(ended_ms=max(1, now_ms))
                self._owe([(opening.wanted.client_id, meta_key(opening.wanted.client_id), ended.encode())])
            if opening.owner is not None and opening.owner.is_closed:
                gone.add(opening.owner)
        for owner in gone:
            self.closed(owner)
        self._settle()

    # Ends

    def _write_ends(self, changes: list[tuple[str, str, bytes | None]]) -> None:
        def done(error: StorageError | None) -> None:
            if error is not None:
                self._owe(changes)

        self.rows.write(changes, done)

    def _owe(self, changes: Sequence[tuple[str, str, bytes | None]]) -> None:
        """The log refused the ends of sessions: they count all the same, and are written later."""
        self.wills.owe(changes)
        for client_id, key, value in changes:
            if key[0] == META and value is not None:
                meta = decode_meta(value)
                if meta.ended_ms and not self.core.is_known(client_id):
                    self.rows.owed[client_id] = meta
        if self.rows.owed and "owed" not in self._timers and not self._is_closed:
            self._after("owed", RETRY_S, self._write_owed)

    def _write_owed(self) -> None:
        self._timers.pop("owed", None)
        owed = [
            (client_id, meta_key(client_id), meta.encode())
            for client_id, meta in self.rows.owed.items()
            if not self.core.is_known(client_id)
        ]
        if owed:
            self._write_ends([*owed[:ROWS_MAX]])
        if self.rows.owed:
            self._after("owed", RETRY_S, self._write_owed)

    # Expiry

    def _sweep(self, after: str | None) -> None:
        """Look at a page of sessions for those that have expired."""
        if self._is_closed:
            return
        future = self._loop.run_in_executor(self._store.reader_pool, self._sweep_page, after)

        def done(finished: asyncio.Future[_SweepPage]) -> None:
            if finished.cancelled() or self._is_closed:
                return
            error = finished.exception()
            if error is not None:
                log.error("looking for expired sessions failed; trying again", reason=str(error))
                # From here, for nothing may be counted twice.
                self._after("sweep", self.sweep_interval_s, self._sweep, after)
                return
            self._swept(finished.result())

        future.add_done_callback(done)

    def _sweep_page(self, after: str | None) -> _SweepPage:
        """On the reader pool."""
        now_ms = self._clock_ms()
        page = self.rows.tables.scan(SESSION_TOPIC, META, after, SWEEP_ROWS)
        is_counting = not self.core.use.users.is_complete
        expired, users = [], []
        for row in page.rows:
            try:
                meta = decode_meta(row.value)
                if self.core.is_over(meta, now_ms):
                    expired.append(row.key[1:])
                if is_counting:
                    users.append(CountedRow(row.key[1:], meta.principal))
            except RecordError as error:
                log.error("a session cannot be used", client=row.key[1:], reason=str(error))
        return _SweepPage(len(page.rows), users, expired, page.next_after)

    def _swept(self, page: _SweepPage) -> None:
        now = self._loop.time()
        left = 0
        self.core.use.count(page.users)

        def told(_opening: Opening[Connection]) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._sweep_on(page)

        for client_id in page.expired:
            opening = self.core.expire(client_id, now)
            if opening is not None:
                left += 1
                self._told[opening] = told
        self._counted += page.rows - left
        if left:
            self._settle()
        else:
            self._sweep_on(page)

    def _sweep_on(self, page: _SweepPage) -> None:
        if page.next_after is not None:
            self._after("sweep", 0.0, self._sweep, page.next_after)
            return
        self.core.stored, self._counted = self._counted, 0
        self.core.use.complete()
        self.swept += 1
        self._after("sweep", self.sweep_interval_s, self._sweep, None)


def _check_opening(opening: SessionOpening) -> None:
    """Raise RemoteError or WireError for what no session can be."""
    check_client_id(opening.client_id)
    if not 0 <= opening.expiry_s <= 0xFFFFFFFF or not 0 <= opening.epoch < 1 << 63:
        raise RemoteError(Code.LIMIT_EXCEEDED, "an expiry or epoch is out of range")
    if len(opening.will) > WILL_BYTES_MAX:
        raise RemoteError(Code.RECORD_TOO_LARGE, f"a will of {len(opening.will)} bytes")
    if opening.will and opening.will != HAS_WILL:
        decode_will(opening.will)
