"""Wills that are due: read from their rows, and handed to gateways, which publish them; found at a start.

A gateway maps the topic, creates it, keeps the message if it is retained, and sends it to the broker of its
queue, as every publish; it tells when the log has it, and the row goes. If it dies or is silent, another one
is told. The record says what it is known by (client id and epoch of the connection), so that it is stored
once, whoever published it (`broker.produce.core.received`). Source: mqtt.md, Wills.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from broker.kernel.table_pages import TablePages, read_on_pool
from broker.sessions.core.rows import WILL, RowChange, decode_meta, meta_key, split_will_key, will_key
from broker.sessions.core.sessions import OwnedSessions
from broker.sessions.core.wills import LEASE_S, WillKey
from broker.sessions.rows import SessionRows
from holdmq.errors import HoldMQError, StorageError
from holdmq.rpc.connection import Connection
from holdmq.wire.codes import RequestCode
from holdmq.wire.session_headers import SESSION_TOPIC, DueWill, SessionWillsRequest
from holdmq.wire.session_will import decode_will
from storage.api.store import OrderedStore
from storage.api.tables import Page, VersionedRow

IN_HAND_MAX: Final = 1_000
"""Wills that gateways are publishing: a storm's worth of one worker in some seconds."""
READ_MAX: Final = 250
PUSH_MAX_BYTES: Final = 1 << 20
PUBLISH_TIMEOUT_S: Final = 15.0
"""A gateway that does not tell in this time is taken for gone: longer than it tries itself."""
RETRY_S: Final = 1.0
SCAN_ROWS: Final = 1_000

Recovered = Callable[[HoldMQError | None], None]

log = structlog.get_logger("holdmq.broker")


class _Found(NamedTuple):
    """A will that a start found: after `wait_s` it is due, unless its connection is claimed."""

    key: WillKey
    delay_s: int
    wait_s: float


