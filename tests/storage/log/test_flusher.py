"""The second thread leaves the interpreter to the event loop."""

from __future__ import annotations

import queue
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Event

from any_disk import ANY_DISK
from watched_disk import WatchedDisk

from holdmq.config.model import StorageSection
from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.log.flusher import PART_RUNS_MAX, REST_MAX_S, WORK_S
from storage.log.store import LogStore, open_store

INTERVAL_S = 60
PARTS = 3


class NotedWaits(Event):
    """Notes how long it was to be waited for; `is_idle`: for an interval's end, now."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []
        self.is_idle = Event()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        if timeout > REST_MAX_S:
            self.is_idle.set()
        return super().wait(timeout)


def appended(store: LogStore, posted: queue.SimpleQueue[Callable[[], object]], batches: int) -> None:
    """Append batches of one record each, confirmed."""
    raw, sizes = encode_batch(b"devices", 0, [b"21"], b"", 5)
    answers: list[object] = []
    for _ in range(batches):
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun("devices", 0, 1)])
        store.append(batch, lambda _batch, error: answers.append(error))
    while len(answers) < batches:
        posted.get(timeout=40)()
    assert answers == [None] * batches


def waits_while_indexing(directory: Path, look_s: float) -> list[float]:
    """How long the flusher waits while it indexes PARTS parts, and then for its next step.

    Each look at its clock is `look_s` after the one before.
    """
    posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
    settings = StorageSection.model_validate(
        {"data_dir": str(directory / "store"), "flush_interval_ms": INTERVAL_S * 1000, **ANY_DISK}
    )
    looks = count()
    store = open_store(settings, "b1", lambda _: 1, posted.put, disk=WatchedDisk())
    # Its own clock: how often other threads look at theirs is not known.
    store.flusher._clock = lambda: next(looks) * look_s
    noted = store.flusher.wake = NotedWaits()
    store.open()
    try:
        assert noted.is_idle.wait(40)
        appended(store, posted, PARTS * PART_RUNS_MAX)
        noted.is_idle.clear()
        noted.waits_s.clear()
        noted.set()
        assert noted.is_idle.wait(40)
        assert store.flusher.indexed == store.confirmed_position
        return [wait_s for wait_s in noted.waits_s if wait_s > 0]
    finally:
        store.close()


def test_indexing_rests_after_each_part_of_its_work_and_keeps_its_interval(tmp_path: Path) -> None:
    *rests_s, interval_s = waits_while_indexing(tmp_path, WORK_S * 2)
    assert len(rests_s) >= PARTS
    assert max(rests_s) <= REST_MAX_S
    # What the step took is not added to the interval.
    assert interval_s < INTERVAL_S - PARTS * WORK_S


def test_indexing_does_not_rest_beyond_half_of_its_interval(tmp_path: Path) -> None:
    *rests_s, _ = waits_while_indexing(tmp_path, INTERVAL_S / 10)
    assert 1 <= len(rests_s) < PARTS
