"""The timer alone: memory and lateness with many pending messages, and many due in one second.

    python -m loadtest.bench.timer --pending 1000000 --due 10000

Schedules `--pending` messages of `--body-bytes` bytes, spread over `--spread-s` from an hour on, then
`--due` more that are due in the course of one second, and prints how late each came (StoreTimestamp
minus due time) and what the pending ones cost in memory. The log's own caches have bounds of their own
and are small here (tail 1 MiB, chunks 4 MiB), and growth is measured after the first 10,000 messages: what
is printed is the timer's, its highest while messages are scheduled, and what stays. "schedule" is what
`MessageTimer.schedule` does with encoded records, until all are confirmed.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

import numpy as np

from holdmq.record.batch import Ints
from holdmq.record.codec import decode_record, encode_record
from holdmq.service.interpreter import prepare_interpreter
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.bench.harness.store import StoreBench
from loadtest.figures import quantile
from storage.api.timer import DelayedRecord
from storage.log.store import now_ms

TOPIC = b"bench"
BATCH = 500
RSS_EVERY = 50
"""Batches between two looks at the memory that is used."""


class TimerBench(StoreBench):
    """A store whose own caches are small: what grows is the timer's."""

    def __init__(self, directory: Path, flush: str) -> None:
        super().__init__(directory, flush=flush, tail_cache_bytes=1 << 20, chunk_cache_bytes=4 << 20)
        self.rss_max_mib = 0.0

    def schedule(self, dues: Ints, body: bytes, window: int = 16) -> None:
        """Schedule a message for every due time, in batches."""
        record = encode_record(TOPIC, 0, body, b"TAGS\x01t\x02", now_ms())
        asked = self.answered
        for first in range(0, len(dues), BATCH):
            messages = [DelayedRecord(record, due) for due in dues[first : first + BATCH].tolist()]
            self.store.timer.schedule(messages, self.note_answer)
            asked += 1
            self.run(lambda wanted=asked - window: self.answered >= wanted)  # type: ignore[misc]
            if asked % RSS_EVERY == 0:
                self.rss_max_mib = max(self.rss_max_mib, rss_mib())
        self.run(lambda: self.answered >= asked)

    def settle(self) -> None:
        """Until everything that is pending has come to its file."""
        timer = self.store.timer
        self.run(lambda: timer.follower.position >= self.store.confirmed_position, 300)
        self.run(lambda: self.store.numbers()["timer_unwritten_entries"] < 70_000, 300)

    def reopen(self) -> float:
        """Close and open again; seconds until the timer knows everything."""
        self.store.close()
        begin = time.perf_counter()
        self.store = self._open()
        self.settle()
        return time.perf_counter() - begin

    def lateness(self, wanted: int) -> list[int]:
        """How late each released message is, in ms, once there are so many."""
        self.run(lambda: self.store.bounds("bench", 0)[1] >= wanted, 120)
        found: list[int] = []
        position = 0
        self.run(lambda: self.store.numbers()["indexed_position"] >= self.store.confirmed_position)
        offset = 0
        while offset < wanted:
            read = self.store.read_queue_cold("bench", 0, 0, offset, 8 << 20, 1 << 20)
            offset = read.next_offset
            raw = b"".join(read.parts)
            position = 0
            while position < len(raw):
                record = decode_record(raw, position)
                position += record.total_size
                due = int(record.properties.split(b"DUE\x01")[1].split(b"\x02")[0])
                found.append(record.store_ms - due)
        return sorted(found)


def spread(first_ms: int, over_ms: int, count: int) -> Ints:
    """Due times, evenly spread. An array: a million ints in a list would be 40 MiB of the growth."""
    times: Ints = first_ms + (np.arange(count) * (over_ms / max(1, count))).astype(np.int64)
    return times


def rss_mib() -> float:
    """Resident memory of this process that is no file's, in MiB."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) / 1024


def measure(options: Options, home: Path) -> None:
    """Print what pending messages take, and how late due ones are."""
    prepare_interpreter()
    body = os.urandom(options.body_bytes)
    bench = TimerBench(home, options.flush)
    try:
        bench.schedule(np.full(10_000, now_ms() + 7_200_000), body)
        dues = spread(now_ms() + 3_600_000, options.spread_s * 1000, options.pending)
        before = bench.rss_max_mib = rss_mib()
        begin = time.perf_counter()
        bench.schedule(dues, body)
        scheduled_s = time.perf_counter() - begin
        bench.rss_max_mib = max(bench.rss_max_mib, rss_mib())
        bench.settle()
        known_s = time.perf_counter() - begin
        say(f"schedule: {options.pending / scheduled_s:,.0f}/s; known after {known_s:.1f} s")
        gc.collect()
        kept, highest = rss_mib() - before, bench.rss_max_mib - before
        replays = bench.store.numbers()["timer_replays_total"]
        say(
            f"memory of {options.pending:,} pending: {kept:.1f} MiB, at most {highest:.1f} MiB "
            f"while they came; the timer fell behind and read the log again {replays:.0f} times"
        )
        wanted = options.due * options.seconds
        bench.schedule(spread(now_ms() + 3_000, options.seconds * 1000, wanted), body)
        late = bench.lateness(wanted)
        figures = ", ".join(
            f"p{share * 100:g} {quantile(late, share):.0f} ms" for share in (0.5, 0.99, 0.999)
        )
        say(f"lateness of {len(late):,}: {figures}, max {late[-1]} ms, min {late[0]} ms")
        say(f"clean restart with {bench.store.timer.pending:,} pending: {bench.reopen():.2f} s")
        say(f"memory after it: {rss_mib() - before:.1f} MiB")
    finally:
        bench.store.close()


def main() -> int:
    """Run the benchmark and print its figures; the exit code."""
    command = BenchCommand(
        __doc__,
        pending=(1_000_000, "messages that wait meanwhile"),
        due=(10_000, "messages due in one second"),
        seconds=(3, "such seconds, one after the other"),
        spread_s=(3600, "the pending ones' due times, from an hour on"),
        body_bytes=100,
    )
    command.add("--flush", choices=("async", "sync"), default="async")
    return command.run(measure)


if __name__ == "__main__":
    sys.exit(main())
