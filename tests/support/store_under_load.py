"""Stores under load in processes that are there to be killed, each telling what was acknowledged.

    python store_under_load.py <directory> <sync|async>

Each line on stdin starts a child (forked, so that 50 of them cost no 50 imports) that opens the
store and loads it for ever; its death is told by `dead`. Everything it says on stdout is a line:

    pid <pid>                                                the child is there
    open <epoch> <first position>                            it has opened the store
    ack <position> <bytes> <crc32> <queue> <base offset>     a batch was confirmed
    delayed <position> <number>                              a message that is released when it is due
    put <key> <number>                                       a table's row
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Final
from zlib import crc32

import structlog
from any_disk import ANY_DISK

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.record.batch import encode_batch
from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun
from storage.api.timer import DelayedRecord
from storage.log.store import LogStore, now_ms, open_store

QUEUES: Final = 3
WINDOW: Final = 16
MIB: Final = 1 << 20
LATE: Final = "late"
TABLE: Final = "table"
KEYS: Final = 40


def settings_of(directory: Path, flush: str) -> StorageSection:
    """Small segments and a short memory, so that every round crosses borders and deletes segments."""
    return StorageSection.model_validate(
        {
            "data_dir": str(directory),
            "flush": flush,
            "flush_interval_ms": 10,
            "segment_size_bytes": MIB,
            "consume_queue_file_bytes": 20_000,
            "tail_cache_bytes": MIB,
            "retention_segments": 4,
            "retention_interval_ms": 10,
            **ANY_DISK,
        }
    )


def new_store(settings: StorageSection, post: Callable[[Callable[[], object]], object]) -> LogStore:
    """A store with all that it has to be killed with."""
    return open_store(settings, "b1", lambda _: 1, post, is_table=is_table)


def is_table(topic: str) -> bool:
    return topic == TABLE


def say(*words: object) -> None:
    """One write per line, so that SIGKILL leaves no half of one behind a whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Load:
    """Appends batches, delays messages and puts rows; at most `WINDOW` unconfirmed."""

    def __init__(self, store: LogStore, posted: SimpleQueue[Callable[[], object]], seed: int) -> None:
        self._store = store
        self._posted = posted
        self._chance = Random(seed)
        self._waiting = 0
        self._number = seed * 1_000_000

    def run(self) -> None:
        while True:
            self._number += 1
            self._append()
            if not self._number % 5:
                self._delay(self._number)
            if not self._number % 7:
                self._put(self._number)
            while self._waiting >= WINDOW or not self._posted.empty():
                self._posted.get()()

    def _append(self) -> None:
        chance = self._chance
        queue_id, count = chance.randrange(QUEUES), chance.choice((1, 1, 3, 8, 40))
        bodies = [chance.randbytes(chance.choice((10, 100, 700))) for _ in range(count)]
        raw, sizes = encode_batch(b"devices", queue_id, bodies, b"TAGS\x01%d\x02" % chance.randrange(9), 5)
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun("devices", queue_id, count)])
        self._waiting += 1
        self._store.append(batch, self._answered)

    def _delay(self, number: int) -> None:
        record = encode_record(LATE.encode(), 0, b"%d" % number, b"", 5)
        self._waiting += 1
        due_ms = now_ms() + self._chance.choice((0, 10, 100))

        def stored(batch: Batch, error: StorageError | None) -> None:
            self._told(error)
            say("delayed", batch.position, number)

        self._store.timer.schedule([DelayedRecord(record, due_ms)], stored)

    def _put(self, number: int) -> None:
        tables = self._store.tables
        assert tables is not None
        key = number % KEYS
        self._waiting += 1

        def stored(_batch: Batch, error: StorageError | None) -> None:
            self._told(error)
            say("put", key, number)

        tables.put(TABLE, f"k{key}", b"%d" % number, stored)

    def _told(self, error: StorageError | None) -> None:
        self._waiting -= 1
        if error is not None:
            raise error

    def _answered(self, batch: Batch, error: StorageError | None) -> None:
        self._told(error)
        run = batch.runs[0]
        say("ack", batch.position, len(batch.records), crc32(batch.records), run.queue_id, run.base_offset)


def load(directory: Path, flush: str, seed: int) -> None:
    """Open the store and load it until killed."""
    posted: SimpleQueue[Callable[[], object]] = SimpleQueue()
    store = new_store(settings_of(directory, flush), posted.put)
    store.open()
    say("open", store.epoch, store.first_position)
    Load(store, posted, seed).run()


def main() -> None:
    directory, flush = Path(sys.argv[1]), sys.argv[2]
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for seed, _ in enumerate(sys.stdin):
        pid = os.fork()
        if not pid:
            try:
                load(directory, flush, seed)
            finally:
                os._exit(1)
        say("pid", pid)
        os.waitpid(pid, 0)
        say("dead")


if __name__ == "__main__":
    main()
