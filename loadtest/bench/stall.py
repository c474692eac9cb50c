"""How long the event loop stands still while fsync takes 200 ms.

    python -m loadtest.bench.stall --seconds 10 --fsync-ms 200

A store on a disk whose every fsync is slowed to `--fsync-ms` lives beside an event loop that appends
`--rate` batches a second, reads each back from memory and asks for a call every millisecond. A stall is
how much later than asked that call came. One row without a store tells what the machine does anyway.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from holdmq.errors import StorageError
from holdmq.record.batch import encode_batch
from holdmq.service.interpreter import prepare_interpreter
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.bench.harness.store import SlowDisk, close_off_loop, open_on_loop, probe_loop
from loadtest.figures import quantile
from storage.api.batches import Batch, BatchRun
from storage.log.store import LogStore

TOPIC: Final = "bench"
WARM_S: Final = 1.0


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


def row(name: str, stalls: Sequence[float], records: float, waits: int) -> None:
    """Print a row of the table, times in ms."""
    ordered = sorted(stalls)
    times = " ".join(f"{quantile(ordered, share) * 1e3:>8.2f}" for share in (0.5, 0.99, 0.999, 1))
    say(f"{name:>10} {len(ordered):>7} {times} {records:>10,.0f} {waits:>7}")


async def measure_store(flush: str, options: Options, directory: Path) -> None:
    """Print one row: a store under load, its fsyncs slowed."""
    disk = SlowDisk(options.fsync_ms / 1e3)
    store = await open_on_loop(
        directory,
        disk,
        flush=flush,
        segment_size_bytes=options.segment_mib << 20,
        disk_early_percent=100,
        disk_forced_percent=100,
        disk_refuse_percent=100,
    )
    try:
        load = StallLoad(store, options.rate, options.batch_records, options.body_bytes)
        running = asyncio.ensure_future(load.run(options.seconds + WARM_S))
        await asyncio.sleep(WARM_S)
        before = load.confirmed
        stalls = await probe_loop(options.seconds)
        records = (load.confirmed - before) / options.seconds
        await running
        row(flush, stalls, records, disk.waits)
    finally:
        await close_off_loop(store, disk)


async def run(options: Options, home: Path) -> None:
    times = " ".join(f"{each:>8}" for each in ("p50 ms", "p99", "p99.9", "max"))
    say(f"{'':>10} {'probes':>7} {times} {'records/s':>10} {'fsyncs':>7}")
    row("no store", await probe_loop(options.seconds), 0, 0)
    for flush in ("async", "sync"):
        await measure_store(flush, options, home / flush)


def measure(options: Options, home: Path) -> None:
    """Print a row for each kind of flush."""
    prepare_interpreter()
    uvloop.run(run(options, home))


def main() -> int:
    """Run the benchmark and print its table; the exit code."""
    return BenchCommand(
        __doc__,
        seconds=(10.0, "of each row"),
        fsync_ms=200.0,
        rate=(1000, "batches per second"),
        batch_records=8,
        body_bytes=100,
        segment_mib=(16, "small: segments are made during the run"),
    ).run(measure)


if __name__ == "__main__":
    sys.exit(main())
