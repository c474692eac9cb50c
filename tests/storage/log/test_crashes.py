"""Crashes and failing disks, simulated: what a start finds, what is said before and after."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import structlog
from sim_disk import SimDisk
from sim_store import HOME, SEGMENT_BYTES, Model, SimStore, check, read_all
from structlog.testing import capture_logs

from holdmq.errors import StorageError, StoreFullError, StoreReadOnlyError
from storage.api.queues import ReadStatus
from storage.log.appends import CONFIRM_BATCHES_MAX
from storage.log.core.names import name_of
from storage.log.store import LogStore

# Each is seconds of computing: minutes on a machine that has others to serve.
pytestmark = pytest.mark.timeout(900)

RECORDS = 200
Keys = list[tuple[str, int, int, int]]
ONE: Keys = [("a", 0, 1, 0)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


@pytest.fixture(params=["sync", "async"])
def flush(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def fail(sim: SimStore, operation: str, code: int, directory: str = "commitlog") -> None:
    sim.disk.failing = lambda asked, path: (
        code if (asked, path.parent.name) == (operation, directory) else None
    )


def mend(sim: SimStore) -> None:
    sim.disk.failing = lambda _operation, _path: None


def opened(flush: str) -> SimStore:
    sim = SimStore(SimDisk(), flush)
    sim.open()
    return sim


def appended(sim: SimStore, batches: int, runs: Keys = ONE) -> None:
    for _ in range(batches):
        sim.append(runs)
        sim.settle()


def found_after(disk: SimDisk, sim: SimStore, promised: int) -> None:
    check(disk, sim.flush, sim.model, promised, sim.clock, sim.epoch).close()


# A log of 200 records, damaged in its last three


def log_of_200_records() -> tuple[SimDisk, bytes, list[int], Path, int]:
    """Its disk after a crash, all bytes, where records end, and path and start of the last segment."""
    sim = opened("sync")
    chance = Random(7)
    while sum(sim.model.ends.values()) < RECORDS:
        appended(sim, 1, [(chance.choice("ab"), chance.randrange(2), 1, chance.randrange(90))])
    sim.index()
    batches = read_all(sim.store)
    ends = [batch.position + int(end) for batch in batches for end in batch.starts + batch.sizes]
    assert len(ends) == RECORDS
    start = sim.store._segments.locate(ends[-1] - 1).start  # type: ignore[union-attr]
    assert ends[-4] > start, "the last three are in one segment"
    return sim.disk.after_kill(), bytes(sim.model.log), ends, HOME / "commitlog" / name_of(start), start


def recovered_to(disk: SimDisk, end: int, log: bytes, path: Path, start: int, rest: bytes) -> None:
    """A start finds exactly the log up to `end`, keeps `rest` aside and begins behind it in zeros."""
    sim = SimStore(disk, "sync")
    sim.open()
    assert sim.store.confirmed_position == end
    assert sim.store.epoch == 2
    found = bytearray(end)
    for batch in read_all(sim.store):
        found[batch.position : batch.end] = batch.records
    assert found == log[:end]
    kept = bytes(disk.content(HOME / "cut" / name_of(end))) if disk.list(HOME / "cut") else b""
    assert kept == rest.rstrip(b"\0")
    content = disk.content(path)
    assert len(content) == SEGMENT_BYTES
    assert not content[end - start :].strip(b"\0")
    sim.model.found(sim.store)
    assert sum(sim.model.ends.values()) == sum(len(batch.sizes) for batch in read_all(sim.store))
    sim.check_reads()


def test_a_log_of_200_records_cut_at_every_byte_of_the_last_three_recovers_to_its_prefix() -> None:
    disk, log, ends, path, start = log_of_200_records()
    for cut in range(ends[-4], ends[-1]):
        copy = disk.copy()
        content = copy.content(path)
        content[cut - start :] = bytes(len(content) - (cut - start))
        end = max(each for each in ends if each <= cut)
        recovered_to(copy, end, log, path, start, log[end:cut])


def test_a_log_of_200_records_truncated_at_every_byte_of_the_last_three_recovers_to_its_prefix() -> None:
    disk, _, ends, path, start = log_of_200_records()
    for cut in range(ends[-4], ends[-1]):
        end = max(each for each in ends if each <= cut)
        if cut - end > 16 and cut % 8:
            continue  # what a file has behind its last whole record decides; all of that was tried
        copy = disk.copy()
        del copy.content(path)[cut - start :]
        sim = SimStore(copy, "sync")
        sim.open()
        assert sim.store.confirmed_position == end
        assert sum(len(batch.sizes) for batch in read_all(sim.store)) == ends.index(end) + 1
        sim.model.found(sim.store)
        appended(sim, 3)
        sim.check_reads()
        found_after(sim.disk.after_kill(), sim, len(sim.model.log))


def test_a_flip_of_any_byte_of_the_last_three_of_200_records_is_found_and_cut() -> None:
    disk, log, ends, path, start = log_of_200_records()
    chance = Random(3)
    for at in range(ends[-4], ends[-1]):
        copy = disk.copy()
        copy.content(path)[at - start] ^= chance.randrange(1, 256)
        end = max(each for each in ends if each <= at)
        rest = bytes(copy.content(path))[end - start : ends[-1] - start]
        recovered_to(copy, end, log, path, start, rest)


# Disks that fail


def test_nothing_is_acknowledged_after_a_failed_fsync(flush: str) -> None:
    sim = opened(flush)
    appended(sim, 3)
    sim.index()
    synced = sim.store.synced_position
    assert synced == len(sim.model.log)
    structlog.reset_defaults()
    with capture_logs() as said:
        fail(sim, "sync", errno.EIO)
        before = sim.append(ONE)
        sim.settle()
        assert before.is_done == (flush == "async"), "written is all that async flush says"
        sim.index()
        sim.deliver()
        mend(sim)
        after = [sim.append(ONE) for _ in range(3)]
        sim.settle()
        sim.index()
        sim.settle()
    assert all(isinstance(sent.error, StoreReadOnlyError) for sent in after)
    ok, reason = sim.store.state()
    assert not ok
    assert f"from offset {synced} on is in doubt" in reason
    assert "check the disk, then restart the broker" in reason
    (error,) = [event for event in said if event["event"] == "the store is read-only"]
    assert error["log_level"] == "error"
    assert error["reason"] == reason
    assert sim.store.synced_position == synced, "pages of a failed fsync are never counted as durable"
    sim.store.close()
    for seed in range(20):
        found_after(sim.disk.after_power_loss(seed), sim, synced)


def test_a_failed_write_is_final_and_reads_go_on(flush: str) -> None:
    sim = opened(flush)
    appended(sim, 30, [("a", 0, 2, 100)])
    sim.index()
    fail(sim, "write", errno.EIO)
    sent = [sim.append(ONE) for _ in range(3)]
    sim.settle()
    mend(sim)
    sent.append(sim.append(ONE))
    sim.settle()
    assert all(isinstance(each.error, StoreReadOnlyError) for each in sent)
    assert "write" in sim.store.state().reason
    sim.check_reads()
    sim.store.close()
    for seed in range(20):
        found_after(sim.disk.after_power_loss(seed), sim, sim.store.synced_position)


def test_a_read_that_fails_is_an_error_of_that_read_only(flush: str) -> None:
    sim = opened(flush)
    appended(sim, 40, [("a", 0, 2, 100)])
    sim.index()
    sim.append(ONE)
    sim.settle()
    assert sim.store.read_queue("a", 0, 0, 0, 1000, 10) is None, "no longer in memory"
    fail(sim, "read", errno.EIO)
    with pytest.raises(StorageError, match="injected into read"):
        sim.store.read_queue_cold("a", 0, 0, 0, 1000, 10)
    with pytest.raises(StorageError, match="injected into read"):
        sim.store.read_log(0, 1000)
    mend(sim)
    assert sim.store.state().ok
    appended(sim, 1)
    sim.check_reads()


def test_a_full_disk_refuses_what_is_queued_behind_and_offsets_go_back(flush: str) -> None:
    sim = opened(flush)
    appended(sim, 2)
    ends = dict(sim.model.ends)
    fail(sim, "write", errno.ENOSPC)
    first = sim.append([("a", 0, 3, 50), ("b", 1, 2, 50)])
    sim.write()
    behind = [sim.append([("a", 0, 1, 0), ("b", 1, 1, 0)]) for _ in range(4)]
    while sim.write():
        pass
    mend(sim)
    late = sim.append(ONE)
    sim.write()
    assert late.error is None
    assert not late.is_done, "nobody was told yet"
    sim.deliver()
    for sent in (first, *behind, late):
        assert isinstance(sent.error, StoreFullError)
        assert sent.error.retriable
    assert not sim.store.state().ok
    assert sim.model.ends == ends
    again = sim.append([("a", 0, 3, 50), ("b", 1, 2, 50)])
    sim.settle()
    assert again.is_done
    assert sim.store.state().ok
    assert [run.base_offset for run in again.batch.runs] == [2, 0]
    assert again.batch.position == first.batch.position
    sim.check_reads()
    found_after(sim.disk.after_kill(), sim, len(sim.model.log))


def test_a_large_group_is_confirmed_in_turns_and_what_fails_behind_it_waits_for_its_own() -> None:
    sim = opened("sync")
    sent = [sim.append(ONE) for _ in range(CONFIRM_BATCHES_MAX * 2 + 5)]
    # Small segments split what is a single group otherwise.
    while sim.write():
        pass
    largest = max(len(callback.args[0]) for callback in sim.posted)  # type: ignore[attr-defined]
    assert largest > CONFIRM_BATCHES_MAX
    fail(sim, "write", errno.ENOSPC)
    behind = sim.append(ONE)
    sim.write()
    turns = []
    while sim.posted:
        sim.posted.popleft()()
        turns.append(sum(each.is_done for each in sent) - sum(turns))
        assert sim.store.confirmed_position == len(sim.model.log)
    assert turns[0] == CONFIRM_BATCHES_MAX
    assert sum(turns) == len(sent)
    assert isinstance(behind.error, StoreFullError), "told after everyone before it"
    mend(sim)
    appended(sim, 1)
    sim.check_reads()


def test_what_was_refused_for_want_of_space_does_not_come_back_after_a_crash(flush: str) -> None:
    for serial in range(12):
        sim = opened(flush)
        appended(sim, 1 + serial)
        fail(sim, "write", errno.ENOSPC)
        sent = [sim.append([("a", 0, 2, 30)]) for _ in range(6)]
        sim.settle()
        assert all(isinstance(each.error, StoreFullError) for each in sent)
        for seed in range(5):
            found_after(sim.disk.after_power_loss(seed), sim, sim.store.synced_position)
        found_after(sim.disk.after_kill(), sim, len(sim.model.log))


def test_a_disk_too_full_even_to_cut_still_forgets_what_it_refused(flush: str) -> None:
    sim = opened(flush)
    appended(sim, 3)
    full = {"write", "preallocate"}
    sim.disk.failing = lambda asked, path: (
        errno.ENOSPC if asked in full and path.parent.name == "commitlog" else None
    )
    for _ in range(3):
        sent = sim.append([("a", 0, 4, 30)])
        sim.settle()
        assert isinstance(sent.error, StoreFullError)
    for seed in range(10):
        disk = sim.disk.after_power_loss(seed)
        found_after(disk, sim, sim.store.synced_position)
    mend(sim)
    appended(sim, 3)
    sim.check_reads()
    found_after(sim.disk.after_kill(), sim, len(sim.model.log))


def test_a_segment_that_was_left_is_still_fsynced_after_the_next_one_was_cut() -> None:
    sim = opened("async")
    while len(sim.store._segments.table) < 2 or sim.store.confirmed_position < SEGMENT_BYTES:
        appended(sim, 1, [("a", 0, 1, 400)])
    assert sim.store.synced_position == 0
    fail(sim, "write", errno.ENOSPC)
    sim.append(ONE)
    sim.settle()
    mend(sim)
    sim.index()
    assert sim.store.synced_position == len(sim.model.log) > SEGMENT_BYTES
    for seed in range(20):
        found_after(sim.disk.after_power_loss(seed), sim, len(sim.model.log))


def test_what_a_start_found_in_memory_only_is_durable_from_then_on() -> None:
    sim = opened("async")
    appended(sim, 1)
    sim.checkpoint()
    # No new index file: making its name durable would take everything else along.
    appended(sim, 14, [("a", 0, 1, 3000)])
    assert sim.store.synced_position < SEGMENT_BYTES
    sim.kill()
    sim.open()
    assert sim.store.synced_position == len(sim.model.log) > SEGMENT_BYTES
    for seed in range(20):
        found_after(sim.disk.after_power_loss(seed), sim, len(sim.model.log))


def test_what_an_fsync_failed_to_write_is_durable_after_a_restart_of_the_process() -> None:
    sim = opened("async")
    appended(sim, 1)
    sim.checkpoint()
    appended(sim, 3)
    fail(sim, "sync", errno.EIO)
    sim.index()
    sim.deliver()
    mend(sim)
    assert not sim.store.state().ok
    sim.kill()
    sim.open()
    assert sim.store.synced_position == len(sim.model.log), "its pages are in memory, and count as clean"
    for seed in range(20):
        found_after(sim.disk.after_power_loss(seed), sim, len(sim.model.log))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_fsync_that_fails_while_cutting_is_as_final_as_any(code: int) -> None:
    sim = opened("async")
    appended(sim, 3)
    sim.disk.failing = lambda asked, path: (
        {"write": errno.ENOSPC, "sync": code}.get(asked) if path.parent.name == "commitlog" else None
    )
    sent = sim.append(ONE)
    sim.settle()
    mend(sim)
    assert isinstance(sent.error, StoreReadOnlyError)
    assert "fsync" in sim.store.state().reason
    late = sim.append(ONE)
    sim.settle()
    assert isinstance(late.error, StoreReadOnlyError)


# What readers saw


def test_what_a_consumer_read_is_there_after_a_crash_before_the_next_fsync() -> None:
    sim = opened("sync")
    appended(sim, 5)
    for _ in range(4):
        sim.append([("a", 0, 2, 20)])
    seen: list[bytes] = []

    def crash_in_sync(_point: int, operation: str, path: Path) -> None:
        if operation != "sync" or path.parent.name != "commitlog":
            return
        read = sim.store.read_queue("a", 0, sim.epoch, 0, 1 << 20, 1000)
        assert read is not None
        seen[:] = [b"".join(map(bytes, read.parts)), b"".join(bytes(b.records) for b in read_all(sim.store))]
        assert sim.store.tail(sim.store.confirmed_position) == []
        for seed in range(20):
            found_after(sim.disk.after_power_loss(seed), sim, sim.store.confirmed_position)

    sim.disk.at_point = crash_in_sync
    sim.write()
    assert seen == [bytes(sim.model.log)] * 2, "written, not fsynced: nobody sees it"
    sim.deliver()
    read = sim.store.read_queue("a", 0, sim.epoch, 0, 1 << 20, 1000)
    assert read is not None
    assert read.count == 13
    sim.disk.at_point = lambda *_: None
    for seed in range(20):
        store = check(sim.disk.after_power_loss(seed), "sync", sim.model, len(sim.model.log), sim.clock, 1)
        again = store.read_queue_cold("a", 0, sim.epoch, 0, 1 << 20, 1000)
        assert b"".join(map(bytes, again.parts)) == b"".join(map(bytes, read.parts))
        store.close()


def test_async_flush_tells_a_consumer_that_was_ahead_where_to_go_on() -> None:
    sim = opened("async")
    appended(sim, 5)
    sim.index()
    kept = dict(sim.model.ends)
    appended(sim, 6)
    seen = sim.model.ends["a", 0]
    lost = next(disk for disk in map(sim.disk.after_power_loss, range(100)) if _end_of(disk) == kept)
    sim.disk = lost
    sim.open()
    sim.model.found(sim.store)
    assert sim.store.bounds("a", 0) == (0, 5)
    for appended_since in range(8):
        assert_ahead(sim.store, seen, 5)
        if appended_since:
            assert_ahead(sim.store, 6, 5)
        read = sim.store.read_queue_cold("a", 0, 1, 5, 1000, 10)
        assert read.status == (ReadStatus.FOUND if appended_since else ReadStatus.AT_END)
        appended(sim, 1)
        sim.index()


def _end_of(disk: SimDisk) -> dict[tuple[str, int], int]:
    sim = SimStore(disk.copy(), "async")
    sim.open()
    model = Model()
    model.found(sim.store)
    return model.ends


def assert_ahead(store: LogStore, offset: int, end: int) -> None:
    read = store.read_queue("a", 0, 1, offset, 1000, 10)
    if read is None:
        read = store.read_queue_cold("a", 0, 1, offset, 1000, 10)
    assert (read.status, read.next_offset) == (ReadStatus.AHEAD, end)
