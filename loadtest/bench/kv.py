"""Append, queue reads and log reads of the key-value engine, in one process, with a Valkey beside it.

    python -m loadtest.bench.kv --records 300000 --batch 100

Prints its parameters and a line per round. The appender keeps at most `--window` batches unconfirmed; its
records are encoded before. Every read is one from the server, and checks each record. "own" is the CPU of
this process, "server" that of Valkey, in seconds; "overhead" is what Valkey's memory grows by per record,
less the record itself.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from redis import Redis

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.record.batch import Ints
from holdmq.service.interpreter import prepare_interpreter
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.bench.storage import TOPIC, prepare
from loadtest.peers import key_value_engine
from storage.api.batches import Batch, BatchRun
from storage.kv.store import KvStore

QUEUES: Final = 4
READ_BYTES: Final = 8 << 20


class KvBench:
    """A store in a Valkey, whose callbacks run here as they would on the event loop."""

    def __init__(self, directory: Path, url: str) -> None:
        self._posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        settings = {"data_dir": str(directory), "engine": "kv", "kv": {"url": url}}
        self.store = KvStore(StorageSection.model_validate(settings), "bench", lambda _: 1, self._posted.put)
        self.store.open()
        self._server: Any = Redis.from_url(url)
        self._answered = 0

    def _note_answer(self, _batch: Batch, error: StorageError | None) -> None:
        if error is not None:
            raise error
        self._answered += 1

    def memory_bytes(self) -> int:
        """What Valkey has allocated."""
        return int(self._server.info("memory")["used_memory"])

    def server_cpu_s(self) -> float:
        """The CPU that Valkey has used."""
        used = self._server.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    def append(self, made: list[tuple[bytearray, Ints]], window: int) -> int:
        """Append prepared batches and wait until all are confirmed; records."""
        self._answered = 0
        count = 0
        for index, (records, sizes) in enumerate(made):
            count += len(sizes)
            run = BatchRun(TOPIC, index % QUEUES, len(sizes))
            self.store.append(Batch(memoryview(records), sizes, [run]), self._note_answer)
            while index - self._answered >= window or not self._posted.empty():
                self._posted.get()()
        while self._answered < len(made):
            self._posted.get()()
        return count

    def read_queues(self) -> int:
        """Read every queue from its start, from the server; records."""
        count = 0
        for queue_id in range(QUEUES):
            offset, end = self.store.bounds(TOPIC, queue_id)
            while offset < end:
                read = self.store.read_queue_cold(TOPIC, queue_id, 0, offset, READ_BYTES, 1 << 20)
                if read.next_offset == offset:
                    raise StorageError("a read came to nothing", operation="read", path=f"{TOPIC}/{queue_id}")
                offset, count = read.next_offset, count + read.count
        return count

    def read_log(self) -> int:
        """Read the log from its start; records."""
        position, count = self.store.first_position, 0
        while position < self.store.confirmed_position:
            for batch in self.store.read_log(position, READ_BYTES):
                count += len(batch.sizes)
                position = batch.end
        return count

    def time(self, name: str, work: Callable[[], int]) -> str:
        """Do something and say how many records it was per second, and whose CPU it took."""
        own, server, began = time.process_time(), self.server_cpu_s(), time.perf_counter()
        count = work()
        elapsed = time.perf_counter() - began
        own, server = time.process_time() - own, self.server_cpu_s() - server
        return f"{name} {count / elapsed:>9,.0f}/s (own {own:.2f} s, server {server:.2f} s)"


def measure(options: Options, home: Path) -> None:
    """Print a line per round, each with a Valkey of its own."""
    prepare_interpreter()
    for number in range(options.rounds):
        place = home / str(number)
        place.mkdir()
        with key_value_engine(place) as (_, setting):
            bench = KvBench(place / "store", setting.partition("=")[2])
            with closing(bench.store):
                say(row(bench, options))


def row(bench: KvBench, options: Options) -> str:
    """Measure once; the line."""
    made = prepare(options.records, options.batch, options.body_bytes, QUEUES)
    raw_bytes = sum(len(records) for records, _ in made)
    before = bench.memory_bytes()
    parts = [bench.time("append", lambda: bench.append(made, options.window))]
    overhead = (bench.memory_bytes() - before - raw_bytes) / options.records
    parts += [bench.time("queue read", bench.read_queues), bench.time("log read", bench.read_log)]
    return (
        f"{'; '.join(parts)}; record {raw_bytes / options.records:.0f} bytes, overhead {overhead:.2f} bytes"
    )


def main() -> int:
    """Run the benchmark; exit code 0, or 1 with a sentence when the server fails."""
    return BenchCommand(
        __doc__,
        records=300_000,
        batch=(100, "records per batch"),
        rounds=5,
        body_bytes=200,
        window=(256, "unconfirmed batches"),
    ).run(measure, queues=QUEUES)


if __name__ == "__main__":
    sys.exit(main())
