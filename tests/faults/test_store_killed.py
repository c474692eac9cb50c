"""kill -9 of a store under load, again and again, with retention, delayed messages and tables at work.

What was acknowledged is stored, in its place, whole and indexed; what was delayed is released once; a
row is never older than what was said of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from typing import NamedTuple, Self
from zlib import crc32

import pytest
import store_under_load
from store_under_load import LATE, QUEUES, TABLE, new_store, settings_of

from holdmq.errors import StorageError
from holdmq.record.codec import VERIFY_ALL, decode_record
from storage.api.batches import Batch
from storage.api.queues import ReadStatus
from storage.log.store import LogStore

ROUNDS = 50
ROUNDS_PER_CHECK = 10


class Ack(NamedTuple):
    position: int
    size: int
    crc: int
    queue_id: int
    base_offset: int


class Victim:
    """The process that forks stores, and what they have said."""

    def __init__(self, directory: Path, flush: str) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, store_under_load.__file__, str(directory), flush],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.acks: list[Ack] = []
        self.delayed: list[tuple[int, int]] = []
        self.rows: dict[int, int] = {}
        self.epochs: list[int] = []
        self.first_positions: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._in.close()
        self._out.close()
        self._process.wait(40)

    def round(self, delay_s: float, is_opening_awaited: bool) -> None:
        """Start a store and kill it after `delay_s`, counted from its opening or from its birth."""
        self._in.write("\n")
        self._in.flush()
        pid = int(self._out.readline().split()[1])
        is_dead = is_opening_awaited and self._heard()
        assert not is_dead, "it died by itself"
        time.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)
        while not self._heard():
            pass

    def _heard(self) -> bool:
        """One line; True = the child is dead."""
        what, *rest = self._out.readline().split()
        numbers = [int(word) for word in rest]
        if what == "ack":
            self.acks.append(Ack(*numbers))
        elif what == "open":
            self.epochs.append(numbers[0])
            self.first_positions.append(numbers[1])
        elif what == "delayed":
            self.delayed.append((numbers[0], numbers[1]))
        elif what == "put":
            self.rows[numbers[0]] = numbers[1]
        return what == "dead"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("flush", "rounds"), [("async", ROUNDS), ("sync", ROUNDS // 5)])
def test_nothing_acknowledged_is_lost_by_kill_9_however_often(
    tmp_path: Path, flush: str, rounds: int
) -> None:
    chance = Random(9)
    with Victim(tmp_path / "store", flush) as victim:
        for number in range(1, rounds + 1):
            is_opening_awaited = number == 1 or chance.random() < 0.8
            victim.round(
                chance.uniform(0.02, 0.3) if is_opening_awaited else chance.uniform(0, 0.03),
                is_opening_awaited,
            )
            if number % ROUNDS_PER_CHECK == 0:
                shutil.copytree(tmp_path / "store", tmp_path / "copy")
                check(tmp_path / "copy", flush, victim)
                shutil.rmtree(tmp_path / "copy")
        for seconds in range(1, 9):
            # What is due to go is copied first, which a slow machine does not finish between two kills.
            if victim.first_positions[-1] > victim.first_positions[0] and len(victim.acks) > rounds * 20:
                break
            victim.round(seconds, True)
    assert len(victim.acks) > rounds * 20
    assert victim.epochs == sorted(set(victim.epochs)), "each start after a kill begins an epoch"
    assert victim.first_positions[-1] > victim.first_positions[0], "retention was at work"


def check(directory: Path, flush: str, victim: Victim) -> None:
    """Open a copy of what the kill left, and compare it with what was said."""
    settings = settings_of(directory, flush).model_copy(update={"retention_segments": 0})
    posted: SimpleQueue[Callable[[], object]] = SimpleQueue()
    store = new_store(settings, posted.put)
    store.open()
    try:
        end = store.confirmed_position
        batches = read_all(store, end)
        starts = [batch.position for batch in batches]
        assert victim.acks[-1].position < end
        for ack in victim.acks:
            if ack.position >= store.first_position:
                check_ack(ack, batches, starts)
        check_queues(store, batches)
        check_delayed(store, posted, victim.delayed)
        check_rows(store, end, posted, victim.rows)
    finally:
        store.close()


def run_until(
    posted: SimpleQueue[Callable[[], object]], holds: Callable[[], bool], what: str, timeout_s: float = 100.0
) -> None:
    """Be the store's event loop until `holds`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what
        try:
            posted.get(timeout=0.02)()
        except Empty:
            continue


