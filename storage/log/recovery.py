"""What a start does before the first append: find the log's end, cut what is torn, complete the indexes.

Records are checked from the checkpoint on; the first bad one ends the log. What lies behind is
kept under cut/, reported and removed; what is kept is fsynced. Below the checkpoint nothing is
ever cut. Source: storage.md, Recovery.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import structlog

from holdmq.errors import CorruptRecordError, StorageError, StoreFullError
from holdmq.files.disk import FULL_ERRORS, Disk, OpenFile
from holdmq.record.codec import BLANK_SIZE_MIN, RECORD_BYTES_LIMIT
from storage.api.batches import Batch
from storage.core.scan import KeyLevels, batch_of, in_sequence, next_whole, whole_records
from storage.log.consume_queue import ConsumeQueues, Key
from storage.log.core.entries import entries_of
from storage.log.core.names import blank_size_at, name_of
from storage.log.flusher import Checkpoint
from storage.log.home import StoreDirectory
from storage.log.reading.queue_batches import queue_batches
from storage.log.reading.reader import ColdReader
from storage.log.retention.core.deleted import DELETED_KEY
from storage.log.retention.deletions import give_up
from storage.log.retention.retention import complete, raise_firsts
from storage.log.segments import Segment, Segments
from storage.log.state.following import CONFIG_KEY, LoggedState, RowsOf

SCAN_BYTES: Final = 4 << 20
"""One read of the scan: the disk's full speed in little memory."""
_ZEROS: Final = bytes(SCAN_BYTES)

log = structlog.get_logger("holdmq.storage")


class Recovered(NamedTuple):
    """The log as it is after recovery: `queues` has first and next offset of every queue.

    `is_cut` False: the disk is too full to make ready what follows the end; that comes before the next
    write. What lies behind `confirmed` is not indexed: queues are there as `confirmed_queues` says, and
    the time of the last record is `confirmed_ms`. `is_damaged`: whole records lay behind the cut.
    """

    end: int
    store_ms: int
    queues: dict[Key, tuple[int, int]]
    cut_bytes: int
    is_cut: bool
    confirmed: int
    confirmed_ms: int
    confirmed_queues: dict[Key, tuple[int, int]]
    is_damaged: bool


class StateRecovery(NamedTuple):
    """State files that the log has: the tables may know them up to some position, the log says the rest."""

    state: LoggedState
    rows_of: RowsOf


