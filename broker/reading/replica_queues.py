"""Which queues of an answer a replica is to be asked for next; `core.far_reads` says which replica."""

from __future__ import annotations

import struct
from typing import Final

from broker.reading.core.far_reads import NextReads
from broker.topics.core.table import TopicTable
from holdmq.errors import Code, RemoteError
from holdmq.record.codec import PHYSICAL_OFFSET_AT
from holdmq.wire.column_headers import ColumnQueue
from holdmq.wire.headers import PullQueue
from storage.api.queues import MessageQueues, QueueRead, ReadStatus

_POSITION: Final = struct.Struct(">q")


class QueuesAtReplica:
    """Those queues of one answer, by index; an answer names one replica for all of them.

    `replica` is the one that was named before anything was read, "" = none was.
    """

    __slots__ = ("_next_reads", "_place", "_replica", "_wanted", "indices")

    def __init__(self, next_reads: NextReads, wanted: int, place: int, replica: str) -> None:
        self.indices: list[int] = []
        self._next_reads = next_reads
        self._wanted = wanted
        self._place = place
        self._replica = replica

    @property
    def replica(self) -> str:
        """The address of the replica; "" = every queue is the leader's."""
        return self._replica if self.indices else ""

    def moved(self, index: int) -> None:
        """Take a queue of which nothing was read here."""
        self.indices.append(index)

    def was_read(self, index: int, offset: int, read: QueueRead) -> None:
        """Take a queue if what follows this read from `offset` on is the replica's."""
        named = _next_of(self._next_reads, self._wanted, self._place, offset, read)
        self._replica = self._replica or named
        if named and named == self._replica:
            self.indices.append(index)


def moved_read(store: MessageQueues, topics: TopicTable, queue: PullQueue | ColumnQueue) -> QueueRead | None:
    """An answer without records for what a replica is to be asked for; None = it has nothing of it."""
    first, end = store.bounds(queue.topic, queue.queue_id)
    topic = topics.get(queue.topic)
    if topic is None or topic.is_temporary or not first <= queue.offset < end:
        return None
    return QueueRead(ReadStatus.FOUND, queue.offset, first, end)


def newer_epoch(queue: PullQueue | ColumnQueue) -> RemoteError:
    """The refusal of a queue that was read in an epoch of which this copy does not know."""
    return RemoteError(Code.NOT_LEADER, f"{queue.topic}/{queue.queue_id}: epoch {queue.log_epoch} is newer")


def _next_of(next_reads: NextReads, wanted: int, place: int, offset: int, read: QueueRead) -> str:
    """Where what follows a read from `offset` on is to be asked for; "" = at the leader."""
    position: int | None = None
    if read.parts:
        (position,) = _POSITION.unpack_from(read.parts[-1], PHYSICAL_OFFSET_AT)
    # Without any progress only the memory of who leads may know more: an index here is behind.
    is_at_end = read.status is not ReadStatus.FOUND or not offset < read.next_offset < read.end_offset
    return next_reads.next_at(wanted, place, position, is_at_end)
