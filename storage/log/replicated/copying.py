"""A copy takes bytes of its leader's log: checked as a start would check them, and put at the same place."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

import numpy as np

from holdmq.errors import CorruptRecordError, StorageError, StoreFullError, UsageError
from holdmq.record.batch import stores_of
from holdmq.record.codec import BLANK_SIZE_MIN
from storage.api.batches import Appended, Batch, ForeignBatch
from storage.api.replication import Done
from storage.core.queues import Queue
from storage.core.scan import KeyLevels, NextOffsets, batch_of, in_sequence, whole_records
from storage.log.appends import LogAppends
from storage.log.core.names import blank_size_at
from storage.log.writer import Copied

BLANK_HEAD_BYTES: Final = 8
UNCONFIRMED_MAX_BYTES: Final = 256 << 20
"""Records in memory that are not confirmed: twice what a leader takes before its producers wait, so only a
start that has not shown yet what it found comes to it."""
_HINT: Final = "it is fetched again; if that does not end, the leader's disk or memory is damaged"


class CopiedAppends:
    """Appends what a leader has stamped. Everything is called on the loop, but for `open`.

    `floors`: next offsets of queues that the leader had, and of which nothing is here: a record of theirs
    may come with any offset. `took` is given each batch in the order of the log; True = by what is in it
    levels of a key may count otherwise.
    """

    def __init__(
        self,
        appends: LogAppends,
        directory: str,
        segment_size: int,
        key_levels: KeyLevels,
        took: Callable[[Batch], bool],
    ) -> None:
        self.floors: NextOffsets = {}
        self.batches = self.bytes = self.refused = self.waits = 0
        self._appends = appends
        self._directory = directory
        self._segment_size = segment_size
        self._key_levels = key_levels
        self._took = took
        self._store_id = b""

    def open(self, store_id: bytes, floors: NextOffsets) -> None:
        """Begin: records are of this store."""
        self._store_id = store_id
        self.floors = floors

    def append(self, data: memoryview, position: int, done: Done) -> int:
        """Do what `storage.api.replication.ReplicatedLog.append_copied` says."""
        appends = self._appends
        if appends.refusal is not None:
            raise appends.refusal
        if appends.not_leading is None:
            raise UsageError("a log that leads takes no bytes of another one")
        if position != appends.end:
            raise UsageError(f"the log ends at {appends.end}, not at {position}")
        behind = appends.lagging() or self._unconfirmed()
        if behind is not None:
            self.waits += 1
            raise behind
        try:
            copied = self._blank(data, done) if _is_blank(data) else self._records(data, done)
        except CorruptRecordError:
            self.refused += 1
            raise
        self.batches += 1
        self.bytes += len(copied.batch.records)
        appends.put(copied)
        return appends.end

    def begin(self) -> None:
        """Go on behind what this log appended while it led, and has not confirmed."""
        for pending in self._appends.pending:
            self._took(pending.batch)

    def _unconfirmed(self) -> StorageError | None:
        """The refusal while memory has no more room for what is not confirmed here."""
        if self._appends.backlog().size_bytes <= UNCONFIRMED_MAX_BYTES:
            return None
        return StoreFullError(
            "what this copy has is confirmed more slowly than more comes",
            operation="copy",
            path=self._directory,
            hint="a start still reads what it found in the log: it goes on by itself",
        )

    def _blank(self, data: memoryview, done: Done) -> Copied:
        size = blank_size_at(data, 0)
        position = self._appends.end + size
        if size < BLANK_SIZE_MIN or len(data) != BLANK_HEAD_BYTES:
            raise self._corrupt("it is no blank", 0)
        batch = Batch(data[:0], np.empty(0, np.int64), [], position, self._appends.store_ms)
        return self._copied(batch, [], size, position + self._segment_size, done)

    def _records(self, data: memoryview, done: Done) -> Copied:
        appends = self._appends
        position = appends.end
        whole = whole_records(data, position)
        size = int(whole.sizes.sum())
        if size != len(data) or not size:
            raise self._corrupt(whole.reason or "it is cut off", size)
        batch = ForeignBatch.of(batch_of(data, whole.sizes, position, self._key_levels))
        foreign = stores_of(data, batch.starts) != int.from_bytes(self._store_id, "big", signed=True)
        if foreign.any():
            raise self._corrupt("its StoreHost is another store's", int(batch.starts[foreign.argmax()]))
        keys = [(run.topic, run.queue_id) for run in batch.runs]
        known = {key: appends.queues[key].stamped for key in set(keys) if key in appends.queues}
        sequence = in_sequence(batch, known, appends.store_ms)
        if sequence.records < len(batch.sizes):
            raise self._corrupt(sequence.reason, int(batch.starts[sequence.records]))
        if self._took(batch):
            batch = ForeignBatch.of(batch_of(data, whole.sizes, position, self._key_levels))
        queues: list[Queue] = []
        for key, run in zip(keys, batch.runs, strict=True):
            queue = appends.queues.get(key)
            if queue is None:
                queue = appends.queues[key] = Queue(*key, run.base_offset, run.base_offset)
            queue.stamped = run.base_offset + run.count
            queues.append(queue)
        appends.store_ms = batch.store_ms
        end = appends.segment_end
        while batch.end + BLANK_SIZE_MIN > end:
            end += self._segment_size  # its leader's segments are larger
        return self._copied(batch, queues, 0, end, done)

    def _copied(
        self, batch: Batch, queues: list[Queue], blank_size: int, segment_end: int, done: Done
    ) -> Copied:
        generation = self._appends.generation
        return Copied(batch, _refused(done), queues, blank_size, segment_end, generation, monotonic(), done)

    def _corrupt(self, reason: str, at: int) -> CorruptRecordError:
        return CorruptRecordError(
            f"bytes of the leader cannot be taken: {reason}",
            operation="copy",
            path=self._directory,
            offset=self._appends.end + at,
            hint=_HINT,
        )


def _is_blank(data: memoryview) -> bool:
    return blank_size_at(data, 0) > 0


def _refused(done: Done) -> Appended:
    """What is called at a copied batch's end: only a refusal is news, it was told of the write before."""

    def end(_batch: Batch, error: StorageError | None) -> None:
        if error is not None:
            done(error)

    return end
