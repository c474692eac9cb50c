"""The reads of the log engine: queues from memory or disk, the tail, the log in order.

A base of `LogStore` and not a part of it: every read is decided by state that appends and
retention change, and the broker calls it on the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Final

import structlog

from holdmq.errors import BehindError, StorageError
from storage.api.batches import Batch
from storage.api.log_order import TAIL_READ_BYTES
from storage.api.queues import HashFilter, QueueRead, ReadStatus
from storage.log.consume_queue import ConsumeQueues
from storage.log.core.epochs import Epochs
from storage.log.core.queues import Queue, outside, read_memory
from storage.log.core.tail import Tail
from storage.log.failures import write_failure
from storage.log.flusher import Checkpoint
from storage.log.reader import ColdReader
from storage.log.segments import Segments
from storage.log.temporary import TemporaryTopicQueues

BEHIND_LOG_INTERVAL_S: Final = 1.0
"""Readers that retention passed are logged this often: a thousand at once are one event."""

log = structlog.get_logger("holdmq.storage")


class StoreReads:
    """What `LogStore` reads from; it fills these before the first read."""

    confirmed_position: int
    temporary: TemporaryTopicQueues
    _queues: dict[tuple[str, int], Queue]
    _tail: Tail
    _epochs: Epochs
    _segments: Segments
    _files: ConsumeQueues
    _checkpoint: Checkpoint
    _reader: ColdReader

    def __init__(self) -> None:
        self._behind_reads = 0
        self._behind_logged_at = float("-inf")
        self._memory_reads = self._cold_reads = self._tail_reads = self._tail_misses = 0

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        if self.temporary.holds(topic):
            return self.temporary.bounds(topic, queue_id)
        queue = self._queues.get((topic, queue_id))
        return (0, 0) if queue is None else (queue.first_offset, queue.confirmed)

    def is_being_written(self, topic: str, queue_id: int) -> bool:
        queue = self._queues.get((topic, queue_id))
        return queue is not None and queue.stamped != queue.confirmed

    def read_queue(
        self,
        topic: str,
        queue_id: int,
        epoch: int,
        offset: int,
        max_bytes: int,
        max_count: int,
        wanted: HashFilter | None = None,
    ) -> QueueRead | None:
        if self.temporary.holds(topic):
            return self.temporary.read(topic, queue_id, offset, max_bytes, max_count, wanted)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return outside(Queue(topic, queue_id), offset)
        if 0 < epoch < self._epochs.current and offset > queue.first_offset:
            return None
        self._memory_reads += 1
        read = read_memory(queue, offset, max_bytes, max_count, wanted)
        if read is not None and read.status is ReadStatus.BEHIND:
            self._behind(queue, offset)
        return read

    def read_queue_cold(
        self,
        topic: str,
        queue_id: int,
        epoch: int,
        offset: int,
        max_bytes: int,
        max_count: int,
        wanted: HashFilter | None = None,
    ) -> QueueRead:
        self._cold_reads += 1
        queue = self._queues.get((topic, queue_id)) or Queue(topic, queue_id)
        limit = self._epochs.limit_of(epoch) if epoch > 0 else None
        if limit is not None and offset > queue.first_offset:
            try:
                survived = self._files.first_at_or_after(
                    (topic, queue_id), queue.first_offset, queue.indexed, limit
                )
            except OSError as error:
                raise write_failure(error, "read", str(self._files.directory), None) from error
            if offset > survived:
                return QueueRead(ReadStatus.AHEAD, survived, queue.first_offset, queue.confirmed)
        try:
            read = self._reader.read_queue(
                queue, offset, max_bytes, max_count, wanted, self.confirmed_position
            )
        except StorageError:
            if offset >= queue.first_offset:
                raise
            read = None
        if offset < queue.first_offset:
            # Retention may have passed while the read was under way.
            self._behind(queue, offset)
            return outside(queue, offset) or QueueRead(
                ReadStatus.BEHIND, queue.first_offset, queue.first_offset, queue.confirmed
            )
        assert read is not None
        return read

    def _behind(self, queue: Queue, offset: int) -> None:
        """Count a reader that retention passed, and say so: at most a line per second."""
        self._behind_reads += 1
        now = monotonic()
        if now - self._behind_logged_at >= BEHIND_LOG_INTERVAL_S:
            self._behind_logged_at = now
            log.warning(
                "a reader was behind retention; it goes on at the first offset",
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=offset,
                first_offset=queue.first_offset,
                behind_reads=self._behind_reads,
            )

    def tail(self, position: int, max_bytes: int = TAIL_READ_BYTES) -> Sequence[Batch] | None:
        found = self._tail.since(position, max_bytes)
        if found is None:
            self._tail_misses += 1
        else:
            self._tail_reads += 1
        return found

    def read_log(self, position: int, max_bytes: int) -> list[Batch]:
        self._cold_reads += 1
        try:
            return self._reader.read_log(position, max_bytes, self.confirmed_position)
        except StorageError as error:
            first_position = self._segments.first_position
            if isinstance(error.__cause__, FileNotFoundError):
                # Retention gives a segment up, removes its file, and then forgets it.
                first_position = max(first_position, self._checkpoint.first_position)
            if position >= first_position:
                raise
            self._behind_reads += 1
            raise BehindError(position, first_position) from None
