"""Cold reads, on the reader pool: in chunks that were checked before anyone sees a record of them."""

from __future__ import annotations

from threading import local
from typing import Final

import numpy as np

from holdmq.errors import CorruptRecordError, StorageError
from holdmq.files.disk import Disk
from holdmq.record.batch import Hashes, Ints, decode_offsets
from holdmq.record.codec import RECORD_BYTES_LIMIT
from holdmq.record.tag_table import TagTable
from storage.api.batches import Batch
from storage.api.queues import HashFilter, QueueRead, ReadStatus
from storage.core.queues import Queue, outside
from storage.core.scan import KeyLevels, batch_of, next_whole, part_of, whole_at
from storage.log.consume_queue import ConsumeQueues
from storage.log.core.entries import Entries, EntryRange, ranges_of
from storage.log.core.sidecar import RUN_ENTRIES
from storage.log.open_files import OpenFiles
from storage.log.reading.chunks import CHUNK_BYTES, Chunks, Damage
from storage.log.reading.core.chunks import ChunkCache, RecordChunk
from storage.log.reading.sidecars import Sidecars
from storage.log.segments import Segment, Segments

GAP_BYTES_MAX: Final = 64 << 10
"""Foreign bytes between two wanted records that are read along rather than seeked over."""
ENTRIES_PER_READ: Final = 65_536
"""Entries that one cold read tests: 1.3 MB of index."""
RUNS_PER_READ: Final = 256
"""Runs of foreign messages that one read passes: some ten milliseconds of a pool thread."""
THIN_PART: Final = 2
"""Where less than half of a chunk is wanted, reading just that is cheaper than checking all of it."""
_HINT: Final = "the disk or memory damaged it; reading goes on behind it"