class Recovery:
    """One start's recovery. Every method blocks; errors of the disk are OSError.

    `is_replicated`: what lies behind the checkpoint is checked, but neither confirmed nor indexed. `kept`:
    state files that say how the log is to be read, such as how many levels of a key count.
    """

    def __init__(
        self,
        disk: Disk,
        home: StoreDirectory,
        segments: Segments,
        queues: ConsumeQueues,
        checkpoint: Checkpoint,
        key_levels: KeyLevels,
        kept: StateRecovery | None = None,
        is_replicated: bool = False,
    ) -> None:
        self._kept = kept
        self._is_replicated = is_replicated
        self._is_damaged = False
        self._disk = disk
        self._home = home
        self._segments = segments
        self._queues = queues
        self._checkpoint = checkpoint
        self._key_levels = key_levels
        self._ends = {key: bounds[1] for key, bounds in checkpoint.queues.items()}
        self._firsts = {key: bounds[0] for key, bounds in checkpoint.queues.items()}
        self._store_ms = checkpoint.store_ms
        self._why = ""

    def run(self, clean_end: int | None) -> Recovered:
        """Recover; `clean_end` is the end that a clean close wrote (None = it was none)."""
        start = self._checkpoint.position
        complete(self._segments, self._checkpoint)
        self._check_checkpoint(start)
        missing = self._missing()
        if self._kept is not None:
            self._rebuild(missing & {CONFIG_KEY}, start)
            missing.discard(CONFIG_KEY)
            self._load_state(self._kept, start)
        self._rebuild(missing, start)
        raise_firsts(self._segments, self._queues, self._checkpoint)
        self._firsts = {key: bounds[0] for key, bounds in self._checkpoint.queues.items()}
        if clean_end != start:
            self._cut_indexes()
        confirmed_ms, confirmed = self._store_ms, self._bounds()
        end = self._scan(start)
        cut_bytes = 0
        if clean_end != end:
            cut_bytes = self._keep_cut(end)
            self._sync_kept(start, end)
        is_cut = self._cut(end)
        self._queues.sync()
        bounds = self._bounds()
        if not self._is_replicated:
            start, confirmed_ms, confirmed = end, self._store_ms, bounds
        self._give_up(confirmed, start)
        try:
            self._checkpoint.save(start, confirmed_ms, confirmed)
        except StoreFullError as error:
            # The one before is as good, only further back.
            log.warning("the checkpoint waits for space", reason=str(error))
        return Recovered(
            end,
            self._store_ms,
            bounds,
            cut_bytes,
            is_cut,
            start,
            confirmed_ms,
            dict(confirmed),
            self._is_damaged,
        )

    def _bounds(self) -> dict[Key, tuple[int, int]]:
        """First and next offset of every queue, as far as it was followed."""
        return {key: (self._firsts.get(key, 0), following) for key, following in self._ends.items()}

    def _give_up(self, bounds: dict[Key, tuple[int, int]], end: int) -> None:
        """Give up the queues that records of the log say are deleted: a crash may have come before."""
        of_deletions = bounds.get(DELETED_KEY, (0, 0))
        reader = ColdReader(self._disk, self._segments, self._queues, self._key_levels)
        give_up(
            queue_batches(reader, self._queues, DELETED_KEY, of_deletions, 0, end), bounds, self._checkpoint
        )

    def _cut(self, end: int) -> bool:
        """Remove what lies behind the end; False = there is no room for what follows it."""
        try:
            self._segments.cut(end)
        except OSError as error:
            if error.errno not in FULL_ERRORS or not self._segments.table:
                raise
            return False
        return True

    def _check_checkpoint(self, start: int) -> None:
        table = self._segments.table
        inside = table and table[0].start <= start <= table[-1].end
        if not inside and (table or start):
            raise StorageError(
                f"the checkpoint is at {start}, but no segment holds it",
                operation="open",
                path=str(self._segments.directory),
                offset=start,
                hint="segments are missing: restore them",
            )

    # Indexes

    def _missing(self) -> set[Key]:
        """Consume queues that are not complete up to the checkpoint."""
        return {
            key
            for key, (first, following) in self._checkpoint.queues.items()
            if not self._queues.is_complete(key, first, following)
        }

    def _load_state(self, kept: StateRecovery, end: int) -> None:
        """Read what state files say up to the checkpoint; the scan goes on from there."""
        reader = ColdReader(self._disk, self._segments, self._queues, self._key_levels)
        bounds = self._checkpoint.queues.get(CONFIG_KEY, (0, 0))
        kept.state.load(kept.rows_of, reader, self._queues, bounds, end)

    def _rebuild(self, missing: set[Key], end: int) -> None:
        """Write consume queues again, from the log up to the checkpoint."""
        if not missing:
            return
        log.warning("consume queues are built again from the log", queues=len(missing), up_to=end)
        for key in missing:
            self._queues.cut(key, 0)
        reader = ColdReader(self._disk, self._segments, self._queues, self._key_levels)
        position = self._segments.first_position
        while position < end:
            try:
                batches = reader.read_log(position, SCAN_BYTES, end)
            except CorruptRecordError as error:
                log.error("the log is damaged", reason=str(error), continues_at=error.resume_at)
                position = error.resume_at
                continue
            if not batches:
                return
            for batch in batches:
                self._index(batch, missing)
            position = batches[-1].end

    def _index(self, batch: Batch, only: set[Key] | None = None) -> None:
        entries = entries_of([batch])
        at = 0
        for run in batch.runs:
            key = (run.topic, run.queue_id)
            if only is None or key in only:
                # Below the first offset is what retention, or the queue's deletion, gave up.
                gone = min(run.count, max(0, self._firsts.get(key, 0) - run.base_offset))
                if gone < run.count:
                    self._queues.write(key, run.base_offset + gone, entries[at + gone : at + run.count])
            at += run.count

    def _cut_indexes(self) -> None:
        """Remove entries past the checkpoint: the scan writes those again that still have a record."""
        for key in self._queues.on_disk():
            self._queues.cut(key, self._ends.get(key, 0))

    # The log's end

    def _scan(self, position: int) -> int:
        """Check records from `position` on and index them; the log's end."""
        while True:
            segment = self._segments.locate(position)
            if segment is None:
                return position
            file = self._disk.open_to_read(segment.path)
            try:
                position, goes_on = self._scan_segment(file, segment, position)
            finally:
                file.close()
            if not goes_on:
                return position

    def _scan_segment(self, file: OpenFile, segment: Segment, position: int) -> tuple[int, bool]:
        size = SCAN_BYTES
        while position < segment.end:
            view = memoryview(file.read(position - segment.start, min(size, segment.end - position)))
            whole = whole_records(view, position)
            if not len(whole.sizes):
                blank = blank_size_at(view, 0)
                if blank:
                    return self._end_of_blank(file, segment, position, blank)
                if not whole.reason and size < RECORD_BYTES_LIMIT and len(view) == size:
                    size = RECORD_BYTES_LIMIT
                    continue
                self._why = whole.reason or "it is longer than its segment"
                return position, False
            size = SCAN_BYTES
            batch = batch_of(view, whole.sizes, position, self._key_levels)
            sequence = in_sequence(batch, self._ends, self._store_ms)
            if sequence.records < len(batch.sizes):
                self._why = sequence.reason
                if not sequence.records:
                    return position, False
                batch = batch_of(view, whole.sizes[: sequence.records], position, self._key_levels)
            for run in batch.runs:
                self._firsts.setdefault((run.topic, run.queue_id), run.base_offset)
            self._take(batch, view)
            self._store_ms = batch.store_ms
            position = batch.end
            if sequence.records < len(whole.sizes):
                return position, False
        return position, True

    def _take(self, batch: Batch, view: memoryview) -> None:
        """Follow the state that a batch changes, and index it, unless that waits until it is confirmed."""
        is_changed = self._kept is not None and self._kept.state.scan(batch)
        if self._is_replicated:
            return
        if is_changed:
            # What the records say of themselves may hold for those behind them.
            batch = batch_of(view, batch.sizes, batch.position, self._key_levels)
        self._index(batch)

    def _end_of_blank(self, file: OpenFile, segment: Segment, position: int, blank: int) -> tuple[int, bool]:
        tail = bytes(file.read(segment.end - 4 - segment.start, 4))
        if position + blank == segment.end and blank >= BLANK_SIZE_MIN and tail == blank.to_bytes(4, "big"):
            return segment.end, True
        self._why = "the blank at its end is torn"
        return position, False

    # What is behind it

    def _keep_cut(self, end: int) -> int:
        """Copy what was written at and behind the log's end to cut/; how many bytes that was."""
        kept = 0
        for segment in self._segments.table:
            if segment.end <= end:
                continue
            begin = max(end, segment.start)
            file = self._disk.open_to_read(segment.path)
            try:
                written = self._last_written(file, begin - segment.start) + segment.start
                if written > begin:
                    if self._is_replicated and not self._is_damaged:
                        self._is_damaged = _has_whole(file, segment.start, begin, written, begin == end)
                    self._copy(file, begin - segment.start, written - segment.start, begin)
                    kept += written - begin
            finally:
                file.close()
        if kept:
            log.warning(
                "the log was cut",
                at=end,
                why=self._why,
                cut_bytes=kept,
                kept_in=str(self._home.cut / name_of(end)),
            )
        return kept

    def _last_written(self, file: OpenFile, begin: int) -> int:
        """The offset in the file behind the last byte that is not zero; `begin` if all are."""
        last = begin
        # All ranges before the first read: pages that reading brings into memory, readahead's too,
        # count as data from then on, and the search would run through the whole file.
        for start, stop in file.data_ranges(begin):
            for at in range(start, stop, SCAN_BYTES):
                block = bytes(file.read(at, min(SCAN_BYTES, stop - at)))
                if block != _ZEROS[: len(block)]:
                    last = at + len(block.rstrip(b"\0"))
        return last

    def _copy(self, file: OpenFile, begin: int, end: int, offset: int) -> None:
        self._disk.make_directory(self._home.cut)
        copy = self._disk.open(self._home.cut / name_of(offset), create=True)
        try:
            copy.truncate(0)
            for at in range(begin, end, SCAN_BYTES):
                copy.write([file.read(at, min(SCAN_BYTES, end - at))], at - begin)
            copy.sync()
        finally:
            copy.close()
        self._disk.sync_directory(self._home.cut)

    def _sync_kept(self, start: int, end: int) -> None:
        """Make what the scan read durable: what was in the page cache only must not go later.

        It is written once more: pages whose fsync failed before the restart count as clean, and another
        fsync alone would leave them where they are.
        """
        for segment in self._segments.table:
            if segment.end > start and segment.start < end:
                file = self._disk.open(segment.path)
                try:
                    stop = min(end, segment.end) - segment.start
                    for at in range(max(start, segment.start) - segment.start, stop, SCAN_BYTES):
                        file.write([file.read(at, min(SCAN_BYTES, stop - at))], at)
                    file.sync()
                finally:
                    file.close()


def _has_whole(file: OpenFile, start: int, position: int, stop: int, is_behind: bool) -> bool:
    """Whether a whole record begins at `position` or behind it; `start` is the file's log offset.

    `is_behind`: none begins at the position itself.
    """
    at = position
    while at < stop:
        view = memoryview(file.read(at - start, min(2 * RECORD_BYTES_LIMIT, stop - at)))
        if next_whole(view, at, 1 if is_behind and at == position else 0) >= 0:
            return True
        if at + len(view) >= stop or len(view) <= RECORD_BYTES_LIMIT:
            return False
        at += len(view) - RECORD_BYTES_LIMIT
    return False
