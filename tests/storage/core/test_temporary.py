"""Temporary topics: through the store's own calls, in memory, bounded, never in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from holdmq.errors import StorageError
from holdmq.record.batch import encode_batch
from holdmq.record.codec import VERIFY_ALL, decode_record, tag_hash
from storage.api.batches import Batch, BatchRun
from storage.api.queues import HashFilter, ReadStatus
from storage.core.temporary import OFFSETS_PER_MS

MakeDriver = Callable[..., Any]
MIB = 1 << 20
TOPIC = "alerts#tmp"


def test_messages_are_read_held_for_and_in_no_log(driver: MakeDriver) -> None:
    d = driver().open()
    seen: list[Batch] = []
    d.store.subscribe(seen.extend)
    first = d.clock_ms << OFFSETS_PER_MS
    assert d.store.bounds(TOPIC, 0) == (first, first)
    few, many = d.append(3, topic=TOPIC), d.append(20, topic=TOPIC)
    assert not seen
    assert d.wait(2) == [None, None]
    assert seen == [few, many]
    assert d.store.bounds(TOPIC, 0) == (first, first + 23)
    for batch, base in ((few, first), (many, first + 3)):
        for i, start in enumerate(batch.starts.tolist()):
            record = decode_record(batch.records, start, VERIFY_ALL)
            assert (record.queue_offset, record.physical_offset) == (base + i, -1)
            assert (record.store_host, record.store_ms) == (d.store.store_id, d.clock_ms)
    read = d.store.read_queue(TOPIC, 0, 0, first, MIB, 100)
    assert read is not None
    assert (read.status, read.count, read.next_offset) == (ReadStatus.FOUND, 23, first + 23)
    assert d.store.read_queue(TOPIC, 0, 0, first + 23, MIB, 100).status == ReadStatus.AT_END
    assert d.store.read_queue(TOPIC, 0, 0, first + 24, MIB, 100).status == ReadStatus.AHEAD
    assert d.store.read_queue(TOPIC, 1, 0, 7, MIB, 100).next_offset == first
    wanted = HashFilter([tag_hash(b"3/t")])
    assert d.store.read_queue(TOPIC, 0, 0, first, MIB, 100, wanted).count == 2
    assert d.store.confirmed_position == 0
    assert not list((d.directory / "consumequeue").glob("*"))


def test_the_oldest_are_dropped_and_counted(driver: MakeDriver) -> None:
    d = driver(temporary_bytes=MIB).open()
    first = d.store.bounds(TOPIC, 0)[0]
    for _ in range(30):
        d.append(1, topic=TOPIC, body=bytes(100_000))
    d.wait(30)
    numbers = d.store.numbers()
    assert numbers["temporary_bytes"] <= MIB
    assert numbers["temporary_dropped_total"] == 20
    assert numbers["temporary_records_total"] == 30
    assert d.store.bounds(TOPIC, 0) == (first + 20, first + 30)
    read = d.store.read_queue(TOPIC, 0, 0, first, MIB, 100)
    assert (read.status, read.next_offset) == (ReadStatus.BEHIND, first + 20)
    d.append(1, topic=TOPIC, body=bytes(2 * MIB))
    d.wait(1)
    assert d.store.bounds(TOPIC, 0) == (first + 30, first + 31)


def test_offsets_of_an_earlier_boot_are_behind(driver: MakeDriver) -> None:
    d = driver().open()
    d.append(5, topic=TOPIC)
    d.wait(1)
    old = d.store.bounds(TOPIC, 0)[1]
    d.store.close()
    d.clock_ms += 1
    d.open()
    first, end = d.store.bounds(TOPIC, 0)
    assert first == end > old
    assert d.store.read_queue(TOPIC, 0, 0, old, MIB, 10).status == ReadStatus.BEHIND


def test_a_removed_topic_is_empty_and_gives_no_offset_twice(driver: MakeDriver) -> None:
    d = driver().open()
    d.append(5, topic=TOPIC)
    d.append(1, topic="other#tmp")
    d.wait(2)
    end = d.store.bounds(TOPIC, 0)[1]
    d.store.temporary.remove(TOPIC)
    assert d.store.bounds(TOPIC, 0) == (end, end)
    assert d.store.numbers()["temporary_queues"] == 1
    batch = d.append(1, topic=TOPIC)
    d.wait(1)
    assert batch.runs[0].base_offset >= end
    assert d.store.read_queue("other#tmp", 0, 0, d.store.bounds("other#tmp", 0)[0], MIB, 10).count == 1


def test_a_batch_of_both_kinds_is_refused(driver: MakeDriver) -> None:
    d = driver().open()
    parts = [encode_batch(topic.encode(), 0, [b"x"]) for topic in (TOPIC, "devices")]
    runs = [(TOPIC, parts[0]), ("devices", parts[1])]
    for chosen in (runs, runs[::-1]):
        raw = bytearray(b"".join(part[0] for _, part in chosen))
        sizes = np.concatenate([part[1] for _, part in chosen])
        batch = Batch(memoryview(raw), sizes, [BatchRun(topic, 0, 1) for topic, _ in chosen])
        d.store.append(batch, lambda _batch, error: d.results.append(error))
        [error] = d.wait(1)
        assert isinstance(error, StorageError)
    assert d.store.bounds("devices", 0) == (0, 0)
    assert d.store.bounds(TOPIC, 0)[1] == d.store.bounds(TOPIC, 0)[0]
