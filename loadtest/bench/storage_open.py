"""How long a store takes to open: a long log after a kill with nothing in the page cache, and many queues.

    python -m loadtest.bench.storage_open --full

A process of its own writes the log (`--gib` GiB, the last segment full, the next one made) and is killed;
the log's pages are dropped from memory, so that the start reads everything from the disk. Then a
store of `--queues` queues is opened, after a clean close and after a kill. `--full` is the size that
the project promises something for: 10 GiB in at most 2 s.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from holdmq.errors import StartupError
from holdmq.record.batch import encode_batch
from holdmq.service.memory import memory_used
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.bench.storage import TOPIC, StorageBench, prepare
from loadtest.child import ChildProcess
from storage.api.batches import Batch, BatchRun

MIB = 1 << 20
QUICK_GIB = 1
FULL_GIB = 10
SMALL_RECORDS_BYTES = 256 * MIB
"""The end of the log, which a start may scan, has records of 100 bytes; what is before is written faster."""
IN_FLIGHT = 16
WRITTEN_S = 3600.0
"""How long the log may take to be written."""


def write_log(pipe: Any, directory: Path, gib: float, segment_mib: int) -> None:
    """Fill the log up to its last segment's end, say so, and wait for the kill: a process of its own."""
    bench = StorageBench(directory, "async", segment_mib)
    large = [(bytes(raw), sizes) for raw, sizes in prepare(4 * 512, 512, 1000, 4)]
    small = [(bytes(raw), sizes) for raw, sizes in prepare(4 * 4096, 4096, 100, 4)]
    segments = max(1, round(gib * 1024 / segment_mib))
    end = segments * segment_mib * MIB - 2 * MIB
    sent = 0
    while bench.store.confirmed_position < end:
        made = small if bench.store.confirmed_position > end - SMALL_RECORDS_BYTES else large
        raw, sizes = made[sent % 4]
        bench.store.append(
            Batch(memoryview(bytearray(raw)), sizes, [BatchRun(TOPIC, sent % 4, len(sizes))]),
            bench.note_answer,
        )
        sent += 1
        while sent - bench.answered >= IN_FLIGHT:
            bench.posted.get()()
    while sent > bench.answered:
        bench.posted.get()()
    pipe.send("written")
    signal.pause()


def write_queues(directory: Path, queues: int) -> None:
    """One record in each of many queues."""
    bench = StorageBench(directory, "async", 16)
    for first in range(0, queues, 100):
        ids = range(first, min(first + 100, queues))
        parts = [encode_batch(b"t%d" % (i % 100), i // 100, [bytes(20)]) for i in ids]
        runs = [BatchRun(f"t{i % 100}", i // 100, 1) for i in ids]
        sizes = np.concatenate([sizes for _, sizes in parts])
        raw = bytearray(b"".join(raw for raw, _ in parts))
        bench.store.append(Batch(memoryview(raw), sizes, runs), bench.note_answer)
    while bench.answered < -(-queues // 100):
        bench.posted.get()()
    bench.store.close()


def forget_pages(directory: Path) -> None:
    """Drop the store's files from the page cache, as after a restart of the machine."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def open_seconds(directory: Path, segment_mib: int) -> tuple[float, StorageBench]:
    begin = time.perf_counter()
    bench = StorageBench(directory, "async", segment_mib)
    return time.perf_counter() - begin, bench


def bench_log(directory: Path, gib: float, segment_mib: int) -> None:
    begin = time.perf_counter()
    writer = ChildProcess(write_log, directory, gib, segment_mib)
    try:
        writer.told(WRITTEN_S)
    finally:
        writer.kill()
    wrote_s = time.perf_counter() - begin
    forget_pages(directory)
    elapsed, bench = open_seconds(directory, segment_mib)
    numbers = bench.store.numbers()
    say(
        f"unclean open, cold cache: {elapsed:.2f} s for {numbers['confirmed_position'] / 2**30:.2f} GiB, "
        f"{numbers['segments']:.0f} segments (written in {wrote_s:.0f} s)"
    )
    bench.store.close()


def bench_queues(directory: Path, queues: int) -> None:
    write_queues(directory, queues)
    before = memory_used()
    clean, bench = open_seconds(directory, 16)
    grown = memory_used() - before
    files = len(os.listdir("/proc/self/fd"))
    bench.store.close()
    (directory / "clean").unlink()
    unclean, bench = open_seconds(directory, 16)
    bench.store.close()
    say(
        f"{queues} queues: clean open {clean:.2f} s, unclean open {unclean:.2f} s, "
        f"{grown / MIB:.1f} MiB more resident, {files} open files"
    )


def measure(options: Options, home: Path) -> None:
    """Open a long log, and then a store of many queues."""
    gib = options.gib or (FULL_GIB if options.full else QUICK_GIB)
    needed = int((gib + 2) * 2**30 * 1.2)
    if shutil.disk_usage(home).free < needed:
        raise StartupError(f"{home} needs {needed >> 30} GiB free; set --data or a smaller --gib")
    bench_log(home / "log", gib, options.segment_mib)
    shutil.rmtree(home / "log")
    bench_queues(home / "queues", options.queues)


def main() -> int:
    """Run the benchmark and print its lines; the exit code."""
    return BenchCommand(
        __doc__,
        full=(False, f"{FULL_GIB} GiB instead of {QUICK_GIB}"),
        gib=(0.0, "size of the log (default: as --full says)"),
        segment_mib=1024,
        queues=10_000,
    ).run(measure)


if __name__ == "__main__":
    sys.exit(main())
