"""Disks that are full, fail or are slow: what is refused, taken back, never said too early."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from any_disk import ANY_DISK

from holdmq.errors import StoreFullError, StoreReadOnlyError
from holdmq.files.disk import RealDisk
from storage.log import appends
from storage.log.core.names import name_of

MakeDriver = Callable[..., Any]


def failing(operation: str, code: int, directory: str = "commitlog") -> Callable[[str, Path], int | None]:
    return lambda asked, path: code if asked == operation and path.parent.name == directory else None


def works(_operation: str, _path: Path) -> None:
    return None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_takes_back_and_recovers_alone(
    driver: MakeDriver, watched_disk: Any, tmp_path: Path, code: int
) -> None:
    d = driver(disk=watched_disk).open()
    first = d.append_and_wait(3)
    watched_disk.failing = failing("write", code)
    batches = [d.append(4, queue_id=i % 2) for i in range(6)]
    errors = d.wait(6)
    assert all(isinstance(e, StoreFullError) and e.retriable for e in errors)
    assert "free space" in str(errors[0])
    state = d.store.state()
    assert not state.ok
    assert "free space" in state.reason
    assert d.store.bounds("devices", 0) == (0, 3)
    assert d.store.backlog().size_bytes == 0
    assert batches[0].position == first.end
    watched_disk.failing = works
    again = d.append_and_wait(2)
    assert d.store.state().ok
    assert (again.position, again.runs[0].base_offset) == (first.end, 3)
    expected = bytes(first.records) + bytes(again.records)
    assert d.log_bytes() == expected
    raw = (tmp_path / "store" / "commitlog" / name_of(0)).read_bytes()
    assert raw[: len(expected)] == expected
    assert not raw[len(expected) :].strip(b"\0")
    assert d.queue_bytes("devices", 0) == expected
    d.wait_indexed()
    assert d.queue_bytes("devices", 0, cold=True) == expected


def test_what_a_failed_write_left_is_gone_before_it_is_refused(
    driver: MakeDriver, watched_disk: Any, tmp_path: Path
) -> None:
    d = driver(disk=watched_disk).open()
    first = d.append_and_wait(1)
    segment = tmp_path / "store" / "commitlog" / name_of(0)
    stale = b"stale" * 1000

    def half(operation: str, path: Path) -> int | None:
        if operation == "write" and path == segment:
            with segment.open("r+b") as file:
                file.seek(first.end)
                file.write(stale)
            return errno.ENOSPC
        return None

    watched_disk.failing = half
    d.append(1)
    d.wait(1)
    raw = segment.read_bytes()
    assert raw[: first.end] == bytes(first.records)
    assert not raw[first.end :].strip(b"\0")
    watched_disk.failing = works
    second = d.append_and_wait(1)
    raw = segment.read_bytes()
    assert raw[: second.end] == bytes(first.records) + bytes(second.records)
    assert not raw[second.end :].strip(b"\0")


def test_a_disk_that_stays_full_while_the_end_is_cleaned_refuses_on(
    driver: MakeDriver, watched_disk: Any
) -> None:
    d = driver(disk=watched_disk).open()
    d.append_and_wait(1)
    for full in ({"write", "preallocate"}, {"preallocate"}, {"preallocate"}):
        watched_disk.failing = lambda asked, path, full=full: (
            errno.ENOSPC if asked in full and path.parent.name == "commitlog" else None
        )
        d.append(1)
        assert isinstance(d.wait(1)[0], StoreFullError)
    watched_disk.failing = works
    d.append_and_wait(1)
    assert d.store.bounds("devices", 0) == (0, 2)


def test_no_room_for_the_next_segment_refuses_without_closing_the_ongoing_one(
    driver: MakeDriver, watched_disk: Any
) -> None:
    d = driver(disk=watched_disk).open()
    expected = b""
    watched_disk.failing = failing("preallocate", errno.ENOSPC)
    refused = 0
    for _ in range(4):
        batch = d.append(100, body=bytes(3000))
        (error,) = d.wait(1)
        refused += error is not None
        expected += b"" if error else bytes(batch.records)
    assert refused == 1
    small = d.append_and_wait(1)
    assert small.position == len(expected), "a small batch still fits the ongoing segment"
    expected += bytes(small.records)
    watched_disk.failing = works
    expected += bytes(d.append_and_wait(100, body=bytes(3000)).records)
    assert d.log_bytes() == expected
    d.store.close()
    d.open()
    assert d.log_bytes() == expected


def test_a_write_error_makes_the_store_read_only_until_restart(driver: MakeDriver, watched_disk: Any) -> None:
    d = driver(disk=watched_disk).open()
    first = d.append_and_wait(3)
    watched_disk.failing = failing("write", errno.EIO)
    d.append(1)
    d.append(1)
    assert all(isinstance(e, StoreReadOnlyError) for e in d.wait(2))
    watched_disk.failing = works
    d.append(1)
    (error,) = d.wait(1)
    assert isinstance(error, StoreReadOnlyError)
    assert not error.retriable
    assert "restart" in d.store.state().reason
    assert d.queue_bytes("devices", 0) == bytes(first.records), "reads go on"
    d.store.close()
    d.open()
    assert d.store.epoch == 2
    d.append_and_wait(1)


def test_sync_flush_answers_nothing_after_a_failed_fsync(driver: MakeDriver, watched_disk: Any) -> None:
    d = driver(disk=watched_disk, flush="sync").open()
    d.append_and_wait(3)
    watched_disk.failing = failing("sync", errno.EIO)
    d.append(1)
    assert isinstance(d.wait(1)[0], StoreReadOnlyError)
    watched_disk.failing = works
    before = watched_disk.calls.count(("sync", "commitlog"))
    d.append(1)
    assert isinstance(d.wait(1)[0], StoreReadOnlyError)
    assert watched_disk.calls.count(("sync", "commitlog")) == before, "a failed fsync is never retried"
    assert d.store.bounds("devices", 0) == (0, 3)


def test_async_flush_says_from_where_acknowledgements_are_in_doubt(
    driver: MakeDriver, watched_disk: Any
) -> None:
    d = driver(disk=watched_disk).open()
    first = d.append_and_wait(3)
    d.wait_indexed()
    wait_for(lambda: d.store.synced_position == first.end)

    def fails_once_confirmed(operation: str, path: Path) -> int | None:
        if operation != "sync" or path.parent.name != "commitlog":
            return None
        wait_for(lambda: d.store.confirmed_position > first.end)
        return errno.EIO

    watched_disk.failing = fails_once_confirmed
    d.append_and_wait(1)
    while d.store.state().ok:
        d.posted.get(timeout=40)()
    state = d.store.state()
    assert f"from offset {first.end} on is in doubt" in state.reason
    d.append(1)
    assert isinstance(d.wait(1)[0], StoreReadOnlyError)
    assert d.store.synced_position == first.end


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_sync_flush_confirms_only_after_the_fdatasync_that_covers_it(
    driver: MakeDriver, watched_disk: Any
) -> None:
    d = driver(disk=watched_disk, flush="sync")
    post = d.posted.put

    class Watching:
        def put(self, callback: Callable[[], object]) -> None:
            watched_disk.calls.append(("told", "commitlog"))
            post(callback)

        get = d.posted.get

    d.posted = Watching()
    d.open()
    watched_disk.calls.clear()
    for _ in range(30):
        for _ in range(5):
            d.append(100, body=bytes(300))
        d.wait(5)
    calls = [operation for operation, directory in list(watched_disk.calls) if directory == "commitlog"]
    assert calls.count("told") > 10
    is_synced = True
    for operation in calls:
        if operation == "write":
            is_synced = False
        elif operation == "sync":
            is_synced = True
        elif operation == "told":
            assert is_synced
    assert d.store.synced_position == d.store.confirmed_position


def test_async_flush_confirms_while_fsync_hangs(driver: MakeDriver, watched_disk: Any) -> None:
    d = driver(disk=watched_disk).open()
    hanging, released = [], []

    def slow(operation: str, path: Path) -> int | None:
        if operation == "sync" and path.parent.name == "commitlog":
            hanging.append(path)
            wait_for(lambda: bool(released))
        return None

    watched_disk.failing = slow
    d.append_and_wait(1)
    wait_for(lambda: bool(hanging))
    for _ in range(20):
        d.append_and_wait(1)
    assert d.store.synced_position == 0
    released.append(True)
    wait_for(lambda: d.store.synced_position == d.store.confirmed_position)


def test_index_files_that_find_no_space_are_written_later(driver: MakeDriver, watched_disk: Any) -> None:
    d = driver(disk=watched_disk).open()
    watched_disk.failing = failing("write", errno.ENOSPC, "0")
    batch = d.append_and_wait(5)
    wait_for(lambda: d.store.numbers()["index_failures_total"] > 0)
    assert d.store.state().ok
    assert d.queue_bytes("devices", 0) == bytes(batch.records)
    watched_disk.failing = works
    d.append_and_wait(1)
    d.wait_indexed()
    assert len(d.queue_bytes("devices", 0, cold=True)) > len(batch.records)


def test_memory_for_batches_without_index_files_is_bounded(
    driver: MakeDriver, watched_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "INDEX_LAG_MAX_BYTES", 100_000)
    d = driver(disk=watched_disk).open()
    watched_disk.failing = failing("write", errno.ENOSPC, "0")
    confirmed = 0
    for _ in range(8):
        d.append(50, body=bytes(4000))
        (error,) = d.wait(1)
        confirmed += error is None
    assert isinstance(error, StoreFullError)
    assert "consume queues cannot be written" in str(error)
    assert 5 <= confirmed < 8
    watched_disk.failing = works
    d.wait_indexed()
    d.append_and_wait(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("operation", "thread"), [("write", "log-writer"), ("sync", "log-flusher")])
def test_a_thread_that_dies_of_a_defect_makes_the_store_read_only(
    driver: MakeDriver, watched_disk: Any, operation: str, thread: str
) -> None:
    d = driver(disk=watched_disk).open()
    d.append_and_wait(1)

    def defect(asked: str, path: Path) -> int | None:
        if asked == operation and path.parent.name == "commitlog":
            raise ZeroDivisionError("a defect")
        return None

    watched_disk.failing = defect
    d.append(1)
    while d.store.state().ok:
        d.posted.get(timeout=40)()
    watched_disk.failing = works
    d.results.clear()
    d.append(1)
    (error,) = d.wait(1)
    assert isinstance(error, StoreReadOnlyError)
    assert f"{thread} failed: ZeroDivisionError" in str(error)


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    """4 MiB of tmpfs; tests run as root in CI."""
    directory = tmp_path / "small"
    directory.mkdir()
    assert os.geteuid() == 0, "mounting a tmpfs needs root: run the tests as root, as CI does"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_real_full_filesystem_refuses_and_resumes(driver: MakeDriver, small_filesystem: Path) -> None:
    d = driver(small_filesystem / "store", disk=RealDisk(), **ANY_DISK).open()
    filler = small_filesystem / "filler"
    expected = b""
    errors: list[Any] = []
    for i in range(30):
        if i == 3:
            free = os.statvfs(small_filesystem)
            # The store's second thread takes room as well: then it is full already.
            with suppress(OSError):
                filler.write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - 65_536)))
        batch = d.append(50, body=bytes(3000))
        (error,) = d.wait(1)
        if error is None:
            expected += bytes(batch.records)
        else:
            errors.append(error)
    assert errors
    assert all(isinstance(e, StoreFullError) for e in errors)
    assert d.log_bytes() == expected
    filler.unlink()
    expected += bytes(d.append_and_wait(50, body=bytes(3000)).records)
    assert d.store.state().ok
    assert d.log_bytes() == expected
    d.store.close()
    d.open()
    assert d.log_bytes() == expected
