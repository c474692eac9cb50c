"""A leader and a copy with all their threads on a real disk; tables show what is confirmed."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from any_disk import ANY_DISK

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.api.replication import LogStart, ReplicatedLog
from storage.log.replicated.closed import ClosedLogDirectory
from storage.log.store import LogStore, open_store

MIB = 1 << 20
READ_BYTES = 64 << 10
TIMEOUT_S = 60.0


class Threaded:
    """One replica; its "event loop" runs when a test waits."""

    def __init__(self, directory: Path, flush: str) -> None:
        self.posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.settings = StorageSection.model_validate(
            {"data_dir": str(directory), "segment_size_bytes": MIB, "tail_cache_bytes": MIB,
             "flush_interval_ms": 20, "flush": flush, **ANY_DISK}
        )  # fmt: skip
        self.errors: list[StorageError | None] = []
        self.store: LogStore
        self.log: ReplicatedLog
        self.open()

    def open(self) -> None:
        self.store = open_store(
            self.settings, "b1", lambda _: 1, self.posted.put, is_replicated=True,
            is_table=lambda topic: topic == "rows",
        )  # fmt: skip
        self.store.open()
        assert self.store.replicated is not None
        self.log = self.store.replicated

    def until(self, condition: Callable[[], bool]) -> None:
        stop = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < stop
            try:
                self.posted.get(timeout=0.01)()
            except queue.Empty:
                continue

    def lead(self, epoch: int) -> None:
        done: list[StorageError | None] = []
        self.log.begin_epoch(epoch, done.append)
        self.until(lambda: bool(done))
        assert done == [None]
        self.log.begin_leading()

    def append(self, count: int, size: int = 200) -> None:
        raw, sizes = encode_batch(b"devices", 0, [b"x" * size] * count, b"", 5)
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun("devices", 0, count)])
        self.store.append(batch, lambda _batch, error: self.errors.append(error))

    def follow(self, leader: Threaded) -> None:
        while self.log.appended_position < leader.log.written_position:
            position = self.log.appended_position
            epochs = [epoch for epoch in leader.log.epochs if epoch.epoch > self.log.epochs[-1].epoch]
            if epochs and epochs[0].start <= position:
                self.until(lambda: self.log.durable_position == self.log.appended_position)
                done: list[StorageError | None] = []
                self.log.begin_epoch(epochs[0].epoch, done.append)
                self.until(lambda: bool(done))  # noqa: B023
                continue
            given = leader.log.read_bytes(position, 64 << 10) or leader.log.read_bytes_cold(
                position, 64 << 10
            )
            self.log.append_copied(memoryview(b"".join(given.parts)), position, self.errors.append)
        self.until(lambda: self.log.durable_position == self.log.appended_position)


@pytest.fixture(params=["sync", "async"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Threaded, Threaded]]:
    leader, copy = (Threaded(tmp_path / name, request.param) for name in ("leader", "copy"))
    leader.lead(2)
    copy.store.close()
    start = LogStart(leader.log.store_id, 0, leader.log.epochs[:1], leader.log.queue_ends())
    ClosedLogDirectory(copy.store._disk, tmp_path / "copy", "b1", MIB).start_over(start)
    copy.open()
    yield leader, copy
    leader.store.close()
    copy.store.close()


def test_a_copy_with_threads_has_the_same_files(pair: tuple[Threaded, Threaded], tmp_path: Path) -> None:
    leader, copy = pair
    for number in range(300):
        leader.append(1 + number % 60)
        if number % 40 == 39:
            leader.until(lambda: leader.log.durable_position == leader.log.appended_position)
            copy.follow(leader)
            leader.log.confirm_to(copy.log.durable_position)
            copy.log.confirm_to(leader.log.confirmed_position)
    leader.until(lambda: leader.log.durable_position == leader.log.appended_position)
    copy.follow(leader)
    end = leader.log.written_position
    leader.log.confirm_to(end)
    copy.log.confirm_to(end)
    for replica in pair:
        replica.until(lambda: replica.log.confirmed_position == end)  # noqa: B023
    assert set(leader.errors) == set(copy.errors) == {None}
    assert copy.store.bounds("devices", 0) == leader.store.bounds("devices", 0)
    names = [path.name for path in sorted((tmp_path / "leader/commitlog").glob("0*"))]
    assert len([name for name in names if int(name) < end]) > 2
    for name in names:
        if int(name) < end:
            size = end - int(name)
            ours = (tmp_path / "leader/commitlog" / name).read_bytes()[:size]
            assert (tmp_path / "copy/commitlog" / name).read_bytes()[:size] == ours
    copy.store.close()
    copy.open()
    copy.log.confirm_to(end)
    copy.until(lambda: copy.log.confirmed_position == end)
    assert copy.store.bounds("devices", 0) == leader.store.bounds("devices", 0)


def test_tables_of_both_show_what_is_confirmed(pair: tuple[Threaded, Threaded]) -> None:
    leader, copy = pair
    assert leader.store.tables is not None
    assert copy.store.tables is not None
    leader.store.tables.put("rows", "a", b"1", lambda _batch, error: leader.errors.append(error))
    leader.until(lambda: leader.log.durable_position == leader.log.appended_position > 0)
    copy.follow(leader)
    end = copy.log.durable_position
    time.sleep(0.1)
    for tables in (leader.store.tables, copy.store.tables):
        assert tables.get("rows", "a") is None
    assert leader.errors == []
    for replica in pair:
        replica.log.confirm_to(end)
        reached: list[object] = []
        assert replica.store.tables is not None
        replica.store.tables.wait_applied(end, reached.append)
        replica.until(lambda: bool(reached))  # noqa: B023
        row = replica.store.tables.get("rows", "a")
        assert row is not None
        assert row.value == b"1"
    assert leader.errors == [None]


def test_a_copy_that_is_behind_at_its_start_shows_as_it_is_confirmed(
    pair: tuple[Threaded, Threaded],
) -> None:
    leader, copy = pair
    for _ in range(100):
        leader.append(100)
    leader.until(lambda: leader.log.durable_position == leader.log.appended_position)
    copy.follow(leader)
    end = copy.log.durable_position
    copy.store.close()
    copy.open()
    assert (copy.log.confirmed_position, copy.log.written_position) == (0, end)
    assert copy.store.bounds("devices", 0) == (0, 0)
    copy.lead(3)
    copy.append(1)
    copy.until(lambda: copy.log.durable_position == copy.log.appended_position > end)
    copy.log.confirm_to(copy.log.durable_position)
    copy.until(lambda: copy.store.bounds("devices", 0) == (0, 10_001))
    copy.until(lambda: copy.store.numbers()["indexed_position"] == copy.log.confirmed_position)
