"""Temporary topics: in memory only, bounded, the oldest dropped and counted.

Confirmed as soon as the loop comes to it, never on disk, gone with the process. A queue's first
offset is the boot's time in ms × 2²⁰, so that offsets of an earlier boot lie before it. Records
have the PhysicalOffset -1 and so no MessageId. Every method is called on the event loop.
Source: storage.md, Retention; broker.md, Topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from holdmq.errors import StorageError
from holdmq.names.topics import is_temporary
from holdmq.record.batch import NO_POSITION, stamp, tag_hashes
from storage.api.batches import Appended, Batch, Confirmed
from storage.api.queues import HashFilter, QueueRead, ReadStatus
from storage.core.queues import Queue, confirm_runs, outside, read_memory
from storage.core.tail import BATCH_OVERHEAD_BYTES

OFFSETS_PER_MS: Final = 20
"""A boot's first offset is its time shifted by so many bits: 2²⁰ records per ms are never reached."""

Post = Callable[[Callable[[], object]], object]


class TemporaryTopicQueues:
    """The queues of all temporary topics of a broker; `max_bytes` bounds them together."""

    def __init__(self, max_bytes: int, clock_ms: Callable[[], int], post: Post) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.dropped = 0
        self.records = 0
        self.subscribers: list[Confirmed] = []
        self._clock_ms = clock_ms
        self._post = post
        self._names: set[str] = set()
        self._queues: dict[tuple[str, int], Queue] = {}
        self._batches: deque[tuple[Batch, list[Queue]]] = deque()
        self._store_ms = clock_ms()
        self._first_offset = self._store_ms << OFFSETS_PER_MS

    def add(self, topic: str) -> None:
        """Make a topic temporary whose name does not say so; before its first record."""
        self._names.add(topic)

    def holds(self, topic: str) -> bool:
        """Whether a topic is temporary."""
        return is_temporary(topic) or topic in self._names

    def remove(self, topic: str) -> None:
        """Forget a topic and its messages: its last subscriber left, or it was deleted."""
        self._names.discard(topic)
        for key in [key for key in self._queues if key[0] == topic]:
            # A topic of this name must not give the same offsets again.
            self._first_offset = max(self._first_offset, self._queues.pop(key).stamped)
        kept = [held for held in self._batches if any(run.topic != topic for run in held[0].runs)]
        self._batches = deque(kept)
        self.size_bytes = sum(len(batch.records) + BATCH_OVERHEAD_BYTES for batch, _ in kept)

    def append(self, batch: Batch, store_id: bytes, done: Appended) -> None:
        """As `MessageStore.append`; refused when only some of the batch's topics are temporary."""
        if not all(self.holds(run.topic) for run in batch.runs):
            refusal = StorageError("a batch of temporary and other topics", operation="append")
            self._post(partial(done, batch, refusal))
            return
        self._store_ms = max(self._store_ms, self._clock_ms())
        batch.position, batch.store_ms = NO_POSITION, self._store_ms
        queues: list[Queue] = []
        offsets = np.empty(len(batch.sizes), np.int64)
        first = 0
        for run in batch.runs:
            queue = self._queue(run.topic, run.queue_id)
            queues.append(queue)
            last = first + run.count
            run.base_offset = queue.stamped
            queue.stamped += run.count
            offsets[first:last] = np.arange(run.base_offset, queue.stamped)
            span = slice(first, last)
            run.size_bytes = int(batch.sizes[span].sum())
            run.hashes = tag_hashes(batch.records, batch.starts[span], batch.sizes[span], run.key_levels)
            first = last
        stamp(batch.records, batch.starts, batch.sizes, offsets, None, self._store_ms, store_id)
        self._post(partial(self._confirm, batch, queues, done))

    def _queue(self, topic: str, queue_id: int) -> Queue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = Queue(topic, queue_id, self._first_offset, self._first_offset)
            self._queues[topic, queue_id] = queue
        return queue

    def _confirm(self, batch: Batch, queues: list[Queue], done: Appended) -> None:
        confirm_runs(batch, queues)
        self.records += len(batch.sizes)
        self.size_bytes += len(batch.records) + BATCH_OVERHEAD_BYTES
        self._batches.append((batch, queues))
        # The newest stays, whatever its size: who subscribes gets at least that.
        while self.size_bytes > self.max_bytes and len(self._batches) > 1:
            self._drop_oldest()
        for confirmed in self.subscribers:
            confirmed([batch])
        done(batch, None)

    def _drop_oldest(self) -> None:
        batch, queues = self._batches.popleft()
        self.size_bytes -= len(batch.records) + BATCH_OVERHEAD_BYTES
        for queue in queues:
            queue.drop_oldest()
            queue.first_offset = queue.memory_offset
        self.dropped += len(batch.sizes)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First and end offset, as `MessageStore.bounds` has them."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return self._first_offset, self._first_offset
        return queue.first_offset, queue.confirmed

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_bytes: int,
        max_count: int,
        wanted: HashFilter | None,
    ) -> QueueRead:
        """As `MessageStore.read_queue`; always from memory."""
        first = self._first_offset
        queue = self._queues.get((topic, queue_id)) or Queue(topic, queue_id, first, first)
        read = read_memory(queue, offset, max_bytes, max_count, wanted)
        # Everything from the first offset on is in memory.
        return (
            read
            or outside(queue, offset)
            or QueueRead(ReadStatus.BEHIND, queue.first_offset, queue.first_offset, queue.confirmed)
        )

    def numbers(self) -> dict[str, float]:
        """Counters and gauges, as `MessageStore.numbers`."""
        return {
            "temporary_records_total": self.records,
            "temporary_dropped_total": self.dropped,
            "temporary_bytes": self.size_bytes,
            "temporary_queues": len(self._queues),
        }
