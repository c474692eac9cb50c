"""How long the event loop stands still while fsync takes 200 ms.

    python -m loadtest.bench.stall --seconds 10 --fsync-ms 200

A store on a disk whose every fsync is slowed to `--fsync-ms` lives beside an event loop that appends
`--rate` batches a second, reads each back from memory and asks for a call every millisecond. A stall is
how much later than asked that call came. One row without a store tells what the machine does anyway.
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
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.files.disk import (
    OpenFile,
    RealDisk,
    RealFile,
)
from holdmq.record.batch import encode_batch
from holdmq.service.interpreter import prepare_interpreter
from storage.api.store import (
    Batch,
    BatchRun,
)
from storage.log.store import LogStore, open_store

TOPIC: Final = "bench"
PROBE_S: Final = 0.001
WARM_S: Final = 1.0


class StallingFile(RealFile):
    """A file of a disk that takes its time for fsync."""

    __slots__ = ("delay_s", "disk")

    def __init__(self, file: RealFile, disk: StallingDisk) -> None:
        super().__init__(file.fd, file.path)
        self.disk = disk

    def sync(self) -> None:
        self.disk.wait()
        super().sync()


class StallingDisk(RealDisk):
    """The real disk, `delay_s` slower at every fsync once `is_slow`."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.is_slow = False
        self.waits = 0

    def wait(self) -> None:
        if self.is_slow:
            self.waits += 1
            time.sleep(self.delay_s)

    def open(self, path: Path, create: bool = False) -> OpenFile:
        file = super().open(path, create)
        assert isinstance(file, RealFile)
        return StallingFile(file, self)

    def create_anew(self, path: Path) -> OpenFile:
        file = super().create_anew(path)
        assert isinstance(file, RealFile)
        return StallingFile(file, self)

    def sync_directory(self, directory: Path) -> None:
        self.wait()
        super().sync_directory(directory)

    def sync_all(self, directory: Path) -> None:
        self.wait()
        super().sync_all(directory)


class StallLoad:
    """Appends at a steady rate, and reads what was confirmed."""

    def __init__(self, store: LogStore, rate: int, batch_records: int, body_bytes: int) -> None:
        self._store = store
        self._interval_s = 1 / rate
        made = [os.urandom(body_bytes)] * batch_records
        self._raw, self._sizes = encode_batch(TOPIC.encode(), 0, made, b"TAGS\x011/temp\x02", 1)
        self.confirmed = 0

    async def run(self, seconds: float) -> None:
        begin = time.monotonic()
        appended = 0
        while (now := time.monotonic()) < begin + seconds:
            while appended * self._interval_s < now - begin:
                batch = Batch(
                    memoryview(bytearray(self._raw)), self._sizes, [BatchRun(TOPIC, 0, len(self._sizes))]
                )
                self._store.append(batch, self._answered)
                appended += 1
                # As a broker does between two requests: the loop sees to everything else.
                await asyncio.sleep(0)
            await asyncio.sleep(self._interval_s)

    def _answered(self, batch: Batch, error: StorageError | None) -> None:
        if error is not None:
            raise error
        self.confirmed += len(batch.sizes)
        run = batch.runs[0]
        self._store.read_queue(TOPIC, 0, 0, run.base_offset, 1 << 20, run.count)


async def probe(stalls: list[float], seconds: float) -> None:
    """Ask for a call every millisecond; note how much too late each came, in seconds."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    end = time.perf_counter() + seconds
    asked = time.perf_counter()

    def called() -> None:
        nonlocal asked
        now = time.perf_counter()
        stalls.append(max(0.0, now - asked - PROBE_S))
        if now >= end:
            done.set_result(None)
            return
        asked = now
        loop.call_later(PROBE_S, called)

    loop.call_later(PROBE_S, called)
    await done


def row(name: str, stalls: list[float], records: float, waits: int) -> str:
    """A row of the table, times in ms."""
    ordered = sorted(stalls)

    def at(part: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3

    times = " ".join(f"{each:>8.2f}" for each in (at(0.5), at(0.99), at(0.999), ordered[-1] * 1e3))
    return f"{name:>10} {len(ordered):>7} {times} {records:>10,.0f} {waits:>7}\n"


async def measure(flush: str, options: argparse.Namespace) -> str:
    """One row: a store under load, its fsyncs slowed."""
    directory = tempfile.mkdtemp(prefix="holdmq-bench-", dir=options.data)
    loop = asyncio.get_running_loop()
    settings = StorageSection.model_validate(
        {
            "data_dir": directory,
            "flush": flush,
            "segment_size_bytes": options.segment_mib << 20,
            "disk_early_percent": 100,
            "disk_forced_percent": 100,
            "disk_refuse_percent": 100,
        }
    )
    disk = StallingDisk(options.fsync_ms / 1e3)
    post: Callable[[Callable[[], object]], object] = loop.call_soon_threadsafe
    store = open_store(settings, "bench", lambda _: 1, post, disk=disk)
    await asyncio.to_thread(store.open)
    try:
        load = StallLoad(store, options.rate, options.batch_records, options.body_bytes)
        disk.is_slow = True
        stalls: list[float] = []
        running = asyncio.ensure_future(load.run(options.seconds + WARM_S))
        await asyncio.sleep(WARM_S)
        before = load.confirmed
        await probe(stalls, options.seconds)
        records = (load.confirmed - before) / options.seconds
        await running
        return row(flush, stalls, records, disk.waits)
    finally:
        disk.is_slow = False
        await asyncio.to_thread(store.close)
        shutil.rmtree(directory)


async def run(options: argparse.Namespace) -> None:
    out = sys.stdout.write
    times = " ".join(f"{each:>8}" for each in ("p50 ms", "p99", "p99.9", "max"))
    out(f"{'':>10} {'probes':>7} {times} {'records/s':>10} {'fsyncs':>7}\n")
    stalls: list[float] = []
    await probe(stalls, options.seconds)
    out(row("no store", stalls, 0, 0))
    for flush in ("async", "sync"):
        out(await measure(flush, options))


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.stall", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row")
    parser.add_argument("--fsync-ms", type=float, default=200.0)
    parser.add_argument("--rate", type=int, default=1000, help="batches per second")
    parser.add_argument("--batch-records", type=int, default=8)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--segment-mib", type=int, default=16, help="small: segments are made during the run")
    parser.add_argument("--data", default=None, help="directory to work in (default: a temporary one)")
    options = parser.parse_args(arguments)
    shown = ", ".join(f"{key}={value}" for key, value in sorted(vars(options).items()))
    sys.stdout.write(f"stall bench: {shown}; Python {platform.python_version()}, {os.cpu_count()} cores\n")
    prepare_interpreter()
    uvloop.run(run(options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
