"""Cold reads, on the reader pool: preadv, checked record by record before anyone sees them."""

from __future__ import annotations

from typing import Final

import numpy as np

from holdmq.errors import CorruptRecordError, StorageError
from holdmq.record import RECORD_BYTES_LIMIT
from holdmq.record_batch import Ints, check_layout, decode_columns, verify_bodies, verify_stamps
from storage.log.consume_queue import ConsumeQueues
from storage.log.core.entries import Entries, Range, ranges_of
from storage.log.core.names import blank_size_at
from storage.log.core.queues import Queue, outside
from storage.log.core.scan import KeyLevels, batch_of, next_whole, whole_records
from storage.log.disk import Disk
from storage.log.segments import Segment, Segments
from storage.store import Batch, HashFilter, QueueRead, ReadStatus

CHUNK_BYTES: Final = 1 << 20
"""One read of the log: large enough for a disk's full speed, small enough for 2 readers' memory."""
GAP_BYTES_MAX: Final = 64 << 10
"""Foreign bytes between two wanted records that are read along rather than seeked over."""
ENTRIES_PER_READ: Final = 65_536
"""Entries that one cold read tests: 1.3 MB of index."""
_HINT: Final = "the disk or memory damaged it; reading goes on behind it"


class ColdReader:
    """Reads of what is no longer in memory. Every method blocks and may run on several threads."""

    def __init__(self, disk: Disk, segments: Segments, queues: ConsumeQueues, key_levels: KeyLevels) -> None:
        self.reads = 0
        self.corrupt = 0
        self._disk = disk
        self._segments = segments
        self._queues = queues
        self._key_levels = key_levels

    def read_log(self, position: int, max_bytes: int, end: int) -> list[Batch]:
        """Batches from `position` on, at least a record, nothing at or behind `end`.

        Raises CorruptRecordError when the record at `position` is damaged.
        """
        batches: list[Batch] = []
        while position < end and max_bytes > 0:
            segment = self._segments.locate(position)
            if segment is None:
                raise StorageError("no segment holds it", operation="read", offset=position)
            stop = min(end, segment.end)
            view = self._read(segment, position, min(stop - position, max(CHUNK_BYTES, max_bytes)))
            whole = whole_records(view, position)
            if not len(whole.sizes):
                blank = blank_size_at(view, 0)
                if blank and position + blank == segment.end:
                    position = segment.end
                    continue
                if not whole.reason and len(view) < stop - position:
                    view = self._read(segment, position, min(stop - position, RECORD_BYTES_LIMIT))
                    whole = whole_records(view, position)
                if not len(whole.sizes):
                    if batches:
                        break
                    raise self._damaged(segment, position, stop, end, whole.reason or "it ends nowhere")
            batch = self._batch(view, whole.sizes, position, max_bytes)
            batches.append(batch)
            position = batch.end
            max_bytes -= len(batch.records)
        return batches

    def _batch(self, view: memoryview, sizes: Ints, position: int, max_bytes: int) -> Batch:
        fitting = int(np.searchsorted(np.cumsum(sizes), max_bytes, "right"))
        return batch_of(view, sizes[: max(1, fitting)], position, self._key_levels)

    def _damaged(
        self, segment: Segment, position: int, stop: int, end: int, reason: str
    ) -> CorruptRecordError:
        self.corrupt += 1
        error = CorruptRecordError(
            reason, operation="read", path=str(segment.path), offset=position, hint=_HINT
        )
        error.resume_at = self._resume_at(segment, position, stop)
        if error.resume_at < 0:
            error.resume_at = min(stop, end)
        return error

    def _resume_at(self, segment: Segment, position: int, stop: int) -> int:
        """The next whole record of the segment behind `position`; -1 = none."""
        at = position
        while at < stop:
            view = self._read(segment, at, min(stop - at, 2 * RECORD_BYTES_LIMIT))
            found = next_whole(view, at, 1 if at == position else 0)
            if found >= 0:
                return at + found
            at += max(1, len(view) - RECORD_BYTES_LIMIT) if at + len(view) < stop else len(view)
        return -1

    def _read(self, segment: Segment, position: int, size: int) -> memoryview:
        self.reads += 1
        try:
            file = self._disk.open_to_read(segment.path)
            try:
                return memoryview(file.read(position - segment.start, size))
            finally:
                file.close()
        except OSError as error:
            raise StorageError(
                error.strerror or str(error), operation="read", path=str(segment.path), offset=position
            ) from error

    def read_queue(
        self, queue: Queue, offset: int, max_bytes: int, max_count: int, wanted: HashFilter | None
    ) -> QueueRead:
        """Read what the consume-queue files know; FOUND with nothing where only memory knows more."""
        answer = outside(queue, offset)
        if answer is not None:
            return answer
        read = QueueRead(ReadStatus.FOUND, offset, queue.first_offset, queue.confirmed)
        limit = min(queue.indexed - offset, ENTRIES_PER_READ)
        if limit <= 0:
            return read
        if wanted is None:
            limit = min(limit, max_count)
        try:
            entries = self._queues.read((queue.topic, queue.queue_id), offset, limit)
        except OSError as error:
            raise StorageError(
                error.strerror or str(error), operation="read", path=f"{queue.topic}/{queue.queue_id}"
            ) from error
        if not len(entries):
            raise StorageError(
                f"the consume queue of {queue.topic}/{queue.queue_id} has no entry {offset}",
                operation="read",
                path=str(self._queues.directory),
                hint="stop the broker and delete this queue's directory: a start builds it again",
            )
        absent = np.flatnonzero(entries["size"] == 0)
        if len(absent):
            # A rebuild found the record damaged, so it has no entry.
            entries = entries[: int(absent[0])]
            if not len(entries):
                read.status, read.next_offset = ReadStatus.CORRUPT, offset + 1
                read.reason = (
                    f"the record of {queue.topic}/{queue.queue_id} offset {offset} is damaged; {_HINT}"
                )
                return read
        picked = np.arange(len(entries))
        if wanted is not None:
            picked = np.flatnonzero(wanted.mask(entries["hash"].astype(np.uint64)))[:max_count]
        complete = len(entries) if wanted is None or len(picked) < max_count else int(picked[-1]) + 1
        self._read_entries(read, offset, entries, picked, max_bytes, complete)
        return read

    def _read_entries(
        self,
        read: QueueRead,
        offset: int,
        entries: Entries,
        picked: Ints,
        max_bytes: int,
        complete: int,
    ) -> None:
        sizes = entries["size"][picked].astype(np.int64)
        fitting = int(np.searchsorted(np.cumsum(sizes), max_bytes, "right"))
        if fitting < len(picked):
            fitting = max(1, fitting)
            complete = int(picked[fitting]) if fitting < len(picked) else complete
            picked, sizes = picked[:fitting], sizes[:fitting]
        positions = entries["position"][picked].astype(np.int64)
        starts = [segment.start for segment in self._segments.table]
        for part in ranges_of(positions, sizes, starts, GAP_BYTES_MAX, CHUNK_BYTES):
            span = slice(part.first, part.first + part.entries)
            good = self._read_range(read, part, positions[span], sizes[span], offset + picked[span])
            if good < part.entries:
                bad = part.first + good
                if not read.count:
                    read.status = ReadStatus.CORRUPT
                    segment = self._segments.locate(int(positions[bad]))
                    path = segment.path if segment else self._segments.directory
                    read.reason = f"the record at {int(positions[bad])} in {path} is damaged; {_HINT}"
                    self.corrupt += 1
                    read.next_offset = offset + int(picked[bad]) + 1
                else:
                    read.next_offset = offset + int(picked[bad])
                return
        read.next_offset = offset + complete

    def _read_range(
        self,
        read: QueueRead,
        part: Range,
        positions: Ints,
        sizes: Ints,
        offsets: Ints,
    ) -> int:
        """Add the records of one stretch; how many came before the first that is damaged."""
        segment = self._segments.locate(part.position)
        if segment is None:
            return 0
        view = self._read(segment, part.position, part.size)
        starts = positions - part.position
        good = len(starts) if len(view) == part.size else 0
        bad = check_layout(view, starts, sizes) if good else None
        if bad is not None:
            good = bad.entry
        for verify in (verify_bodies, verify_stamps):
            if good:
                at = verify(view, starts[:good], sizes[:good])
                good = at if at >= 0 else good
        if good:
            columns = decode_columns(view, starts[:good], sizes[:good])
            wrong = (columns.physical_offset != positions[:good]) | (columns.queue_offset != offsets[:good])
            good = int(wrong.argmax()) if wrong.any() else good
        _add_parts(read, view, starts[:good], sizes[:good])
        return good


def _add_parts(read: QueueRead, view: memoryview, starts: Ints, sizes: Ints) -> None:
    """Add records as views, neighbours as one."""
    if not len(starts):
        return
    ends = starts + sizes
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    firsts = [0, *breaks.tolist()]
    lasts = [*breaks.tolist(), len(starts)]
    for first, last in zip(firsts, lasts, strict=True):
        read.parts.append(view[int(starts[first]) : int(ends[last - 1])])
    read.count += len(starts)
    read.size_bytes += int(sizes.sum())
