"""A store with 10,000 queues and 1,000 segments: open files, mappings and memory stay bounded."""

from __future__ import annotations

import os
import queue
import shutil
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from any_disk import ANY_DISK

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.files.disk import RealDisk
from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.log.consume_queue import OPEN_FILES_MAX
from storage.log.open_files import READ_FILES_MAX
from storage.log.store import LogStore, open_store

QUEUES = 10_000
SEGMENTS = 1_000
SEGMENT_BYTES = 1_600
"""Ten records and the room for a blank."""
QUEUES_OPEN_BYTES = 50_000_000


class QuickDisk(RealDisk):
    """A disk that syncs nothing: what a test's process writes cannot be lost by it anyway."""

    def sync_directory(self, directory: Path) -> None:
        return

    def sync_all(self, directory: Path) -> None:
        return


class Store:
    def __init__(self, directory: Path) -> None:
        self.posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        settings = StorageSection.model_validate({"data_dir": str(directory), **ANY_DISK})
        settings = settings.model_copy(
            update={"segment_size_bytes": SEGMENT_BYTES, "consume_queue_file_bytes": 2000}
        )
        self.store: LogStore = open_store(settings, "b1", lambda _: 1, self.posted.put, disk=QuickDisk())
        self.store.open()

    def fill(self) -> None:
        left = QUEUES // 10
        failures: list[StorageError] = []

        def done(_batch: Batch, error: StorageError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                failures.append(error)

        for first in range(0, QUEUES, 10):
            parts = [
                encode_batch(b"t%d" % (i % 100), i // 100, [b"x" * 20]) for i in range(first, first + 10)
            ]
            raw = bytearray(b"".join(part[0] for part in parts))
            sizes = np.concatenate([part[1] for part in parts])
            runs = [BatchRun(f"t{i % 100}", i // 100, 1) for i in range(first, first + 10)]
            self.store.append(Batch(memoryview(raw), sizes, runs), done)
        while left:
            self.posted.get(timeout=120)()
        assert not failures
        until = time.monotonic() + 300
        # Segments stay open for writing until their fsync: with ones as small as these, hundreds.
        while min(self.store.flusher.indexed, self.store.synced_position) < self.store.confirmed_position:
            assert time.monotonic() < until
            time.sleep(0.01)


def descriptors(directory: Path) -> int:
    """How many files of a directory this process has open; what earlier tests left is none of them."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since they were listed
            found += os.readlink(f"/proc/self/fd/{number}").startswith(f"{directory}/")
    return found


def mappings(directory: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(directory))


def read_all(store: LogStore) -> None:
    for i in range(QUEUES):
        assert store.read_queue_cold(f"t{i % 100}", i // 100, 0, 0, 1000, 10).count == 1
    position = 0
    while position < store.confirmed_position:
        position = store.read_log(position, 1 << 20)[-1].end


@pytest.mark.timeout(900)
def test_files_mappings_and_memory_stay_bounded(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    made = Store(directory)
    made.fill()
    read_all(made.store)
    made.store.close()
    assert descriptors(directory) == 0

    tracemalloc.start()
    unused = tracemalloc.get_traced_memory()[0]
    made = Store(directory)
    taken = tracemalloc.get_traced_memory()[0] - unused
    tracemalloc.stop()
    numbers = made.store.numbers()
    assert numbers["queues"] == QUEUES
    assert numbers["segments"] >= SEGMENTS
    assert taken <= QUEUES_OPEN_BYTES
    read_all(made.store)
    made.fill()
    assert READ_FILES_MAX <= descriptors(directory) <= READ_FILES_MAX + OPEN_FILES_MAX + 20
    assert made.store.numbers()["read_files"] == READ_FILES_MAX
    assert mappings(directory) == 0
    made.store.close()
    assert descriptors(directory) == 0
    shutil.rmtree(directory)
