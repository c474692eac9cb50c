"""Looking messages up in a shard: by key, by unique id, by time, by id, and backwards. Blocking: for the
reader pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from librt.strings import BytesWriter

from holdmq.errors import BehindError, CorruptRecordError
from holdmq.message import MessageId
from holdmq.record.codec import Record, decode_record
from holdmq.record.properties import KEY, UNIQUE, encode_properties
from storage.api.batches import Batch
from storage.api.index import LATEST_MS, LOG_END, Located, Matches, MessagePlace
from storage.core.keys import add_hashes, hash_of, keys_in
from storage.core.queues import Queue
from storage.kv.core.layout import HOUR_MS, KEY_BUCKETS, KEY_ENTRY, ShardKeys
from storage.kv.reading import ServerReader
from storage.kv.server import ShardServer

RESULTS_MAX: Final = 1_000
BYTES_MAX: Final = 64 << 20
CANDIDATES_MAX: Final = 4_096
"""Index entries looked at per answer: 32-bit hashes collide, and each candidate costs a read."""
HOURS_AT_ONCE: Final = 8
BACK_BYTES: Final = 1 << 20
"""What one step backwards through a queue brings."""
KNOWN_BUCKETS_MAX: Final = 4_096
ID_CUT: Final = 2
"""Of a unique id is noted what is before its last two characters: a producer's ids are a count, and so an
entry serves up to 256 neighbours, in the server's memory."""
ID_SPAN_BYTES: Final = 64 << 10
"""How far from its start an entry's neighbours lie: what a look at it reads."""


class ShardEnds(NamedTuple):
    """What of the log may be read: from `first` to `confirmed`."""

    first: int
    confirmed: int