class ColdReader:
    """Reads of what is no longer in memory. Every method blocks and may run on several threads.

    Without `chunks` of its own nothing stays in memory from one read to the next; without
    `sidecars` a filter tests every entry.
    """

    def __init__(
        self,
        disk: Disk,
        segments: Segments,
        queues: ConsumeQueues,
        key_levels: KeyLevels,
        chunks: Chunks | None = None,
        sidecars: Sidecars | None = None,
    ) -> None:
        self.corrupt = 0
        self.chunks = chunks or Chunks(OpenFiles.of(disk), segments, ChunkCache(0))
        self._segments = segments
        self._queues = queues
        self._sidecars = sidecars
        self._key_levels = key_levels
        self._tables = local()

    @property
    def reads(self) -> int:
        """Reads of log files so far."""
        return self.chunks.reads

    def read_log(self, position: int, max_bytes: int, end: int, keep: bool = True) -> list[Batch]:
        """Batches from `position` on, at least a record, nothing at or behind `end`.

        `keep` False: who follows the log, and reads it once, takes no room from those who come
        again. Raises CorruptRecordError when the record at `position` is damaged.
        """
        batches: list[Batch] = []
        while position < end and max_bytes > 0:
            found = self.chunks.at(position, end, max_bytes, keep)
            if found is None:
                break
            if isinstance(found, Damage):
                if batches:
                    break
                raise self._damaged(found, end)
            position = max(position, found.position)  # a blank was passed
            first = int(np.searchsorted(found.starts, position - found.position))
            if first == len(found.starts) or int(found.starts[first]) + found.position != position:
                raise self._damaged(self._no_record(position), end)
            batch = self._part(found, first, max_bytes)
            batches.append(batch)
            position = batch.end
            max_bytes -= len(batch.records)
        return batches

    def _part(self, chunk: RecordChunk, first: int, max_bytes: int) -> Batch:
        """The chunk's records from index `first` on that fit, but always one."""
        batch = chunk.batch or self._decoded(chunk)
        limit = int(chunk.starts[first]) + max_bytes
        if limit >= len(chunk.view):
            return part_of(batch, first, len(chunk.sizes))
        fitting = int(np.searchsorted(chunk.starts, limit, "right")) - 1
        return part_of(batch, first, max(first + 1, fitting))

    def _decoded(self, chunk: RecordChunk) -> Batch:
        """The chunk's batch, made by the first of the threads that want it."""
        with self.chunks.place(chunk.position):
            batch = chunk.batch
            if batch is None:
                batch = batch_of(chunk.view, chunk.sizes, chunk.position, self._key_levels, self._hashes)
                chunk.batch = batch
        return batch

    def _hashes(self, records: memoryview, starts: Ints, sizes: Ints, key_levels: int) -> Hashes | None:
        """`tag_hashes`, with a table per thread: it is no place to wait for each other."""
        tables: dict[int, TagTable] | None = getattr(self._tables, "of_levels", None)
        if tables is None:
            tables = self._tables.of_levels = {}
        table = tables.get(key_levels)
        if table is None:
            table = tables[key_levels] = TagTable(key_levels)
        return table.hashes(records, starts, sizes)

    def _no_record(self, position: int) -> Damage:
        """What to say of a position inside a record."""
        segment = self._segments.locate(position)
        if segment is None:
            raise StorageError("no segment holds it", operation="read", offset=position)
        return Damage(segment, position, segment.end, "no record begins here")

    def _damaged(self, damage: Damage, end: int) -> CorruptRecordError:
        self.corrupt += 1
        segment, position, stop, reason = damage
        error = CorruptRecordError(
            reason, operation="read", path=str(segment.path), offset=position, hint=_HINT
        )
        stop = min(stop, end)
        error.resume_at = self._resume_at(segment, position, stop)
        if error.resume_at < 0:
            error.resume_at = stop
        return error

    def _resume_at(self, segment: Segment, position: int, stop: int) -> int:
        """The next whole record of the segment behind `position`; -1 = none."""
        at = position
        while at < stop:
            view = self.chunks.read(segment, at, min(stop - at, 2 * RECORD_BYTES_LIMIT))
            found = next_whole(view, at, 1 if at == position else 0)
            if found >= 0:
                return at + found
            at += max(1, len(view) - RECORD_BYTES_LIMIT) if at + len(view) < stop else len(view)
        return -1

    def read_queue(
        self,
        queue: Queue,
        offset: int,
        max_bytes: int,
        max_count: int,
        wanted: HashFilter | None,
        end: int,
    ) -> QueueRead:
        """Read what the consume-queue files know; FOUND with nothing where only memory knows more.

        `end` is the confirmed position.
        """
        answer = outside(queue, offset)
        if answer is not None:
            return answer
        read = QueueRead(ReadStatus.FOUND, offset, queue.first_offset, queue.confirmed)
        limit = min(queue.indexed - offset, ENTRIES_PER_READ)
        if limit <= 0:
            return read
        if wanted is None:
            limit = min(limit, max_count)
        elif self._sidecars is not None:
            if self._search(read, queue, wanted, max_bytes, max_count, end):
                return read
            # Up to the end of its run: the next one may be searched.
            limit = min(limit, RUN_ENTRIES - offset % RUN_ENTRIES)
        entries = self._entries(queue, offset, limit)
        stop = len(entries)
        if wanted is None:
            chosen, offsets = entries, np.arange(offset, offset + stop)
        else:
            picked = np.flatnonzero(wanted.mask(entries["hash"].astype(np.uint64)))[:max_count]
            chosen, offsets = entries[picked], offset + picked
            stop = stop if len(picked) < max_count else int(picked[-1]) + 1
        absent = np.flatnonzero(entries["size"] == 0)
        if len(absent) and int(absent[0]) < stop:
            # A rebuild found the record damaged, so it has no entry.
            stop = int(absent[0])
            if not stop:
                self._say_absent(read, queue)
                return read
            before = int(np.searchsorted(offsets, offset + stop))
            chosen, offsets = chosen[:before], offsets[:before]
        is_thin = len(chosen) * THIN_PART < stop
        self._read_entries(read, chosen, offsets, offset + stop, max_bytes, is_thin, end)
        return read

    def _entries(self, queue: Queue, offset: int, count: int) -> Entries:
        """Entries of a queue from its files, at least one; StorageError when there is none."""
        try:
            entries = self._queues.read((queue.topic, queue.queue_id), offset, count)
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
        return entries

    def _say_absent(self, read: QueueRead, queue: Queue) -> None:
        read.status = ReadStatus.CORRUPT
        read.reason = (
            f"the record of {queue.topic}/{queue.queue_id} offset {read.next_offset} is damaged; {_HINT}"
        )
        read.next_offset += 1

    def _search(
        self, read: QueueRead, queue: Queue, wanted: HashFilter, max_bytes: int, max_count: int, end: int
    ) -> bool:
        """Read what sidecars find, or pass the runs in which there is nothing; False = they know nothing."""
        assert self._sidecars is not None
        key = (queue.topic, queue.queue_id)
        begin = read.next_offset
        for _ in range(RUNS_PER_READ):
            at = read.next_offset
            first = at - at % RUN_ENTRIES
            try:
                found = self._sidecars.find(key, first, queue.indexed, wanted)
            except OSError as error:
                raise StorageError(
                    error.strerror or str(error), operation="read", path=f"{queue.topic}/{queue.queue_id}"
                ) from error
            if found is None:
                return at > begin
            offsets = found[found >= at]
            if len(offsets):
                complete = first + RUN_ENTRIES
                if len(offsets) > max_count:
                    offsets = offsets[:max_count]
                    complete = int(offsets[-1]) + 1
                entries = np.concatenate([self._entries(queue, offset, 1) for offset in offsets.tolist()])
                absent = np.flatnonzero(entries["size"] == 0)
                if len(absent):
                    complete = int(offsets[absent[0]])
                    offsets, entries = offsets[: absent[0]], entries[: absent[0]]
                    if not len(offsets):
                        read.next_offset = complete
                        self._say_absent(read, queue)
                        return True
                self._read_entries(read, entries, offsets, complete, max_bytes, True, end)
                return True
            read.next_offset = first + RUN_ENTRIES
        return True

    def _read_entries(
        self,
        read: QueueRead,
        entries: Entries,
        offsets: Ints,
        complete: int,
        max_bytes: int,
        is_thin: bool,
        end: int,
    ) -> None:
        """Add the records of these entries; `complete` is where to go on behind all of them."""
        sizes = entries["size"].astype(np.int64)
        positions = entries["position"].astype(np.int64)
        fitting = int(np.searchsorted(np.cumsum(sizes), max_bytes, "right"))
        if fitting < len(sizes):
            fitting = max(1, fitting)
            complete = int(offsets[fitting]) if fitting < len(offsets) else complete
            offsets, positions, sizes = offsets[:fitting], positions[:fitting], sizes[:fitting]
        done = 0
        while done < len(offsets):
            chunk, last = self._chunk_for(positions, sizes, done, is_thin, end)
            span = slice(done, last)
            if chunk is None:
                good = self._read_single(read, positions[span], sizes[span], offsets[span])
            else:
                good = _take(read, chunk, positions[span], sizes[span], offsets[span])
            done += good
            if done < last:
                break
        if done == len(offsets):
            read.next_offset = complete
            return
        read.next_offset = int(offsets[done])
        if not read.count:
            self._say_corrupt(read, int(positions[done]))

    def _say_corrupt(self, read: QueueRead, position: int) -> None:
        segment = self._segments.locate(position)
        path = segment.path if segment else self._segments.directory
        read.status = ReadStatus.CORRUPT
        read.reason = f"the record at {position} in {path} is damaged; {_HINT}"
        read.next_offset += 1
        self.corrupt += 1

    def _chunk_for(
        self, positions: Ints, sizes: Ints, first: int, is_thin: bool, end: int
    ) -> tuple[RecordChunk | None, int]:
        """What record `first` of a read is taken from, and up to which record that serves.

        None = single reads: little is wanted there, or there is damage.
        """
        position = int(positions[first])
        chunk = self.chunks.cached(position)
        if chunk is None:
            last = int(np.searchsorted(positions, position + CHUNK_BYTES))
            wanted_bytes = int(sizes[first:last].sum())
            span = int(positions[last - 1] + sizes[last - 1]) - position
            is_thin = is_thin or wanted_bytes * THIN_PART < span
            if is_thin:
                return None, last
            found = self.chunks.at(position, end, wanted_bytes)
            if not isinstance(found, RecordChunk):
                return None, first + 1
            chunk = found
        return chunk, max(first + 1, int(np.searchsorted(positions, chunk.end)))

    def _read_single(self, read: QueueRead, positions: Ints, sizes: Ints, offsets: Ints) -> int:
        """Add records that lie far apart; how many came before the first that is damaged."""
        segment_starts = [segment.start for segment in self._segments.table]
        for part in ranges_of(positions, sizes, segment_starts, GAP_BYTES_MAX, CHUNK_BYTES):
            span = slice(part.first, part.first + part.entries)
            good = self._read_range(read, part, positions[span], sizes[span], offsets[span])
            if good < part.entries:
                return part.first + good
        return len(positions)

    def _read_range(
        self,
        read: QueueRead,
        part: EntryRange,
        positions: Ints,
        sizes: Ints,
        offsets: Ints,
    ) -> int:
        """Add the records of one stretch; how many came before the first that is damaged."""
        segment = self._segments.locate(part.position)
        if segment is None:
            return 0
        view = self.chunks.read(segment, part.position, part.size)
        starts = positions - part.position
        good = len(starts) if len(view) == part.size else 0
        if good:
            good = whole_at(view, part.position, starts, sizes)
        if good:
            wrong = decode_offsets(view, starts[:good])[0] != offsets[:good]
            good = int(wrong.argmax()) if wrong.any() else good
        _add_parts(read, view, starts[:good], sizes[:good])
        return good


def _take(read: QueueRead, chunk: RecordChunk, positions: Ints, sizes: Ints, offsets: Ints) -> int:
    """Add records of a chunk; how many came before the first that is not as its entry says."""
    starts = positions - chunk.position
    first = int(np.searchsorted(chunk.starts, starts[0]))
    last = first + len(starts)
    # The usual chunk of a queue that was written for a while holds nothing else: no search for each.
    if (
        np.array_equal(chunk.starts[first:last], starts)
        and np.array_equal(chunk.sizes[first:last], sizes)
        and np.array_equal(chunk.queue_offsets[first:last], offsets)
    ):
        begin, end = int(starts[0]), int(starts[-1] + sizes[-1])
        read.parts.append(chunk.view[begin:end])
        read.count += len(starts)
        read.size_bytes += end - begin
        return len(starts)
    at = np.minimum(np.searchsorted(chunk.starts, starts), len(chunk.starts) - 1)
    wrong = (chunk.starts[at] != starts) | (chunk.sizes[at] != sizes) | (chunk.queue_offsets[at] != offsets)
    good = int(wrong.argmax()) if wrong.any() else len(starts)
    _add_parts(read, chunk.view, starts[:good], sizes[:good])
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
