"""The queues of a log in memory: their offsets, and the newest entries as the batches' own arrays."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from holdmq.record.batch import Hashes
from storage.api.batches import Batch
from storage.api.queues import HashFilter, QueueRead, ReadStatus

CHUNKS_PER_READ_MAX: Final = 512
"""Runs that one read looks at: what a filter rejects must not hold up the event loop."""

_COMPACT_AT: Final = 64
_base_of = itemgetter(0)


class QueueRun(NamedTuple):
    """One run of a confirmed batch: its records are `first` … `first + size` of the batch."""

    base_offset: int
    size: int
    first: int
    batch: Batch
    hashes: Hashes | None


class Queue:
    """One queue: `stamped` is the next offset to give, `confirmed` the end that readers see.

    `indexed`: entries below are in the consume-queue file (set by the indexing thread).
    `first_offset` is the oldest that is kept. `chunks` from `head` on are in memory.
    """

    __slots__ = ("chunks", "confirmed", "first_offset", "head", "indexed", "queue_id", "stamped", "topic")

    def __init__(self, topic: str, queue_id: int, first_offset: int = 0, next_offset: int = 0) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.first_offset = first_offset
        self.stamped = next_offset
        self.confirmed = next_offset
        self.indexed = next_offset
        self.chunks: list[QueueRun] = []
        self.head = 0

    def confirm(self, chunk: QueueRun) -> None:
        """Make a run visible."""
        self.chunks.append(chunk)
        self.confirmed = chunk.base_offset + chunk.size

    def drop_oldest(self) -> None:
        """Forget the oldest run in memory: its batch leaves the tail."""
        self.head += 1
        if self.head == len(self.chunks):
            self.chunks.clear()
            self.head = 0
        elif self.head >= _COMPACT_AT and self.head * 2 >= len(self.chunks):
            del self.chunks[: self.head]
            self.head = 0
        else:
            self.chunks[self.head - 1] = _GONE

    def copy(self) -> Queue:
        """Return the queue as it is in memory now, for another thread than the one that changes it."""
        chunks = [chunk for chunk in list(self.chunks) if chunk is not _GONE]
        end = chunks[-1].base_offset + chunks[-1].size if chunks else self.confirmed
        copied = Queue(self.topic, self.queue_id, self.first_offset, end)
        copied.chunks = chunks
        return copied

    @property
    def memory_offset(self) -> int:
        """The first offset in memory; `confirmed` when none is."""
        return self.chunks[self.head].base_offset if self.head < len(self.chunks) else self.confirmed


_GONE: Final = QueueRun(0, 0, 0, Batch(memoryview(b""), np.empty(0, np.int64), []), None)


def confirm_runs(batch: Batch, queues: list[Queue]) -> None:
    """Make the runs of a batch visible, each in its queue."""
    first = 0
    for run, queue in zip(batch.runs, queues, strict=True):
        queue.confirm(QueueRun(run.base_offset, run.count, first, batch, run.hashes))
        first += run.count


def outside(queue: Queue, offset: int) -> QueueRead | None:
    """The answer for an offset that is no entry of the queue; None = it is one."""
    end = queue.confirmed
    if offset == end:
        return QueueRead(ReadStatus.AT_END, end, queue.first_offset, end)
    if offset > end:
        return QueueRead(ReadStatus.AHEAD, end, queue.first_offset, end)
    if offset < queue.first_offset:
        return QueueRead(ReadStatus.BEHIND, queue.first_offset, queue.first_offset, end)
    return None


def first_at_or_behind(queue: Queue, position: int) -> int | None:
    """The first offset whose record lies at a log position or behind; `confirmed` if none does.

    Positions are those between two batches. None: it lies before what is in memory.
    """
    chunks, head = queue.chunks, queue.head
    if head == len(chunks) or chunks[head].batch.position >= position:
        return None
    index = bisect_left(chunks, position, lo=head, key=_position_of)
    return chunks[index].base_offset if index < len(chunks) else queue.confirmed


def _position_of(chunk: QueueRun) -> int:
    return chunk.batch.position


def read_memory(
    queue: Queue, offset: int, max_bytes: int, max_count: int, wanted: HashFilter | None
) -> QueueRead | None:
    """Read from the chunks in memory; None = `offset` lies before them."""
    answer = outside(queue, offset)
    if answer is not None:
        return answer
    if offset < queue.memory_offset:
        return None
    read = QueueRead(ReadStatus.FOUND, offset, queue.first_offset, queue.confirmed)
    chunks = queue.chunks
    index = bisect_right(chunks, offset, lo=queue.head, key=_base_of) - 1
    stop = min(len(chunks), index + CHUNKS_PER_READ_MAX)
    while index < stop:
        chunk = chunks[index]
        skip = read.next_offset - chunk.base_offset
        if wanted is None:
            going_on = _take_all(read, chunk, skip, max_bytes, max_count)
        else:
            going_on = _take_wanted(read, chunk, skip, max_bytes, max_count, wanted)
        if not going_on:
            break
        index += 1
    return read


def _take_all(read: QueueRead, chunk: QueueRun, skip: int, max_bytes: int, max_count: int) -> bool:
    """Add the chunk's records from `skip` on; False = a bound was reached."""
    batch = chunk.batch
    first = chunk.first + skip
    last = chunk.first + chunk.size
    begin = int(batch.starts[first])
    end = int(batch.starts[last - 1] + batch.sizes[last - 1])
    if last - first > max_count - read.count or end - begin > max_bytes - read.size_bytes:
        last = min(last, first + max_count - read.count)
        fitting = int(
            np.searchsorted(
                batch.starts[first:last] + batch.sizes[first:last],
                begin + max_bytes - read.size_bytes,
                "right",
            )
        )
        if not fitting and not read.count:
            fitting = 1
        last = first + fitting
        if not fitting:
            return False
        end = int(batch.starts[last - 1] + batch.sizes[last - 1])
    read.parts.append(batch.records[begin:end])
    read.count += last - first
    read.size_bytes += end - begin
    read.next_offset = chunk.base_offset + last - chunk.first
    return last == chunk.first + chunk.size


def _take_wanted(
    read: QueueRead, chunk: QueueRun, skip: int, max_bytes: int, max_count: int, wanted: HashFilter
) -> bool:
    """Add the chunk's records that may match; False = a bound was reached."""
    if chunk.hashes is None:
        if wanted.passes_untagged:
            return _take_all(read, chunk, skip, max_bytes, max_count)
        read.next_offset = chunk.base_offset + chunk.size
        return True
    batch = chunk.batch
    for index in (np.flatnonzero(wanted.mask(chunk.hashes[skip:])) + skip).tolist():
        begin = int(batch.starts[chunk.first + index])
        size = int(batch.sizes[chunk.first + index])
        if read.count >= max_count or (read.count and read.size_bytes + size > max_bytes):
            read.next_offset = chunk.base_offset + index
            return False
        read.parts.append(batch.records[begin : begin + size])
        read.count += 1
        read.size_bytes += size
    read.next_offset = chunk.base_offset + chunk.size
    return True
