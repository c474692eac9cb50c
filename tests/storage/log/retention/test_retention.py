"""Old segments go when they are due and nothing holds them; the disk is never filled by what may go."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sim_disk import PowerLoss, SimDisk
from stepped_store import Stepped

from holdmq.config.model import Config
from holdmq.config.sources import load
from holdmq.errors import BehindError, ConfigError, StorageError, StoreFullError, UsageError
from holdmq.files.disk import RealDisk, Space
from storage.api.batches import Batch
from storage.api.queues import ReadStatus
from storage.api.retention import LogNeed, QueueNeed
from storage.log.core.names import offsets_of
from storage.log.retention import retention
from storage.log.segments import Segment

MakeDriver = Callable[..., Any]
HOURS_72_MS = 72 * 3_600_000
MIB = 1 << 20


def wait_for(condition: Callable[[], bool], text: str = "") -> None:
    until = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < until, text
        time.sleep(0.003)


@pytest.fixture
def keeping(driver: MakeDriver) -> MakeDriver:
    """Drivers whose retention looks all the time."""
    return lambda *args, **settings: driver(*args, **{"retention_interval_ms": 1, **settings})


def fill(d: Any, segments: int, **kind: Any) -> list[Batch]:
    """A batch for each segment, with room for a small one behind it."""
    return [d.append_and_wait(300, body=bytes(3000), **kind) for _ in range(segments)]


def run_callbacks(d: Any) -> None:
    while not d.posted.empty():
        d.posted.get()()


def is_ok(d: Any) -> bool:
    """What the store's state is when it has heard all that its threads said."""
    run_callbacks(d)
    return bool(d.store.state().ok)


def starts_on_disk(d: Any) -> list[int]:
    return offsets_of(os.listdir(Path(d.directory) / "commitlog"))


def test_segments_go_when_their_newest_record_is_too_old(keeping: MakeDriver) -> None:
    d = keeping().open()
    old = fill(d, 2)
    d.clock_ms += HOURS_72_MS // 2
    young = fill(d, 2)
    last = d.append_and_wait(3)
    time.sleep(0.1)
    assert d.store.first_position == 0
    d.clock_ms += HOURS_72_MS // 2
    wait_for(lambda: starts_on_disk(d)[0] == young[0].position)
    wait_for(lambda: d.store.numbers()["retention_segments_deleted_total"] == len(old))
    wait_for(lambda: d.store.first_position == young[0].position)
    assert d.store.bounds("devices", 0) == (600, 1203)
    assert d.log_bytes() == b"".join(bytes(batch.records) for batch in [*young, last])
    d.store.close()
    d.open()
    assert d.store.bounds("devices", 0) == (600, 1203)
    assert d.store.first_position == young[0].position


def test_readers_that_retention_passed_are_told_where_to_continue(keeping: MakeDriver) -> None:
    d = keeping(retention_segments=1).open()
    fill(d, 3)
    wait_for(lambda: starts_on_disk(d)[0] == d.store.first_position == 2 * MIB)
    assert d.store.bounds("devices", 0) == (600, 900)
    for read in (
        d.store.read_queue("devices", 0, 0, 5, MIB, 100),
        d.store.read_queue_cold("devices", 0, 0, 5, MIB, 100),
    ):
        assert (read.status, read.next_offset) == (ReadStatus.BEHIND, 600)
    with pytest.raises(BehindError) as failure:
        d.store.read_log(0, MIB)
    assert failure.value.resume_at == d.store.first_position == 2 * MIB
    assert d.store.numbers()["behind_reads_total"] == 3


def test_a_read_that_retention_overtakes_is_answered_behind(keeping: MakeDriver, watched_disk: Any) -> None:
    d = keeping(disk=watched_disk, retention_segments=2).open()
    fill(d, 2)
    d.wait_indexed()

    def overtaken(operation: str, path: Path) -> int | None:
        if operation == "read" and path.name == "0" * 20 and path.parent.name == "commitlog":
            watched_disk.failing = lambda _operation, _path: None
            d.append_and_wait(300, body=bytes(3000))
            wait_for(lambda: d.store.first_position > 0)
            return errno.ENOENT
        return None

    watched_disk.failing = overtaken
    read = d.store.read_queue_cold("devices", 0, 0, 0, MIB, 100)
    assert (read.status, read.next_offset) == (ReadStatus.BEHIND, 300)


