"""Delayed messages in a store: released once, in order, at their time, whatever happens meanwhile."""

from __future__ import annotations

import errno
import queue
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdmq.errors import RecordError, StorageError
from holdmq.record.codec import Record, decode_record, encode_record
from storage.api.timer import DelayedRecord, value_of
from storage.log.timer import releases, timer

MakeDriver = Callable[..., Any]
NOW = 1_700_000_000_000
MINUTE = 60_000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread looks at the test's clock and at time that passed more often than it would."""
    monkeypatch.setattr(timer, "WAIT_MAX_S", 0.02)


def pump(d: Any, holds: Callable[[], bool]) -> None:
    """Run the store's callbacks until something holds."""
    until = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < until
        try:
            d.posted.get(timeout=0.005)()
        except queue.Empty:
            continue


def delayed(name: str, due_ms: int, topic: str = "devices", queue_id: int = 0, pad: int = 0) -> DelayedRecord:
    body = name.encode() + b"." * pad
    return DelayedRecord(encode_record(topic.encode(), queue_id, body, b"TAGS\x01t\x02", 5), due_ms)


def schedule(d: Any, *messages: DelayedRecord) -> None:
    d.store.timer.schedule(messages, lambda _batch, error: d.results.append(error))
    assert d.wait(1) == [None]


def records(d: Any, topic: str = "devices", queue_id: int = 0) -> list[Record]:
    d.wait_indexed()
    raw = d.queue_bytes(topic, queue_id, cold=True)
    found: list[Record] = []
    at = 0
    while at < len(raw):
        found.append(decode_record(raw, at))
        at += found[-1].total_size
    return found


def bodies(d: Any, topic: str = "devices", queue_id: int = 0) -> list[str]:
    return [record.body.rstrip(b".").decode() for record in records(d, topic, queue_id)]


def set_clock(d: Any, now_ms: int) -> None:
    d.clock_ms = now_ms
    d.store.timer.wake()


def count(d: Any, topic: str = "devices", queue_id: int = 0) -> int:
    return int(d.store.bounds(topic, queue_id)[1])


def settle(d: Any) -> None:
    """Until the timer has seen all that is confirmed."""
    pump(d, lambda: d.store.timer.follower.position >= d.store.confirmed_position)
    pump(d, lambda: d.store.backlog().size_bytes == 0)


def wait_pending(d: Any, timers: int) -> None:
    """Until so many wait: the timer counts what it has taken from the log a moment after."""
    settle(d)
    pump(d, lambda: d.store.timer.pending == timers)


