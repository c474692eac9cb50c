"""READ_OPEN, READ_FILTER, READ, READ_CLOSE: the shell around broker.reading.core.readers.

A reader in the tail of the log is served from memory when batches are confirmed; one that
lies further back is served from disk by the reader pool, one read at a time, until it is
back in the tail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from broker.kernel.log_reads import LogRead, read_on
from broker.kernel.request_family import RequestFamily
from broker.kernel.statistics import Statistics
from broker.readers.core.table import TopicReader
from broker.reading.core.readers import (
    EVERYWHERE,
    NOWHERE,
    TAG_TESTS_MAX,
    BulkReader,
    Picked,
    ReadableRange,
    scan,
)
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    Empty,
    FilterTerm,
    ReadCloseRequest,
    ReadFilterRequest,
    ReadOpenRequest,
    ReadPosition,
    ReadRequest,
    ReadResponse,
)
from holdmq.wire.reader_headers import GATEWAY
from storage.api.batches import Batch
from storage.api.log_order import LogOrder
from storage.api.queues import MessageQueues

READERS_MAX: Final = 256
"""Readers per connection: one live, up to 64 catching up, and room."""
READS_MAX: Final = 16
"""Outstanding READs per reader; two or three are what a gateway sends."""
CREDIT_MAX_BYTES: Final = 8 << 20
HOLD_MAX_MS: Final = 120_000
COLD_CHUNK_BYTES: Final = 1 << 20
TAIL_SCAN_BYTES: Final = 4 << 20
"""Log scanned for one answer from memory: bounds how long one reader keeps the loop."""
TICK_S: Final = 0.05
"""How exactly holds end: nobody waits for an empty answer."""

log = structlog.get_logger("holdmq.broker")


class _OpenReader:
    """An open reader, its connection, and its READs in hand with their deadlines."""

    __slots__ = ("connection", "opened_at", "reader", "reads", "seen_at", "timer")

    def __init__(self, connection: Connection, reader: BulkReader, now: float) -> None:
        self.connection = connection
        self.opened_at = self.seen_at = now
        self.reader = reader
        self.reads: deque[tuple[Request, int, float]] = deque()
        self.timer: asyncio.TimerHandle | None = None


class Reads(RequestFamily):
    """All readers of a broker."""

    def __init__(
        self, queues: MessageQueues, order: LogOrder, topics: TopicTable, statistics: Statistics
    ) -> None:
        self.readers = 0
        self.late_records = 0
        self.cold_reads = 0
        self.records_out = 0
        self.bytes_out = 0
        self._queues = queues
        self._order = order
        self._statistics = statistics
        self._topics = topics
        self._open: dict[Connection, dict[int, _OpenReader]] = {}
        self._loop = asyncio.get_running_loop()
        self._tick: asyncio.TimerHandle | None = None

    def open(self, request: Request) -> None:
        """READ_OPEN: `position` None is the confirmed end; one outside the log is moved into it."""
        header = request.header(ReadOpenRequest)
        readers = self._open.setdefault(request.connection, {})
        if header.reader_id not in readers and len(readers) >= READERS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{READERS_MAX} readers on one connection")
        end, first = self._order.confirmed_position, self._order.first_position
        position = end if header.position is None else header.position
        limit = self._order.epoch_limit(header.log_epoch)
        resume = end if limit is None else min(end, limit)
        if position > resume:
            raise RemoteError(
                Code.OFFSET_AHEAD,
                f"position {position} of log epoch {header.log_epoch} was taken back; continue at {resume}",
                {"position": resume, "log_epoch": self._queues.epoch},
            )
        reader = BulkReader(header.reader_id, max(position, first), end if header.position is None else 0)
        # Readers serve MQTT, which sees no tables.
        reader.filters.is_hidden = self._topics.is_table
        reader.filters.change(rows(FilterTerm, header.add), ())
        self._remember_pauses(reader)
        replaced = readers.get(header.reader_id)
        if replaced is not None:
            self._end(replaced)
        else:
            self.readers += 1
        readers[header.reader_id] = _OpenReader(request.connection, reader, self._loop.time())
        request.reply(ReadPosition(reader.position, self._queues.epoch))
        if self._tick is None:
            self._tick = self._loop.call_later(TICK_S, self._end_holds)

    def change_filter(self, request: Request) -> None:
        """READ_FILTER: from the position answered on, the new terms hold.

        What is confirmed and not yet scanned is judged by them too: added terms may be early, which the
        reader's own test mends, and removed ones nobody waits for.
        """
        header = request.header(ReadFilterRequest)
        opened = self._get(request.connection, header.reader_id)
        opened.reader.filters.change(rows(FilterTerm, header.add), rows(FilterTerm, header.remove))
        request.reply(ReadPosition(self._order.confirmed_position, self._queues.epoch))

    def read(self, request: Request) -> None:
        """READ: answered when something matched, or when its hold ends."""
        header = request.header(ReadRequest)
        opened = self._get(request.connection, header.reader_id)
        if len(opened.reads) >= READS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{READS_MAX} READs outstanding on one reader")
        opened.seen_at = self._loop.time()
        deadline = opened.seen_at + min(header.hold_ms, HOLD_MAX_MS) / 1e3
        opened.reads.append((request, max(1, min(header.credit_bytes, CREDIT_MAX_BYTES)), deadline))
        self._schedule(opened)

    def close(self, request: Request) -> None:
        """READ_CLOSE: forget a reader; its READs are answered empty."""
        opened = self._open.get(request.connection, {}).pop(request.header(ReadCloseRequest).reader_id, None)
        if opened is not None:
            self.readers -= 1
            self._end(opened)
        request.reply(Empty())

    def confirmed(self) -> None:
        """Batches became visible: serve the readers that wait."""
        for readers in self._open.values():
            for opened in readers.values():
                if opened.reads:
                    self._schedule(opened)

    def writable(self, connection: Connection) -> None:
        """The connection's peer reads again."""
        for opened in self._open.get(connection, {}).values():
            self._schedule(opened)

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.READ_OPEN: self.open,
            RequestCode.READ_FILTER: self.change_filter,
            RequestCode.READ: self.read,
            RequestCode.READ_CLOSE: self.close,
        }

    def numbers(self) -> Mapping[str, int]:
        return {
            "readers": self.readers,
            "reads_cold_total": self.cold_reads,
            "read_late_messages_total": self.late_records,
            "read_messages_total": self.records_out,
            "read_bytes_total": self.bytes_out,
        }

    def closed(self, connection: Connection) -> None:
        """The connection closed: its readers go."""
        for opened in self._open.pop(connection, {}).values():
            self.readers -= 1
            if opened.timer is not None:
                opened.timer.cancel()

    def readers_of(self, topic: str) -> Iterator[TopicReader[Connection]]:
        """The open readers whose filters may pass messages of a topic."""
        for connection, readers in self._open.items():
            for opened in readers.values():
                if opened.reader.filters.of_topic(topic):
                    yield TopicReader(connection, GATEWAY, "", (topic,), opened.opened_at, opened.seen_at)

    def release_all(self) -> None:
        """Draining: answer every READ with what there is."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        for readers in self._open.values():
            for opened in readers.values():
                self._end(opened)

    # Topics

    def topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        """A topic was paused, resumed, closed to readers or deleted."""
        if before is None or not self._open:
            return
        name = before.name
        is_gone = after is None or not after.is_readable
        is_resumed = after is not None and before.is_paused and not after.is_paused
        is_paused = after is not None and after.is_paused and not before.is_paused
        if not (is_gone or is_resumed or is_paused):
            return
        for readers in self._open.values():
            for opened in readers.values():
                if is_gone:
                    opened.reader.forget(name)
                elif is_paused:
                    opened.reader.hold_back(name)
                else:
                    opened.reader.owe(name, before.paused_at)
                    self._schedule(opened)

    def _remember_pauses(self, reader: BulkReader) -> None:
        """Who comes back to a position within a past pause has not got what was kept below it."""
        if reader.since:
            return
        for topic in self._topics.pausing():
            kept = [first for first, end in topic.pauses if first < reader.position <= end]
            if kept and topic.is_paused:
                reader.hold_back(topic.name, min(kept))
            elif kept:
                reader.owe(topic.name, min(kept))

    def _window_of(self, name: str) -> ReadableRange:
        """Where in the log a topic's records may be given to readers as they come."""
        topic = self._topics.get(name)
        if topic is None or not topic.is_readable:
            return NOWHERE
        return ReadableRange(0, topic.paused_at) if topic.is_paused else EVERYWHERE

    # Serving

    def _get(self, connection: Connection, reader_id: int) -> _OpenReader:
        opened = self._open.get(connection, {}).get(reader_id)
        if opened is None:
            raise RemoteError(Code.READER_UNKNOWN, f"reader {reader_id} is not open on this connection")
        return opened

    def _schedule(self, opened: _OpenReader) -> None:
        if opened.timer is not None or not opened.reads or opened.reader.is_loading:
            return
        if opened.reader.late:
            self._load(opened)
            return
        waiting = self._order.confirmed_position - opened.reader.position
        if waiting <= 0:
            return
        now = self._loop.time()
        due = opened.reader.due_at(waiting, now)
        if due <= now:
            self._serve(opened)
        else:
            opened.timer = self._loop.call_at(due, self._due, opened)

    def _due(self, opened: _OpenReader) -> None:
        opened.timer = None
        self._serve(opened)

    def _serve(self, opened: _OpenReader) -> None:
        reader = opened.reader
        while opened.reads and opened.connection.is_writable and not opened.connection.is_closed:
            if reader.late:
                self._load(opened)
                return
            if reader.position >= self._order.confirmed_position:
                return
            batches = self._order.tail(reader.position, TAIL_SCAN_BYTES)
            if batches is None:
                self._load(opened)
                return
            picked = self._scan(opened, batches)
            reader.position = picked.position
            reader.served(self._loop.time())
            if not picked.count:
                if reader.position < self._order.confirmed_position:
                    # Much lies ahead that does not match: others get their turn before it goes on.
                    opened.timer = self._loop.call_later(0, self._due, opened)
                return
            self._answer(opened, picked)

    def _scan(self, opened: _OpenReader, batches: Sequence[Batch]) -> Picked:
        """Look for what the next READ is answered with, from the reader's position on."""
        reader, credit = opened.reader, opened.reads[0][1]
        return scan(reader.filters, batches, reader.position, credit, self._window_of, TAG_TESTS_MAX)

    def _answer(self, opened: _OpenReader, picked: Picked, is_late: bool = False) -> None:
        request = opened.reads.popleft()[0]
        position = opened.reader.position if is_late else picked.position
        header = ReadResponse(position, self._queues.epoch, picked.count, is_late)
        self.late_records += picked.count if is_late else 0
        self.records_out += picked.count
        self.bytes_out += picked.size_bytes
        if picked.count:
            self._statistics.of_connection(opened.connection).taken(picked.count, picked.size_bytes)
        request.reply(header, picked.parts, picked.size_bytes)

    def _load(self, opened: _OpenReader) -> None:
        """Serve from disk: the reader fell out of the tail, starts far back, or is owed what was kept."""
        reader = opened.reader
        reader.is_loading = True
        self.cold_reads += 1
        is_late = bool(reader.late)
        position = reader.late_at if is_late else reader.position
        read = partial(read_on, self._order, position, COLD_CHUNK_BYTES, "a reader")
        future = self._loop.run_in_executor(self._queues.reader_pool, read)

        def done(finished: asyncio.Future[LogRead]) -> None:
            reader.is_loading = False
            if finished.cancelled() or opened.connection.is_closed:
                return
            error = finished.exception()
            if error is not None:
                self._cold_read_failed(opened, error)
                return
            batches, next_position = finished.result()
            if is_late:
                self._give_late(opened, batches, position, next_position)
            elif not reader.late:
                self._give(opened, batches, next_position)
            self._schedule(opened)

        future.add_done_callback(done)

    def _give(self, opened: _OpenReader, batches: list[Batch], next_position: int) -> None:
        """Answer with what was read from the reader's position on."""
        reader = opened.reader
        while opened.reads:
            picked = self._scan(opened, batches)
            reader.position = picked.position
            if not picked.count:
                if not picked.is_cut:
                    reader.position = max(reader.position, next_position)
                break
            self._answer(opened, picked)

    def _give_late(
        self, opened: _OpenReader, batches: list[Batch], position: int, next_position: int
    ) -> None:
        """Answer with what paused topics kept, of what was read from `position` on."""
        reader = opened.reader
        while opened.reads and reader.late and reader.late_at == position:
            credit = opened.reads[0][1]
            picked = scan(reader.filters, batches, position, credit, reader.late_window, TAG_TESTS_MAX)
            is_all = not picked.count and not picked.is_cut
            position = max(picked.position, next_position) if is_all else picked.position
            reader.late_scanned(position)
            if not picked.count:
                return
            self._answer(opened, picked, True)

    def _cold_read_failed(self, opened: _OpenReader, error: BaseException) -> None:
        log.error("reading the log failed", position=opened.reader.position, reason=str(error))
        refusal = error if isinstance(error, HoldMQError) else RemoteError(Code.SYSTEM_ERROR, str(error))
        if opened.reads:
            opened.reads.popleft()[0].refuse(refusal)

    # Holds

    def _end_holds(self) -> None:
        now = self._loop.time()
        for readers in self._open.values():
            for opened in readers.values():
                while opened.reads and opened.reads[0][2] <= now and not opened.reader.is_loading:
                    self._answer(opened, Picked(opened.reader.position))
        self._tick = self._loop.call_later(TICK_S, self._end_holds) if self._open else None

    def _end(self, opened: _OpenReader) -> None:
        if opened.timer is not None:
            opened.timer.cancel()
            opened.timer = None
        while opened.reads:
            self._answer(opened, Picked(opened.reader.position))