class KvIndex:
    """Searches of one shard: `storage.api.index.MessageIndex`. `kept_ms` is how long messages are kept."""

    def __init__(
        self,
        server: ShardServer,
        keys: ShardKeys,
        reader: ServerReader,
        queue_of: Callable[[tuple[str, int]], Queue | None],
        store_id: Callable[[], bytes],
        ends: Callable[[], ShardEnds],
        kept_ms: Callable[[], int],
        clock_ms: Callable[[], int],
    ) -> None:
        self._server = server
        self._keys = keys
        self._reader = reader
        self._queue_of = queue_of
        self._store_id = store_id
        self._ends = ends
        self._kept_ms = kept_ms
        self._clock_ms = clock_ms
        self._buckets: set[str] = set()

    @property
    def indexed_position(self) -> int:
        """Messages below this log position are found by their keys and ids: all that are confirmed."""
        return self._ends().confirmed

    def commands_of(self, batch: Batch, commands: list[Any], keys: list[str]) -> None:
        """Add what notes the keys of a stamped batch. Called on the loop."""
        if not batch.has_keys:
            return
        data = bytes(batch.records)
        found = BytesWriter()
        start = 0
        for run in batch.runs:
            start = add_hashes(run.topic.encode(), data, start, run.count, found, ID_CUT, ID_SPAN_BYTES)
        pairs = np.frombuffer(found.getvalue(), "<i8").reshape(-1, 2)
        if not len(pairs):
            return
        entries = np.empty(len(pairs), KEY_ENTRY)
        entries["hash"] = pairs[:, 0] & 0xFFFFFFFF
        entries["position"] = pairs[:, 1] + batch.position
        hour = batch.store_ms // HOUR_MS
        buckets = entries["hash"] % KEY_BUCKETS
        for bucket in np.unique(buckets).tolist():
            name = self._keys.key_bucket(hour, bucket)
            commands += (3, "APPEND", name, entries[buckets == bucket].tobytes())
            keys.append(name)
            if name not in self._buckets:
                if len(self._buckets) >= KNOWN_BUCKETS_MAX:
                    self._buckets.clear()
                self._buckets.add(name)
                # An hour's index goes once all of the hour's messages have.
                commands += (3, "PEXPIRE", name, 2 * HOUR_MS + self._kept_ms())

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
        """Messages of a topic with this key, newest first; at least one if there is one."""
        return self._matching(KEY, topic, key, begin_ms, end_ms, before, max_count, max_bytes)

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
        """Messages of a topic with the producer's own id, as `by_key`."""
        return self._matching(UNIQUE, topic, unique_id, begin_ms, end_ms, before, max_count, max_bytes)

    def _matching(
        self,
        marker: bytes,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        before: int,
        max_count: int,
        max_bytes: int,
    ) -> Matches:
        escaped = encode_properties([(marker[:-1].decode(), key)])[len(marker) : -1]
        is_id = marker == UNIQUE
        stem = escaped[: max(0, len(escaped) - ID_CUT)] if is_id else escaped
        hash_ = hash_of(marker, topic.encode(), stem)
        max_count = min(max_count, RESULTS_MAX)
        max_bytes = min(max_bytes, BYTES_MAX)
        now_ms = self._clock_ms()
        newest = min(end_ms, now_ms + HOUR_MS) // HOUR_MS
        oldest = max(begin_ms, now_ms - self._kept_ms() - HOUR_MS, 0) // HOUR_MS
        records: list[Record] = []
        size = looked_at = 0
        lowest = LOG_END
        for last in range(newest, oldest - 1, -HOURS_AT_ONCE):
            hours = range(last, max(oldest, last - HOURS_AT_ONCE + 1) - 1, -1)
            names = [self._keys.key_bucket(hour, hash_ % KEY_BUCKETS) for hour in hours]
            for raw in self._server.command("MGET", *names):
                for position in _positions(raw, hash_, before):
                    if len(records) >= max_count or (records and size >= max_bytes):
                        return Matches(records, False)
                    if looked_at >= CANDIDATES_MAX:
                        return Matches(records, False)
                    looked_at += 1
                    for record in self._candidates(position, ID_SPAN_BYTES if is_id else 1):
                        if (
                            begin_ms <= record.store_ms <= end_ms
                            and record.topic == topic.encode()
                            and record.physical_offset < min(before, lowest)
                            and (marker, escaped) in keys_in(record.properties)
                        ):
                            records.append(record)
                            size += record.total_size
                            lowest = record.physical_offset
                        if len(records) >= max_count:
                            break
        return Matches(records, True)

    def _candidates(self, position: int, span_bytes: int) -> list[Record]:
        """The records that an entry of the index may mean, newest first; none when they are gone."""
        first, confirmed = self._ends()
        try:
            batches = self._reader.read_log(position, span_bytes, first, confirmed)
        except (BehindError, CorruptRecordError):
            return []
        return [record for batch in reversed(batches) for record in reversed(_records(batch.records))]

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """The first offset of a queue stored at `store_ms` or later; its end when there is none."""
        queue = self._queue_of((topic, queue_id))
        if queue is None:
            return 0
        run = self._reader.run_at(queue, store_ms)
        return queue.confirmed if run is None else max(queue.first_offset, run.base_offset)

    def position_at(self, store_ms: int) -> int:
        """The log position of the first record stored at `store_ms` or later; the confirmed end if none
        is.
        """
        first, confirmed = self._ends()
        return self._reader.position_at(store_ms, first, confirmed)

    def queue_before(
        self, topic: str, queue_id: int, offset: int, max_count: int = 64, max_bytes: int = BYTES_MAX
    ) -> list[Record]:
        """Records of a queue before a queue offset, newest first; damaged ones are left out."""
        queue = self._queue_of((topic, queue_id))
        found: list[Record] = []
        if queue is None:
            return found
        at = min(offset, queue.confirmed)
        step = 64
        while at > queue.first_offset and len(found) < min(max_count, RESULTS_MAX) and max_bytes > 0:
            begin = max(queue.first_offset, at - min(step, max_count - len(found)))
            part: list[Record] = []
            reached = begin
            while reached < at:
                read = self._reader.read_queue(queue, reached, BACK_BYTES, at - reached, None)
                if read.next_offset <= reached:
                    break
                for view in read.parts:
                    part += _records(view)
                reached = read.next_offset
            for record in reversed(part):
                if max_bytes <= 0:
                    break
                found.append(record)
                max_bytes -= record.total_size
            at = begin
        return found

    def message(self, message_id: MessageId) -> Located:
        """The message that an id names; what else the id is, if it names none."""
        position = message_id.physical_offset
        first, confirmed = self._ends()
        if message_id.store_id != self._store_id():
            reason = f"message {message_id} is in store {message_id.store_id.hex()}, this is "
            return Located(MessagePlace.OTHER_STORE, None, reason + self._store_id().hex())
        if position >= confirmed:
            return _not_found(MessagePlace.AHEAD, message_id, f"the log ends at {confirmed}")
        if position < first:
            return _not_found(MessagePlace.GONE, message_id, f"the log begins at {first}")
        try:
            found = self._reader.read_log(position, 1, first, confirmed)
        except CorruptRecordError as error:
            if "no record begins" in str(error):
                detail = f"offset {position} is not a record's start"
                return _not_found(MessagePlace.NO_RECORD, message_id, detail)
            return _not_found(MessagePlace.CORRUPT, message_id, str(error))
        record = decode_record(found[0].records)
        return Located(MessagePlace.FOUND, record, MessagePlace.FOUND.value)


def _not_found(place: MessagePlace, message_id: MessageId, detail: str) -> Located:
    return Located(place, None, f"message {message_id}: {place.value}; {detail}")


def _positions(raw: bytes | None, hash_: int, before: int) -> list[int]:
    """The places that a part of the index names for a hash, newest first."""
    if not raw:
        return []
    entries = np.frombuffer(raw, KEY_ENTRY)
    chosen = entries["position"][entries["hash"] == hash_]
    return [position for position in chosen[::-1].tolist() if position < before]


def _records(view: memoryview) -> list[Record]:
    found: list[Record] = []
    at = 0
    while at < len(view):
        record = decode_record(view, at)
        found.append(record)
        at += record.total_size
    return found
