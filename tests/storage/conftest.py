"""Stores that tests drive without an event loop, and a disk that records and fails on request."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdmq.config import StorageSection
from holdmq.disk import Buffer, Disk, File, RealDisk, Space
from holdmq.errors import StorageError
from holdmq.record_batch import encode_batch
from storage.log.store import LogStore, open_store
from storage.store import Batch, HashFilter, ReadStatus, Run

MIB = 1 << 20


class WatchedFile:
    """A real file; every call goes through the disk's `check` first."""

    def __init__(self, disk: WatchedDisk, file: File, path: Path) -> None:
        self._disk, self._file, self._path = disk, file, path

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._disk.check("write", self._path)
        self._file.write(buffers, offset)

    def read(self, offset: int, size: int) -> bytearray:
        self._disk.check("read", self._path)
        return self._file.read(offset, size)

    def read_ahead(self, offset: int, size: int) -> None:
        self._disk.check("read_ahead", self._path)
        self._file.read_ahead(offset, size)

    def sync(self) -> None:
        self._disk.check("sync", self._path)
        if not self._disk.is_quick:
            self._file.sync()

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self._path)
        self._file.truncate(size)

    def preallocate(self, size: int) -> None:
        self._disk.check("preallocate", self._path)
        self._file.preallocate(size)

    def size(self) -> int:
        return self._file.size()

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        return self._file.data_ranges(offset)

    def try_lock(self) -> bool:
        return self._file.try_lock()

    def close(self) -> None:
        self._file.close()


class WatchedDisk(RealDisk):
    """A real disk that writes down what is asked of it, and fails where a test says so.

    `is_quick` leaves fsync out: what a test's process writes cannot be lost by it anyway.
    """

    def __init__(self, is_quick: bool = True) -> None:
        self.is_quick = is_quick
        self.calls: list[tuple[str, str]] = []
        # How full the machine that runs the tests is must not matter to them.
        self.filled: Space | None = Space(100 << 30, 90 << 30)
        self.failing: Callable[[str, Path], int | None] = lambda _operation, _path: None

    def check(self, operation: str, path: Path) -> None:
        self.calls.append((operation, path.parent.name))
        code = self.failing(operation, path)
        if code is not None:
            raise OSError(code, f"injected into {operation}", str(path))

    def open(self, path: Path, create: bool = False) -> File:
        return WatchedFile(self, super().open(path, create), path)

    def open_to_read(self, path: Path) -> File:
        return WatchedFile(self, super().open_to_read(path), path)

    def sync_directory(self, directory: Path) -> None:
        if not self.is_quick:
            super().sync_directory(directory)

    def space(self, directory: Path) -> Space:
        return self.filled or super().space(directory)

    def unlink(self, path: Path) -> None:
        self.check("unlink", path)
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self.check("rename", target)
        super().rename(source, target)

    def sync_all(self, directory: Path) -> None:
        if not self.is_quick:
            super().sync_all(directory)


class Driver:
    """A store and its "event loop": callbacks run when the test waits."""

    def __init__(self, directory: Path, disk: Disk | None = None, **settings: Any) -> None:
        self.posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.disk: Disk = disk or WatchedDisk()
        self.directory = directory
        self.settings = {
            "data_dir": str(directory), "segment_size_bytes": MIB, "tail_cache_bytes": MIB,
            "flush_interval_ms": 20, **settings,
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
        batch = Batch(memoryview(bytearray(raw)), sizes, [Run(topic, queue_id, count)])
        append = self.store.roll if is_rolling else self.store.append
        append(batch, lambda _batch, error: self.results.append(error))
        return batch

    def wait(self, results: int) -> list[StorageError | None]:
        """Run callbacks until so many appends were answered since the last `wait`."""
        while len(self.results) < results:
            self.posted.get(timeout=20)()
        answered, self.results = self.results, []
        return answered

    def append_and_wait(self, count: int, **kind: Any) -> Batch:
        batch = self.append(count, **kind)
        assert self.wait(1) == [None]
        return batch

    def wait_indexed(self) -> None:
        """Until all confirmed entries are in consume-queue files."""
        until = time.monotonic() + 20
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
