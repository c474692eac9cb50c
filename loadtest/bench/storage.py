"""Append, queue reads and log reads of the log engine, in one process and without a network.

    python -m loadtest.bench.storage --records 400000 --batches 1,8,64,512

Prints its parameters and a row per batch size, medians of `--rounds`. The appender keeps at most `--window`
batches unconfirmed. Measured is what the engine does with encoded records: a batch's objects, tag hashes,
stamps, the writes, confirmation, and the index files as far as they come meanwhile. Producers encode
elsewhere, and a broker has checked the records before: both are not in it. "loop" is the time, and the CPU,
of the appending thread; "all" is the CPU of all threads. Sequential reads check every record and begin
with a store that was opened again, whose files the operating system still has in memory.
"""

from __future__ import annotations

import argparse
import os
import platform
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.record.batch import (
    Ints,
    encode_batch,
)
from holdmq.service.interpreter import prepare_interpreter
from storage.api.store import (
    Batch,
    BatchRun,
)
from storage.log.store import LogStore, open_store

TOPIC = "bench"


class Appending(NamedTuple):
    """Seconds in all, and spent in append and callbacks; CPU seconds of the appending thread and of all."""

    elapsed_s: float
    loop_s: float
    loop_cpu_s: float
    cpu_s: float


class StorageBench:
    """A store whose callbacks run here, as they would on the event loop."""

    def __init__(self, directory: str, flush: str, segment_mib: int) -> None:
        self.posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        settings = StorageSection.model_validate(
            {"data_dir": directory, "flush": flush, "segment_size_bytes": segment_mib << 20}
        )
        self.store: LogStore = open_store(settings, "bench", lambda _: 1, self.posted.put)
        self.store.open()
        self.done = 0

    def confirmed(self, _batch: Batch, error: StorageError | None) -> None:
        if error is not None:
            raise error
        self.done += 1

    def append(self, made: list[tuple[bytearray, Ints]], queues: int, window: int) -> Appending:
        """Append prepared batches; return what it took."""
        self.done = 0
        cpu, loop_cpu = time.process_time(), time.thread_time()
        busy = 0.0
        clock = time.perf_counter
        begin = clock()
        for index, (records, sizes) in enumerate(made):
            started = clock()
            run = BatchRun(TOPIC, index % queues, len(sizes))
            self.store.append(Batch(memoryview(records), sizes, [run]), self.confirmed)
            busy += clock() - started
            while index - self.done >= window or not self.posted.empty():
                callback = self.posted.get()
                started = clock()
                callback()
                busy += clock() - started
        while self.done < len(made):
            callback = self.posted.get()
            started = clock()
            callback()
            busy += clock() - started
        elapsed = clock() - begin
        return Appending(elapsed, busy, time.thread_time() - loop_cpu, time.process_time() - cpu)

    def read_queue(self) -> tuple[int, float]:
        """Read queue 0 from its start, cold; records and seconds."""
        offset, count = self.store.bounds(TOPIC, 0)[0], 0
        begin = time.perf_counter()
        while offset < self.store.bounds(TOPIC, 0)[1]:
            read = self.store.read_queue_cold(TOPIC, 0, 0, offset, 8 << 20, 1 << 20)
            if read.next_offset == offset:
                break
            offset, count = read.next_offset, count + read.count
        return count, time.perf_counter() - begin

    def read_log(self) -> tuple[int, float]:
        """Read the log from its start, cold; records and seconds."""
        position, count = self.store.first_position, 0
        begin = time.perf_counter()
        while position < self.store.confirmed_position:
            for batch in self.store.read_log(position, 1 << 20):
                count += len(batch.sizes)
                position = batch.end
        return count, time.perf_counter() - begin


