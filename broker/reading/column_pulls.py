"""PULL_COLUMNS: records of many queues as columns, for Spark and others that read in bulk.

What is in memory is found on the event loop, what is not on the reader pool, where all of it is encoded
(`holdmq.record.columns`). Nothing is held: who reads in bulk knows from QUEUE_BOUNDS what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.kernel.lookups import Lookups
from broker.kernel.request_family import RequestFamily
from broker.kernel.statistics import Statistics
from broker.reading.core.far_reads import NextReads
from broker.reading.pull import (
    TellsReaders,
    pulled_queue,
    refused_queue,
    topic_to_pull,
    topics_to_read,
)
from broker.reading.replica_queues import QueuesAtReplica, moved_read, newer_epoch
from broker.topics.core.table import TopicTable
from holdmq.errors import Code, RemoteError, WireError
from holdmq.record.columns import Encoded, QueueRecordsTaken, encode_columns
from holdmq.record.tags import tag_hash
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import (
    COLUMNS,
    COLUMNS_QUEUES_MAX,
    COLUMNS_TAGS_MAX,
    ColumnQueue,
    PullColumnsRequest,
    PullColumnsResponse,
)
from holdmq.wire.header import rows
from holdmq.wire.reader_headers import BULK
from holdmq.wire.replica_reads import ReplicaReads
from storage.api.queues import HashFilter, MessageQueues, QueueRead

COLUMNS_MAX_BYTES: Final = 8 << 20
"""Records that one answer looks at, but always one: a few ms of a pool thread, whoever waits behind it."""
COLUMNS_MAX_ROWS: Final = 65_536
COLUMN_PULLS_MAX: Final = 32
"""Answers that are made at a time, up to 16 MiB each: the cores of many readers, half a GiB at the worst."""

Read = QueueRead | RemoteError | None


class _Room:
    """What an answer has room for; one record that is larger fits when it is the only one."""

    __slots__ = ("_is_empty", "left_bytes")

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes
        self._is_empty = True

    def take(self, read: QueueRead | None) -> QueueRead | None:
        """The read, if there is room for it; None = there is not, or it is None."""
        if read is None or not read.size_bytes:
            return read
        fits = self._is_empty or read.size_bytes <= self.left_bytes
        self.left_bytes = max(0, self.left_bytes - read.size_bytes)
        self._is_empty = False
        return read if fits else None


class _ColumnAnswer(NamedTuple):
    reads: list[tuple[ColumnQueue, QueueRead | RemoteError]]
    encoded: Encoded


class ColumnPulls(RequestFamily):
    """Handles PULL_COLUMNS for one broker."""

    def __init__(
        self,
        store: MessageQueues,
        topics: TopicTable,
        statistics: Statistics,
        readers: TellsReaders,
        next_reads: NextReads,
    ) -> None:
        self._next_reads = next_reads
        self.lookups = Lookups(store.reader_pool)
        self._store = store
        self._topics = topics
        self._statistics = statistics
        self._readers = readers
        self._loop = asyncio.get_running_loop()

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.PULL_COLUMNS: self.handle}

    def numbers(self) -> Mapping[str, int | float]:
        return {
            "column_pulls": self.lookups.running,
            "column_pulls_total": self.lookups.total,
            "column_pulls_refused_total": self.lookups.refused,
        }

    def handle(self, request: Request) -> None:
        """Answer one PULL_COLUMNS from the reader pool."""
        header = request.header(PullColumnsRequest)
        queues = rows(ColumnQueue, header.queues)
        _check(header, len(queues))
        found = topics_to_read(self._topics, queues, request.connection.grants)
        self._readers.asked(request.connection, BULK, found)
        if self.lookups.running >= COLUMN_PULLS_MAX:
            self.lookups.refused += 1
            raise RemoteError(Code.BUSY, f"{COLUMN_PULLS_MAX} answers of columns are being made")
        began_at = self._loop.time()
        room = _Room(max(1, min(header.max_bytes, COLUMNS_MAX_BYTES)))
        replica = ""
        if header.replica_reads == ReplicaReads.PREFER and not self._next_reads.is_copy:
            replica = self._next_reads.next_at(header.replica_reads, 1, None)
        moved: set[QueueRead] = set()
        known: list[tuple[ColumnQueue, HashFilter | None, Read]] = []
        filters: dict[int, HashFilter] = {}
        for queue in queues:
            wanted = self._hash_filter(queue.topic, header.tags, filters)
            topic = topic_to_pull(self._topics, queue, "", request.connection.grants)
            read: Read = topic if isinstance(topic, RemoteError) else None
            if read is None and self._next_reads.is_copy and queue.log_epoch > self._store.epoch:
                read = newer_epoch(queue)
            if read is None and replica:
                read = moved_read(self._store, self._topics, queue)
                moved.update(() if read is None else (read,))
            if read is None and room.left_bytes:
                read = room.take(
                    self._store.read_queue(*_place(queue), room.left_bytes, _count(queue), wanted)
                )
            known.append((queue, wanted, read))
        tags = None if header.tags is None else frozenset(tag.encode() for tag in header.tags)

        def read_all() -> _ColumnAnswer:
            reads = self._read_cold(known, room)
            taken = [QueueRecordsTaken(r.parts, q.end_offset) for q, r in reads if isinstance(r, QueueRead)]
            return _ColumnAnswer(reads, encode_columns(taken, header.columns, tags))

        def reply(answer: _ColumnAnswer) -> None:
            at_replica = QueuesAtReplica(self._next_reads, header.replica_reads, 1, replica)
            for at, (queue, read) in enumerate(answer.reads):
                if isinstance(read, RemoteError):
                    continue
                if read in moved:
                    at_replica.moved(at)
                elif header.replica_reads and not replica:
                    at_replica.was_read(at, queue.offset, read)
            self._reply(request, answer, at_replica, began_at)

        self.lookups.run(request, read_all, reply)

    def _read_cold(
        self, known: list[tuple[ColumnQueue, HashFilter | None, Read]], room: _Room
    ) -> list[tuple[ColumnQueue, QueueRead | RemoteError]]:
        """Blocking: what is known, and what the disk has of the rest, as far as there is room for it."""
        reads: list[tuple[ColumnQueue, QueueRead | RemoteError]] = []
        for queue, wanted, read in known:
            if read is None and room.left_bytes:
                read = room.take(
                    self._store.read_queue_cold(*_place(queue), room.left_bytes, _count(queue), wanted)
                )
            if read is not None:
                reads.append((queue, read))
        return reads

    def _reply(
        self, request: Request, answer: _ColumnAnswer, at_replica: QueuesAtReplica, began_at: float
    ) -> None:
        took_us = int((self._loop.time() - began_at) * 1e6)
        counts = iter(answer.encoded.counts)
        pulled = [
            refused_queue(queue, read)
            if isinstance(read, RemoteError)
            else pulled_queue(self._statistics, queue, read, next(counts), took_us, is_replay=True)
            for queue, read in answer.reads
        ]
        messages = sum(row.records for row in pulled)
        if messages:
            source = self._statistics.of_connection(request.connection)
            source.taken(messages, sum(row.length_bytes for row in pulled if row.records), is_replay=True)
        lengths = [sum(map(len, buffer)) for buffer in answer.encoded.buffers]
        parts = [piece for buffer in answer.encoded.buffers for piece in buffer]
        header = PullColumnsResponse(
            pulled, self._store.epoch, lengths, at_replica.replica, at_replica.indices
        )
        request.reply(header, parts, sum(lengths))

    def _hash_filter(
        self, topic: str, tags: list[str] | None, known: dict[int, HashFilter]
    ) -> HashFilter | None:
        """The filter of a topic's tags; `known` has those of other topics, by their key levels."""
        if tags is None:
            return None
        levels = self._topics.key_levels(topic)
        found = known.get(levels)
        if found is None:
            found = known[levels] = HashFilter([tag_hash(tag.encode(), levels) for tag in tags])
        return found


def _check(header: PullColumnsRequest, queues: int) -> None:
    if not 1 <= queues <= COLUMNS_QUEUES_MAX:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"a PULL_COLUMNS names 1 to {COLUMNS_QUEUES_MAX} queues")
    if header.tags is not None and len(header.tags) > COLUMNS_TAGS_MAX:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"a PULL_COLUMNS names at most {COLUMNS_TAGS_MAX} tags")
    unknown = [name for name in header.columns if name not in COLUMNS]
    if unknown or len(set(header.columns)) < len(header.columns):
        raise WireError(
            f"PullColumnsRequest: columns are some of {', '.join(COLUMNS)}, each once, not {header.columns}",
            Code.MISSING_FIELD,
        )


def _place(queue: ColumnQueue) -> tuple[str, int, int, int]:
    return queue.topic, queue.queue_id, queue.log_epoch, queue.offset


def _count(queue: ColumnQueue) -> int:
    return min(max(1, queue.end_offset - queue.offset), COLUMNS_MAX_ROWS)
