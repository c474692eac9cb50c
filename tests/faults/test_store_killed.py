"""kill -9 of a store under load, again and again: acknowledged is stored, in place, whole, and indexed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from pathlib import Path
from random import Random
from typing import NamedTuple, Self
from zlib import crc32

import pytest
import store_under_load
from store_under_load import QUEUES, settings_of

from storage.log.store import LogStore, open_store
from storage.store import Batch, ReadStatus

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
        self.epochs: list[int] = []
        self.first_positions: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._in.close()
        self._out.close()
        self._process.wait(20)

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
        return what == "dead"


@pytest.mark.timeout(180)
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
                check(tmp_path / "copy", flush, victim.acks)
                shutil.rmtree(tmp_path / "copy")
    assert len(victim.acks) > rounds * 20
    assert victim.epochs == sorted(set(victim.epochs)), "each start after a kill begins an epoch"
    assert victim.first_positions[-1] > victim.first_positions[0], "retention was at work"


def check(directory: Path, flush: str, acks: list[Ack]) -> None:
    """Open a copy of what the kill left: compare log, queues and consume-queue files with the acks."""
    settings = settings_of(directory, flush).model_copy(update={"retention_segments": 0})
    store = open_store(settings, "b1", lambda _: 1, lambda _callback: None)
    store.open()
    try:
        batches = read_all(store)
        starts = [batch.position for batch in batches]
        assert acks
        assert acks[-1].position < store.confirmed_position
        for ack in acks:
            if ack.position >= store.first_position:
                check_ack(ack, batches, starts)
        check_queues(store, batches)
    finally:
        store.close()


def read_all(store: LogStore) -> list[Batch]:
    batches: list[Batch] = []
    position = store.first_position
    while position < store.confirmed_position:
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