def in_thread(d: Any, work: Callable[[], Any]) -> Any:
    """Run a blocking call as retention does, and callbacks meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        answer: Future[Any] = pool.submit(work)
        pump(d, answer.done)
        return answer.result()


def timer_files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "timer").iterdir() if path.name.isdigit())


def test_messages_appear_when_they_are_due_and_not_before(driver: MakeDriver) -> None:
    d = driver().open()
    schedule(d, delayed("b", NOW + 2000), delayed("a", NOW + 1000), delayed("c", NOW + 2000))
    assert d.store.bounds("%TIMER", 0) == (0, 3)
    set_clock(d, NOW + 999)
    settle(d)
    assert bodies(d) == []
    set_clock(d, NOW + 1000)
    pump(d, lambda: count(d) == 1)
    set_clock(d, NOW + 500_000)
    pump(d, lambda: count(d) == 3)
    assert bodies(d) == ["a", "b", "c"]
    origins = [value_of(record.properties, b"ORIGIN") for record in records(d)]
    assert origins == [b"%TIMER/0/1/0", b"%TIMER/0/0/0", b"%TIMER/0/2/0"]
    wait_pending(d, 0)


def test_what_is_due_already_is_released_at_once(driver: MakeDriver) -> None:
    d = driver().open()
    schedule(d, delayed("old", 0), delayed("older than nothing", NOW - 5))
    pump(d, lambda: count(d) == 2)
    schedule(d, delayed("again", 1))
    pump(d, lambda: count(d) == 3)
    assert bodies(d) == ["old", "older than nothing", "again"]


def test_a_message_goes_to_its_own_topic_and_queue(driver: MakeDriver) -> None:
    d = driver().open()
    schedule(
        d, delayed("x", NOW + 1, "%RETRY%g", 0), delayed("y", NOW + 1, "a", 7), delayed("z", NOW + 2, "a", 7)
    )
    set_clock(d, NOW + 10)
    pump(d, lambda: count(d, "a", 7) == 2)
    assert (bodies(d, "%RETRY%g"), bodies(d, "a", 7)) == (["x"], ["y", "z"])


@pytest.mark.parametrize("topic", ["cache#tmp", "%TIMER"])
def test_temporary_topics_and_the_timers_own_are_refused(driver: MakeDriver, topic: str) -> None:
    d = driver().open()
    with pytest.raises(RecordError, match="cannot be delayed"):
        d.store.timer.schedule([delayed("x", NOW, topic)], lambda _batch, _error: None)


def test_what_came_due_while_the_store_was_closed_comes_at_start_in_order(driver: MakeDriver) -> None:
    d = driver().open()
    dues = [NOW + 1000 * i for i in range(200)]
    random.Random(4).shuffle(dues)
    schedule(d, *(delayed(f"{due}", due) for due in dues))
    d.store.close()
    d.clock_ms = NOW + 150_000
    d.open()
    pump(d, lambda: count(d) == 151)
    wait_pending(d, 49)
    assert bodies(d) == [f"{due}" for due in sorted(dues)[:151]]


def test_nothing_is_released_twice_over_many_starts(driver: MakeDriver) -> None:
    d = driver(flush_interval_ms=5).open()
    rnd = random.Random(5)
    scheduled: list[tuple[int, int]] = []
    for _ in range(8):
        for _ in range(rnd.randrange(1, 40)):
            due = d.clock_ms + rnd.choice([0, 1, 500, 70_000, 130_000])
            scheduled.append((due, len(scheduled)))
            schedule(d, delayed(f"{scheduled[-1][1]}", due))
        set_clock(d, d.clock_ms + rnd.randrange(100_000))
        expected = {str(name) for due, name in scheduled if due <= d.clock_ms}
        pump(d, lambda wanted=expected: count(d) == len(wanted))
        assert sorted(bodies(d)) == sorted(expected)
        if rnd.random() < 0.7:
            d.store.close()
            d.open()
    set_clock(d, d.clock_ms + 1_000_000)
    pump(d, lambda: count(d) == len(scheduled))
    wait_pending(d, 0)
    assert sorted(map(int, bodies(d))) == list(range(len(scheduled)))


def test_bucket_files_go_with_their_last_timer(
    driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(timer, "CHECKPOINT_INTERVAL_S", 0.0)
    d = driver().open()
    schedule(d, *(delayed(f"{i}", NOW + i * MINUTE) for i in range(1, 6)))
    pump(d, lambda: d.store.numbers()["timer_buckets"] == 5)
    assert len(timer_files(tmp_path / "store")) == 5
    set_clock(d, NOW + 3 * MINUTE)
    pump(d, lambda: count(d) == 3)
    pump(d, lambda: len(timer_files(tmp_path / "store")) == 2)
    assert d.store.timer.pending == 2
    schedule(d, delayed("late for a bucket that is gone", NOW + MINUTE))
    pump(d, lambda: count(d) == 4)
    pump(d, lambda: len(timer_files(tmp_path / "store")) == 2)


@pytest.mark.parametrize("lost", ["all", "one", "checkpoint", "damaged"])
def test_lost_timer_files_are_built_again_from_the_log(
    driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: str
) -> None:
    monkeypatch.setattr(timer, "CHECKPOINT_INTERVAL_S", 0.0)
    d = driver().open()
    schedule(d, *(delayed(f"{i}", NOW + i * 20_000) for i in range(30)))
    set_clock(d, NOW + 100_000)
    # Two minutes are done and gone, of the third one message is released.
    pump(d, lambda: count(d) == 6 and d.store.numbers()["timer_buckets"] == 9)
    d.append_and_wait(5, topic="other")
    settle(d)
    d.store.close()
    directory = tmp_path / "store" / "timer"
    before = {name: (directory / name).read_bytes() for name in timer_files(tmp_path / "store")}
    assert len(before) == 9
    if lost == "all":
        shutil.rmtree(directory)
    elif lost == "one":
        (directory / max(before)).unlink()
    elif lost == "checkpoint":
        (directory / "checkpoint.json").unlink()
    else:
        (directory / "checkpoint.json").write_bytes(b"{")
    d.open()
    pump(d, lambda: d.store.timer.pending == 24)
    assert d.store.numbers()["timer_rebuilds_total"] == (lost != "all")
    pump(d, lambda: d.store.numbers()["timer_checkpoint_position"] == d.store.confirmed_position)
    pump(d, lambda: d.store.numbers()["timer_buckets"] == 9)
    assert before == {name: (directory / name).read_bytes() for name in timer_files(tmp_path / "store")}
    set_clock(d, NOW + 1_000_000)
    pump(d, lambda: count(d) == 30)
    assert bodies(d) == [f"{i}" for i in range(30)]


def test_a_refused_release_waits_and_keeps_the_order(
    driver: MakeDriver, watched_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "RETRY_S", 0.01)
    monkeypatch.setattr(releases, "BATCH_RECORDS", 3)
    d = driver(disk=watched_disk).open()
    schedule(d, *(delayed(f"{i:02}", NOW + i) for i in range(1, 41)))
    watched_disk.failing = lambda operation, path: (
        errno.ENOSPC if operation == "write" and path.parent.name == "commitlog" else None
    )
    set_clock(d, NOW + 20)
    pump(d, lambda: d.store.numbers()["timer_refused_releases_total"] > 20)
    assert count(d) == 0
    watched_disk.failing = lambda _operation, _path: None
    set_clock(d, NOW + 1000)
    pump(d, lambda: count(d) == 40)
    assert bodies(d) == [f"{i:02}" for i in range(1, 41)]


def test_full_disks_for_bucket_files_hold_nothing_up(
    driver: MakeDriver, watched_disk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(timer, "CHECKPOINT_INTERVAL_S", 0.0)
    monkeypatch.setattr(timer, "RETRY_S", 0.01)
    d = driver(disk=watched_disk).open()
    schedule(d, delayed("first", NOW + 300_000))
    pump(d, lambda: d.store.numbers()["timer_buckets"] == 1)
    watched_disk.failing = lambda operation, path: (
        errno.ENOSPC if operation == "write" and path.parent.name == "timer" and path.name.isdigit() else None
    )
    schedule(d, delayed("a", NOW + 5), delayed("b", NOW + 300_001))
    pump(d, lambda: d.store.numbers()["timer_file_failures_total"] > 2)
    set_clock(d, NOW + 10)
    pump(d, lambda: count(d) == 1)
    watched_disk.failing = lambda _operation, _path: None
    pump(d, lambda: d.store.numbers()["timer_unwritten_entries"] == 0)
    d.store.close()
    d.clock_ms = NOW + 400_000
    d.open()
    pump(d, lambda: count(d) == 3)
    assert bodies(d) == ["a", "first", "b"]
    wait_pending(d, 0)


def test_a_failing_disk_for_bucket_files_makes_the_store_read_only(
    driver: MakeDriver, watched_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer, "CHECKPOINT_INTERVAL_S", 0.0)
    d = driver(disk=watched_disk).open()
    watched_disk.failing = lambda operation, path: (
        errno.EIO if operation == "sync" and path.parent.name == "timer" and path.name.isdigit() else None
    )
    schedule(d, delayed("a", NOW + 5))
    pump(d, lambda: not d.store.state().ok)
    assert "injected into sync" in d.store.state().reason


def test_files_never_know_more_than_what_is_fsynced(
    driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(timer, "CHECKPOINT_INTERVAL_S", 0.0)
    d = driver(flush_interval_ms=60_000).open()
    schedule(d, delayed("now", NOW), delayed("later", NOW + 5 * MINUTE))
    pump(d, lambda: count(d) == 1)
    pump(d, lambda: d.store.numbers()["timer_unwritten_entries"] == 3)
    time.sleep(0.1)
    assert d.store.numbers()["timer_unwritten_entries"] == 3
    assert d.store.timer.kept_from == 0
    assert timer_files(tmp_path / "store") == []
    d.store.close()
    assert len(timer_files(tmp_path / "store")) == 1


def test_a_checkpoint_that_was_cut_short_is_undone(
    driver: MakeDriver, watched_disk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(timer, "CHECKPOINT_INTERVAL_S", 0.0)
    d = driver(disk=watched_disk).open()
    schedule(d, *(delayed(f"{i}", NOW + i * MINUTE) for i in range(2, 5)))
    pump(d, lambda: d.store.numbers()["timer_buckets"] == 3)
    written: list[Path] = []

    def third_write_fails(operation: str, path: Path) -> int | None:
        if operation == "write" and path.parent.name == "timer" and path.name.isdigit():
            written.append(path)
        return errno.EIO if len(written) >= 3 else None

    watched_disk.failing = third_write_fails
    schedule(d, *(delayed(f"{i}", NOW + i * MINUTE) for i in range(3, 9)))
    pump(d, lambda: not d.store.state().ok)
    d.store.close()
    watched_disk.failing = lambda _operation, _path: None
    d.open()
    pump(d, lambda: d.store.numbers()["timer_buckets"] == 7)
    assert d.store.numbers()["timer_rebuilds_total"] == 0
    assert d.store.timer.pending == 9
    files = timer_files(tmp_path / "store")
    sizes = [(tmp_path / "store" / "timer" / name).stat().st_size for name in files]
    assert sizes == [20, 40, 40, 20, 20, 20, 20]
    set_clock(d, NOW + 10 * MINUTE)
    pump(d, lambda: count(d) == 9)
    assert bodies(d) == ["2", "3", "3", "4", "4", "5", "6", "7", "8"]


def test_a_damaged_message_is_lost_alone(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    schedule(d, *(delayed(f"{i}", NOW + 10_000 + i) for i in range(3)))
    settle(d)
    segment = tmp_path / "store" / "commitlog" / f"{0:020}"
    raw = bytearray(segment.read_bytes())
    at = raw.index(b"TAGS", raw.index(b"TAGS") + 1)
    raw[at] ^= 1
    segment.write_bytes(raw)
    set_clock(d, NOW + 11_000)
    pump(d, lambda: count(d) == 2)
    assert bodies(d) == ["0", "2"]
    assert d.store.numbers()["timer_damaged_total"] == 1
    pump(d, lambda: d.store.timer.pending == 0)


def test_a_large_bucket_is_loaded_in_slices(driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "LOAD_ROWS", 40)
    monkeypatch.setattr(timer, "CHECKPOINT_INTERVAL_S", 0.0)
    d = driver().open()
    rnd = random.Random(6)
    dues = [NOW + 120_000 + rnd.randrange(50_000) for _ in range(500)]
    for first in range(0, 500, 50):
        schedule(d, *(delayed(f"{due}", due) for due in dues[first : first + 50]))
    settle(d)
    set_clock(d, NOW + 119_000)
    pump(d, lambda: d.store.numbers()["timer_open_rows"] > 0)
    assert d.store.numbers()["timer_open_rows"] <= 60
    late = [NOW + 120_000 + rnd.randrange(50_000) for _ in range(50)]
    schedule(d, *(delayed(f"{due}", due) for due in late))
    set_clock(d, NOW + 200_000)
    pump(d, lambda: count(d) == 550)
    assert bodies(d) == [f"{due}" for due in sorted(dues + late)]
    pump(d, lambda: d.store.numbers()["timer_buckets"] == 0)


def test_few_copies_are_on_their_way_at_a_time(driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "IN_FLIGHT_MAX", 8)
    monkeypatch.setattr(releases, "PREPARED_MAX", 16)
    monkeypatch.setattr(releases, "READ_ROWS", 4)
    monkeypatch.setattr(releases, "BATCH_RECORDS", 4)
    d = driver().open()
    schedule(d, *(delayed(f"{i}", NOW + i) for i in range(1, 200)))
    settle(d)
    before = d.store.numbers()["appends_total"]
    set_clock(d, NOW + 1000)
    until = time.monotonic() + 40
    while d.posted.qsize() < 2:
        assert time.monotonic() < until
        time.sleep(0.005)
    time.sleep(0.2)
    assert d.posted.qsize() == 2, "and no more, before these are answered"
    pump(d, lambda: count(d) == 199)
    assert d.store.numbers()["appends_total"] - before >= 199 / 4
    assert bodies(d) == [f"{i}" for i in range(1, 200)]


def test_a_timer_that_fell_behind_reads_the_log_and_misses_nothing(
    driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.log.reading.follower.MEMORY_BYTES", 2000)
    d = driver().open()
    for i in range(100):
        d.store.timer.schedule(
            [delayed(f"{i}", NOW + i // 2, pad=300)], lambda _batch, error: d.results.append(error)
        )
        d.append(3, topic="noise")
        if i % 10 == 0:
            d.clock_ms += 5
    d.wait(200)
    set_clock(d, NOW + 1000)
    pump(d, lambda: count(d) == 100)
    settle(d)
    # What it read once takes no room from those who read again.
    assert d.store.numbers()["disk_reads_total"] > 0
    assert d.store.numbers()["chunks"] == 0
    assert sorted(map(int, bodies(d))) == list(range(100))
    assert d.store.numbers()["timer_replays_total"] > 0
    wait_pending(d, 0)


def fill_segments(d: Any, full: int) -> None:
    """Until so many segments are behind the log's end, on disk, and known to the timer."""
    while d.store.confirmed_position < full * d.settings["segment_size_bytes"]:
        d.append_and_wait(1, body=bytes(200_000), topic="filler")
    pump(d, lambda: d.store.synced_position == d.store.confirmed_position)
    settle(d)