def test_the_log_is_bounded_by_bytes_and_by_segments(keeping: MakeDriver, tmp_path: Path) -> None:
    by_bytes = keeping(tmp_path / "bytes", retention_bytes=3 * MIB).open()
    by_count = keeping(tmp_path / "count", retention_segments=2).open()
    for d in (by_bytes, by_count):
        fill(d, 6)
    wait_for(lambda: by_bytes.store.confirmed_position - by_bytes.store.first_position <= 3 * MIB)
    assert by_bytes.store.first_position == 3 * MIB
    wait_for(lambda: by_count.store.first_position == 4 * MIB)


def test_index_files_follow_the_segments(keeping: MakeDriver, tmp_path: Path) -> None:
    d = keeping(retention_segments=1, consume_queue_file_bytes=20 * 100).open()
    fill(d, 1, queue_id=7)
    fill(d, 3)
    d.wait_indexed()
    directory = tmp_path / "store" / "consumequeue" / "devices"
    wait_for(lambda: offsets_of(os.listdir(directory / "0")) == [12_000, 14_000, 16_000])
    assert os.listdir(directory / "7") == []
    assert d.store.bounds("devices", 7) == (300, 300)
    d.append_and_wait(2, queue_id=7)
    d.wait_indexed()
    assert offsets_of(os.listdir(directory / "7")) == [300 * 20]
    assert d.store.bounds("devices", 7) == (300, 302)
    d.store.close()
    d.open()
    assert d.store.read_queue_cold("devices", 7, 0, 300, MIB, 9).count == 2


class FillingDisk(RealDisk):
    """A real disk of 100 blocks, 10 for each segment beside `others`."""

    others = 0

    def space(self, directory: Path) -> Space:
        return Space(100, 100 - self.others - 10 * len(os.listdir(directory)))


def test_the_early_watermark_takes_a_segment_per_pass_and_only_what_it_must(keeping: MakeDriver) -> None:
    disk = FillingDisk()
    d = keeping(disk=disk, flush_interval_ms=5).open()
    fill(d, 6)
    # With the one that is made ahead of need: until it is there the disk is not as full as it will be.
    wait_for(lambda: len(starts_on_disk(d)) == 7)
    time.sleep(0.1)
    assert d.store.first_position == 0
    disk.others = 10
    wait_for(lambda: d.store.first_position == MIB)
    time.sleep(0.05)
    assert d.store.first_position == MIB
    assert d.store.state().ok
    assert d.store.numbers()["retention_forced_total"] == 0


def test_what_readers_need_goes_only_by_force(keeping: MakeDriver) -> None:
    disk = FillingDisk()
    d = keeping(disk=disk, delete="consumed", retention_segments=2)
    needs = [QueueNeed("group", d.clock_ms, "devices", 0, 300), LogNeed("session", d.clock_ms, MIB)]
    d.open()
    fill(d, 3)
    wait_for(lambda: d.store.numbers()["retention_waits_total"] > 0)
    assert d.store.first_position == 0, "nobody has said yet what readers need"
    d.store.retention.keep_for(lambda: needs)
    wait_for(lambda: d.store.first_position == MIB)
    needs[0] = needs[0]._replace(offset=600)
    fill(d, 2)
    time.sleep(0.1)
    assert d.store.first_position == MIB, "the session needs it"
    disk.others = 50
    wait_for(lambda: d.store.numbers()["retention_forced_total"] > 0)
    wait_for(lambda: d.store.first_position == 3 * MIB)
    time.sleep(0.05)
    assert d.store.first_position == 3 * MIB


def test_what_a_copy_fetches_goes_only_when_the_disk_fills_up(keeping: MakeDriver) -> None:
    disk = FillingDisk()
    d = keeping(disk=disk, retention_segments=2)
    d.open()
    d.store.retention.copies_from = MIB
    fill(d, 5)
    wait_for(lambda: d.store.first_position == MIB)
    time.sleep(0.05)
    assert d.store.first_position == MIB
    d.store.retention.copies_from = 2 * MIB + 1
    wait_for(lambda: d.store.first_position == 2 * MIB)
    time.sleep(0.05)
    assert d.store.first_position == 2 * MIB
    disk.others = 38
    wait_for(lambda: d.store.first_position == 3 * MIB)
    assert d.store.numbers()["retention_forced_total"] == 0


