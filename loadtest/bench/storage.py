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

import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from holdmq.record.batch import Ints, encode_batch
from holdmq.service.interpreter import prepare_interpreter
from loadtest.bench.harness.command import BenchCommand, Options, medians, say
from loadtest.bench.harness.store import StoreBench
from storage.api.batches import Batch, BatchRun

TOPIC = "bench"


class Appending(NamedTuple):
    """Seconds in all, and spent in append and callbacks; CPU seconds of the appending thread and of all."""

    elapsed_s: float
    loop_s: float
    loop_cpu_s: float
    cpu_s: float


class StorageBench(StoreBench):
    """A store of the engine with few settings of its own."""

    def __init__(self, directory: Path, flush: str, segment_mib: int) -> None:
        super().__init__(directory, flush=flush, segment_size_bytes=segment_mib << 20)

    def append(self, made: list[tuple[bytearray, Ints]], queues: int, window: int) -> Appending:
        """Append prepared batches; return what it took."""
        self.answered = 0
        cpu, loop_cpu = time.process_time(), time.thread_time()
        busy = 0.0
        clock = time.perf_counter
        begin = clock()
        for index, (records, sizes) in enumerate(made):
            started = clock()
            run = BatchRun(TOPIC, index % queues, len(sizes))
            self.store.append(Batch(memoryview(records), sizes, [run]), self.note_answer)
            busy += clock() - started
            while index - self.answered >= window or not self.posted.empty():
                callback = self.posted.get()
                started = clock()
                callback()
                busy += clock() - started
        while self.answered < len(made):
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


def measure(options: Options, home: Path) -> None:
    """Print the table and the line of the sequential reads."""
    prepare_interpreter()
    say(
        f"{'batch':>6} {'records':>8} {'append/s':>10} {'loop µs/batch':>14} {'loop CPU':>9} {'all CPU':>8} "
        f"{'groups':>7} {'queue read/s':>13} {'log read/s':>11}"
    )
    for batch_records in map(int, options.batches.split(",")):
        with tempfile.TemporaryDirectory(dir=home) as directory:
            bench = StorageBench(Path(directory), options.flush, options.segment_mib)
            with closing(bench.store):
                say(row(bench, batch_records, options))
    sequential(options, home / "sequential")


def main() -> int:
    """Run the benchmark and print its table; the exit code."""
    command = BenchCommand(
        __doc__,
        records=(400_000, "records per row, at most"),
        rounds=(3, "of appending, and of reading"),
        batches=("1,8,64,512", "records per batch, one row each"),
        body_bytes=100,
        queues=4,
        read_records=(2_000_000, "of the sequential read"),
        window=(256, "unconfirmed batches"),
        segment_mib=256,
    )
    command.add("--flush", choices=("async", "sync"), default="async")
    return command.run(measure)


def row(bench: StorageBench, batch_records: int, options: Options) -> str:
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
    elapsed, loop, loop_cpu, cpu = (each / len(made) for each in medians(rounds))
    queue_count, queue_s = bench.read_queue()
    log_count, log_s = bench.read_log()
    groups = bench.store.numbers()["write_groups_total"] / options.rounds
    return (
        f"{batch_records:>6} {len(made) * batch_records:>8} {batch_records / elapsed:>10,.0f} "
        f"{loop * 1e6:>14.1f} {loop_cpu * 1e6:>9.1f} {cpu * 1e6:>8.1f} "
        f"{groups:>7.0f} {queue_count / queue_s:>13,.0f} {log_count / log_s:>11,.0f}"
    )


def sequential(options: Options, directory: Path) -> None:
    """Read one queue, and the log, from their start: a store that was opened again, nothing in its caches."""
    bench = StorageBench(directory, "async", options.segment_mib)
    for _ in range(max(1, options.read_records // 204_800)):
        bench.append(prepare(204_800, 512, options.body_bytes, 1), 1, 256)
    bench.store.close()
    shown: list[str] = []
    for name, reading in (("queue", StorageBench.read_queue), ("log", StorageBench.read_log)):
        rounds: list[tuple[float, float]] = []
        for _ in range(options.rounds):
            bench = StorageBench(directory, "async", options.segment_mib)
            with closing(bench.store):
                cpu = time.thread_time()
                count, seconds = reading(bench)
                rounds.append((count / seconds, (time.thread_time() - cpu) / count))
        rate, cpu_s = medians(rounds)
        shown.append(f"{name} {rate:,.0f}/s ({cpu_s * 1e9:.0f} ns of CPU each)")
    say(f"sequential read of {count} records, one queue in batches of 512: {', '.join(shown)}")


if __name__ == "__main__":
    sys.exit(main())
