"""Bucket entries, what of them is pending, and due rows in order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import RecordError
from holdmq.record.batch import encode_batch, stamp
from holdmq.record.codec import SYS_ROLLED, decode_record, encode_properties, encode_record
from storage.api.batches import Batch, BatchRun
from storage.api.timer import DUE_LIMIT_MS, value_of, waiting_record
from storage.core.delayed import Entry, entries_in, entry_of, released_copy, rolled_record
from storage.log.timer.core.timer import (
    ENTRY_SIZE,
    MINUTE_MS,
    DueRows,
    LaterMinutes,
    Lowest,
    decode_rows,
    encode_rows,
    entries_of_rows,
    in_order,
    pending_of,
    rows_of,
)

STORE = b"storeid8"
ENTRIES = st.lists(
    st.builds(
        Entry,
        st.integers(0, 5).map(lambda i: i * 7),
        st.integers(0, 6),
        st.integers(0, 99),
        st.integers(0, 1),
    ),
    max_size=40,
)


def message(
    body: bytes = b"21", mqtt: bytes | None = None, sys_flag: int = 0, host: bytes = bytes(8)
) -> bytes:
    pairs = [("TAGS", "42/t"), ("PS", "p 1 7"), ("CLIENT_ID", "c"), ("u.a", "\x01b")]
    return encode_record(b"devices", 3, body, encode_properties(pairs, mqtt), 77, host, sys_flag, 5, 2)


def stamped(record: bytes, queue_offset: int, position: int, topic: str = "%TIMER") -> Batch:
    raw = bytearray(record)
    batch = Batch(
        memoryview(raw), np.array([len(raw)], np.int64), [BatchRun(topic, 0, 1, base_offset=queue_offset)]
    )
    offsets = np.array([queue_offset], np.int64)
    stamp(batch.records, batch.starts, batch.sizes, offsets, position, 99, STORE)
    batch.position = position
    return batch


def test_an_entry_takes_20_bytes_and_comes_back() -> None:
    minute = 28_000_000
    entries = [
        Entry(minute * MINUTE_MS, 0, 0, 1),
        Entry(minute * MINUTE_MS + 59_999, (1 << 48) - 1, (1 << 62), 12 << 20),
        Entry(minute * MINUTE_MS + 5, 7, 1000, 0),
    ]
    raw = encode_rows(rows_of(entries))
    assert len(raw) == 3 * ENTRY_SIZE
    assert raw[ENTRY_SIZE : 2 * ENTRY_SIZE].hex() == "ea5fffffffffffff" + "4000000000000000" + "00c00000"
    assert entries_of_rows(decode_rows(raw, minute)) == entries
    assert entries_of_rows(decode_rows(raw[:-1], minute)) == entries[:2]


def model_of_pending(entries: list[Entry]) -> list[Entry]:
    last: dict[tuple[int, int], Entry] = {}
    done: set[tuple[int, int]] = set()
    for entry in sorted(entries, key=lambda e: e.position):
        key = (entry.due_ms, entry.first)
        if not entry.size:
            done.add(key)
        last[key] = entry
    return [entry for key, entry in sorted(last.items()) if key not in done]


@given(ENTRIES)
def test_pending_is_what_no_copy_was_found_of_at_its_last_place(entries: list[Entry]) -> None:
    unique = list({entry.position: entry for entry in entries}.values())
    assert entries_of_rows(pending_of(rows_of(unique))) == model_of_pending(unique)


@given(ENTRIES, st.integers(1, 10), st.integers(1, 5))
def test_a_bucket_loaded_in_slices_gives_what_it_gives_at_once(
    entries: list[Entry], limit: int, part: int
) -> None:
    unique = list({entry.position: entry for entry in entries}.values())
    after: tuple[int, int] | None = None
    found: list[Entry] = []
    while True:
        lowest = Lowest(limit, after)
        for first in range(0, len(unique), part):
            lowest.add(rows_of(unique[first : first + part]))
        rows = lowest.rows()
        found.extend(entries_of_rows(pending_of(rows)))
        if not lowest.is_cut:
            break
        after = (int(rows["due"][-1]), int(rows["first"][-1]))
    assert found == model_of_pending(unique)


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_due_rows_leave_in_order_whenever_they_came(rnd: random.Random, count: int) -> None:
    entries = [Entry(rnd.randrange(20), first, first, 10) for first in range(count)]
    due = DueRows()
    loaded = rnd.randrange(count + 1)
    due.load(in_order(rows_of(entries[:loaded])))
    model = sorted(entries[:loaded])
    for first in range(loaded, count, 7):
        due.add(rows_of(entries[first : first + 7]))
        model = sorted(model + entries[first : first + 7])
        until, most = rnd.randrange(20), rnd.randrange(1, 9)
        taken = entries_of_rows(due.take(until, most, 10 * most))
        expected = [entry for entry in model if entry.due_ms <= until][:most]
        assert taken == expected
        model = model[len(expected) :]
        assert len(due) == len(model)
        assert due.next_due() == (model[0].due_ms if model else None)
    assert entries_of_rows(due.take(99, count, 1 << 40)) == model


def test_many_late_rows_are_merged_with_the_loaded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.log.timer.core.timer.LATE_MERGE", 4)
    due = DueRows()
    due.load(rows_of([Entry(5, 0, 0, 1), Entry(9, 1, 0, 1)]))
    for first in range(2, 12):
        due.add(rows_of([Entry(11 - first, first, 0, 1)]))
    assert [entry.due_ms for entry in entries_of_rows(due.take(99, 99, 99))] == [
        0,
        1,
        2,
        3,
        4,
        5,
        5,
        6,
        7,
        8,
        9,
        9,
    ]


def test_one_row_is_taken_whatever_its_size() -> None:
    due = DueRows()
    due.load(rows_of([Entry(1, 0, 0, 500), Entry(1, 1, 0, 1)]))
    assert len(due.take(1, 9, 100)) == 1
    assert len(due.take(1, 9, 100)) == 1


def test_a_waiting_row_can_be_moved_found_and_removed() -> None:
    due = DueRows()
    due.load(rows_of([Entry(1, 0, 0, 5), Entry(1, 4, 9, 5)]))
    due.add(rows_of([Entry(0, 8, 20, 5)]))
    for entry in (Entry(1, 4, 70, 6), Entry(0, 8, 80, 7)):
        due.move(entry)
        assert due.has(entry)
    due.move(Entry(1, 5, 90, 9))
    assert not due.has(Entry(1, 5, 0, 0))
    assert not due.remove(Entry(1, 5, 0, 0))
    assert due.remove(Entry(1, 0, 0, 0))
    assert entries_of_rows(due.take(9, 9, 999)) == [Entry(0, 8, 80, 7), Entry(1, 4, 70, 6)]


def pending_entry(batch: Batch) -> Entry:
    (entry,) = entries_in(batch, with_copies=False)
    return entry


@pytest.mark.parametrize("mqtt", [None, b"", b"\x26\0\x04DEST\0\x01x"])
@pytest.mark.parametrize("host", [bytes(8), bytes(20)])
def test_the_copy_is_the_message_again_with_its_origin(mqtt: bytes | None, host: bytes) -> None:
    original = message(mqtt=mqtt, sys_flag=0x140, host=host)
    waiting = waiting_record(original, 123_456)
    batch = stamped(waiting, 9, 1000)
    entry = pending_entry(batch)
    assert entry == Entry(123_456, 9, 1000, len(waiting))
    copy = released_copy(batch.records, entry)
    assert (copy.topic, copy.queue_id) == ("devices", 3)
    was, now = decode_record(original), decode_record(copy.record)
    pairs = [
        ("TAGS", "42/t"),
        ("CLIENT_ID", "c"),
        ("u.a", "\x01b"),
        ("DUE", "123456"),
        ("ORIGIN", "%TIMER/0/9/2"),
    ]
    assert now.properties == encode_properties(pairs, mqtt)
    for field in ("topic", "queue_id", "body", "born_ms", "born_host", "flag", "sys_flag", "reconsume_times"):
        assert getattr(now, field) == getattr(was, field), field


def test_a_retry_keeps_its_origin_in_front_of_the_timers() -> None:
    properties = encode_properties([("ORIGIN", "devices/2/77/3")])
    record = encode_record(b"%RETRY%g", 0, b"x", properties, 1, reconsume_times=3)
    batch = stamped(waiting_record(record, 5), 4, 0)
    copy = released_copy(batch.records, pending_entry(batch))
    assert decode_record(copy.record).properties == encode_properties(
        [("ORIGIN", "devices/2/77/3"), ("DUE", "5"), ("ORIGIN", "%TIMER/0/4/3")]
    )


def test_a_message_that_waited_before_waits_anew() -> None:
    batch = stamped(waiting_record(message(), 5), 4, 0)
    copy = released_copy(batch.records, pending_entry(batch))
    again = stamped(waiting_record(copy.record, 60), 30, 900)
    assert pending_entry(again) == Entry(60, 30, 900, len(again.records))
    properties = decode_record(again.records).properties
    assert (properties.count(b"DUE"), properties.count(b"ORIGIN")) == (1, 0)


def test_rolling_keeps_origin_due_and_born_time() -> None:
    batch = stamped(waiting_record(message(), 5), 4, 100)
    entry = pending_entry(batch)
    for position in (200, 300):
        rolled = rolled_record(batch.records, entry)
        assert decode_record(rolled).sys_flag & SYS_ROLLED
        assert decode_record(rolled).born_ms == 77
        batch = stamped(rolled, position, position)
        entry = pending_entry(batch)
        assert entry == Entry(5, 4, position, len(rolled))
    copy = decode_record(released_copy(batch.records, entry).record)
    assert not copy.sys_flag & SYS_ROLLED
    assert value_of(copy.properties, b"ORIGIN") == b"%TIMER/0/4/2"
    assert copy.properties.count(b"ORIGIN") == 1


def test_a_replay_finds_copies_among_other_records_and_no_look_alikes() -> None:
    batch = stamped(waiting_record(message(), 5), 4, 0)
    copy = released_copy(batch.records, pending_entry(batch)).record
    trap = encode_record(b"devices", 3, b"\x02ORIGIN\x01%TIMER/0/9/0\x02", b"TAGS\x01t\x02", 1)
    raw = bytearray(trap + copy + trap)
    sizes = np.array([len(trap), len(copy), len(trap)], np.int64)
    replayed = Batch(memoryview(raw), sizes, [BatchRun("devices", 3, 3)])
    stamp(replayed.records, replayed.starts, sizes, np.arange(3), 5000, 99, STORE)
    assert entries_in(replayed, with_copies=True) == [Entry(5, 4, 5000 + len(trap), 0)]
    assert entries_in(replayed, with_copies=False) == []


@pytest.mark.parametrize("due", [-1, DUE_LIMIT_MS])
def test_a_due_time_that_is_none_is_refused(due: int) -> None:
    with pytest.raises(RecordError, match="due time"):
        waiting_record(message(), due)


def test_what_has_no_room_for_the_timers_properties_is_refused() -> None:
    full = encode_record(b"devices", 3, b"", b"KEYS\x01" + b"k" * 65_450 + b"\x02", 1)
    with pytest.raises(RecordError, match="delayed message may have"):
        waiting_record(full, 5)
    large = encode_record(b"d", 3, bytes((12 << 20) - 120), b"", 1)
    with pytest.raises(RecordError, match="delayed record"):
        waiting_record(large, 5)


def test_damaged_and_foreign_records_are_never_released() -> None:
    batch = stamped(waiting_record(message(), 5), 4, 0)
    entry = pending_entry(batch)
    raw = bytearray(batch.records)
    raw[150] ^= 1
    for bytes_there, its_entry in (
        (raw, entry),
        (b"", entry),
        (batch.records, entry._replace(first=5)),
        (batch.records, entry._replace(due_ms=6)),
        (stamped(message(), 4, 0, "devices").records, entry),
    ):
        for read in (released_copy, rolled_record):
            with pytest.raises(RecordError):
                read(bytes_there, its_entry)


def test_a_record_of_the_topic_that_says_no_due_time_makes_no_entry() -> None:
    assert entry_of(b"TAGS\x01DUE\x02", 1, 2, 3) is None
    assert entry_of(b"DUE\x01soon\x02", 1, 2, 3) is None
    raw, sizes = encode_batch(b"%TIMER", 0, [b"x"])
    assert entries_in(Batch(memoryview(bytearray(raw)), sizes, [BatchRun("%TIMER", 0, 1)]), False) == []


def test_minutes_come_in_order_once_each_and_those_passed_are_forgotten() -> None:
    minutes = LaterMinutes([9, 3, 3])
    for minute in (5, 3, 9, 1):
        minutes.add(minute)
    assert [minutes.first_after(at) for at in (-1, 0, 1, 3, 4, 5, 9, 10)] == [1, 1, 3, 5, 5, 9, None, None]
    minutes.add(12)
    assert minutes.first_after(10) == 12
