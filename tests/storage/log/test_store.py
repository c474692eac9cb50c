"""Appending and reading: what is confirmed reads the same from memory and from disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdmq.config.model import StorageSection
from holdmq.errors import StoreFormatError
from holdmq.record.codec import VERIFY_ALL, decode_record, prefix_hash, tag_hash
from storage.api.queues import HashFilter, ReadStatus
from storage.core import queues
from storage.log.store import open_store

MakeDriver = Callable[..., Any]


def test_records_are_stamped_in_the_order_of_appends(driver: MakeDriver) -> None:
    d = driver().open()
    first = d.append(3)
    d.clock_ms -= 5_000  # a clock that goes back must not show in the log
    second = d.append(2, queue_id=1)
    third = d.append(20)
    assert d.wait(3) == [None] * 3
    assert (first.runs[0].base_offset, second.runs[0].base_offset, third.runs[0].base_offset) == (0, 0, 3)
    position = 0
    for batch in (first, second, third):
        assert batch.position == position
        for i, start in enumerate(batch.starts.tolist()):
            record = decode_record(batch.records, start, VERIFY_ALL)
            assert record.queue_offset == batch.runs[0].base_offset + i
            assert record.physical_offset == position + start
            assert record.store_ms == 1_700_000_000_000
            assert record.store_host == d.store.store_id
        position = batch.end
    assert d.store.confirmed_position == position
    assert d.store.bounds("devices", 0) == (0, 23)
    assert d.store.bounds("nobody", 0) == (0, 0)


def test_nothing_is_visible_before_it_is_confirmed(driver: MakeDriver) -> None:
    d = driver().open()
    d.append(3)
    assert d.store.bounds("devices", 0) == (0, 0)
    assert d.store.backlog().size_bytes > 0
    read = d.store.read_queue("devices", 0, 0, 0, 1000, 10)
    assert read.status == ReadStatus.AT_END
    assert d.store.read_log(0, 1000) == []
    assert d.wait(1) == [None]
    assert d.store.read_queue("devices", 0, 0, 0, 1000, 10).count == 3
    assert d.store.backlog() == (0, 0.0)


def test_memory_and_disk_give_equal_bytes(driver: MakeDriver) -> None:
    d = driver(tail_cache_bytes=8 << 20).open()
    for i in range(60):
        d.append(1 + i % 40, queue_id=i % 3, topic=("devices", "alarms")[i % 2], body=b"x" * (i * 13 % 700))
    assert d.wait(60) == [None] * 60
    d.wait_indexed()
    tail = b"".join(bytes(b.records) for b in d.store.tail(0))
    assert tail == d.log_bytes()
    filters = [
        None,
        HashFilter([tag_hash(b"3/t"), tag_hash(b"7/t")]),
        HashFilter([], [prefix_hash(b"4") >> 32]),
    ]
    for topic in ("devices", "alarms"):
        for queue_id in range(3):
            for wanted in filters:
                for max_bytes in (1, 1000, 1 << 20):
                    memory = d.queue_bytes(topic, queue_id, wanted, False, max_bytes)
                    assert memory == d.queue_bytes(topic, queue_id, wanted, True, max_bytes)
                    if d.store.bounds(topic, queue_id)[1]:
                        assert memory


def test_filters_pass_exactly_the_tags_that_they_name(driver: MakeDriver) -> None:
    d = driver().open()
    d.append_and_wait(30)
    d.append_and_wait(5)
    raw = d.queue_bytes("devices", 0, HashFilter([tag_hash(b"3/t")]))
    found = []
    while raw:
        record = decode_record(raw)
        found.append((record.tag, record.queue_offset))
        raw = raw[record.total_size :]
    assert found == [(b"3/t", offset) for offset in (3, 13, 23, 33)]
    assert d.queue_bytes("devices", 0, HashFilter([0])) == b""
    assert HashFilter([0]).passes_untagged
    assert not HashFilter([1]).passes_untagged


def test_a_read_says_where_it_stands(driver: MakeDriver) -> None:
    d = driver().open()
    d.append_and_wait(10)
    d.wait_indexed()
    for read_queue in (d.store.read_queue, d.store.read_queue_cold):
        assert read_queue("devices", 0, 0, 10, 1000, 10).status == ReadStatus.AT_END
        ahead = read_queue("devices", 0, 0, 11, 1000, 10)
        assert (ahead.status, ahead.next_offset) == (ReadStatus.AHEAD, 10)
        assert read_queue("none", 0, 0, 0, 1000, 10).status == ReadStatus.AT_END
        assert read_queue("none", 0, 0, 1, 1000, 10).status == ReadStatus.AHEAD
        one = read_queue("devices", 0, 0, 2, 1, 10)
        assert (one.count, one.next_offset) == (1, 3), "always one record"
        some = read_queue("devices", 0, 0, 2, 1 << 20, 4)
        assert (some.count, some.next_offset, some.first_offset, some.end_offset) == (4, 6, 0, 10)


def test_a_filtered_read_looks_at_a_bounded_number_of_runs(
    driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "CHUNKS_PER_READ_MAX", 3)
    d = driver().open()
    for _ in range(5):
        d.append(4)
    d.wait(5)
    read = d.store.read_queue("devices", 0, 0, 0, 1000, 10, HashFilter([12345]))
    assert (read.status, read.count, read.next_offset) == (ReadStatus.FOUND, 0, 12)


def test_the_tail_is_bounded_and_older_reads_go_to_the_disk(driver: MakeDriver) -> None:
    d = driver().open()
    for _ in range(40):
        d.append_and_wait(50, body=bytes(1000))
        d.wait_indexed()
    d.append_and_wait(1)
    d.wait_indexed()
    numbers = d.store.numbers()
    assert numbers["tail_bytes"] <= 1 << 20
    assert d.store.tail(0) is None
    assert d.store.read_queue("devices", 0, 0, 0, 1000, 10) is None
    cold = d.store.read_queue_cold("devices", 0, 0, 0, 1 << 20, 100)
    assert cold.count == 100
    assert d.store.tail(d.store.confirmed_position) == []
    assert len(d.queue_bytes("devices", 0, cold=True)) == len(d.log_bytes())
    newest = d.store.read_queue("devices", 0, 0, 2000, 1000, 10)
    assert newest.count == 1


def test_segments_end_in_a_blank_and_every_record_is_found(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    batches = [d.append(100, body=bytes(3000)) for _ in range(10)]
    assert d.wait(10) == [None] * 10
    assert [b.position for b in batches[:4]] == [
        0,
        len(batches[0].records),
        len(batches[0].records) * 2,
        1 << 20,
    ]
    assert len(d.store.read_log(0, 64 << 20)) >= 3
    expected = b"".join(bytes(b.records) for b in batches)
    assert d.log_bytes() == expected
    d.store.close()
    names = sorted(p.name for p in (tmp_path / "store" / "commitlog").iterdir())
    assert names[:2] == ["0" * 20, f"{1 << 20:020d}"]


def test_a_store_opens_again_with_another_segment_size(driver: MakeDriver) -> None:
    d = driver().open()
    expected = b""
    for size in (1 << 20, 3 << 20, 2 << 20, 1 << 20):
        d.store.close()
        d.settings["segment_size_bytes"] = size
        d.open()
        assert d.store.epoch == 1, "a clean close"
        assert d.log_bytes() == expected
        for _ in range(5):
            expected += bytes(d.append_and_wait(100, body=bytes(3000)).records)
    assert d.log_bytes() == expected
    d.wait_indexed()
    assert d.queue_bytes("devices", 0, cold=True) == expected


def test_a_batch_that_fits_no_segment_is_refused(driver: MakeDriver) -> None:
    d = driver().open()
    d.append(1, body=bytes(1 << 20))
    (error,) = d.wait(1)
    assert "segment_size_bytes" in str(error)
    d.append_and_wait(1)
    assert d.store.bounds("devices", 0) == (0, 1)


def test_a_second_opener_is_refused(driver: MakeDriver) -> None:
    driver().open()
    with pytest.raises(StoreFormatError, match="another process has it open"):
        driver().open()


def test_a_newer_format_is_refused(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    d.store.close()
    file = tmp_path / "store" / "format.json"
    file.write_text(file.read_text().replace('"format":1', '"format":2'))
    with pytest.raises(StoreFormatError, match=r"its format is 2, this HoldMQ knows formats up to 1"):
        driver().open()


def test_a_store_of_another_broker_is_refused(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    d.store.close()
    other = open_store(StorageSection(data_dir=str(tmp_path / "store")), "b2", lambda _: 1, d.posted.put)
    with pytest.raises(StoreFormatError, match="belongs to broker 'b1', not 'b2'"):
        other.open()
    other.close()


def test_a_log_without_its_identity_is_refused(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    d.store.close()
    (tmp_path / "store" / "format.json").unlink()
    with pytest.raises(StoreFormatError, match="missing, but there is a log"):
        driver().open()


@pytest.mark.timeout(600)
def test_ten_thousand_queues_are_written_read_and_found_again(driver: MakeDriver) -> None:
    d = driver(tail_cache_bytes=32 << 20).open()
    for i in range(10_000):
        d.append(1, topic=f"t{i % 100}", queue_id=i // 100)
    d.wait(10_000)
    d.wait_indexed()
    assert d.store.read_queue_cold("t7", 99, 0, 0, 1000, 10).count == 1
    d.store.close()
    d.open()
    assert d.store.numbers()["queues"] == 10_000
    assert d.store.bounds("t99", 42) == (0, 1)
    assert d.store.read_queue_cold("t99", 42, 0, 0, 1000, 10).count == 1