def test_a_disk_above_the_last_watermark_refuses_until_space_returns(
    keeping: MakeDriver, watched_disk: Any
) -> None:
    d = keeping(disk=watched_disk).open()
    first = d.append_and_wait(1)
    watched_disk.filled = Space(1000, 99)
    wait_for(lambda: not is_ok(d))
    d.append(1)
    (error,) = d.wait(1)
    assert isinstance(error, StoreFullError)
    assert "90.1 %" in str(error)
    assert "disk_refuse_percent" in str(error)
    assert d.store.state().reason == str(error)
    rolled = d.rolled(1)
    assert d.wait(1) == [None]
    watched_disk.filled = Space(1000, 101)
    wait_for(lambda: is_ok(d))
    last = d.append_and_wait(1)
    assert d.log_bytes() == b"".join(bytes(batch.records) for batch in (first, rolled, last))


def test_no_segment_goes_before_what_is_pending_in_it_was_rolled(keeping: MakeDriver) -> None:
    disk = FillingDisk()
    d = keeping(disk=disk)
    asked: list[Segment] = []
    may_go: list[bool] = []

    def roll(segment: Segment) -> bool:
        asked.append(segment)
        return bool(may_go)

    d.open()
    d.store.retention.before_delete.append(roll)
    fill(d, 3)
    d.clock_ms += 2 * HOURS_72_MS
    disk.others = 60
    wait_for(lambda: len(asked) > 3)
    assert {segment.start for segment in asked} == {0}
    assert d.store.first_position == 0
    may_go.append(True)
    wait_for(lambda: d.store.first_position > 0)


def test_the_reserve_serves_rolling_alone(keeping: MakeDriver, watched_disk: Any) -> None:
    d = keeping(disk=watched_disk, disk_refuse_percent=100, flush="sync").open()
    d.store.retention.before_delete.append(lambda _: True)
    batches = fill(d, 2)
    wait_for(lambda: d.store.numbers()["reserve_segments"] == 1)

    def full(operation: str, path: Path) -> int | None:
        return errno.ENOSPC if operation == "preallocate" else None

    watched_disk.failing = full
    while True:
        batch = d.append(300, body=bytes(3000))
        (error,) = d.wait(1)
        if error is not None:
            break
        batches.append(batch)  # there was a segment made ahead of need
    assert isinstance(error, StoreFullError)
    batches.append(d.rolled(300, body=bytes(3000)))
    assert d.wait(1) == [None]
    assert d.store.numbers()["reserve_segments"] == 0
    d.append(1)
    (error,) = d.wait(1)
    assert isinstance(error, StoreFullError)
    assert "only the reserve" in str(error)
    batches.append(d.rolled(2))
    assert d.wait(1) == [None]
    watched_disk.failing = lambda _operation, _path: None
    wait_for(lambda: d.store.numbers()["reserve_segments"] == 1)
    batches.append(d.append_and_wait(1))
    expected = b"".join(bytes(batch.records) for batch in batches)
    assert d.log_bytes() == expected
    d.store.close()
    d.open()
    assert d.log_bytes() == expected
    assert d.store.numbers()["reserve_segments"] == 1


def test_a_topic_that_keeps_less_raises_its_first_offset_only(keeping: MakeDriver) -> None:
    d = keeping().open()
    for minute in range(4):
        d.append_and_wait(10, topic="short")
        d.append_and_wait(10, topic="long")
        d.clock_ms += 60_000
        assert minute < 4
    with pytest.raises(UsageError, match="retention_age_s"):
        d.store.retention.set_topic_age("short", HOURS_72_MS + 1)
    d.store.retention.set_topic_age("short", 120_000)
    wait_for(lambda: d.store.bounds("short", 0) == (30, 40))
    assert d.store.bounds("long", 0) == (0, 40)
    assert d.store.first_position == 0
    d.clock_ms += 60_000
    wait_for(lambda: d.store.bounds("short", 0) == (40, 40))
    d.store.retention.set_topic_age("short", None)
    d.append_and_wait(1, topic="short")
    d.clock_ms += HOURS_72_MS // 2
    time.sleep(0.05)
    assert d.store.bounds("short", 0) == (40, 41)
    d.store.close()
    d.open()
    assert d.store.bounds("short", 0) == (40, 41)


def deleted(d: Any, topic: str, queue_id: int) -> StorageError | None:
    answers: list[StorageError | None] = []
    d.store.delete_queue(topic, queue_id, answers.append)
    while not answers:
        d.posted.get(timeout=60)()
    return answers[0]