def prepare(
    records: int, batch_records: int, body_bytes: int, queues: int, topic: str = TOPIC
) -> list[tuple[bytearray, Ints]]:
    """Encoded batches, a queue each in turn; every record has a tag, 1,000 different ones in all."""
    body = os.urandom(body_bytes)
    made = []
    for index in range(records // batch_records):
        first = index * batch_records
        properties = [
            b"TAGS\x01%d/temp\x02CLIENT_ID\x01d%d\x02" % (i % 1000, i % 1000)
            for i in range(first, first + batch_records)
        ]
        raw, sizes = encode_batch(topic.encode(), index % queues, [body] * batch_records, properties, 1)
        made.append((bytearray(raw), sizes))
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.storage", description=__doc__)
    parser.add_argument("--records", type=int, default=400_000, help="records per row, at most")
    parser.add_argument("--rounds", type=int, default=3, help="of appending, and of reading")
    parser.add_argument("--batches", default="1,8,64,512", help="records per batch, one row each")
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--read-records", type=int, default=2_000_000, help="of the sequential read")
    parser.add_argument("--window", type=int, default=256, help="unconfirmed batches")
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--segment-mib", type=int, default=256)
    parser.add_argument("--data", default=None, help="directory to work in (default: a temporary one)")
    options = parser.parse_args(arguments)
    out = sys.stdout.write
    shown = ", ".join(f"{k}={v}" for k, v in sorted(vars(options).items()))
    out(f"storage bench: {shown}; Python {platform.python_version()}, {os.cpu_count()} cores\n")
    prepare_interpreter()
    out(f"{'batch':>6} {'records':>8} {'append/s':>10} {'loop µs/batch':>14} {'loop CPU':>9} {'all CPU':>8} ")
    out(f"{'groups':>7} {'queue read/s':>13} {'log read/s':>11}\n")
    for batch_records in map(int, options.batches.split(",")):
        directory = tempfile.mkdtemp(prefix="holdmq-bench-", dir=options.data)
        bench = StorageBench(directory, options.flush, options.segment_mib)
        try:
            out(row(bench, batch_records, options))
        finally:
            bench.store.close()
            shutil.rmtree(directory)
    sequential(options)
    return 0


def row(bench: StorageBench, batch_records: int, options: argparse.Namespace) -> str:
    """Append and read with one batch size: a row of the table."""
    # Small batches cost so much more each that the same number of records would take minutes.
    records = min(options.records, batch_records * 20_000)
    made = prepare(records, batch_records, options.body_bytes, options.queues)
    rounds: list[Appending] = []
    for _ in range(options.rounds):
        # The store keeps what it is given: each round has records of its own.
        copies = [(bytearray(raw), sizes) for raw, sizes in made]
        rounds.append(bench.append(copies, options.queues, options.window))
        del copies
        time.sleep(1.2)  # until the index files have everything
    elapsed, loop, loop_cpu, cpu = (median(values) / len(made) for values in zip(*rounds, strict=True))
    queue_count, queue_s = bench.read_queue()
    log_count, log_s = bench.read_log()
    groups = bench.store.numbers()["write_groups_total"] / options.rounds
    return (
        f"{batch_records:>6} {len(made) * batch_records:>8} {batch_records / elapsed:>10,.0f} "
        f"{loop * 1e6:>14.1f} {loop_cpu * 1e6:>9.1f} {cpu * 1e6:>8.1f} "
        f"{groups:>7.0f} {queue_count / queue_s:>13,.0f} {log_count / log_s:>11,.0f}\n"
    )


def sequential(options: argparse.Namespace) -> None:
    """Read one queue, and the log, from their start: a store that was opened again, nothing in its caches."""
    directory = tempfile.mkdtemp(prefix="holdmq-bench-", dir=options.data)
    try:
        bench = StorageBench(directory, "async", options.segment_mib)
        for _ in range(max(1, options.read_records // 204_800)):
            bench.append(prepare(204_800, 512, options.body_bytes, 1), 1, 256)
        bench.store.close()
        shown: list[str] = []
        for name, reading in (("queue", StorageBench.read_queue), ("log", StorageBench.read_log)):
            rates: list[float] = []
            cpus: list[float] = []
            for _ in range(options.rounds):
                bench = StorageBench(directory, "async", options.segment_mib)
                cpu = time.thread_time()
                count, seconds = reading(bench)
                cpus.append((time.thread_time() - cpu) / count)
                rates.append(count / seconds)
                bench.store.close()
            shown.append(f"{name} {median(rates):,.0f}/s ({median(cpus) * 1e9:.0f} ns of CPU each)")
        sys.stdout.write(f"sequential read of {count} records, one queue in batches of 512: ")
        sys.stdout.write(", ".join(shown) + "\n")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    raise SystemExit(main())
