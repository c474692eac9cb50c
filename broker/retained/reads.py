"""Retained messages read from `%RETAIN`, in slices or by topic. Blocking: for the reader pool."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Final, NamedTuple

from broker.retained.core.scan import RetainedScan
from holdmq.errors import BehindError, CorruptRecordError, RecordError
from holdmq.record.codec import decode_properties, decode_record
from holdmq.wire.retained_headers import (
    NEVER,
    RETAINED_TOPIC,
    RetainedFound,
    RetainedItem,
    RetainedRow,
    RetainedVersion,
    expires_ms_of,
)
from storage.api.store import OrderedStore
from storage.api.tables import STOP, Judged, TableStore

LOOKED_AT_MAX: Final = 4_096
"""Topics that one answer looks at: some milliseconds of a reader thread, whatever matches."""
GET_MAX_BYTES: Final = 1 << 20


class Slice(NamedTuple):
    """What a request is answered with; `looked_at` topics were met."""

    found: list[RetainedFound]
    rows: list[RetainedRow]
    values: list[bytes]
    looked_at: int


class _Budget:
    """What an answer has so far."""

    __slots__ = ("looked_at", "rows", "size_bytes", "values")

    def __init__(self) -> None:
        self.looked_at = 0
        self.size_bytes = 0
        self.rows: list[RetainedRow] = []
        self.values: list[bytes] = []

    def add(self, row: RetainedRow, value: bytes) -> None:
        self.rows.append(row)
        self.values.append(value)
        self.size_bytes += len(value)


def scan_slice(
    tables: TableStore,
    items: Sequence[RetainedItem],
    end: int,
    now_ms: int,
    max_rows: int,
    max_bytes: int,
) -> Slice:
    """The answer to a RETAINED_SCAN, whose items say LOG_END for log position `end`. Raises StorageError."""
    budget = _Budget()
    found: list[RetainedFound] = []
    for item in items:
        is_full = len(budget.rows) >= max_rows or budget.size_bytes >= max_bytes
        if found and (is_full or budget.looked_at >= LOOKED_AT_MAX):
            break
        before = end if item.before < 0 else item.before
        had = len(budget.rows)
        most = min(max(1, item.max_count), max(1, max_rows - had))
        next_after = _scan_item(tables, item, before, now_ms, most, max_bytes, budget)
        found.append(RetainedFound(len(budget.rows) - had, next_after, before))
    return Slice(found, budget.rows, budget.values, budget.looked_at)


def _scan_item(
    tables: TableStore,
    item: RetainedItem,
    before: int,
    now_ms: int,
    most: int,
    max_bytes: int,
    budget: _Budget,
) -> str | None:
    """Add what an item finds; the topic behind which it goes on, None = that was all."""
    scan = RetainedScan(item.topic_filter)
    if scan.is_exact:
        budget.looked_at += 1
        (row,) = tables.get_many(RETAINED_TOPIC, [item.topic_filter])
        if row is not None and row.version < before and not _is_expired(row.value, now_ms):
            budget.add(RetainedRow(row.key, row.version, len(row.value)), row.value)
        return None
    before_last = last = item.after.encode()

    def judge(topic: bytes) -> Judged:
        nonlocal before_last, last
        if budget.looked_at >= LOOKED_AT_MAX:
            return STOP
        budget.looked_at += 1
        before_last, last = last, topic
        return scan.judge(topic)

    first = len(budget.rows)
    with closing(tables.walk(RETAINED_TOPIC, scan.begin, last or None, judge)) as walk:
        for met in walk:
            if met.version >= before or _is_expired(met.value, now_ms):
                continue
            if budget.rows and budget.size_bytes + len(met.value) > max_bytes:
                return before_last.decode()
            budget.add(RetainedRow(met.key.decode(), met.version, len(met.value)), bytes(met.value))
            if len(budget.rows) - first >= most:
                return last.decode()
    return last.decode() if budget.looked_at >= LOOKED_AT_MAX else None


def _is_expired(value: bytes | memoryview, now_ms: int) -> bool:
    expires_ms = expires_ms_of(value)
    return 0 < expires_ms <= now_ms


def get_versions(store: OrderedStore, wanted: Sequence[RetainedVersion]) -> Slice:
    """The answer to a RETAINED_GET: `found` stays empty, `looked_at` is how many of `wanted` are answered."""
    tables = store.tables
    assert tables is not None
    budget = _Budget()
    for topic, version in wanted:
        (row,) = tables.get_many(RETAINED_TOPIC, [topic])
        value = None
        if row is not None and version in (NEVER, row.version):
            version, value = row.version, row.value
        elif version >= 0:
            value = _from_log(store, topic, version)
        if value is not None:
            budget.add(RetainedRow(topic, version, len(value)), value)
        budget.looked_at += 1
        if budget.size_bytes >= GET_MAX_BYTES:
            break
    return Slice([], budget.rows, budget.values, budget.looked_at)


def _from_log(store: OrderedStore, topic: str, version: int) -> bytes | None:
    """The value that the record at a log position put; None = it is gone, or another one."""
    if version >= store.confirmed_position:
        return None
    try:
        batches = store.read_log(version, 1)
        if not batches or not len(batches[0].sizes):
            return None
        record = decode_record(batches[0].records)
    except (BehindError, CorruptRecordError, RecordError):
        return None
    if record.topic != RETAINED_TOPIC.encode() or record.physical_offset != version:
        return None
    key = decode_properties(record.properties).first("KEYS")
    return record.body if key == topic and record.body else None
