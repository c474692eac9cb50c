"""The event loop's side of the log's end: stamps batches, and makes visible what was written.

Batches go from here to the writer thread and come back in groups, in log order; the gate says which of
them readers may see. Source: storage.md, Append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final, Protocol

import numpy as np
import structlog

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError, StoreFullError
from holdmq.record.codec import BLANK_SIZE_MIN
from storage.api.batches import Appended, Batch, Confirmed
from storage.api.store import Backlog
from storage.core.queues import Queue, confirm_runs
from storage.core.stamper import Stamper
from storage.core.tail import Tail
from storage.log.core.names import place
from storage.log.failures import FULL_HINT
from storage.log.flusher import Flusher
from storage.log.writer import ANY_GENERATION, Pending, Writer

INDEX_WAKE_BYTES: Final = 8 << 20
"""Confirmed bytes whose entries are not yet in files: past it the flusher does not wait its interval."""
INDEX_LAG_MAX_BYTES: Final = 256 << 20
"""Memory past the tail's bound that batches without index files may take before appends are refused."""
CONFIRM_BATCHES_MAX: Final = 32
"""Batches confirmed in one turn of the loop: behind a slow fsync a thousand queue, with a callback each."""
PREPARE_PART: Final = 4
"""The next segment is made when a quarter of the ongoing one is left."""

Post = Callable[[Callable[[], object]], object]

log = structlog.get_logger("holdmq.storage")


class Gate(Protocol):
    """Decides which of the written batches readers may see. Called on the loop."""

    def cached(self, group: list[Pending]) -> None:
        """These are in the disk's cache; under sync, they are about to be fsynced."""

    def written(self, group: list[Pending]) -> None:
        """These were written, under sync fsynced."""

    def free(self, waiting: deque[Pending]) -> int:
        """How many of the written batches, from the first on, may be made visible."""

    def shown(self, tail_start: int) -> None:
        """Batches were made visible; the log's newest ones are in memory from `tail_start` on."""

    def took_back(self, error: StorageError) -> None:
        """What was not written has been refused: the log ends at what is."""

    def outcome(self, error: StorageError) -> StorageError:
        """What an appender is told whose batch was refused because of `error`."""


class OpenGate:
    """The gate of a log that has no copies: what is written is confirmed."""

    def cached(self, group: list[Pending]) -> None:
        """There are no copies to have them."""

    def written(self, group: list[Pending]) -> None:
        """There are no copies to wait for."""

    def free(self, waiting: deque[Pending]) -> int:
        return len(waiting)

    def shown(self, tail_start: int) -> None:
        """There are no copies to tell."""

    def took_back(self, error: StorageError) -> None:
        """There are no copies that have seen it."""

    def outcome(self, error: StorageError) -> StorageError:
        return error


