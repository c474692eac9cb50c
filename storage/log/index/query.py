"""Looking messages up: by key, by unique id, by time, by id, and backwards. Blocking: for the reader pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from holdmq.errors import BehindError, CorruptRecordError, StorageError
from holdmq.files.disk import Disk
from holdmq.message import MessageId
from holdmq.record.codec import MAGIC, MAGIC_AT, Record, decode_record
from holdmq.record.properties import KEY, UNIQUE, encode_properties
from storage.api.batches import Batch
from storage.api.index import LATEST_MS, LOG_END, Located, Matches, MessagePlace
from storage.core.keys import hash_of, keys_in
from storage.core.queues import Queue
from storage.log.consume_queue import ConsumeQueues
from storage.log.index.key_index import KeyIndex
from storage.log.index.log_times import LogTimes
from storage.log.reading.backwards import BackwardReader
from storage.log.reading.times import Times
from storage.log.segments import Segments

RESULTS_MAX: Final = 1_000
"""Messages of one answer: what a person looks through; a program goes on from the oldest."""
BYTES_MAX: Final = 64 << 20
"""Bytes of one answer: 16 of the largest messages by default, far more than a page of usual ones."""
CANDIDATES_MAX: Final = 4_096
"""Index entries looked at per answer: 32-bit hashes collide, and each candidate costs a read."""


class _Span(NamedTuple):
    """Stored from `begin_ms` to `end_ms`, included, below the log position `before`."""

    begin_ms: int
    end_ms: int
    before: int


class Index:
    """Searches of one log. Every method blocks and may run on several threads."""

    def __init__(
        self,
        disk: Disk,
        segments: Segments,
        files: ConsumeQueues,
        keys: KeyIndex,
        read_log: Callable[[int, int], list[Batch]],
        queue_of: Callable[[tuple[str, int]], Queue | None],
        store_id: Callable[[], bytes],
        confirmed: Callable[[], int],
    ) -> None:
        self.keys = keys
        self._segments = segments
        self._files = files
        self._read_log = read_log
        self._queue_of = queue_of
        self._store_id = store_id
        self._confirmed = confirmed
        self._disk = disk
        self._backwards = BackwardReader(disk, segments)
        self._times = Times(disk, segments, files)
        self._log_times = LogTimes(disk, segments)

    @property
    def indexed_position(self) -> int:
        """Messages below this log position are found by their keys and ids; never waits."""
        return self.keys.searchable_position

    def by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = LATEST_MS,
        max_count: int = 64,
        *,
        before: int = LOG_END,
        max_bytes: int = BYTES_MAX,
    ) -> Matches:
        """Messages of a topic with this key (KEYS), newest first; at least one if there is one.

        Stored in [begin_ms, end_ms], below the log position `before`.
        """
        span = _Span(begin_ms, end_ms, before)
        return self._matching(KEY, topic, key, span, max_count, max_bytes)

    def by_unique_id(
        self,
        topic: str,
        unique_id: str,
        begin_ms: int = 0,
        end_ms: int = LATEST_MS,
        max_count: int = 64,
        *,
        before: int = LOG_END,
        max_bytes: int = BYTES_MAX,
    ) -> Matches:
        """Messages of a topic with the producer's own id (UNIQ_KEY), as `by_key`: more than one = resent."""
        span = _Span(begin_ms, end_ms, before)
        return self._matching(UNIQUE, topic, unique_id, span, max_count, max_bytes)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """The first offset of a queue stored at `store_ms` or later; its end when there is none."""
        queue = self._queue_of((topic, queue_id))
        if queue is None:
            return 0
        try:
            found = self._times.first_at((topic, queue_id), queue.first_offset, queue.indexed, store_ms)
            if found < queue.indexed:
                return max(found, queue.first_offset)
            # Behind the files, in memory, every run has one store time.
            for chunk in list(queue.chunks[queue.head :]):
                if chunk.batch.store_ms >= store_ms and chunk.base_offset + chunk.size > found:
                    return max(chunk.base_offset, found)
        except OSError as error:
            raise _failure(error) from error
        return queue.confirmed

    def position_at(self, store_ms: int) -> int:
        """The log position of the first record stored at `store_ms` or later; the confirmed end if none."""
        try:
            return self._log_times.first_at(store_ms, self._confirmed())
        except FileNotFoundError:
            return self._segments.first_position  # retention has just removed what was looked at
        except OSError as error:
            raise _failure(error) from error

    def before(self, position: int, max_count: int = 64, max_bytes: int = BYTES_MAX) -> list[Record]:
        """Records before a log offset (a record's start, or the confirmed end), newest first.

        Empty at the log's first record. Raises CorruptRecordError when what is before it is damaged.
        """
        position = min(position, self._confirmed())
        return self._backwards.before(position, min(max_count, RESULTS_MAX), max_bytes)

    def queue_before(
        self, topic: str, queue_id: int, offset: int, max_count: int = 64, max_bytes: int = BYTES_MAX
    ) -> list[Record]:
        """Records of a queue before a queue offset, newest first; damaged ones are left out."""
        queue = self._queue_of((topic, queue_id))
        found: list[Record] = []
        if queue is None:
            return found
        newest = _in_memory(queue)
        at = min(offset, queue.confirmed)
        try:
            while at > queue.first_offset and len(found) < min(max_count, RESULTS_MAX) and max_bytes > 0:
                at -= 1
                position = self._position(queue, at) if at < queue.indexed else newest.get(at, -1)
                if position < 0:
                    continue
                record = self._record(position)
                if record is not None:
                    found.append(record)
                    max_bytes -= record.total_size
        except OSError as error:
            raise _failure(error) from error
        return found

    def _position(self, queue: Queue, offset: int) -> int:
        """The log offset of a queue's entry; -1 = it has none."""
        entries = self._files.read((queue.topic, queue.queue_id), offset, 1)
        return int(entries["position"][0]) if len(entries) and int(entries["size"][0]) else -1

    def message(self, message_id: MessageId) -> Located:
        """The message that an id names; what else the id is, if it names none."""
        position = message_id.physical_offset
        if message_id.store_id != self._store_id():
            reason = f"message {message_id} is in store {message_id.store_id.hex()}, this is "
            return Located(MessagePlace.OTHER_STORE, None, reason + self._store_id().hex())
        if position >= self._confirmed():
            return self._not_found(MessagePlace.AHEAD, message_id, f"the log ends at {self._confirmed()}")
        try:
            batches = self._read_log(position, 1)
        except BehindError as error:
            return self._not_found(MessagePlace.GONE, message_id, f"the log begins at {error.resume_at}")
        except CorruptRecordError as error:
            if self._has_magic(position):
                return self._not_found(MessagePlace.CORRUPT, message_id, str(error))
            return self._not_found(
                MessagePlace.NO_RECORD, message_id, f"offset {position} is not a record's start"
            )
        # Reading begins behind a blank: that is no message either.
        if not batches or batches[0].position != position:
            return self._not_found(
                MessagePlace.NO_RECORD, message_id, f"offset {position} is not a record's start"
            )
        return Located(MessagePlace.FOUND, decode_record(batches[0].records), MessagePlace.FOUND.value)

    def _not_found(self, place: MessagePlace, message_id: MessageId, detail: str) -> Located:
        return Located(place, None, f"message {message_id}: {place.value}; {detail}")

    def _matching(
        self, marker: bytes, topic: str, key: str, span: _Span, max_count: int, max_bytes: int
    ) -> Matches:
        name = marker[:-1].decode()
        escaped = encode_properties([(name, key)])[len(marker) : -1]
        max_count = min(max_count, RESULTS_MAX)
        records: list[Record] = []
        size = 0
        try:
            hash_ = hash_of(marker, topic.encode(), escaped)
            found = self.keys.find(hash_, span.begin_ms, span.end_ms, CANDIDATES_MAX, span.before)
            for position in found.positions:
                if len(records) >= max_count or size >= min(max_bytes, BYTES_MAX):
                    return Matches(records, False)
                record = self._record(position)
                if record is not None and _has(record, marker, topic, escaped, span):
                    records.append(record)
                    size += record.total_size
        except OSError as error:
            raise _failure(error) from error
        return Matches(records, found.is_complete and len(found.positions) < CANDIDATES_MAX)

    def _record(self, position: int) -> Record | None:
        """The record at a place that an index names; None = it is gone or damaged."""
        if position >= self._confirmed():
            return None
        try:
            batches = self._read_log(position, 1)
        except (BehindError, CorruptRecordError):
            return None
        return decode_record(batches[0].records) if batches and batches[0].position == position else None

    def _has_magic(self, position: int) -> bool:
        segment = self._segments.locate(position)
        if segment is None:
            return False
        try:
            file = self._disk.open_to_read(segment.path)
            try:
                raw = bytes(file.read(position - segment.start + MAGIC_AT, 4))
            finally:
                file.close()
        except OSError as error:
            raise _failure(error) from error
        return raw == MAGIC.to_bytes(4, "big")


def _in_memory(queue: Queue) -> dict[int, int]:
    """Log offsets of the queue offsets that no file knows yet."""
    indexed = queue.indexed
    return {
        chunk.base_offset + i: chunk.batch.position + int(chunk.batch.starts[chunk.first + i])
        for chunk in list(queue.chunks)
        for i in range(max(0, indexed - chunk.base_offset), chunk.size)
    }


def _has(record: Record, marker: bytes, topic: str, escaped: bytes, span: _Span) -> bool:
    return (
        span.begin_ms <= record.store_ms <= span.end_ms
        and record.topic == topic.encode()
        and (marker, escaped) in keys_in(record.properties)
    )


def _failure(error: OSError) -> StorageError:
    return StorageError(error.strerror or str(error), operation="read", path=str(error.filename or ""))
