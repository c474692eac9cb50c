"""The writer thread: one pwritev per group of batches, and in sync flush one fdatasync.

A group is whatever queued while the last one was on its way. Batches arrive stamped, in log
order; the thread tells the loop once per group. After a failure everything queued is refused
until the loop has taken its stamps back: batches carry the generation of their stamps.
Source: storage.md, Append.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import ClassVar, Final

from holdmq.errors import StorageError
from holdmq.files.disk import FULL_ERRORS
from storage.api.batches import Appended, Batch
from storage.core.queues import Queue
from storage.log.core.names import blank_parts
from storage.log.failures import reserve_failure, sync_failure, thread_failure, write_failure
from storage.log.segments import Segments

GROUP_BATCHES_MAX: Final = 1024
"""Linux takes at most 1,024 buffers in one pwritev."""
GROUP_BYTES_MAX: Final = 8 << 20
"""More in one write would only make those who came first wait for those who came last."""

ANY_GENERATION: Final = -1
"""A failure that concerns every batch, whenever it was stamped."""

_NEW_SEGMENT: Final = "new segment"
_RESIZE: Final = "resize"


class Pending:
    """A stamped batch on its way: `segment_end` is of its segment, `blank_size` lies before it.

    `is_rolling`: it lets an old segment go, so the reserve is there for it.
    """

    is_copied: ClassVar = False

    __slots__ = (
        "batch",
        "blank_size",
        "done",
        "generation",
        "is_rolling",
        "queued_at",
        "queues",
        "segment_end",
    )

    def __init__(
        self,
        batch: Batch,
        done: Appended,
        queues: list[Queue],
        blank_size: int,
        segment_end: int,
        generation: int,
        queued_at: float,
        is_rolling: bool = False,
    ) -> None:
        self.batch = batch
        self.done = done
        self.queues = queues
        self.blank_size = blank_size
        self.segment_end = segment_end
        self.generation = generation
        self.queued_at = queued_at
        self.is_rolling = is_rolling


class Copied(Pending):
    """A batch as the leader of this copy stamped it: its segment ends where the leader's does.

    An empty one is the blank that closes a segment. `written` is called once it is written, under sync
    fsynced.
    """

    is_copied: ClassVar = True

    __slots__ = ("is_written", "written")

    def __init__(
        self,
        batch: Batch,
        done: Appended,
        queues: list[Queue],
        blank_size: int,
        segment_end: int,
        generation: int,
        queued_at: float,
        written: Callable[[StorageError | None], object],
    ) -> None:
        # Also into the reserve: what lets old segments go comes from the leader like everything else.
        super().__init__(batch, done, queues, blank_size, segment_end, generation, queued_at, True)
        self.written = written
        self.is_written = False


class Writer:
    """Owns the end of the log on disk. `written` and `fatal` may be read from any thread.

    `cached` is called with what is in the disk's cache, before it is fsynced under sync.
    """

    def __init__(
        self,
        segments: Segments,
        is_sync: bool,
        confirmed: Callable[[list[Pending]], None],
        failed: Callable[[StorageError, int], None],
        cached: Callable[[list[Pending]], None] | None = None,
    ) -> None:
        self.segments = segments
        self.written = 0
        self.synced = 0
        self.fatal: StorageError | None = None
        self.groups = 0
        self.fsyncs = 0
        self.blanks = 0
        self._is_sync = is_sync
        self._confirmed = confirmed
        self._failed = failed
        self._cached = cached
        self._refused_generation = -1
        self._must_cut = False
        self._held: Pending | None = None
        self._is_stopping = False
        self._has_thread = True
        self._queue: SimpleQueue[Pending | None] = SimpleQueue()
        self.put: Callable[[Pending], None] = self._queue.put
        self._thread = Thread(target=self._run, name="log-writer", daemon=True)

    def start(self, end: int, has_thread: bool = True, must_cut: bool = False) -> None:
        """Begin to write at `end`; everything before it is durable. No thread: the caller calls `step`.

        `must_cut`: what follows the end is not ready, so it is cut before the first write.
        """
        self.written = self.synced = end
        self._must_cut = must_cut
        self._has_thread = has_thread
        if has_thread:
            self._thread.start()

    def stop(self) -> None:
        """Write what is queued, then end. Blocking."""
        self._queue.put(None)
        if self._has_thread:
            self._thread.join()
        else:
            while self.step():
                pass

    def step(self) -> bool:
        """Write one group, if anything is queued and without waiting; False = nothing was."""
        if self._held is None and self._queue.empty():
            return False
        self._write_group()
        return True

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._write_group()
        except BaseException as error:
            self.fatal = thread_failure(error, "log-writer")
            self._failed(self.fatal, ANY_GENERATION)
            raise

    def _write_group(self) -> None:
        """Wait for a batch; write it and what queued behind it as far as that belongs together."""
        get_now = self._queue.get_nowait
        first = self._held or self._queue.get()
        self._held = None
        if first is None:
            self._is_stopping = True
            return
        group = [first]
        size = len(first.batch.records)
        while len(group) < GROUP_BATCHES_MAX and size < GROUP_BYTES_MAX:
            try:
                item = get_now()
            except Empty:
                break
            if item is None:
                self._is_stopping = True
                break
            if (
                item.blank_size
                or item.generation != first.generation
                or item.is_rolling != first.is_rolling
                or item.is_copied != first.is_copied
            ):
                self._held = item
                break
            group.append(item)
            size += len(item.batch.records)
        self._write(group)

    def _write(self, group: list[Pending]) -> None:
        first = group[0]
        if first.generation == self._refused_generation:
            return  # the loop refuses it together with the batch that failed
        if self.fatal is not None:
            self._refuse(first.generation, self.fatal)
            return
        if self.segments.is_in_reserve and not first.is_rolling:
            self._refuse(first.generation, reserve_failure(str(self.segments.directory)))
            return
        position = first.batch.position
        operation = "write"
        try:
            if self._must_cut:
                operation = "cut"
                self._cut()
            if first.blank_size:
                # The next segment comes first: a full disk then leaves no half-closed one behind.
                operation = _NEW_SEGMENT
                self._prepare(first)
                operation = "write"
                self._roll(first)
            if first.is_copied:
                operation = _RESIZE
                self._fit(position, group[-1].segment_end)
            operation = "write"
            file = self.segments.current
            assert file is not None
            table = self.segments.table
            start = next(s.start for s in reversed(table) if s.start <= position)
            file.write([item.batch.records for item in group], position - start)
        except OSError as error:
            failure = write_failure(error, operation, str(self.segments.directory), position)
            if failure.retriable and operation in ("write", _RESIZE):
                # Also before the write itself: a blank may have been written, and its segment left.
                self._must_cut = True
                failure = self._cut_at_once() or failure
            if not failure.retriable:
                self.fatal = failure
            self._refuse(first.generation, failure)
            return
        if self._is_sync:
            if self._cached is not None:
                self._cached(group)
            try:
                self.segments.sync()
            except OSError as error:
                self.fatal = sync_failure(error, str(self.segments.directory), self.synced)
                self._refuse(first.generation, self.fatal)
                return
            self.fsyncs += 1
        self.written = group[-1].batch.end
        if self._is_sync:
            self.synced = self.written
        self.groups += 1
        self._confirmed(group)

    def _fit(self, position: int, segment_end: int) -> None:
        """Let the ongoing segment hold what the leader's does, which may be larger than those here."""
        ongoing = next(s for s in reversed(self.segments.table) if s.start <= position)
        if segment_end > ongoing.end:
            self.segments.resize(ongoing.start, segment_end)

    def _prepare(self, first: Pending) -> None:
        """Have the segment that `first` begins; only rolling may take the reserve for it."""
        behind: int | None = None
        if first.is_copied:
            written = first.batch.position - first.blank_size
            behind = next(s.start for s in reversed(self.segments.table) if s.start <= written)
        try:
            self.segments.prepare(first.batch.position, behind)
        except OSError as error:
            is_taken = (
                error.errno in FULL_ERRORS
                and first.is_rolling
                and self.segments.take_reserve(first.batch.position)
            )
            if not is_taken:
                raise

    def _cut_at_once(self) -> StorageError | None:
        """Remove what a failed write left before its batches are refused: a crash must not bring them back.

        The failure if the disk fails for good; a disk that is too full even for this is cut later.
        """
        try:
            self._cut()
        except OSError as error:
            failure = write_failure(error, "cut", str(self.segments.directory), self.written)
            return None if failure.retriable else failure
        return None

    def _cut(self) -> None:
        self.segments.cut(self.written)
        self._must_cut = False

    def _roll(self, first: Pending) -> None:
        """Close the ongoing segment with a blank and enter the next one."""
        start = first.batch.position
        file = self.segments.current
        assert file is not None
        ongoing = next(s for s in reversed(self.segments.table) if s.start < start)
        head, tail = blank_parts(first.blank_size)
        file.write([head], start - first.blank_size - ongoing.start)
        file.write([tail], start - len(tail) - ongoing.start)
        self.blanks += 1
        if ongoing.end != start:
            self.segments.resize(ongoing.start, start)  # its leader's ends there
        self.segments.enter(start)

    def _refuse(self, generation: int, error: StorageError) -> None:
        self._refused_generation = generation
        self._failed(error, generation)
