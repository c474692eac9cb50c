"""Tables alone: puts, gets and scans of one store, in one process and without a network.

    python -m loadtest.bench.tables --keys 100000 --gets 500000

Puts `--keys` keys with values of `--value-bytes` bytes and waits until they are applied, then reads
them: one by one in random order on one thread, `--many` at a time, and by prefix in pages of 1,000.
Prints its parameters and a rate for each. Last, the tables are deleted and built again from the log.
"""

from __future__ import annotations

import argparse
import os
import platform
import queue
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.service.interpreter import prepare_interpreter
from storage.api.store import Batch
from storage.log.store import LogStore, open_store
from storage.log.tables import LogTables

TOPIC = "%TABLE"


class TableBench:
    """A store with one table, whose callbacks run here, as they would on the event loop."""

    def __init__(self, directory: str) -> None:
        self.posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.settings = StorageSection.model_validate({"data_dir": directory})
        self.store = self._open()
        self.answered = 0

    def _open(self) -> LogStore:
        store = open_store(
            self.settings, "bench", lambda _: 1, self.posted.put, is_table=lambda topic: topic == TOPIC
        )
        store.open()
        return store

    @property
    def tables(self) -> LogTables:
        assert self.store.tables is not None
        return self.store.tables

    def _done(self, _batch: Batch, error: StorageError | None) -> None:
        if error is not None:
            raise error
        self.answered += 1

    def run(self, until: Callable[[], bool]) -> None:
        """Run callbacks until something holds."""
        while not until():
            self.posted.get(timeout=60)()

    def put(self, keys: list[str], value: bytes, window: int) -> float:
        """Put a value for every key and wait until all are shown; seconds."""
        begin = time.perf_counter()
        for asked, key in enumerate(keys):
            self.tables.put(TOPIC, key, value, self._done)
            self.run(lambda wanted=asked - window: self.answered >= wanted)  # type: ignore[misc]
        self.run(lambda: self.answered == len(keys))
        self.wait_applied()
        return time.perf_counter() - begin

    def wait_applied(self) -> None:
        """Until the table shows all that is confirmed."""
        reached: list[StorageError | None] = []
        self.tables.wait_applied(self.store.confirmed_position, reached.append)
        self.run(lambda: bool(reached))

    def rebuild(self, directory: str) -> float:
        """Delete the tables; seconds until the log has given them back."""
        self.store.close()
        shutil.rmtree(os.path.join(directory, "tables"))
        begin = time.perf_counter()
        self.store = self._open()
        self.wait_applied()
        return time.perf_counter() - begin


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.tables", description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--gets", type=int, default=500_000)
    parser.add_argument("--many", type=int, default=32, help="keys of one get_many")
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--window", type=int, default=1024, help="unanswered puts")
    parser.add_argument("--data", default=None, help="directory to work in (default: a temporary one)")
    options = parser.parse_args(arguments)
    out = sys.stdout.write
    shown = ", ".join(f"{k}={v}" for k, v in sorted(vars(options).items()))
    out(f"tables bench: {shown}; Python {platform.python_version()}, {os.cpu_count()} cores\n")
    prepare_interpreter()
    directory = tempfile.mkdtemp(prefix="holdmq-bench-", dir=options.data)
    bench = TableBench(directory)
    try:
        keys = [f"device-{i:07}" for i in range(options.keys)]
        put_s = bench.put(keys, os.urandom(options.value_bytes), options.window)
        out(f"put until shown: {len(keys) / put_s:,.0f}/s\n")
        wanted = random.Random(1).choices(keys, k=options.gets)  # noqa: S311 # the same keys in each run
        get = bench.tables.get
        begin = time.perf_counter()
        for key in wanted:
            get(TOPIC, key)
        out(f"get: {len(wanted) / (time.perf_counter() - begin):,.0f}/s\n")
        begin = time.perf_counter()
        for first in range(0, len(wanted), options.many):
            bench.tables.get_many(TOPIC, wanted[first : first + options.many])
        out(f"get_many: {len(wanted) / (time.perf_counter() - begin):,.0f} keys/s\n")
        begin = time.perf_counter()
        count, after = 0, None
        while count < len(keys):
            page = bench.tables.scan(TOPIC, "device-", after)
            count, after = count + len(page.rows), page.next_after
        out(f"scan: {count / (time.perf_counter() - begin):,.0f} rows/s\n")
        out(f"rebuild from the log: {len(keys) / bench.rebuild(directory):,.0f} records/s\n")
    finally:
        bench.store.close()
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
