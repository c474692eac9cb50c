"""TABLE_*: rows of tables read, scanned, changed and watched.

Changes are appended like messages and answered on confirmation; the store's table thread shows them a
moment later. Reads wait for that moment: they show every change that was confirmed before they came. A
change is made once however often its request comes (broker.tables.core.changes). Watches are pushes
(broker.tables.watches).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from broker.kernel.lookups import Lookups, answering
from broker.kernel.request_family import RequestFamily
from broker.kernel.statistics import Statistics
from broker.tables.core.changes import RowName, ShownChange, TableChanges
from broker.tables.watches import TableWatches
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import Code, RemoteError, StorageError
from holdmq.names.topics import is_system_topic
from holdmq.record.codec import FIXED_SIZE
from holdmq.record.properties import encode_properties
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import Empty
from holdmq.wire.table_headers import (
    NO_VALUE,
    TableChanged,
    TableChangeRequest,
    TableGetRequest,
    TableGetResponse,
    TableRow,
    TableScanRequest,
    TableScanResponse,
    TableUnwatchRequest,
    TableWatching,
    TableWatchRequest,
)
from storage.api.batches import Batch
from storage.api.store import OrderedStore
from storage.api.tables import TableStore, VersionedRow

KEYS_MAX: Final = 1_000
"""Keys of one TABLE_GET, and rows of one page of a scan."""
ANSWER_MAX_BYTES: Final = 4 << 20
"""Values in one answer, but always one row."""
CHANGES_MAX: Final = 4_096
"""Changes that wait for the disk; past it BUSY. With a sync every 10 ms that is 400,000 a second."""
CHANGES_MAX_BYTES: Final = 64 << 20
WAITING_MAX: Final = 10_000
"""Requests that wait for the tables to show what is confirmed; past it BUSY."""
REQUEST_ID_MAX: Final = 64


class TableRequests(RequestFamily):
    """The tables of one broker. Made after the store is open: what it finds is to be shown first."""

    def __init__(
        self, store: OrderedStore, topics: TopicTable, statistics: Statistics, record_max_bytes: int
    ) -> None:
        self.changes: TableChanges[Request] = TableChanges()
        self.watches = TableWatches(store.tables)
        self.lookups = Lookups(store.reader_pool)
        self.waiting = 0
        self.repeats = 0
        self.conflicts = 0
        self._store = store
        self._topics = topics
        self._statistics = statistics
        self._record_max_bytes = record_max_bytes
        self._in_hand_bytes = 0
        self._opened_at = store.confirmed_position
        self._changed_to = store.confirmed_position
        """Behind the last confirmed change: what reads wait for."""

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.TABLE_GET: self.get,
            RequestCode.TABLE_SCAN: self.scan,
            RequestCode.TABLE_PUT: self.put,
            RequestCode.TABLE_DELETE: self.delete,
            RequestCode.TABLE_WATCH: self.watch,
            RequestCode.TABLE_UNWATCH: self.unwatch,
        }

    def closed(self, connection: Connection) -> None:
        self.watches.closed(connection)

    def writable(self, connection: Connection) -> None:
        self.watches.writable(connection)

    def numbers(self) -> Mapping[str, int | float]:
        return {
            "table_changes_in_hand": self.changes.in_hand,
            "table_changes_in_hand_bytes": self._in_hand_bytes,
            "table_changes_remembered": len(self.changes),
            "table_repeats_total": self.repeats,
            "table_conflicts_total": self.conflicts,
            "table_requests_waiting": self.waiting,
            "table_lookups": self.lookups.running,
            "table_lookups_total": self.lookups.total,
            "table_lookups_refused_total": self.lookups.refused,
            "table_watches": self.watches.count,
            "table_pushes_total": self.watches.pushes,
            "table_rescans_total": self.watches.rescans,
        }

    # Reads

    def get(self, request: Request) -> None:
        """Answer TABLE_GET with the rows of keys."""
        header = request.header(TableGetRequest)
        tables = self._readable(header.topic)
        keys = header.keys
        if not 1 <= len(keys) <= KEYS_MAX or not all(isinstance(key, str) for key in keys):
            raise RemoteError(Code.LIMIT_EXCEEDED, f"a TABLE_GET names 1 to {KEYS_MAX} keys")

        def answer(found: list[VersionedRow | None]) -> None:
            rows = [_row(key, row) for key, row in zip(keys, found, strict=False)]
            values = [row.value for row in found if row is not None]
            request.reply(TableGetResponse(rows), values, sum(map(len, values)))

        self._once_shown(
            request,
            self._changed_to,
            lambda: self.lookups.run(
                request, lambda: tables.get_many(header.topic, keys, ANSWER_MAX_BYTES), answer
            ),
        )

    def scan(self, request: Request) -> None:
        """Answer TABLE_SCAN with a slice of rows."""
        header = request.header(TableScanRequest)
        tables = self._readable(header.topic)
        count = max(1, min(header.max_count, KEYS_MAX))
        size = max(1, min(header.max_bytes, ANSWER_MAX_BYTES))

        def look_up() -> TableScanResponse:
            position = tables.applied_position
            page = tables.scan(header.topic, header.prefix, header.after, count, size)
            values.extend(row.value for row in page.rows)
            return TableScanResponse([_row(row.key, row) for row in page.rows], page.next_after, position)

        values: list[bytes] = []
        self._once_shown(
            request,
            self._changed_to,
            lambda: self.lookups.run(
                request, look_up, lambda found: request.reply(found, values, sum(map(len, values)))
            ),
        )

    def watch(self, request: Request) -> None:
        """Answer TABLE_WATCH: tell the connection of changes from now on."""
        header = request.header(TableWatchRequest)
        self._readable(header.topic)
        self.watches.begin(request.connection, header.watch_id, header.topic, header.prefix)
        request.reply(TableWatching(self._changed_to))

    def unwatch(self, request: Request) -> None:
        """Answer TABLE_UNWATCH: tell the connection nothing more."""
        self.watches.end(request.connection, request.header(TableUnwatchRequest).watch_id)
        request.reply(Empty())

    # Changes

    def put(self, request: Request) -> None:
        """Answer TABLE_PUT when the row is in the log."""
        self._change(request, request.header(TableChangeRequest), bytes(request.body))

    def delete(self, request: Request) -> None:
        """Answer TABLE_DELETE when the deletion is in the log."""
        self._change(request, request.header(TableChangeRequest), None)

    def _change(
        self, request: Request, header: TableChangeRequest, value: bytes | None, is_new: bool = False
    ) -> None:
        """Answer a change: as its first request was, or by appending it, now or after a look-up."""
        tables = self._writable(header)
        self._check_size(header, value)
        known = self.changes.find(header.request_id)
        if known is not None:
            self.repeats += 1
            if known.is_confirmed:
                request.reply(TableChanged(known.version))
            else:
                known.waiting.append(request)
            return
        if header.is_repeat and not is_new:
            self._find_first(request, header, value)
            return
        if self.changes.in_hand >= CHANGES_MAX or self._in_hand_bytes >= CHANGES_MAX_BYTES:
            raise RemoteError(Code.BUSY, "changes of tables wait for the disk", {"retry_after_ms": 50})
        if header.if_version is not None:
            self.changes.applied(tables.applied_position)
            version = self.changes.version_of(RowName(header.topic, header.key))
            if version is None:
                self._read_version(request, header, value, tables)
                return
            self._expect(header.if_version, version)
        self._append(request, header, value, tables)

    def _expect(self, wanted: int, version: int) -> None:
        if wanted != version:
            self.conflicts += 1
            has = "no value" if version == NO_VALUE else f"version {version}"
            raise RemoteError(
                Code.ROW_CHANGED, f"the row has {has}, {wanted} was expected", {"version": version}
            )

    def _append(
        self, request: Request, header: TableChangeRequest, value: bytes | None, tables: TableStore
    ) -> None:
        born_ms = time.time_ns() // 1_000_000
        change: ShownChange[Request] | None = None
        size = len(header.key) + len(value or b"")

        def done(batch: Batch, error: StorageError | None) -> None:
            if change is None:
                request.refuse(error or StorageError("it was refused", operation="append"))
                return
            self._in_hand_bytes -= size
            if error is not None:
                for waiting in self.changes.refuse(change):
                    waiting.refuse(error)
                return
            self._changed_to = max(self._changed_to, batch.end)
            counts = self._statistics.of(topic, queue_id)
            counts.messages_in += 1
            counts.bytes_in += len(batch.records)
            for waiting in self.changes.confirm(change):
                waiting.reply(TableChanged(change.version))

        topic, queue_id, key = header.topic, header.queue_id, header.key
        if value is None:
            batch = tables.delete(topic, key, done, queue_id, born_ms, header.request_id)
        else:
            batch = tables.put(topic, key, value, done, queue_id, born_ms, header.request_id)
        if batch.position >= 0:
            shown = NO_VALUE if value is None else batch.position
            row = RowName(topic, key)
            change = self.changes.begin(header.request_id, row, batch.position, batch.end, shown, request)
            self._in_hand_bytes += size
        self.changes.applied(tables.applied_position)

    def _find_first(self, request: Request, header: TableChangeRequest, value: bytes | None) -> None:
        """Look in the log for what this request's first sending did."""
        index = self._store.index
        if index.indexed_position < self._opened_at:
            raise RemoteError(Code.BUSY, "the index of ids is still being completed", {"retry_after_ms": 200})

        def answer(version: int) -> None:
            if version >= 0:
                self.repeats += 1
                request.reply(TableChanged(version))
            else:
                self._change(request, header, value, True)

        def look_up() -> int:
            found = index.by_unique_id(header.topic, header.request_id, max_count=1).records
            return found[0].physical_offset if found else -1

        self.lookups.run(request, look_up, answer)

    def _read_version(
        self, request: Request, header: TableChangeRequest, value: bytes | None, tables: TableStore
    ) -> None:
        """Read the row, once it shows all that is confirmed, and decide by its version."""
        row = RowName(header.topic, header.key)

        def look_up() -> int | StorageError:
            try:
                (found,) = tables.get_many(row.topic, [row.key])
            except StorageError as error:
                return error
            return NO_VALUE if found is None else found.version

        def answer(read: int | StorageError) -> None:
            if isinstance(read, StorageError):
                self.changes.end_reading(row, NO_VALUE)
                raise read
            version = self.changes.end_reading(row, read)
            if version is None:
                self._change(request, header, value, True)
                return
            if self.changes.find(header.request_id) is not None:
                self._change(request, header, value, True)
                return
            assert header.if_version is not None
            self._expect(header.if_version, version)
            self._append(request, header, value, tables)

        def read() -> None:
            if self.changes.version_of(row) is not None:
                self._change(request, header, value, True)
                return
            self.changes.begin_reading(row)
            try:
                self.lookups.run(request, look_up, answer)
            except RemoteError:
                self.changes.end_reading(row, NO_VALUE)
                raise

        self._once_shown(request, self._changed_to, read)

    # What all share

    def _once_shown(self, request: Request, position: int, go_on: Callable[[], None]) -> None:
        """Go on when the tables show the log below `position`; what fails then is the request's answer."""
        tables = self._store.tables
        assert tables is not None
        if tables.applied_position >= position:
            go_on()
            return
        if self.waiting >= WAITING_MAX:
            raise RemoteError(
                Code.BUSY, f"{WAITING_MAX} requests wait for the tables", {"retry_after_ms": 50}
            )
        self.waiting += 1

        def reached(error: StorageError | None) -> None:
            self.waiting -= 1
            if error is not None:
                request.refuse(error)
            elif not request.connection.is_closed:
                answering(request, go_on)

        tables.wait_applied(position, reached)

    def _readable(self, name: str) -> TableStore:
        topic, tables = self._table(name)
        if not topic.is_readable:
            raise RemoteError(Code.TOPIC_PERM, f"table {name!r} may not be read")
        return tables

    def _writable(self, header: TableChangeRequest) -> TableStore:
        topic, tables = self._table(header.topic)
        if not topic.is_writable:
            raise RemoteError(Code.TOPIC_PERM, f"table {header.topic!r} may not be written")
        if not 0 <= header.queue_id < topic.write_queues:
            raise RemoteError(Code.QUEUE_UNKNOWN, f"{header.topic!r} has {topic.write_queues} queues here")
        return tables

    def _table(self, name: str) -> tuple[Topic, TableStore]:
        if is_system_topic(name):
            raise RemoteError(Code.TOPIC_INVALID, f"{name!r} is a system topic")
        topic = self._topics.get(name)
        if topic is None or topic.is_leaving:
            raise RemoteError(Code.TOPIC_UNKNOWN, f"topic {name!r} does not exist here")
        tables = self._store.tables
        if not topic.is_table or tables is None:
            raise RemoteError(
                Code.KIND_UNFIT, f"topic {name!r} is of kind {topic.kind}: it has messages, and no rows"
            )
        return topic, tables

    def _check_size(self, header: TableChangeRequest, value: bytes | None) -> None:
        if not 0 < len(header.request_id) <= REQUEST_ID_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"a request_id has 1 to {REQUEST_ID_MAX} characters")
        properties = encode_properties([("KEYS", header.key), ("UNIQ_KEY", header.request_id)])
        size = FIXED_SIZE + len(header.topic) + len(properties) + len(value or b"")
        if size > self._record_max_bytes:
            raise RemoteError(
                Code.RECORD_TOO_LARGE,
                f"the row takes {size} bytes, record_max_bytes is {self._record_max_bytes}",
            )


def _row(key: str, row: VersionedRow | None) -> TableRow:
    return TableRow(key, NO_VALUE, NO_VALUE) if row is None else TableRow(key, row.version, len(row.value))
