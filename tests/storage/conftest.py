"""Stores that tests drive without an event loop."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from any_disk import ANY_DISK
from kept_store import make_kept
from watched_disk import WatchedDisk

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.files.disk import Disk
from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.api.queues import HashFilter, ReadStatus
from storage.log.store import LogStore, open_store

__all__ = ["make_kept"]

MIB = 1 << 20


class Driver:
    """A store and its "event loop": callbacks run when the test waits."""

    def __init__(self, directory: Path, disk: Disk | None = None, **settings: Any) -> None:
        self.posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.disk: Disk = disk or WatchedDisk()
        self.directory = directory
        self.settings = {
            "data_dir": str(directory), "segment_size_bytes": MIB, "tail_cache_bytes": MIB,
            "flush_interval_ms": 20, **(ANY_DISK if disk is None else {}), **settings,
        }  # fmt: skip
        self.clock_ms = 1_700_000_000_000
        self.results: list[StorageError | None] = []
        self.made: dict[tuple[str, int], list[bytes]] = {}
        self.store: LogStore = self._new(False)

    def _new(self, accept_backup: bool) -> LogStore:
        settings = StorageSection.model_validate(self.settings)
        return open_store(
            settings, "b1", lambda _: 1, self.posted.put, accept_backup=accept_backup, disk=self.disk,
            clock_ms=lambda: self.clock_ms,
        )  # fmt: skip

    def open(self, accept_backup: bool = False) -> Driver:
        self.store = self._new(accept_backup)
        self.store.open()
        return self

    def rolled(self, count: int, **kind: Any) -> Batch:
        """Append what lets old segments go."""
        return self.append(count, is_rolling=True, **kind)

    def append(
        self,
        count: int,
        topic: str = "devices",
        queue_id: int = 0,
        body: bytes = b"21",
        is_rolling: bool = False,
    ) -> Batch:
        raw, sizes = encode_batch(
            topic.encode(),
            queue_id,
            [body] * count,
            [b"TAGS\x01%d/t\x02" % (i % 10) for i in range(count)],
            5,
        )
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun(topic, queue_id, count)])
        append = self.store.roll if is_rolling else self.store.append
        append(batch, lambda _batch, error: self.results.append(error))
        return batch

    def wait(self, results: int) -> list[StorageError | None]:
        """Run callbacks until so many appends were answered since the last `wait`."""
        while len(self.results) < results:
            self.posted.get(timeout=60)()
        answered, self.results = self.results, []
        return answered

    def append_and_wait(self, count: int, **kind: Any) -> Batch:
        batch = self.append(count, **kind)
        assert self.wait(1) == [None]
        return batch

    def wait_indexed(self) -> None:
        """Until all confirmed entries are in consume-queue files."""
        until = time.monotonic() + 180
        while self.store.numbers()["indexed_position"] < self.store.confirmed_position:
            assert time.monotonic() < until
            time.sleep(0.005)

    def log_bytes(self) -> bytes:
        """Every record of the log, read from disk."""
        position, parts = self.store.first_position, []
        while position < self.store.confirmed_position:
            for batch in self.store.read_log(position, MIB):
                parts.append(bytes(batch.records))
                position = batch.end
        return b"".join(parts)

    def queue_bytes(
        self,
        topic: str,
        queue_id: int,
        wanted: HashFilter | None = None,
        cold: bool = False,
        max_bytes: int = MIB,
    ) -> bytes:
        """Every (wanted) record of a queue, from memory or from disk."""
        offset, end = self.store.bounds(topic, queue_id)
        parts: list[bytes] = []
        while offset < end:
            reading = self.store.read_queue_cold if cold else self.store.read_queue
            read = reading(topic, queue_id, 0, offset, max_bytes, 1000, wanted)
            assert read is not None
            assert read.status == ReadStatus.FOUND
            assert read.next_offset > offset, read
            parts.extend(map(bytes, read.parts))
            offset = read.next_offset
        return b"".join(parts)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Makes drivers on `tmp_path/store` (or elsewhere) and closes what is open at the end."""
    made: list[Driver] = []

    def make(directory: Path | None = None, **settings: Any) -> Driver:
        made.append(Driver(directory or tmp_path / "store", **settings))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


@pytest.fixture
def watched_disk() -> WatchedDisk:
    return WatchedDisk()
