"""RETAINED_PUT, RETAINED_SCAN, RETAINED_GET: the retained messages whose topics this broker owns.

They are rows of the table `%RETAIN`: put on confirmation by the log, shown a moment later, read on the
reader pool in slices. What has expired is never shown, and is removed by passes over the table
(`broker.retained.expiry`). Source: mqtt.md, Retained.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from broker.kernel.lookups import Lookups, answering
from broker.kernel.request_family import RequestFamily
from broker.retained.expiry import RetainedExpiry
from broker.retained.reads import Slice, get_versions, scan_slice
from broker.sessions.requests import TopicsLike
from holdmq.config.model import BrokerSection
from holdmq.errors import BusyError, Code, HoldMQError, RemoteError, StorageError, WireError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.retained_headers import (
    HEAD_BYTES,
    ITEMS_MAX,
    PUTS_MAX,
    RETAINED_QUEUES,
    RETAINED_TOPIC,
    RetainedFound,
    RetainedGetRequest,
    RetainedGetResponse,
    RetainedItem,
    RetainedPut,
    RetainedPutRequest,
    RetainedPutResponse,
    RetainedScanRequest,
    RetainedScanResponse,
    RetainedVersion,
    expires_ms_of,
    retained_queue,
    stamp_retained,
)
from storage.api.batches import Batch
from storage.api.store import OrderedStore
from storage.api.tables import KEY_BYTES_MAX, KeyChange, TableStore, VersionedRow

IN_HAND_MAX_BYTES: Final = 64 << 20
"""Retained messages that wait for the disk; past it BUSY."""
WAITING_MAX: Final = 10_000
"""Requests that wait for the table to show what is confirmed; past it BUSY."""
RETRY_AFTER_MS: Final = 50
RETRY_S: Final = 1.0
"""How often a start tries to make the table."""
ROW_OVERHEAD_BYTES: Final = 512
"""What a record has beside topic and value, and a little more."""
SLICE_ROWS_MAX: Final = 1_000
SLICE_BYTES_MAX: Final = 1 << 20

log = structlog.get_logger("holdmq.broker")

Told = Callable[[StorageError | None, list[int]], None]


class RetainedChange(NamedTuple):
    """A topic's message from now on, as a row has it; None = it has none."""

    topic: str
    value: bytes | None


class _InHand:
    """Puts that the table may not show yet, and how much they can add to its size."""

    __slots__ = ("end", "expiries", "is_refused", "rows", "size_bytes")

    def __init__(self, expiries: list[tuple[str, int]], rows_: int, size_bytes: int) -> None:
        self.expiries = expiries
        self.rows = rows_
        self.size_bytes = size_bytes
        self.end = -1
        self.is_refused = False