def test_rolling_moves_pending_timers_out_of_a_segment(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    schedule(d, *(delayed(f"{i}", NOW + 1000 * (i % 7), pad=2000) for i in range(60)))
    schedule(d, delayed("far", NOW + 10_000_000_000))
    set_clock(d, NOW + 2000)
    pump(d, lambda: count(d) == 27)
    fill_segments(d, 2)
    first, second = d.store._segments.table[0], d.store._segments.table[1]
    assert in_thread(d, lambda: d.store.timer.rolling.pending_in(first.start, first.end)) == 34
    pump(d, lambda: d.store.timer.rolling.before_delete(first))
    assert in_thread(d, lambda: d.store.timer.rolling.pending_in(first.start, first.end)) == 0
    assert d.store.numbers()["timer_rolled_total"] == 34
    wait_pending(d, 34)
    assert d.store.timer.kept_from >= first.end
    raw = first.path.read_bytes()
    # The segment is gone: nothing may need it any more, and not after a restart either.
    first.path.write_bytes(bytes(len(raw)))
    set_clock(d, NOW + 4000)
    pump(d, lambda: count(d) == 44)
    pump(d, lambda: d.store.timer.rolling.before_delete(second))
    assert d.store.numbers()["timer_rolled_total"] == 34
    d.store.close()
    d.clock_ms = NOW + 20_000_000_000
    d.open()
    pump(d, lambda: count(d) == 61)
    wait_pending(d, 0)
    assert d.store.numbers()["timer_damaged_total"] == 0
    first.path.write_bytes(raw)
    found = [
        (int(value_of(r.properties, b"DUE") or 0), value_of(r.properties, b"ORIGIN")) for r in records(d)
    ]
    assert len({origin for _, origin in found}) == 61
    assert [due for due, _ in found] == sorted(due for due, _ in found)
    assert all(record.born_ms == 5 for record in records(d))


def test_timers_that_are_released_while_they_are_rolled_come_once(driver: MakeDriver) -> None:
    d = driver().open()
    schedule(d, *(delayed(f"{i}", NOW + i, pad=1000) for i in range(1, 301)))
    fill_segments(d, 1)
    first = d.store._segments.table[0]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(d.store.timer.rolling.roll, first.start, first.end)
        for now in range(NOW, NOW + 400, 20):
            set_clock(d, now)
            pump(d, d.posted.empty)
        pump(d, answer.done)
        answer.result()
    pump(d, lambda: count(d) == 300)
    wait_pending(d, 0)
    assert sorted(map(int, bodies(d))) == list(range(1, 301))


def test_what_is_rolled_is_rolled_once_however_late_it_is_on_disk(driver: MakeDriver) -> None:
    d = driver(flush="async", flush_interval_ms=300).open()
    schedule(d, *(delayed(f"{i}", NOW + (1000 + i) * MINUTE) for i in range(60)))
    fill_segments(d, 1)
    first = d.store._segments.table[0]
    in_thread(d, lambda: d.store.timer.rolling.roll(first.start, first.end))
    assert d.store.numbers()["timer_rolled_total"] == 60
    assert d.store.synced_position >= d.store.confirmed_position


def test_a_refused_roll_says_so_and_leaves_everything(driver: MakeDriver, watched_disk: Any) -> None:
    d = driver(disk=watched_disk).open()
    schedule(d, delayed("x", NOW + 9000))
    fill_segments(d, 1)
    first = d.store._segments.table[0]
    watched_disk.failing = lambda operation, path: (
        errno.ENOSPC if operation in ("write", "preallocate") and path.parent.name == "commitlog" else None
    )
    with pytest.raises(StorageError, match="injected"):
        in_thread(d, lambda: d.store.timer.rolling.roll(first.start, first.end))
    watched_disk.failing = lambda _operation, _path: None
    assert in_thread(d, lambda: d.store.timer.rolling.pending_in(first.start, first.end)) == 1
    in_thread(d, lambda: d.store.timer.rolling.roll(first.start, first.end))
    assert d.store.numbers()["timer_rolled_total"] == 1


def test_a_segment_that_the_timer_has_not_read_may_not_go(driver: MakeDriver) -> None:
    d = driver().open()
    schedule(d, delayed("x", NOW + 9000))
    end = d.store.confirmed_position
    with pytest.raises(StorageError, match="knows the log up to"):
        in_thread(d, lambda: d.store.timer.rolling.roll(0, end + 1))
    d.store.close()
    with pytest.raises(StorageError, match="closed"):
        d.store.timer.rolling.roll(0, end)