def test_a_deleted_queue_stays_deleted_and_goes_on_where_it_ended(
    keeping: MakeDriver, tmp_path: Path
) -> None:
    d = keeping().open()
    d.append_and_wait(5, topic="gone")
    d.append_and_wait(5)
    assert deleted(d, "gone", 0) is None
    assert deleted(d, "never", 0) is None
    assert d.store.numbers()["tombstones"] == 1
    assert d.store.bounds("gone", 0) == (5, 5)
    assert os.listdir(tmp_path / "store" / "consumequeue" / "gone" / "0") == []
    d.store.close()
    for path in (tmp_path / "store" / "consumequeue").rglob("0*"):
        path.unlink() if path.is_file() else None
    d.open()
    assert d.store.bounds("gone", 0) == (5, 5), "a rebuild does not bring it back"
    assert len(d.queue_bytes("devices", 0, cold=True)) > 0
    again = d.append_and_wait(2, topic="gone")
    assert again.runs[0].base_offset == 5
    assert d.queue_bytes("gone", 0) == bytes(again.records)
    d.store.close()
    for path in (tmp_path / "store" / "consumequeue" / "gone" / "0").iterdir():
        path.unlink()
    d.open()
    assert d.store.bounds("gone", 0) == (5, 7)
    assert offsets_of(os.listdir(tmp_path / "store" / "consumequeue" / "gone" / "0")) == [5 * 20]
    assert d.queue_bytes("gone", 0, cold=True) == bytes(again.records)


def test_a_queue_that_is_being_written_is_not_deleted(keeping: MakeDriver) -> None:
    d = keeping().open()
    d.append(1)
    answers: list[Any] = []
    d.store.delete_queue("devices", 0, answers.append)
    while not answers:
        d.posted.get(timeout=60)()
    assert "being written" in str(answers[0])
    d.wait(1)
    assert d.store.bounds("devices", 0) == (0, 1)


def test_tombstones_are_bounded(keeping: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "TOMBSTONES_MAX", 2)
    d = keeping(retention_segments=1).open()
    for queue_id in range(3):
        d.append_and_wait(1, queue_id=queue_id)
        assert deleted(d, "devices", queue_id) is None
    assert d.store.numbers()["tombstones"] == 3, "records of all of them are still in the log"
    fill(d, 2, queue_id=9)
    wait_for(lambda: d.store.first_position > 0)
    d.append_and_wait(1, queue_id=3)
    assert deleted(d, "devices", 3) is None
    assert d.store.numbers()["tombstones"] == 2


def test_a_full_disk_does_not_keep_segments_from_going(keeping: MakeDriver, watched_disk: Any) -> None:
    d = keeping(disk=watched_disk).open()
    tail = fill(d, 3)[-1]
    d.wait_indexed()
    d.store.retention.wanted_checkpoint = tail.end
    wait_for(lambda: d.store._checkpoint.position == tail.end)

    def full(operation: str, path: Path) -> int | None:
        return errno.ENOSPC if operation == "write" and path.name == "checkpoint.json.tmp" else None

    watched_disk.failing = full
    d.clock_ms += 2 * HOURS_72_MS
    wait_for(lambda: d.store.first_position == tail.position)
    assert d.store.bounds("devices", 0) == (600, 900)
    d.store.close()
    watched_disk.failing = lambda _operation, _path: None
    d.open()
    assert d.store.bounds("devices", 0) == (600, 900), "the start finds it without a checkpoint"
    assert d.log_bytes() == bytes(tail.records)


def test_a_failing_disk_is_tried_again_and_counted(keeping: MakeDriver, watched_disk: Any) -> None:
    d = keeping(disk=watched_disk).open()
    fill(d, 2)
    watched_disk.failing = lambda operation, path: (
        errno.EIO if operation == "read" and path.parent.name == "commitlog" else None
    )
    d.clock_ms += 2 * HOURS_72_MS
    wait_for(lambda: d.store.numbers()["retention_failures_total"] > 1)
    watched_disk.failing = lambda _operation, _path: None
    wait_for(lambda: d.store.first_position == MIB)
    assert d.store.state().ok


def test_watermarks_that_do_not_ascend_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="disk_refuse_percent"):
        load(None, ["storage.disk_forced_percent=95"])
    assert Config().storage.disk_refuse_percent == 90


# Crashes