class DueWills:
    """Hands wills of `core` to gateways. `look` after every change of it."""

    def __init__(
        self,
        store: OrderedStore,
        core: OwnedSessions[Connection],
        rows: SessionRows,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._core = core
        self._rows = rows
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._handed: dict[WillKey, tuple[Connection | None, float]] = {}
        """Whose each is now, and until when; nobody's, and without a deadline, while its row is read."""
        self._owed: dict[str, RowChange] = {}
        self._pages: TablePages[list[_Found]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_closed = False
        self._turn = 0

    def numbers(self) -> Mapping[str, int]:
        """Gauges and counters of the wills."""
        wills = self._core.wills
        return {
            "wills": wills.count,
            "wills_publishing": len(self._handed),
            "wills_owed": len(self._owed),
            "wills_published_total": wills.published,
            "wills_cancelled_total": wills.cancelled,
            "wills_deleted_total": wills.deleted,
            "wills_retried_total": wills.retried,
        }

    def close(self) -> None:
        """Hand nothing more to anybody."""
        self._is_closed = True
        if self._pages is not None:
            self._pages.close()
        if self._timer is not None:
            self._timer.cancel()

    # A start

    def recover(self, done: Recovered) -> None:
        """Find the wills of connections of before; `done` is called later."""

        def read(error: HoldMQError | None) -> None:
            if error is None:
                self.look()
            done(error)

        self._pages = TablePages(self._store, self._scan_page, self._restore, read)
        self._pages.begin()

    def _restore(self, found: list[_Found]) -> None:
        now = self._loop.time()
        for will in found:
            if not self._core.wills.has(*will.key):
                self._core.wills.restore(*will.key, will.delay_s, now + will.wait_s)

    def _scan_page(self, after: str | None) -> tuple[list[_Found], str | None]:
        """On the reader pool."""
        tables, now_ms = self._rows.tables, self._clock_ms()
        page: Page = tables.scan(SESSION_TOPIC, WILL, after, SCAN_ROWS)
        keys = [split_will_key(row.key) for row in page.rows]  # nobody else writes such rows
        metas = tables.get_many(SESSION_TOPIC, [meta_key(client_id) for client_id, _ in keys]) if keys else []
        found = []
        for (client_id, epoch), row, meta in zip(keys, page.rows, metas, strict=True):
            try:
                found.append(_found(WillKey(client_id, epoch), row, meta, now_ms))
            except HoldMQError as error:
                log.error("a will cannot be used", client=client_id, reason=str(error))
        return found, page.next_after

    # Handing over

    def look(self) -> None:
        """Hand over what is due, and look again when the next one is."""
        if self._is_closed:
            return
        deadline = self._core.wills.next_deadline()
        if deadline is None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        # uvloop's handle of what is due already cannot say when.
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._loop.time()
        room = IN_HAND_MAX - len(self._handed)
        if not room:
            return  # `each_second` looks again
        due = self._core.wills.take_due(now, min(room, READ_MAX))
        if due:
            keys = [key for key, _ in due]
            self._handed.update(dict.fromkeys(keys, (None, math.inf)))

            def read(found: list[VersionedRow | None] | HoldMQError) -> None:
                if isinstance(found, HoldMQError):
                    log.error("wills that are due cannot be read; trying again", reason=str(found))
                    self._put_back(keys, RETRY_S)
                else:
                    self._hand_over(due, found)

            self._load(keys, read)
        self.look()

    def _load(
        self, keys: Sequence[WillKey], loaded: Callable[[list[VersionedRow | None] | HoldMQError], None]
    ) -> None:
        names = [will_key(*key) for key in keys]

        def read(found: list[VersionedRow | None] | HoldMQError) -> None:
            if not self._is_closed:
                loaded(found)

        def applied(error: StorageError | None) -> None:
            if error is not None:
                loaded(error)
                return
            tables = self._rows.tables
            read_on_pool(self._store.reader_pool, lambda: tables.get_many(SESSION_TOPIC, names), read)

        self._rows.tables.wait_applied(self._store.confirmed_position, applied)

    def _hand_over(
        self, due: Sequence[tuple[WillKey, Connection | None]], found: Sequence[VersionedRow | None]
    ) -> None:
        """Push wills to gateways: each to the one that told of its end, or all others to the next in turn."""
        now = self._loop.time()
        gateways = [owner for owner in self._core.leased(now) if not owner.is_closed]
        self._turn += 1
        parts: dict[Connection, list[DueWill]] = {}
        nobody: list[WillKey] = []
        for (key, owner), row in zip(due, found, strict=True):
            if key not in self._handed:
                continue  # a gateway of before told, late, that it is over
            if row is None:
                del self._handed[key]
                self._core.wills.is_gone(key)
                continue
            if owner not in gateways:
                owner = gateways[self._turn % len(gateways)] if gateways else None
            if owner is None:
                nobody.append(key)
                continue
            self._handed[key] = (owner, now + PUBLISH_TIMEOUT_S)
            parts.setdefault(owner, []).append(DueWill(*key, row.value))
        self._put_back(nobody, RETRY_S)
        for owner, wills in parts.items():
            self._push(owner, wills)

    def _push(self, owner: Connection, wills: list[DueWill]) -> None:
        part: list[DueWill] = []
        size = 0
        for will in wills:
            part.append(will)
            size += len(will.will)
            if size >= PUSH_MAX_BYTES:
                owner.send_one_way(RequestCode.SESSION_WILLS, SessionWillsRequest(part))
                part, size = [], 0
        if part:
            owner.send_one_way(RequestCode.SESSION_WILLS, SessionWillsRequest(part))

    def done(self, key: WillKey) -> None:
        """A gateway told that this one is over."""
        self._handed.pop(key, None)

    def closed(self, connection: Connection) -> None:
        """A gateway is gone: what it was to publish goes to another."""
        self._put_back([key for key, (owner, _) in self._handed.items() if owner is connection], 0.0)

    def each_second(self, now: float) -> None:
        """Wait no longer for who does not tell; write what the log refused."""
        self._write_owed()
        self._put_back([key for key, (_, deadline) in self._handed.items() if deadline <= now], 0.0)
        self.look()

    def owe(self, changes: Sequence[RowChange]) -> None:
        """The log refused these changes: of those that take wills away nobody tells us again."""
        self._owed.update(
            {change[1]: change for change in changes if change[1][0] == WILL and change[2] is None}
        )

    def _write_owed(self) -> None:
        owed, self._owed = self._owed, {}
        if not owed or self._is_closed:
            return
        changes = list(owed.values())

        def written(error: StorageError | None) -> None:
            if error is not None:
                self.owe(changes)  # twice is once

        for at in range(0, len(changes), SCAN_ROWS):
            self._rows.write(changes[at : at + SCAN_ROWS], written)

    def _put_back(self, keys: Sequence[WillKey], delay_s: float) -> None:
        due_at = self._loop.time() + delay_s
        for key in keys:
            if self._handed.pop(key, None) is not None:
                self._core.wills.put_back(key, due_at)
        if keys:
            self.look()


def _found(key: WillKey, row: VersionedRow, meta_row: VersionedRow | None, now_ms: int) -> _Found:
    """When a will of before is due: whoever may still be connected gets the time of a lease to say so."""
    will = decode_will(row.value)
    if meta_row is None:
        return _Found(key, will.delay_s, LEASE_S)  # its session ends with the connection
    meta = decode_meta(meta_row.value)
    if meta.epoch != key.epoch:
        return _Found(key, will.delay_s, 0.0)
    delay_s = float(min(will.delay_s, meta.expiry_s))
    if not meta.ended_ms:
        return _Found(key, will.delay_s, LEASE_S + delay_s)
    return _Found(key, will.delay_s, max(LEASE_S, (meta.ended_ms - now_ms) / 1000 + delay_s))
