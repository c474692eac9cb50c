"""How long a store takes to open: a long log after a kill with nothing in the page cache, and many queues.

    python -m loadtest.bench.storage_open --full

A process of its own writes the log (`--gib` GiB, the last segment full, the next one made) and is killed;
the log's pages are dropped from memory, so that the start reads everything from the disk. Then a
store of `--queues` queues is opened, after a clean close and after a kill. `--full` is the size that
the project promises something for: 10 GiB in at most 2 s.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from holdmq.record.batch import encode_batch
from holdmq.service.memory import memory_used
from loadtest.bench.storage import TOPIC, StorageBench, prepare
from storage.api.store import (
    Batch,
    BatchRun,
)

MIB = 1 << 20
QUICK_GIB = 1
FULL_GIB = 10
SMALL_RECORDS_BYTES = 256 * MIB
"""The end of the log, which a start may scan, has records of 100 bytes; what is before is written faster."""
IN_FLIGHT = 16
READY = b"written\n"


def write_log(directory: str, gib: float, segment_mib: int) -> None:
    """Fill the log up to its last segment's end, say so, and wait for the kill."""
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
            Batch(memoryview(bytearray(raw)), sizes, [BatchRun(TOPIC, sent % 4, len(sizes))]), bench.confirmed
        )
        sent += 1
        while sent - bench.done >= IN_FLIGHT:
            bench.posted.get()()
    while sent > bench.done:
        bench.posted.get()()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    signal.pause()


def write_queues(directory: str, queues: int) -> None:
    """One record in each of many queues."""
    bench = StorageBench(directory, "async", 16)
    for first in range(0, queues, 100):
        ids = range(first, min(first + 100, queues))
        parts = [encode_batch(b"t%d" % (i % 100), i // 100, [bytes(20)]) for i in ids]
        runs = [BatchRun(f"t{i % 100}", i // 100, 1) for i in ids]
        sizes = np.concatenate([sizes for _, sizes in parts])
        raw = bytearray(b"".join(raw for raw, _ in parts))
        bench.store.append(Batch(memoryview(raw), sizes, runs), bench.confirmed)
    while bench.done < -(-queues // 100):
        bench.posted.get()()
    bench.store.close()


def forget_pages(directory: str) -> None:
    """Drop the store's files from the page cache, as after a restart of the machine."""
    for path in Path(directory).rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def open_seconds(directory: str, segment_mib: int) -> tuple[float, StorageBench]:
    begin = time.perf_counter()
    bench = StorageBench(directory, "async", segment_mib)
    return time.perf_counter() - begin, bench


def bench_log(directory: str, gib: float, segment_mib: int) -> None:
    out = sys.stdout.write
    command = [sys.executable, "-m", "loadtest.bench.storage_open", "--write", directory]
    command += ["--gib", str(gib), "--segment-mib", str(segment_mib)]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:  # noqa: S603 # this Python, itself
        assert writer.stdout is not None
        ready = writer.stdout.readline()
        writer.kill()
    if ready != READY:
        raise SystemExit("the log could not be written")
    wrote_s = time.perf_counter() - begin
    forget_pages(directory)
    elapsed, bench = open_seconds(directory, segment_mib)
    numbers = bench.store.numbers()
    out(f"unclean open, cold cache: {elapsed:.2f} s for {numbers['confirmed_position'] / 2**30:.2f} GiB, ")
    out(f"{numbers['segments']:.0f} segments (written in {wrote_s:.0f} s)\n")
    bench.store.close()


def bench_queues(directory: str, queues: int) -> None:
    out = sys.stdout.write
    write_queues(directory, queues)
    before = memory_used()
    clean, bench = open_seconds(directory, 16)
    grown = memory_used() - before
    files = len(os.listdir("/proc/self/fd"))
    bench.store.close()
    (Path(directory) / "clean").unlink()
    unclean, bench = open_seconds(directory, 16)
    bench.store.close()
    out(f"{queues} queues: clean open {clean:.2f} s, unclean open {unclean:.2f} s, ")
    out(f"{grown / MIB:.1f} MiB more resident, {files} open files\n")


def main(arguments: list[str] | None = None) -> int:
    """Run both, or with `--write` be the process that writes the log."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.storage_open", description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"{FULL_GIB} GiB instead of {QUICK_GIB}")
    parser.add_argument("--gib", type=float, default=0, help="size of the log (default: as --full says)")
    parser.add_argument("--segment-mib", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--data", default=None, help="directory to work in (default: a temporary one)")
    parser.add_argument("--write", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    gib = options.gib or (FULL_GIB if options.full else QUICK_GIB)
    if options.write is not None:
        write_log(options.write, gib, options.segment_mib)
    parameters = f"gib={gib}, segment_mib={options.segment_mib}, queues={options.queues}"
    sys.stdout.write(f"storage open bench: {parameters}; Python {platform.python_version()}, ")
    sys.stdout.write(f"{os.cpu_count()} cores\n")
    directory = tempfile.mkdtemp(prefix="holdmq-bench-", dir=options.data)
    try:
        needed = int((gib + 2) * 2**30 * 1.2)
        if shutil.disk_usage(directory).free < needed:
            raise SystemExit(f"{directory} needs {needed >> 30} GiB free; set --data or a smaller --gib")
        bench_log(os.path.join(directory, "log"), gib, options.segment_mib)
        shutil.rmtree(os.path.join(directory, "log"))
        bench_queues(os.path.join(directory, "queues"), options.queues)
    finally:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
