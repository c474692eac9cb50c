"""What disturbs those who are served from memory: cold readers, and a disk whose fsync takes 200 ms.

    python -m loadtest.bench.storage_beside --seconds 10 --rounds 5

On one event loop a batch is appended every `--interval-ms`; its latency is from the moment it was due
to the moment it can be read from memory. Alone, and beside `--readers` readers that read a log of `--mib` MiB
from its start, over and over, through the reader pool: in turns, so that a machine whose speed changes meets
both; the ratio is the median of the rounds'. Then the loop's own lateness (a timer of 1 ms) while every fsync
takes `--fsync-ms`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from holdmq.config.model import StorageSection
from holdmq.errors import CorruptRecordError, StorageError
from holdmq.files.disk import (
    Disk,
    OpenFile,
    RealDisk,
    RealFile,
)
from holdmq.record.batch import Ints
from holdmq.service.interpreter import prepare_interpreter
from loadtest.bench.storage import TOPIC, StorageBench, prepare
from storage.api.store import (
    Batch,
    BatchRun,
)
from storage.log.store import LogStore, open_store

HOT = "hot"
HOT_RECORDS = 8


class SlowFile(RealFile):
    """A file whose fsync takes long."""

    delay_s = 0.0

    def sync(self) -> None:
        time.sleep(self.delay_s)
        super().sync()


class SlowDisk(RealDisk):
    """A disk whose log files' fsync takes `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def open(self, path: Path, create: bool = False) -> OpenFile:
        return self._slow(super().open(path, create), path)

    def create_anew(self, path: Path) -> OpenFile:
        return self._slow(super().create_anew(path), path)

    def _slow(self, file: OpenFile, path: Path) -> OpenFile:
        assert isinstance(file, RealFile)
        slow = SlowFile(file.fd, path)
        slow.delay_s = self._delay_s if path.parent.name == "commitlog" else 0.0
        return slow


def new_store(directory: str, disk: Disk | None = None) -> LogStore:
    settings = StorageSection.model_validate({"data_dir": directory, "segment_size_bytes": 256 << 20})
    loop = asyncio.get_running_loop()
    store = open_store(settings, "bench", lambda _: 1, loop.call_soon_threadsafe, disk=disk)
    store.open()
    return store


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


async def late_ticks(seconds: float) -> list[float]:
    """How late a timer of 1 ms is, in seconds."""
    loop = asyncio.get_running_loop()
    late: list[float] = []
    end = loop.time() + seconds
    while loop.time() < end:
        due = loop.time() + 0.001
        await asyncio.sleep(0.001)
        late.append(loop.time() - due)
    return late


def shown(values: Sequence[float]) -> str:
    p50, p99, p999 = np.percentile(np.array(values) * 1e3, [50, 99, 99.9])
    return f"p50 {p50:7.2f} ms, p99 {p99:7.2f} ms, p99.9 {p999:7.2f} ms, max {max(values) * 1e3:7.2f} ms"


async def beside_cold(directory: str, seconds: float, rounds: int, interval_s: float, readers: int) -> None:
    out = sys.stdout.write
    store = new_store(directory)
    end = store.confirmed_position
    await append_paced(store, 1, interval_s)
    read = [0]
    reading_s = 0.0
    ratios: list[float] = []
    for _ in range(rounds):
        idle = await append_paced(store, seconds / rounds, interval_s)
        begin = time.perf_counter()
        tasks = [asyncio.create_task(read_cold(store, end, read)) for _ in range(readers)]
        beside = await append_paced(store, seconds / rounds, interval_s)
        reading_s += time.perf_counter() - begin
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ratios.append(float(np.percentile(beside, 99) / np.percentile(idle, 99)))
        out(f"tail alone:             {shown(idle)}\n")
        out(f"beside {readers} cold readers:  {shown(beside)}, p99 ratio {ratios[-1]:.1f}\n")
    out(f"p99 ratio {np.median(ratios):.1f} (median of {rounds}); ")
    out(f"the cold readers read {read[0] / reading_s:,.0f} records/s\n")
    await asyncio.to_thread(store.close)


async def slow_fsync(directory: str, seconds: float, interval_s: float, fsync_s: float) -> None:
    store = new_store(directory, SlowDisk(fsync_s))
    appending = asyncio.create_task(append_paced(store, seconds, interval_s))
    late = await late_ticks(seconds)
    await appending
    sys.stdout.write(f"loop, fsync {fsync_s * 1e3:.0f} ms:      {shown(late)}\n")
    await asyncio.to_thread(store.close)


def write_log(directory: str, mib: int) -> None:
    made: list[tuple[bytearray, Ints]] = prepare(8192, 512, 100, 1)
    bench = StorageBench(directory, "async", 256)
    while bench.store.confirmed_position < mib << 20:
        bench.append([(bytearray(raw), sizes) for raw, sizes in made], 1, 64)
    bench.store.close()


def main(arguments: list[str] | None = None) -> int:
    """Run the three parts and print a line each."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.storage_beside", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="of each part")
    parser.add_argument("--rounds", type=int, default=5, help="turns of alone and beside")
    parser.add_argument("--interval-ms", type=float, default=2)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--mib", type=int, default=512, help="log that the cold readers read")
    parser.add_argument("--fsync-ms", type=float, default=200)
    parser.add_argument("--data", default=None, help="directory to work in (default: a temporary one)")
    options = parser.parse_args(arguments)
    shown_options = ", ".join(f"{k}={v}" for k, v in sorted(vars(options).items()))
    sys.stdout.write(
        f"storage beside bench: {shown_options}, batches of {HOT_RECORDS} records of topic {HOT}, "
    )
    sys.stdout.write(f"log of {TOPIC}; Python {platform.python_version()}, {os.cpu_count()} cores\n")
    prepare_interpreter()
    directory = tempfile.mkdtemp(prefix="holdmq-bench-", dir=options.data)
    interval_s = options.interval_ms / 1e3
    try:
        write_log(os.path.join(directory, "log"), options.mib)
        asyncio.run(
            beside_cold(
                os.path.join(directory, "log"), options.seconds, options.rounds, interval_s, options.readers
            )
        )
        asyncio.run(
            slow_fsync(os.path.join(directory, "slow"), options.seconds, interval_s, options.fsync_ms / 1e3)
        )
    finally:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
