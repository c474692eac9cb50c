"""What disturbs those who are served from memory: cold readers, and a disk whose fsync takes 200 ms.

    python -m loadtest.bench.storage_beside --seconds 10 --rounds 5

On one event loop a batch is appended every `--interval-ms`; its latency is from the moment it was due
to the moment it can be read from memory. Alone, and beside `--readers` readers that read a log of `--mib` MiB
from its start, over and over, through the reader pool: in turns, so that a machine whose speed changes meets
both; the ratio is the median of the rounds'. Then the loop's own lateness (a timer of 1 ms) while every fsync
takes `--fsync-ms`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from holdmq.errors import CorruptRecordError, StorageError
from holdmq.record.batch import Ints
from holdmq.service.interpreter import prepare_interpreter
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.bench.harness.store import SlowDisk, close_off_loop, open_on_loop, probe_loop
from loadtest.bench.storage import TOPIC, StorageBench, prepare
from loadtest.figures import quantile, show_ms
from storage.api.batches import Batch, BatchRun
from storage.log.store import LogStore

HOT = "hot"
HOT_RECORDS = 8
SEGMENT_BYTES = 256 << 20


async def append_paced(store: LogStore, seconds: float, interval_s: float) -> list[float]:
    """Append a batch every interval; each one's latency in seconds."""
    [made] = prepare(HOT_RECORDS, HOT_RECORDS, 100, 1, HOT)
    raw, sizes = bytes(made[0]), made[1]
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    waiting = 0
    answered = asyncio.Event()
    begin = loop.time()
    for index in range(round(seconds / interval_s)):
        due = begin + index * interval_s
        delay = due - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)

        def readable(batch: Batch, error: StorageError | None, due: float = due) -> None:
            nonlocal waiting
            waiting -= 1
            answered.set()
            if error is not None:
                raise error
            read = store.read_queue(HOT, 0, 0, batch.runs[0].base_offset, 1 << 20, HOT_RECORDS)
            assert read is not None
            latencies.append(loop.time() - due)

        waiting += 1
        store.append(Batch(memoryview(bytearray(raw)), sizes, [BatchRun(HOT, 0, HOT_RECORDS)]), readable)
    while waiting:
        answered.clear()
        await answered.wait()
    return latencies


async def read_cold(store: LogStore, end: int, read: list[int]) -> None:
    """Read the log up to `end` through the reader pool, over and over, as a broker's reader does."""
    loop = asyncio.get_running_loop()
    while True:
        position = store.first_position
        while position < end:
            try:
                batches = await loop.run_in_executor(store.reader_pool, store.read_log, position, 1 << 20)
            except CorruptRecordError as error:
                raise SystemExit(str(error)) from error
            read[0] += sum(len(batch.sizes) for batch in batches)
            position = batches[-1].end


def shown(times_s: Sequence[float]) -> str:
    return show_ms(times_s, 0.5, 0.99, 0.999)


async def beside_cold(directory: Path, options: Options) -> None:
    """Print the latencies of the tail, alone and beside cold readers, in turns."""
    store = await open_on_loop(directory, segment_size_bytes=SEGMENT_BYTES)
    end = store.confirmed_position
    interval_s, seconds = options.interval_ms / 1e3, options.seconds / options.rounds
    await append_paced(store, 1, interval_s)
    read = [0]
    reading_s = 0.0
    ratios: list[float] = []
    for _ in range(options.rounds):
        idle = await append_paced(store, seconds, interval_s)
        begin = time.perf_counter()
        tasks = [asyncio.create_task(read_cold(store, end, read)) for _ in range(options.readers)]
        beside = await append_paced(store, seconds, interval_s)
        reading_s += time.perf_counter() - begin
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ratios.append(quantile(sorted(beside), 0.99) / quantile(sorted(idle), 0.99))
        say(f"tail alone:             {shown(idle)}")
        say(f"beside {options.readers} cold readers:  {shown(beside)}, p99 ratio {ratios[-1]:.1f}")
    say(
        f"p99 ratio {median(ratios):.1f} (median of {options.rounds}); "
        f"the cold readers read {read[0] / reading_s:,.0f} records/s"
    )
    await close_off_loop(store)


async def slow_fsync(directory: Path, options: Options) -> None:
    """Print how late the loop is while every fsync is slow."""
    disk = SlowDisk(options.fsync_ms / 1e3)
    store = await open_on_loop(directory, disk, segment_size_bytes=SEGMENT_BYTES)
    appending = asyncio.create_task(append_paced(store, options.seconds, options.interval_ms / 1e3))
    late = await probe_loop(options.seconds)
    await appending
    say(f"loop, fsync {options.fsync_ms:.0f} ms:      {shown(late)}")
    await close_off_loop(store, disk)


def write_log(directory: Path, mib: int) -> None:
    made: list[tuple[bytearray, Ints]] = prepare(8192, 512, 100, 1)
    bench = StorageBench(directory, "async", 256)
    while bench.store.confirmed_position < mib << 20:
        bench.append([(bytearray(raw), sizes) for raw, sizes in made], 1, 64)
    bench.store.close()


def measure(options: Options, home: Path) -> None:
    """Run both parts and print their lines."""
    prepare_interpreter()
    write_log(home / "log", options.mib)
    asyncio.run(beside_cold(home / "log", options))
    asyncio.run(slow_fsync(home / "slow", options))


def main() -> int:
    """Run the benchmark and print its lines; the exit code."""
    return BenchCommand(
        __doc__,
        seconds=(10.0, "of each part"),
        rounds=(5, "turns of alone and beside"),
        interval_ms=2.0,
        readers=1,
        mib=(512, "log that the cold readers read"),
        fsync_ms=200.0,
    ).run(measure, batch_records=HOT_RECORDS, hot_topic=HOT, cold_topic=TOPIC)


if __name__ == "__main__":
    sys.exit(main())
