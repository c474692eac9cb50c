"""The rows of sessions in the table `%SESSION`: written together once a turn, read when they show it all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import xxhash

from broker.kernel.table_pages import read_on_pool
from broker.sessions.core.rows import (
    META,
    FoundSession,
    Meta,
    RowChange,
    decode_meta,
    filter_key,
    meta_key,
    state_key,
)
from holdmq.errors import BusyError, Code, HoldMQError, RecordError, RemoteError, StorageError
from holdmq.wire.session_headers import SESSION_QUEUES, SESSION_TOPIC
from storage.api.batches import Appended, Batch
from storage.api.store import MessageStore
from storage.api.tables import KeyChange, TableStore

APPEND_MAX_BYTES: Final = 4 << 20
"""One append: far below the smallest segment."""
IN_HAND_MAX_BYTES: Final = 64 << 20
"""Changes that wait for the disk; past it BUSY."""
WRITTEN_PRUNED_AT: Final = 10_000
"""Clients whose last change may not be shown yet, before those that are shown are forgotten."""
RETRY_AFTER_MS: Final = 50
CLIENT_ID_BYTES_MAX: Final = 16 << 10

Done = Callable[[StorageError | None], None]
Session = FoundSession | HoldMQError | None
"""A session as its rows say, why they cannot be understood, or None = there is none."""
Loaded = Callable[[list[Session] | HoldMQError], None]

log = structlog.get_logger("holdmq.broker")


class SessionRows:
    """Reads and writes the rows. `owed` are ends of sessions that the log refused: what rows say is older."""

    def __init__(self, store: MessageStore) -> None:
        self.appends = 0
        self.changes = 0
        self.refused = 0
        self.in_hand_bytes = 0
        self.owed: dict[str, Meta] = {}
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._open: list[tuple[list[RowChange], Done]] = []
        self._in_hand: Counter[str] = Counter()
        self._written: dict[str, int] = {}
        self._parked: list[tuple[Sequence[str], Loaded]] = []

    @property
    def tables(self) -> TableStore:
        """The tables of the store."""
        tables = self._store.tables
        assert tables is not None
        return tables

    def check_room(self) -> None:
        """Raise BUSY when too much waits for the disk."""
        if self.in_hand_bytes >= IN_HAND_MAX_BYTES:
            raise BusyError("changes of sessions wait for the disk", RETRY_AFTER_MS)

    # Writing

    def write(self, changes: list[RowChange], done: Done) -> None:
        """Append changes with all others of this turn; `done` is told later, in the order of calls."""
        if not self._open:
            self._loop.call_soon(self._flush)
        self._open.append((changes, done))
        for client_id, key, value in changes:
            self._in_hand[client_id] += 1
            self.in_hand_bytes += len(key) + len(value or b"")

    def _flush(self) -> None:
        waiting, self._open = self._open, []
        part: list[tuple[list[RowChange], Done]] = []
        size = 0
        for changes, done in waiting:
            part.append((changes, done))
            size += sum(len(key) + len(value or b"") + 200 for _, key, value in changes)
            if size >= APPEND_MAX_BYTES:
                self._append(part)
                part, size = [], 0
        if part:
            self._append(part)

    def _append(self, part: list[tuple[list[RowChange], Done]]) -> None:
        changes = [change for changes, _ in part for change in changes]

        def done(batch: Batch, error: StorageError | None) -> None:
            self._settle(changes, batch, error)
            for _, told in part:
                told(error)
            self._go_on()

        self.appends += 1
        self._change_many(
            [KeyChange(queue_of(client_id), key, value) for client_id, key, value in changes], done
        )

    def _change_many(self, changes: list[KeyChange], done: Appended) -> None:
        self.tables.change_many(SESSION_TOPIC, changes, done, time.time_ns() // 1_000_000)

    def _settle(self, changes: list[RowChange], batch: Batch, error: StorageError | None) -> None:
        in_hand, written = self._in_hand, self._written
        for client_id, key, value in changes:
            self.in_hand_bytes -= len(key) + len(value or b"")
            in_hand[client_id] -= 1
            if not in_hand[client_id]:
                del in_hand[client_id]
            if error is None:
                written[client_id] = batch.end
                if key[0] == META:
                    self.owed.pop(client_id, None)
        if error is not None:
            self.refused += 1
            return
        self.changes += len(changes)
        if len(written) > WRITTEN_PRUNED_AT:
            applied = self.tables.applied_position
            self._written = {client_id: end for client_id, end in written.items() if end > applied}

    # Reading

    def load(self, client_ids: Sequence[str], loaded: Loaded) -> None:
        """Read sessions, once the table shows what was written to them before; `loaded` is called later."""
        if any(client_id in self._in_hand for client_id in client_ids):
            self._parked.append((client_ids, loaded))
            return
        need = max((self._written.get(client_id, 0) for client_id in client_ids), default=0)
        if need <= self.tables.applied_position:
            self._read(client_ids, loaded)
            return

        def reached(error: StorageError | None) -> None:
            if error is not None:
                loaded(error)
            else:
                self._read(client_ids, loaded)

        self.tables.wait_applied(need, reached)

    def _go_on(self) -> None:
        parked, self._parked = self._parked, []
        for client_ids, loaded in parked:
            self.load(client_ids, loaded)

    def _read(self, client_ids: Sequence[str], loaded: Loaded) -> None:
        def read(found: list[Session] | HoldMQError) -> None:
            if isinstance(found, HoldMQError):
                loaded(found)
            else:
                loaded([self._overlaid(*pair) for pair in zip(client_ids, found, strict=True)])

        read_on_pool(self._store.reader_pool, lambda: read_sessions(self.tables, client_ids), read)

    def _overlaid(self, client_id: str, found: Session) -> Session:
        owed = self.owed.get(client_id)
        return found._replace(meta=owed) if isinstance(found, FoundSession) and owed is not None else found


def queue_of(client_id: str) -> int:
    """The queue of a client id at its owner: xxh3-64 of its UTF-8 bytes, modulo the number of queues."""
    return xxhash.xxh3_64_intdigest(client_id.encode()) % SESSION_QUEUES


def read_sessions(tables: TableStore, client_ids: Sequence[str]) -> list[Session]:
    """Blocking: sessions as their rows say. Raises StorageError."""
    keys = [key(client_id) for client_id in client_ids for key in (meta_key, state_key)]
    rows = tables.get_many(SESSION_TOPIC, keys)
    found: list[Session] = []
    for at, client_id in enumerate(client_ids):
        meta, state = rows[2 * at], rows[2 * at + 1]
        if meta is None:
            found.append(None)
            continue
        try:
            known = decode_meta(meta.value)
        except RecordError as error:
            log.error("a session cannot be used", client=client_id, reason=str(error))
            found.append(error)
            continue
        filters = _read_filters(tables, client_id)
        found.append(FoundSession(known, b"" if state is None else state.value, filters))
    return found


def _read_filters(tables: TableStore, client_id: str) -> list[tuple[str, bytes]]:
    prefix = filter_key(client_id, "")
    filters: list[tuple[str, bytes]] = []
    after: str | None = None
    while True:
        page = tables.scan(SESSION_TOPIC, prefix, after)
        filters += [(row.key[len(prefix) :], row.value) for row in page.rows]
        if page.next_after is None:
            return filters
        after = page.next_after


def check_client_id(client_id: str) -> None:
    """Raise LIMIT_EXCEEDED for what cannot be a row's client id."""
    if not client_id or "\0" in client_id or len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise RemoteError(
            Code.LIMIT_EXCEEDED, f"a client id has 1 to {CLIENT_ID_BYTES_MAX} bytes, none of them 0"
        )