def check_delayed(
    store: LogStore, posted: SimpleQueue[Callable[[], object]], delayed: list[tuple[int, int]]
) -> None:
    """All that retention has not taken is released, and nothing twice."""
    wanted = {number for position, number in delayed if position >= store.first_position}
    seen: list[int] = []
    offset = store.bounds(LATE, 0)[0]

    def is_all_released() -> bool:
        nonlocal offset
        while offset < store.bounds(LATE, 0)[1]:
            read = store.read_queue(LATE, 0, 0, offset, 1 << 20, 1000)
            if read is None:
                read = store.read_queue_cold(LATE, 0, 0, offset, 1 << 20, 1000)
            if read.next_offset == offset:
                return False
            for part in read.parts:
                seen.extend(numbers_of(part))
            offset = read.next_offset
        return wanted <= set(seen)

    run_until(posted, is_all_released, "delayed messages are released")
    assert len(wanted) > 0
    assert len(seen) == len(set(seen)), "none is released twice"


def numbers_of(part: memoryview) -> Iterator[int]:
    at = 0
    while at < len(part):
        record = decode_record(part, at, VERIFY_ALL)
        at += record.total_size
        yield int(bytes(record.body))


def check_rows(
    store: LogStore, end: int, posted: SimpleQueue[Callable[[], object]], rows: dict[int, int]
) -> None:
    """Each row is what was said of it, or what was stored later and not yet said."""
    tables = store.tables
    assert tables is not None
    assert rows
    applied: list[StorageError | None] = []
    tables.wait_applied(end, applied.append)
    run_until(posted, lambda: bool(applied), "the tables are applied")
    assert applied == [None]
    for key, number in rows.items():
        row = tables.get(TABLE, f"k{key}")
        assert row is not None, f"k{key} is gone"
        assert int(row.value) >= number


def read_all(store: LogStore, end: int) -> list[Batch]:
    """The log up to where it ended when the store was opened: the timer goes on appending."""
    batches: list[Batch] = []
    position = store.first_position
    while position < end:
        read = store.read_log(position, 8 << 20)
        if not read:
            break
        batches += read
        position = read[-1].end
    return batches


def check_ack(ack: Ack, batches: list[Batch], starts: list[int]) -> None:
    batch = batches[bisect_right(starts, ack.position) - 1]
    begin = ack.position - batch.position
    raw = bytes(batch.records[begin : begin + ack.size])
    at = bisect_right(starts, ack.position)
    while len(raw) < ack.size:  # read in more than one piece
        raw += bytes(batches[at].records[: ack.size - len(raw)])
        at += 1
    assert crc32(raw) == ack.crc, ack


def check_queues(store: LogStore, batches: list[Batch]) -> None:
    """Offsets are dense, there are as many as the log has, and every queue reads to its end."""
    entries = dict.fromkeys(range(QUEUES), 0)
    following: dict[int, int] = {}
    for batch in batches:
        for run in batch.runs:
            if run.topic != "devices":
                continue
            assert run.base_offset == following.get(run.queue_id, run.base_offset)
            following[run.queue_id] = run.base_offset + run.count
            entries[run.queue_id] += run.count
    for queue_id, end in following.items():
        first, known_end = store.bounds("devices", queue_id)
        assert (first, known_end) == (end - entries[queue_id], end)
        offset, seen = first, 0
        while offset < end:
            read = store.read_queue_cold("devices", queue_id, 0, offset, 1 << 20, 10_000)
            assert read.status == ReadStatus.FOUND
            assert read.next_offset == offset + read.count > offset
            offset, seen = read.next_offset, seen + read.count
        assert seen == entries[queue_id]
