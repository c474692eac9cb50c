"""Cold reads by chunks: what is read from disk, what stays, and what damage does to its neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from holdmq.errors import CorruptRecordError
from holdmq.service.memory import memory_limit, memory_used
from storage.api.queues import ReadStatus
from storage.core.scan import batch_of
from storage.log.reading import reader
from storage.log.reading.core.chunks import ADD_BELOW

MakeDriver = Callable[..., Any]
MIB = 1 << 20


def filled(
    driver: MakeDriver, batches: int, count: int = 100, body: bytes = bytes(300), **settings: Any
) -> Any:
    """A store whose records lie in segments of 4 MiB, opened again: nothing of them is in memory."""
    d = driver(segment_size_bytes=4 * MIB, **settings).open()
    for _ in range(batches):
        d.append(count, body=body)
    d.wait(batches)
    d.wait_indexed()
    d.store.close()
    return d.open()


def wait_for(numbers: Callable[[], bool]) -> None:
    until = time.monotonic() + 40
    while not numbers():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_small_reads_in_sequence_read_each_byte_from_disk_once(driver: MakeDriver) -> None:
    d = filled(driver, 60)
    offset, end = d.store.bounds("devices", 0)
    while offset < end:
        read = d.store.read_queue_cold("devices", 0, 0, offset, MIB, 32)
        assert (read.status, read.count) == (ReadStatus.FOUND, min(32, end - offset))
        offset = read.next_offset
    numbers = d.store.numbers()
    assert numbers["disk_reads_total"] <= 6
    assert numbers["disk_read_bytes_total"] < 1.1 * d.store.confirmed_position
    assert numbers["chunk_hits_total"] > 100
    assert 0 < numbers["chunk_bytes"] <= 64 << 20


def test_a_second_reader_of_the_log_reads_nothing_from_disk(driver: MakeDriver) -> None:
    d = filled(driver, 60)
    once = d.log_bytes()
    reads = d.store.numbers()["disk_reads_total"]
    assert d.log_bytes() == once
    assert d.queue_bytes("devices", 0, cold=True) == once
    assert d.store.numbers()["disk_reads_total"] == reads


def test_readers_that_want_the_same_at_once_read_and_decode_it_once(
    driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = filled(driver, 60)
    readers = 4
    both, decoded = Event(), []

    def decode(*args: Any) -> Any:
        decoded.append(args[2])
        time.sleep(0.01)  # the others are there meanwhile
        return batch_of(*args)

    def hold_first_read(operation: str, path: Path) -> None:
        if operation == "read" and path.parent.name == "commitlog":
            both.wait(60)

    monkeypatch.setattr(reader, "batch_of", decode)
    d.disk.failing = hold_first_read
    with ThreadPoolExecutor(readers) as pool:
        logs = [pool.submit(d.log_bytes) for _ in range(readers)]
        time.sleep(0.1)
        both.set()
        assert len({log.result(60) for log in logs}) == 1
    chunks = d.store.numbers()["chunks"]
    assert len(decoded) == len(set(decoded)) == chunks
    assert d.store.numbers()["disk_reads_total"] == chunks


def test_a_chunk_that_comes_between_a_look_and_a_read_hides_nothing(
    driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = filled(driver, 60)
    chunks = d.store.chunks
    first = d.store.read_log(0, 1)[0]
    chunks.cache.drop_below(MIB)
    cached, is_first = chunks.cached, True

    def cached_before_another_thread_reads(position: int) -> Any:
        nonlocal is_first
        found = cached(position)
        if is_first:
            is_first = False
            d.store.read_log(0, 1)
        return found

    monkeypatch.setattr(chunks, "cached", cached_before_another_thread_reads)
    assert d.store.read_log(first.end, 1)[0].position == first.end


def test_what_is_read_in_sequence_is_asked_of_the_disk_ahead(driver: MakeDriver) -> None:
    d = filled(driver, 60)
    d.store.read_log(0, 1)
    position = d.store.chunks.cached(0).end
    assert ("read_ahead", "commitlog") not in d.disk.calls
    d.store.read_log(position, 1)
    assert ("read_ahead", "commitlog") in d.disk.calls
    assert d.store.numbers()["read_ahead_total"] == 1


def test_the_cache_is_bounded_and_may_be_none(driver: MakeDriver, tmp_path: Path) -> None:
    kept = filled(driver, 60, chunk_cache_bytes=int(1.5 * MIB))
    whole = kept.log_bytes()
    assert kept.log_bytes() == whole
    assert kept.store.numbers()["chunk_bytes"] <= 1.5 * MIB
    assert kept.store.numbers()["chunks_dropped_total"] > 0
    none = filled(driver, 60, directory=tmp_path / "none", chunk_cache_bytes=0)
    assert len(none.log_bytes()) == len(whole)
    assert len(none.queue_bytes("devices", 0, cold=True)) == len(whole)
    assert none.store.numbers()["chunks"] == 0


def test_nothing_is_cached_when_the_memory_limit_is_near(driver: MakeDriver) -> None:
    d = filled(driver, 60, memory_limit_bytes=1)
    wait_for(lambda: d.store.numbers()["memory_used_share"] > ADD_BELOW)
    assert len(d.log_bytes()) == d.store.confirmed_position
    numbers = d.store.numbers()
    assert (numbers["chunks"], numbers["read_ahead_total"]) == (0, 0)
    assert numbers["chunks_refused_total"] > 0
    d.store.read_queue_cold("devices", 0, 0, 0, MIB, 1)
    assert d.store.numbers()["disk_read_bytes_total"] - numbers["disk_read_bytes_total"] <= 128 << 10


def test_idle_chunks_go_when_memory_is_wanted(driver: MakeDriver) -> None:
    limit = int(memory_used() / 0.6)
    d = filled(driver, 20, memory_limit_bytes=limit)
    d.log_bytes()
    assert d.store.numbers()["chunks"] > 0
    cache = d.store.chunks.cache
    cache.used_share = 0.5
    cache.drop_idle(time.monotonic() + 6)
    assert d.store.numbers()["chunks"] == 0


def test_damage_hides_neither_what_is_before_nor_what_is_behind(driver: MakeDriver) -> None:
    d = filled(driver, 12)
    d.store.close()
    segment = d.directory / "commitlog" / f"{0:020d}"
    size = d.store.confirmed_position // 1200
    with segment.open("r+b") as file:
        file.seek(700 * size + 120)
        file.write(b"\xff")
    d.open()
    offset, found = 0, []
    while offset < 1200:
        read = d.store.read_queue_cold("devices", 0, 0, offset, MIB, 1000)
        found.append((read.status, offset, read.next_offset))
        offset = read.next_offset
    assert found == [
        (ReadStatus.FOUND, 0, 700), (ReadStatus.CORRUPT, 700, 701), (ReadStatus.FOUND, 701, 1200),
    ]  # fmt: skip
    batches = d.store.read_log(0, MIB)
    assert batches[-1].end == 700 * size
    with pytest.raises(CorruptRecordError) as raised:
        d.store.read_log(700 * size, MIB)
    assert raised.value.resume_at == 701 * size
    assert d.store.read_log(701 * size, MIB)[-1].end == 1200 * size
    # The same answers from what stayed in memory.
    assert d.store.read_queue_cold("devices", 0, 0, 700, MIB, 1000).status == ReadStatus.CORRUPT
    assert d.store.read_queue_cold("devices", 0, 0, 699, MIB, 1000).count == 1


def test_a_position_inside_a_record_is_refused_with_the_next_one(driver: MakeDriver) -> None:
    d = filled(driver, 2)
    size = d.store.confirmed_position // 200
    d.store.read_log(0, MIB)
    with pytest.raises(CorruptRecordError, match="no record begins here") as raised:
        d.store.read_log(size + 5, MIB)
    assert raised.value.resume_at == 2 * size


def test_a_record_longer_than_a_chunk_is_read_whole(driver: MakeDriver) -> None:
    d = filled(driver, 2, count=1, body=bytes(3 * MIB))
    assert [len(b.sizes) for b in d.store.read_log(0, 1)] == [1]
    assert len(d.queue_bytes("devices", 0, cold=True, max_bytes=1)) > 6 * MIB


def test_nothing_behind_the_confirmed_position_is_seen_from_disk(driver: MakeDriver) -> None:
    d = filled(driver, 3)
    end = d.store.confirmed_position
    d.append(100, body=bytes(300))
    wait_for(lambda: d.store.writer.written > end)  # on disk, but its confirmation still waits
    assert d.store.read_log(0, MIB)[-1].end == end
    d.store.read_queue_cold("devices", 0, 0, 0, MIB, 10)
    assert max(chunk.end for chunk in d.store.chunks.cache._chunks.values()) == end
    d.wait(1)
    assert d.store.read_log(end, MIB)[-1].end == d.store.confirmed_position


def test_parts_of_a_chunk_keep_their_runs_offsets_and_hashes(driver: MakeDriver) -> None:
    d = driver(segment_size_bytes=4 * MIB).open()
    for index in range(30):
        d.append(20, topic="ab"[index % 2], queue_id=index % 3)
    d.wait(30)
    d.wait_indexed()
    batches = d.store.tail(0)
    assert batches is not None
    wanted = {
        (run.topic, run.queue_id, run.base_offset + i): int(run.hashes[i])
        for batch in batches for run in batch.runs for i in range(run.count) if run.hashes is not None
    }  # fmt: skip
    found: dict[tuple[str, int, int], int] = {}
    position = 0
    while position < d.store.confirmed_position:
        for batch in d.store.read_log(position, 1700):
            assert batch.position == position
            assert sum(run.count for run in batch.runs) == len(batch.sizes)
            for run in batch.runs:
                assert run.hashes is not None
                found.update(
                    {
                        (run.topic, run.queue_id, run.base_offset + i): int(run.hashes[i])
                        for i in range(run.count)
                    }
                )
            position = batch.end
    assert found == wanted
    assert len(wanted) == 600


def test_a_thin_queue_is_read_without_what_lies_between(driver: MakeDriver) -> None:
    d = driver(segment_size_bytes=16 * MIB).open()
    for _ in range(40):
        d.append(1, topic="thin", body=bytes(100))
        d.append(300, topic="thick", body=bytes(700))
    d.wait(80)
    d.wait_indexed()
    read = d.store.read_queue_cold("thin", 0, 0, 0, MIB, 100)
    assert read.count == 40
    assert d.store.numbers()["disk_read_bytes_total"] < 100_000


def test_activity_is_counted_by_segment(driver: MakeDriver) -> None:
    d = filled(driver, 200)
    d.store.close()
    # The flusher would count as well, once in a second: here it does nothing.
    d.settings["flush_interval_ms"] = 60_000
    d.open()
    d.log_bytes()
    activity = d.store.chunks.activity
    table, end = d.store._segments.table, d.store.confirmed_position
    activity.tick(table, end, 0, 100.0)
    d.log_bytes()
    d.store.read_log(0, 1)
    activity.tick(table, end + 2000, 7, 102.0)
    rates = {rate.start: rate for rate in activity.rates}
    assert rates[0].hits > 0
    last = table[-1] if end >= table[-1].start else table[-2]
    assert rates[last.start].written_bytes == 1000
    assert rates[last.start].hits >= 3.5


def test_written_bytes_are_split_at_segments(driver: MakeDriver) -> None:
    from storage.log.reading.activity import written_by_segment
    from storage.log.segments import Segment

    table = [Segment(start, start + 100, Path("x")) for start in (0, 100, 200)]
    assert written_by_segment(table, [0, 100, 200], 50, 250) == {0: 50, 100: 100, 200: 50}
    assert written_by_segment(table, [0, 100, 200], 250, 250) == {}


def test_the_memory_limit_is_the_configured_one_else_the_least(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    assert memory_limit(5, tmp_path) == 5
    assert memory_limit(0, tmp_path, tmp_path) == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    machine = memory_limit(0, tmp_path, tmp_path)
    assert machine > 1_000_000
    (tmp_path / "memory.limit_in_bytes").write_text("2000000\n")
    assert memory_limit(0, tmp_path / "none", tmp_path) == 2_000_000


def test_what_retention_took_is_not_read_from_memory(driver: MakeDriver) -> None:
    d = filled(driver, 200)
    d.log_bytes()
    segments = d.store._segments
    oldest = segments.table[0]
    assert d.store.chunks.cached(0) is not None
    segments.drop_oldest()
    assert d.store.chunks.cached(0) is None
    assert d.store.chunks.cached(oldest.end) is not None