class LogAppends:
    """What of the log is in memory: queues, the newest batches, and those that are on their way to the disk.

    Everything is called on the loop, but for `open`.
    """

    def __init__(
        self,
        settings: StorageSection,
        writer: Writer,
        flusher: Flusher,
        gate: Gate,
        post: Post,
        clock_ms: Callable[[], int],
        subscribers: list[Confirmed],
    ) -> None:
        self.confirmed_position = 0
        self.queues: dict[tuple[str, int], Queue] = {}
        self.tail = Tail(0, settings.tail_cache_bytes)
        self.refusal: StorageError | None = StorageError("the store is not open", operation="append")
        self.not_leading: StorageError | None = None
        self.few_replicas: StorageError | None = None
        self.full: StorageError | None = None
        self.end = 0
        self.segment_end = 0
        self.store_ms = 0
        self.pending: deque[Pending] = deque()
        self.generation = 0
        self.appends = self.records = self.bytes = self.refused = self.rollbacks = 0
        self.refused_for_copies = 0
        self._store_id = b""
        self._settings = settings
        self._writer = writer
        self._flusher = flusher
        self._gate = gate
        self._post = post
        self._clock_ms = clock_ms
        self._subscribers = subscribers
        self._stamper = Stamper()
        self._waiting: deque[Pending] = deque()
        self._is_confirming = False
        self._pending_bytes = 0
        self._last_written = _nothing(0, 0, 0)
        self._confirmed_segment_end = 0
        self._prepared = 0

    def open(
        self, store_id: bytes, queues: list[Queue], confirmed: int, end: int, segment_end: int, store_ms: int
    ) -> None:
        """Begin at the log's end; `segment_end` is of the segment that holds it."""
        self._store_id = store_id
        self.queues.update({(queue.topic, queue.queue_id): queue for queue in queues})
        self.confirmed_position = confirmed
        self.end, self.store_ms = end, store_ms
        self.tail = Tail(confirmed, self._settings.tail_cache_bytes)
        self.segment_end = self._confirmed_segment_end = segment_end
        self._last_written = _nothing(end, segment_end, store_ms)

    @property
    def writing_ms(self) -> float:
        """How long the oldest batch waits that is not written; 0 = all are."""
        written = len(self._waiting)
        if len(self.pending) == written:
            return 0.0
        return (monotonic() - self.pending[written].queued_at) * 1e3

    def backlog(self) -> Backlog:
        """What waits for its confirmation."""
        if not self.pending:
            return Backlog(0, 0.0)
        return Backlog(self._pending_bytes, (monotonic() - self.pending[0].queued_at) * 1e3)

    def append(self, batch: Batch, done: Appended, refusal: StorageError | None, is_rolling: bool) -> None:
        """Stamp a batch and give it to the writer, unless there is a reason not to."""
        refusal = self.refusal or self.not_leading or self.few_replicas or refusal or self.lagging()
        size = len(batch.records)
        if refusal is None and size + BLANK_SIZE_MIN > self._settings.segment_size_bytes:
            refusal = StorageError(
                f"a batch of {size} bytes does not fit a segment",
                operation="append",
                hint="raise storage.segment_size_bytes",
            )
        if refusal is not None:
            self.refused += 1
            if refusal is self.few_replicas:
                self.refused_for_copies += len(batch.sizes)
            self._post(partial(done, batch, refusal))
            return
        position, blank_size = place(self.end, self.segment_end, size)
        if position != self.end or blank_size:
            self.segment_end = position + self._settings.segment_size_bytes
        store_ms = max(self.store_ms, self._clock_ms())
        self.store_ms = store_ms
        queues = self._stamp(batch, position, store_ms)
        self.end = position + size
        pending = Pending(
            batch, done, queues, blank_size, self.segment_end, self.generation, monotonic(), is_rolling
        )
        self.pending.append(pending)
        self._pending_bytes += size
        self._writer.put(pending)

    def _stamp(self, batch: Batch, position: int, store_ms: int) -> list[Queue]:
        """Give every record its offsets, provisionally, and every run its hashes."""
        batch.position = position
        batch.store_ms = store_ms
        queues: list[Queue] = []
        for run in batch.runs:
            key = (run.topic, run.queue_id)
            queue = self.queues.get(key)
            if queue is None:
                queue = self.queues[key] = Queue(run.topic, run.queue_id)
            queues.append(queue)
            run.base_offset = queue.stamped
            queue.stamped += run.count
        self._stamper.stamp(batch, self._store_id)
        return queues

    def put(self, pending: Pending) -> None:
        """Give the writer a batch that has its stamps, for the log's end."""
        self.end, self.segment_end = pending.batch.end, pending.segment_end
        self.pending.append(pending)
        self._pending_bytes += len(pending.batch.records)
        self._writer.put(pending)

    def lagging(self) -> StorageError | None:
        """The refusal when index files cannot be written and memory has no more room for it."""
        bound = self.tail.max_bytes + INDEX_LAG_MAX_BYTES
        if self.tail.size_bytes <= bound:
            return None
        # Confirmations evict, and there are none while everything is refused.
        self._evict()
        if self.tail.size_bytes <= bound:
            return None
        self._flusher.wake.set()
        return StoreFullError(
            "consume queues cannot be written as fast as records come",
            operation="append",
            path=self._settings.data_dir,
            hint=FULL_HINT,
        )

    def add_queue(self, key: tuple[str, int], following: int) -> None:
        """Have an empty queue that goes on at an offset, unless it is there."""
        if key not in self.queues:
            self.queues[key] = Queue(*key, following, following)

    def give_up(self, error: StorageError) -> None:
        """Tell who waits that nobody here will know whether it is stored; what was given stays in the log."""
        for item in list(self.pending):
            if not item.is_copied:
                done, item.done = item.done, _told
                done(item.batch, error)

    # What the writer has done

    def cached(self, group: list[Pending]) -> None:
        """Tell the gate what is in the disk's cache."""
        if group[0].generation == self.generation:
            self._gate.cached(group)

    def written(self, group: list[Pending]) -> None:
        """Confirm a written group as far as the gate lets it, a few batches in each turn of the loop."""
        if group[0].generation != self.generation:
            return  # refused meanwhile: the store has become read-only
        self._last_written = group[-1]
        self._waiting.extend(group)
        self._gate.written(group)
        self.go_on()

    def go_on(self) -> None:
        """Confirm what the gate lets through by now."""
        if not self._is_confirming:
            self._confirm_some()

    def _confirm_some(self) -> None:
        waiting = self._waiting
        free = self._gate.free(waiting)
        if free:  # a refusal may have had to wait for all of it
            self._make_visible([waiting.popleft() for _ in range(min(CONFIRM_BATCHES_MAX, free))])
            self._gate.shown(self.tail.first_position)
        self._is_confirming = free > CONFIRM_BATCHES_MAX
        if self._is_confirming:
            self._post(self._confirm_some)

    def _make_visible(self, group: list[Pending]) -> None:
        """Let readers see written batches, then tell their appenders."""
        self.full = None
        for item in group:
            self.pending.popleft()
            self._pending_bytes -= len(item.batch.records)
        self.appends += len(group)
        self._confirmed_segment_end = group[-1].segment_end
        self.show(group, group[-1].batch.end)
        for item in group:
            item.done(item.batch, None)

    def show(self, group: list[Pending], end: int) -> None:
        """Let readers see batches that follow what is confirmed, which goes to `end`."""
        batches: list[Batch] = []
        index = self._flusher.confirmed
        for item in group:
            batch = item.batch
            if not batch.runs:
                continue  # the blank between two segments of a copy
            confirm_runs(batch, item.queues)
            self.records += len(batch.sizes)
            self.bytes += len(batch.records)
            self.tail.add(batch)
            index.append((batch, item.queues))
            batches.append(batch)
        self.confirmed_position = end
        self._evict()
        self._prepare_segment()
        if batches:
            for confirmed in self._subscribers:
                confirmed(batches)

    def _evict(self) -> None:
        indexed = self._flusher.indexed
        if self.confirmed_position - indexed > INDEX_WAKE_BYTES:
            self._flusher.wake.set()
        for batch in self.tail.evict(indexed):
            for run in batch.runs:
                self.queues[run.topic, run.queue_id].drop_oldest()

    def _prepare_segment(self) -> None:
        following = self._confirmed_segment_end
        left = following - self.confirmed_position
        if following != self._prepared and left * PREPARE_PART < self._settings.segment_size_bytes:
            self._prepared = following
            self._flusher.prepare_at = following
            self._flusher.wake.set()

    def take_back(self, error: StorageError, generation: int = ANY_GENERATION) -> None:
        """Refuse everything that is not written; offsets go back to what is."""
        if generation not in (self.generation, ANY_GENERATION):
            return
        waiting = self._waiting
        while free := self._gate.free(waiting):
            # Written before the failure: their turn comes first.
            self._make_visible([waiting.popleft() for _ in range(free)])
        self.generation += 1
        self.rollbacks += 1
        refused = [self.pending.pop() for _ in range(len(self.pending) - len(waiting))]
        for item in refused:
            self._pending_bytes -= len(item.batch.records)
            for run, queue in zip(reversed(item.batch.runs), reversed(item.queues), strict=True):
                queue.stamped = run.base_offset
        refused.reverse()
        last = self._last_written
        self.end, self.segment_end, self.store_ms = last.batch.end, last.segment_end, last.batch.store_ms
        if error.retriable:
            self.full = error
            log.warning("the store is full", reason=str(error), refused_batches=len(refused))
        elif self.refusal is None:
            self.refusal = error
            log.error("the store is read-only", reason=str(error), refused_batches=len(refused))
        self.refused += len(refused)
        self._gate.took_back(error)
        outcome = self._gate.outcome(error)
        for item in refused:
            item.done(item.batch, error if item.is_copied else outcome)


def _nothing(end: int, segment_end: int, store_ms: int) -> Pending:
    """What was written last when nothing was yet."""
    batch = Batch(memoryview(b""), np.empty(0, np.int64), [], end, store_ms)
    return Pending(batch, _told, [], 0, segment_end, 0, 0.0)


def _told(_batch: Batch, _error: StorageError | None) -> None:
    """Whoever waited has been told."""