class Retained(RequestFamily):
    """The retained messages of one broker. Call `start` before the first request."""

    def __init__(
        self,
        store: OrderedStore,
        topics: TopicsLike,
        settings: BrokerSection,
        record_max_bytes: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.opened = asyncio.Event()
        """Set when the table is there."""
        self.lookups = Lookups(store.reader_pool)
        self.puts = 0
        self.removals = 0
        self.refused_limit = 0
        self.refused_size = 0
        self.scans = 0
        self.looked_at = 0
        self.rows_out = 0
        self.waiting = 0
        self.in_hand_bytes = 0
        self._store = store
        self._topics = topics
        self.reconfigure(settings)
        self._record_max_bytes = record_max_bytes
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._is_keeper = False
        self._starting: asyncio.TimerHandle | None = None
        self._changed_to = store.confirmed_position
        """Behind the last confirmed put: what reads wait for."""
        self._in_hand: deque[_InHand] = deque()
        self.expiry = RetainedExpiry(store, self, clock_ms)

    # The part

    def reconfigure(self, settings: BrokerSection) -> None:
        """Take other bounds; what is past a lower one stays until it is put or cleared."""
        self._retained_max = settings.retained_max
        self._retained_max_bytes = settings.retained_max_bytes
        self._message_max_bytes = settings.retained_message_max_bytes

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.RETAINED_PUT: self.put,
            RequestCode.RETAINED_SCAN: self.scan,
            RequestCode.RETAINED_GET: self.get,
        }

    def start(self, is_keeper: bool) -> None:
        """Have the table, and begin to look for what has expired.

        A broker that is no keeper has no table, and takes no message: it answers as one without any.
        """
        self._is_keeper = is_keeper
        if not is_keeper:
            self.opened.set()
            return
        self._topics.require(RETAINED_TOPIC, RETAINED_QUEUES, self._have_table, is_table=True)

    def _have_table(self, error: HoldMQError | None) -> None:
        if self._is_closed:
            return
        if error is not None:
            log.error("the table of retained messages cannot be made; trying again", reason=str(error))
            self._starting = self._loop.call_later(RETRY_S, self.start, True)
            return
        self.opened.set()
        self.expiry.start()

    def release_all(self) -> None:
        """Draining: nothing is removed any more."""
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
        self.expiry.stop()

    def numbers(self) -> Mapping[str, int | float]:
        size = self.tables.size_of(RETAINED_TOPIC)
        return {
            "retained_messages": size.rows,
            "retained_bytes": size.size_bytes,
            "retained_max": self._retained_max,
            "retained_max_bytes": self._retained_max_bytes,
            "retained_in_hand_bytes": self.in_hand_bytes,
            "retained_requests_waiting": self.waiting,
            "retained_puts_total": self.puts,
            "retained_removals_total": self.removals,
            "retained_expired_total": self.expiry.removed,
            "retained_passes_total": self.expiry.passes,
            "retained_refused_limit_total": self.refused_limit,
            "retained_refused_size_total": self.refused_size,
            "retained_scans_total": self.scans,
            "retained_topics_looked_at_total": self.looked_at,
            "retained_sent_total": self.rows_out,
            "retained_lookups_refused_total": self.lookups.refused,
        }

    @property
    def tables(self) -> TableStore:
        """The tables of the store."""
        tables = self._store.tables
        assert tables is not None
        return tables

    def _check_ready(self) -> None:
        if not self.opened.is_set() or self._is_closed:
            raise BusyError("the table of retained messages is not open", 100)

    # Putting

    def put(self, request: Request) -> None:
        """RETAINED_PUT: answered when the log has what is not refused."""
        self._check_ready()
        wanted = rows(RetainedPut, request.header(RetainedPutRequest).puts)
        if not 0 < len(wanted) <= PUTS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {PUTS_MAX} messages in one RETAINED_PUT")
        if self.in_hand_bytes >= IN_HAND_MAX_BYTES:
            raise BusyError("retained messages wait for the disk", RETRY_AFTER_MS)
        puts = self._read_puts(wanted, request.body)
        request.let_go()
        if not self._is_keeper:
            if any(put.value is not None for put in puts):
                raise BusyError("this broker keeps no retained messages: refresh the route", RETRY_AFTER_MS)
            # Whoever clears a topic asks every broker; here it never had a message.
            request.reply(RetainedPutResponse([0] * len(puts)))
            return

        def told(error: StorageError | None, codes: list[int]) -> None:
            if error is not None:
                request.refuse(error)
            else:
                request.reply(RetainedPutResponse(codes))

        codes = [self._size_fault(put) for put in puts]
        taken = [put for put, code in zip(puts, codes, strict=True) if not code and put.value is not None]
        size = sum(map(_size_of, taken))
        if self._has_room(len(taken), size):
            self._append(puts, codes, len(taken), size, told)
        else:
            self._put_by_topic(request, puts, codes, told)

    def put_own(self, puts: Sequence[RetainedChange], told: Told) -> None:
        """Put at this broker, which owns these topics, whatever the limits say.

        Values are those of `stamp_retained`. `told` gets the error of the log, or None and the codes.
        """
        taken = [put for put in puts if put.value is not None]
        self._append(puts, [0] * len(puts), len(taken), sum(map(_size_of, taken)), told)

    def _read_puts(self, wanted: Sequence[RetainedPut], body: memoryview) -> list[RetainedChange]:
        now_ms = self._clock_ms()
        puts: list[RetainedChange] = []
        at = 0
        for topic, expiry_s, length in wanted:
            if not 0 < len(topic.encode()) <= KEY_BYTES_MAX:
                raise WireError("a retained message has no topic, or too long a one", Code.LIMIT_EXCEEDED)
            if length < 0:
                puts.append(RetainedChange(topic, None))
                continue
            if at + length > len(body) or length < HEAD_BYTES or expiry_s > 0xFFFFFFFF:
                raise WireError("the body of a RETAINED_PUT does not have what its rows say")
            puts.append(RetainedChange(topic, stamp_retained(body[at : at + length], now_ms, expiry_s)))
            at += length
        return puts

    def _size_fault(self, put: RetainedChange) -> int:
        if put.value is None:
            return 0
        too_long = _size_of(put) + ROW_OVERHEAD_BYTES > self._record_max_bytes
        if too_long or len(put.value) > self._message_max_bytes:
            self.refused_size += 1
            return Code.RECORD_TOO_LARGE
        return 0

    def _has_room(self, new_rows: int, new_bytes: int) -> bool:
        """Whether so much fits, even if all of it is new."""
        rows_, size = self._used()
        return rows_ + new_rows <= self._retained_max and size + new_bytes <= self._retained_max_bytes

    def _used(self) -> tuple[int, int]:
        """Rows and bytes, with what may be added by puts that the table does not show yet."""
        self._drop_shown()
        size = self.tables.size_of(RETAINED_TOPIC)
        return (
            size.rows + sum(each.rows for each in self._in_hand),
            size.size_bytes + sum(each.size_bytes for each in self._in_hand),
        )

    def _drop_shown(self) -> None:
        in_hand, applied = self._in_hand, self.tables.applied_position
        while in_hand and (in_hand[0].is_refused or 0 <= in_hand[0].end <= applied):
            in_hand.popleft()

    def _put_by_topic(
        self, request: Request, puts: list[RetainedChange], codes: list[int], told: Told
    ) -> None:
        """Near the limits: topics that have a message already may get another one."""
        keys = [put.topic for put in puts]

        def decide(found: list[VersionedRow | None]) -> None:
            if request.connection.is_closed:
                return  # its gateway sends it again, and perhaps something newer behind it
            used_rows, used_bytes = self._used()
            new_rows = new_bytes = 0
            for at, (put, row) in enumerate(zip(puts, found, strict=True)):
                if put.value is None or codes[at]:
                    continue
                more_rows = 0 if row is not None else 1
                more_bytes = _size_of(put) - (0 if row is None else len(row.value) + len(row.key.encode()))
                if (more_rows and used_rows + new_rows >= self._retained_max) or (
                    more_bytes > 0 and used_bytes + new_bytes + more_bytes > self._retained_max_bytes
                ):
                    codes[at] = Code.LIMIT_EXCEEDED
                    self.refused_limit += 1
                    continue
                new_rows += more_rows
                new_bytes += max(0, more_bytes)
            self._append(puts, codes, new_rows, new_bytes, told)

        tables = self.tables
        self.once_shown(
            request,
            lambda: self.lookups.run(request, lambda: tables.get_many(RETAINED_TOPIC, keys), decide),
        )

    def _append(
        self, puts: Sequence[RetainedChange], codes: list[int], new_rows: int, new_bytes: int, told: Told
    ) -> None:
        taken = [put for put, code in zip(puts, codes, strict=True) if not code]
        if not taken:
            told(None, codes)
            return
        expiries = [(put.topic, 0 if put.value is None else expires_ms_of(put.value)) for put in taken]
        in_hand = _InHand(expiries, new_rows, new_bytes)
        self._drop_shown()
        size = sum(map(_size_of, taken))
        changes = [KeyChange(retained_queue(put.topic), put.topic, put.value) for put in taken]

        def done(batch: Batch, error: StorageError | None) -> None:
            self.in_hand_bytes -= size
            if error is not None:
                in_hand.is_refused = True
            else:
                in_hand.end = batch.end
                self._changed_to = max(self._changed_to, batch.end)
                removed = sum(put.value is None for put in taken)
                self.removals += removed
                self.puts += len(taken) - removed
            told(error, codes)

        self.in_hand_bytes += size
        self._in_hand.append(in_hand)
        for topic, expires_ms in expiries:
            self.expiry.changed(topic, expires_ms)
        self.tables.change_many(RETAINED_TOPIC, changes, done, self._clock_ms())

    def remove(self, topics: Sequence[str], done: Callable[[StorageError | None], None]) -> None:
        """Have these topics no message any more."""
        self.put_own([RetainedChange(topic, None) for topic in topics], lambda error, _codes: done(error))

    def unshown(self) -> Iterable[tuple[str, int]]:
        """Topics that were put and that the table may not show so yet, and when they expire (0 = never)."""
        self._drop_shown()
        for each in self._in_hand:
            yield from each.expiries

    # Reading

    def scan(self, request: Request) -> None:
        """Answer RETAINED_SCAN with the next slice of matching messages."""
        self._check_ready()
        header = request.header(RetainedScanRequest)
        items = rows(RetainedItem, header.items)
        if not 0 < len(items) <= ITEMS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {ITEMS_MAX} filters in one RETAINED_SCAN")
        self.scans += 1
        # Read now: what is confirmed later comes live to those who subscribed before they asked.
        end, now_ms = self._store.confirmed_position, self._clock_ms()
        count = max(1, min(header.max_rows, SLICE_ROWS_MAX))
        size = max(1, min(header.max_bytes, SLICE_BYTES_MAX))
        tables = self.tables

        def answer(found: Slice) -> None:
            self.looked_at += found.looked_at
            self.rows_out += len(found.rows)
            length = sum(map(len, found.values))
            request.reply(RetainedScanResponse(found.found, found.rows), found.values, length)

        def look() -> None:
            if tables.size_of(RETAINED_TOPIC).rows:
                self.lookups.run(request, lambda: scan_slice(tables, items, end, now_ms, count, size), answer)
                return
            # While nobody retains anything, subscriptions of a whole fleet cost no look-up.
            nothing = [RetainedFound(0, None, end if item.before < 0 else item.before) for item in items]
            request.reply(RetainedScanResponse(nothing, []))

        self.once_shown(request, look)

    def get(self, request: Request) -> None:
        """Answer RETAINED_GET with the messages of topics."""
        self._check_ready()
        wanted = rows(RetainedVersion, request.header(RetainedGetRequest).wanted)
        if not 0 < len(wanted) <= ITEMS_MAX or not all(each.topic for each in wanted):
            raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {ITEMS_MAX} topics in one RETAINED_GET")

        def answer(found: Slice) -> None:
            length = sum(map(len, found.values))
            request.reply(RetainedGetResponse(found.looked_at, found.rows), found.values, length)

        self.once_shown(
            request, lambda: self.lookups.run(request, lambda: get_versions(self._store, wanted), answer)
        )

    def once_shown(self, request: Request, go_on: Callable[[], None]) -> None:
        """Go on when the table shows every put that is confirmed now; what fails then is the answer."""
        tables, position = self.tables, self._changed_to
        if tables.applied_position >= position:
            go_on()
            return
        if self.waiting >= WAITING_MAX:
            raise BusyError(f"{WAITING_MAX} requests wait for the table", RETRY_AFTER_MS)
        self.waiting += 1

        def reached(error: StorageError | None) -> None:
            self.waiting -= 1
            if error is not None:
                request.refuse(error)
            elif not request.connection.is_closed:
                answering(request, go_on)

        tables.wait_applied(position, reached)


def _size_of(put: RetainedChange) -> int:
    return len(put.topic.encode()) + len(put.value or b"")
