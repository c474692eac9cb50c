"""Tables alone: puts, gets and scans of one store, in one process and without a network.

    python -m loadtest.bench.tables --keys 100000 --gets 500000

Puts `--keys` keys with values of `--value-bytes` bytes and waits until they are applied, then reads
them: one by one in random order on one thread, `--many` at a time, and by prefix in pages of 1,000.
Prints its parameters and a rate for each. Last, the tables are deleted and built again from the log.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from pathlib import Path

from holdmq.errors import StorageError
from holdmq.service.interpreter import prepare_interpreter
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.bench.harness.store import StoreBench
from storage.log.tables.tables import LogTables

TOPIC = "%TABLE"


class TableBench(StoreBench):
    """A store with one table."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, is_table=lambda topic: topic == TOPIC)

    @property
    def tables(self) -> LogTables:
        assert self.store.tables is not None
        return self.store.tables

    def put(self, keys: list[str], value: bytes, window: int) -> float:
        """Put a value for every key and wait until all are shown; seconds."""
        begin = time.perf_counter()
        for asked, key in enumerate(keys):
            self.tables.put(TOPIC, key, value, self.note_answer)
            self.run(lambda wanted=asked - window: self.answered >= wanted)  # type: ignore[misc]
        self.run(lambda: self.answered == len(keys))
        self.wait_applied()
        return time.perf_counter() - begin

    def wait_applied(self) -> None:
        """Until the table shows all that is confirmed."""
        reached: list[StorageError | None] = []
        self.tables.wait_applied(self.store.confirmed_position, reached.append)
        self.run(lambda: bool(reached))

    def rebuild(self, directory: Path) -> float:
        """Delete the tables; seconds until the log has given them back."""
        self.store.close()
        shutil.rmtree(directory / "tables")
        begin = time.perf_counter()
        self.store = self._open()
        self.wait_applied()
        return time.perf_counter() - begin


def measure(options: Options, home: Path) -> None:
    """Print a rate for each kind of work."""
    prepare_interpreter()
    bench = TableBench(home)
    try:
        keys = [f"device-{i:07}" for i in range(options.keys)]
        put_s = bench.put(keys, os.urandom(options.value_bytes), options.window)
        say(f"put until shown: {len(keys) / put_s:,.0f}/s")
        wanted = random.Random(1).choices(keys, k=options.gets)  # noqa: S311 # the same keys in each run
        get = bench.tables.get
        begin = time.perf_counter()
        for key in wanted:
            get(TOPIC, key)
        say(f"get: {len(wanted) / (time.perf_counter() - begin):,.0f}/s")
        begin = time.perf_counter()
        for first in range(0, len(wanted), options.many):
            bench.tables.get_many(TOPIC, wanted[first : first + options.many])
        say(f"get_many: {len(wanted) / (time.perf_counter() - begin):,.0f} keys/s")
        begin = time.perf_counter()
        count, after = 0, None
        while count < len(keys):
            page = bench.tables.scan(TOPIC, "device-", after)
            count, after = count + len(page.rows), page.next_after
        say(f"scan: {count / (time.perf_counter() - begin):,.0f} rows/s")
        say(f"rebuild from the log: {len(keys) / bench.rebuild(home):,.0f} records/s")
    finally:
        bench.store.close()


def main() -> int:
    """Run the benchmark and print its figures; the exit code."""
    return BenchCommand(
        __doc__,
        keys=100_000,
        gets=500_000,
        many=(32, "keys of one get_many"),
        value_bytes=200,
        window=(1024, "unanswered puts"),
    ).run(measure)


if __name__ == "__main__":
    sys.exit(main())
