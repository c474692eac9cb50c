"""Stores under load in processes that are there to be killed, each telling what was acknowledged.

    python store_under_load.py <directory> <sync|async>

Each line on stdin starts a child (forked, so that 50 of them cost no 50 imports) that opens the
store and loads it for ever; its death is told by `dead`. Everything it says on stdout is a line:

    pid <pid>                                                the child is there
    open <epoch> <first position>                            it has opened the store
    ack <position> <bytes> <crc32> <queue> <base offset>     a batch was confirmed
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from random import Random
from zlib import crc32

import structlog

from holdmq.config import StorageSection
from holdmq.errors import StorageError
from holdmq.record_batch import encode_batch
from storage.log.store import LogStore, open_store
from storage.store import Batch, Run

QUEUES = 3
WINDOW = 16
MIB = 1 << 20


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
            "disk_early_percent": 100,
            "disk_forced_percent": 100,
            "disk_refuse_percent": 100,
        }
    )


def say(*words: object) -> None:
    """One write per line, so that SIGKILL leaves no half of one behind a whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Load:
    """Appends batches, at most `WINDOW` unconfirmed."""

    def __init__(self, store: LogStore, posted: SimpleQueue[Callable[[], object]], seed: int) -> None:
        self._store = store
        self._posted = posted
        self._chance = Random(seed)
        self._waiting = 0

    def run(self) -> None:
        while True:
            self._append()
            while self._waiting >= WINDOW or not self._posted.empty():
                self._posted.get()()

    def _append(self) -> None:
        chance = self._chance
        queue_id, count = chance.randrange(QUEUES), chance.choice((1, 1, 3, 8, 40))
        bodies = [chance.randbytes(chance.choice((10, 100, 700))) for _ in range(count)]
        raw, sizes = encode_batch(b"devices", queue_id, bodies, b"TAGS\x01%d\x02" % chance.randrange(9), 5)
        batch = Batch(memoryview(bytearray(raw)), sizes, [Run("devices", queue_id, count)])
        self._waiting += 1
        self._store.append(batch, self._answered)

    def _answered(self, batch: Batch, error: StorageError | None) -> None:
        self._waiting -= 1
        if error is not None:
            raise error
        run = batch.runs[0]
        say("ack", batch.position, len(batch.records), crc32(batch.records), run.queue_id, run.base_offset)


def load(directory: Path, flush: str, seed: int) -> None:
    """Open the store and load it until killed."""
    posted: SimpleQueue[Callable[[], object]] = SimpleQueue()
    store = open_store(settings_of(directory, flush), "b1", lambda _: 1, posted.put)
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