def check_after_crash(disk: SimDisk, records: list[bytes]) -> None:
    """The store opens; what it holds is a suffix of the log, and every queue a suffix of itself."""
    found = Stepped(disk)
    store = found.store
    assert store._segments.first_position == store._checkpoint.first_position, "what was given up is gone"
    position, log = store.first_position, b""
    while position < store.confirmed_position:
        for batch in store.read_log(position, MIB):
            log += bytes(batch.records)
            position = batch.end
    whole = b"".join(records)
    assert whole.endswith(log)
    for queue_id in range(3):
        first, end = store.bounds("devices", queue_id)
        assert end == 8 * len(records[queue_id::3])
        offset = first
        while offset < end:
            read = store.read_queue_cold("devices", queue_id, 0, offset, MIB, 100)
            assert read.status is ReadStatus.FOUND
            offset = read.next_offset
    found.append(0, 1)
    found.retain(4 * 86_400)
    assert store.bounds("devices", 1)[0] == 40, "all but the ongoing segment went"
    store.close()


@pytest.mark.parametrize("kept_at_power_loss", [False, True])
def test_a_crash_at_any_point_of_a_pass_leaves_a_store_that_opens(kept_at_power_loss: bool) -> None:
    base = SimDisk()
    stepped = Stepped(base)
    records = [stepped.append(i % 3, 8) for i in range(18)]
    stepped.retain()
    stepped.store.close()
    base = base.copy()
    points = 0
    for point in range(1, 1000):
        disk = base.copy()
        running = Stepped(disk)
        running.retain()

        def cut(at: int, *_: object, last: int = disk.points + point) -> None:
            if at >= last:
                raise PowerLoss

        disk.at_point = cut
        try:
            running.retain(4 * 86_400)
        except PowerLoss:
            points += 1
            after = disk.after_kill() if kept_at_power_loss else disk.after_power_loss(point)
            check_after_crash(after, records)
            continue
        break
    assert points > 20
    assert running.store.first_position > 0


# A real file system


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    """24 MiB of tmpfs; tests run as root in CI."""
    directory = tmp_path / "small"
    directory.mkdir()
    assert os.geteuid() == 0, "mounting a tmpfs needs root: run the tests as root, as CI does"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_retention_keeps_a_small_filesystem_writable_for_ever(
    keeping: MakeDriver, small_filesystem: Path
) -> None:
    d = keeping(small_filesystem / "store", disk=RealDisk(), flush_interval_ms=5).open()
    confirmed: list[bytes] = []
    for _ in range(80):
        while True:
            batch = d.append(300, body=bytes(3000))
            (error,) = d.wait(1)
            run_callbacks(d)
            if error is None:
                break
            assert isinstance(error, StoreFullError)
            time.sleep(0.005)
        confirmed.append(bytes(batch.records))
    assert d.store.numbers()["retention_segments_deleted_total"] > 55
    held = held_by(d)
    assert b"".join(confirmed).endswith(held)
    assert len(held) > 8 * MIB
    d.store.close()
    d.open()
    assert b"".join(confirmed).endswith(held_by(d))


def held_by(d: Any) -> bytes:
    """The log, read while retention may take its oldest part."""
    while True:
        try:
            return bytes(d.log_bytes())
        except BehindError:
            continue


def write_for_ever(descriptor: int) -> None:
    while True:
        os.write(descriptor, bytes(65_536))


def test_a_filesystem_that_others_filled_refuses_clearly_and_resumes_by_itself(
    keeping: MakeDriver, small_filesystem: Path
) -> None:
    d = keeping(small_filesystem / "store", disk=RealDisk(), flush_interval_ms=5).open()
    d.append_and_wait(1)
    filler = small_filesystem / "filler"
    descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        write_for_ever(descriptor)
    os.close(descriptor)
    errors, confirmed = [], []
    for _ in range(40):
        batch = d.append(100, body=bytes(3000))
        (error,) = d.wait(1)
        run_callbacks(d)
        if error is None:
            confirmed.append(bytes(batch.records))
        else:
            errors.append(error)
        time.sleep(0.005)
    assert errors
    assert all(isinstance(error, StoreFullError) and error.retriable for error in errors)
    assert not d.store.state().ok
    filler.unlink()
    wait_for(lambda: is_ok(d))
    confirmed += [bytes(d.append_and_wait(100, body=bytes(3000)).records) for _ in range(3)]
    held = held_by(d)
    assert held.endswith(b"".join(confirmed[-3:]))
    assert b"".join(confirmed).endswith(held) or held.endswith(b"".join(confirmed))
    d.store.close()
    d.open()
    assert held.endswith(held_by(d))
