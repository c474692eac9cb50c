"""A store that no broker has open: its records from the first to the last, and everything that is wrong.

Nothing is changed here (`storage.log.offline.repair` does). Every byte is looked at: records by their own
checks, blanks and what lies behind the log's end by being zero, consume queues by what the records
say they must be. Findings name file, offset in it, and what is wrong.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk, OpenFile, RealDisk
from holdmq.record.codec import BLANK_SIZE_MIN, RECORD_BYTES_LIMIT
from storage.api.batches import Batch
from storage.core.scan import KeyLevels, batch_of, next_whole, whole_records
from storage.log.consume_queue import ConsumeQueues
from storage.log.core.names import blank_size_at
from storage.log.flusher import Checkpoint
from storage.log.home import ENGINE
from storage.log.segments import RESERVE, Segment, Segments

READ_BYTES: Final = 4 << 20
"""One read: the disk's full speed in little memory."""
_ZEROS: Final = bytes(READ_BYTES)

Report = Callable[[int, int], object]
"""Called with bytes of the log done, and all there are."""


class Finding(NamedTuple):
    """Something wrong: `offset` is in the file `path`; `position` is the log offset (-1 = not of the log)."""

    path: str
    offset: int
    what: str
    position: int = -1


class OfflineStore:
    """A store directory, opened by a tool. Errors of the disk are StorageError."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self.directory = directory
        self.disk: Disk = RealDisk() if disk is None else disk
        self.store_id = b""
        self.checkpoint = Checkpoint(AtomicFile(directory / "checkpoint.json", self.disk))
        self.checkpoint_problem = ""
        self.segments = Segments(self.disk, directory / "commitlog", 0)
        file_bytes = StorageSection().consume_queue_file_bytes
        self.queues = ConsumeQueues(self.disk, directory / "consumequeue", file_bytes)
        self.clean_end: int | None = None
        self.is_locked = False
        self._lock: OpenFile | None = None

    def open(self) -> None:
        """Take the lock, or go without where nothing can be written at all; StorageError if in use."""
        format_file = AtomicFile(self.directory / "format.json", self.disk)
        if "format.json" not in self.disk.list(self.directory):
            raise StoreFormatError(
                "there is no store",
                operation="open",
                path=str(self.directory),
                hint="name the directory that has format.json in it: storage.data_dir",
            )
        self._take_lock()
        try:
            loaded = format_file.load()
            content: dict[str, Any] = {} if loaded is None else loaded.content
            if content.get("engine") != ENGINE:
                raise StoreFormatError(
                    f"its engine is {content.get('engine')!r}, not {ENGINE!r}",
                    operation="open",
                    path=str(format_file.path),
                )
            self.store_id = bytes.fromhex(content["storeId"])
        except StoreFormatError as error:
            # A tool that finds damage must open what is damaged; only a newer format is not for it.
            if "newer" in str(error):
                self.close()
                raise
        try:
            self.segments.load()
            for segment in self.segments.table[-1:]:
                # A repair may have to make one: as large as they were.
                self.segments.segment_size = segment.end - segment.start
            self.clean_end = self._read_clean_end()
        except OSError as error:
            self.close()
            raise _failure(error, self.directory) from error
        try:
            self.checkpoint.load(False)
        except StorageError as error:
            self.checkpoint_problem = str(error)

    def close(self) -> None:
        """Give the lock back."""
        self.queues.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_lock(self) -> None:
        path = self.directory / "lock"
        try:
            lock = self.disk.open(path, create=True)
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                return
            raise _failure(error, path) from error
        if not lock.try_lock():
            lock.close()
            raise StoreFormatError(
                "a broker has it open", operation="lock", path=str(self.directory), hint="stop that broker"
            )
        self._lock, self.is_locked = lock, True

    def _read_clean_end(self) -> int | None:
        if "clean" not in self.disk.list(self.directory):
            return None
        file = self.disk.open_to_read(self.directory / "clean")
        try:
            text = bytes(file.read(0, 64))
        finally:
            file.close()
        # Any other spelling of the number was not written by a broker.
        return int(text) if text == b"%d\n" % int(text if text.strip().isdigit() else 0) else -1

    @property
    def log_bytes(self) -> int:
        """Bytes of all segments, preallocated ones included."""
        return sum(segment.end - segment.start for segment in self.segments.table)

    def reserve(self) -> Iterator[Finding]:
        """What is in the reserve segment, which nobody has written to."""
        if not self.segments.has_reserve:
            return
        path = self.segments.directory / RESERVE
        try:
            file = self.disk.open_to_read(path)
            try:
                segment = Segment(0, file.size(), path)
                used = _Walk(file, segment, lambda _: 1).first_used(0, segment.end)
            finally:
                file.close()
        except OSError as error:
            raise _failure(error, path) from error
        if used >= 0:
            yield Finding(str(path), used, "the reserve segment is not empty")

    def walk(self, key_levels: KeyLevels, report: Report, position: int = 0) -> Iterator[Batch | Finding]:
        """Whole records as batches, and what lies between them, in the log's order from `position` on."""
        done = 0
        for segment in self.segments.table:
            if segment.end > position:
                try:
                    file = self.disk.open_to_read(segment.path)
                    try:
                        begin = max(position, segment.start)
                        yield from _Walk(file, segment, key_levels).run(begin, report, done, self.log_bytes)
                    finally:
                        file.close()
                except OSError as error:
                    raise _failure(error, segment.path) from error
            done += segment.end - segment.start
            report(done, self.log_bytes)


def _failure(error: OSError, path: Path) -> StorageError:
    return StorageError(error.strerror or str(error), operation="read", path=str(error.filename or path))


class _Walk:
    """One segment."""

    def __init__(self, file: OpenFile, segment: Segment, key_levels: KeyLevels) -> None:
        self._file = file
        self._segment = segment
        self._key_levels = key_levels

    def run(self, position: int, report: Report, done: int, total: int) -> Iterator[Batch | Finding]:
        segment = self._segment
        size = READ_BYTES
        while position < segment.end:
            view = self._view(position, size)
            whole = whole_records(view, position)
            if len(whole.sizes):
                batch = batch_of(view, whole.sizes, position, self._key_levels)
                yield batch
                position, size = batch.end, READ_BYTES
                report(done + position - segment.start, total)
                continue
            if not whole.reason and len(view) == size < RECORD_BYTES_LIMIT:
                size = RECORD_BYTES_LIMIT
                continue
            size = READ_BYTES
            if blank_size_at(view, 0) == segment.end - position >= BLANK_SIZE_MIN:
                yield from self._blank(position)
                return
            used = self.first_used(position, segment.end)
            if used < 0:
                return  # the log ends here
            following = self._next_whole(position)
            reason = whole.reason or "it reaches behind its segment"
            if used > position:
                reason = "there are zeros, but something lies behind them"
            if not any(view[:12]) and following < 0:
                reason = "something lies behind the log's end"
                yield self._finding(used, reason)
                return
            yield self._finding(position, f"{reason}; {self._until(position, following)}")
            if following < 0:
                return
            position = following

    def _view(self, position: int, size: int) -> memoryview:
        begin = position - self._segment.start
        return memoryview(self._file.read(begin, min(size, self._segment.end - position)))

    def _finding(self, position: int, what: str) -> Finding:
        return Finding(str(self._segment.path), position - self._segment.start, what, position)

    def _until(self, position: int, following: int) -> str:
        if following < 0:
            return "no whole record follows in this segment"
        return f"the next whole record begins {following - position} bytes behind"

    def _blank(self, position: int) -> Iterator[Finding]:
        """Look at a blank's zeros and at its size at the end."""
        end = self._segment.end
        used = self.first_used(position + 8, end - 4)
        if used >= 0:
            yield self._finding(used, "a blank's byte is not zero")
        if bytes(self._view(end - 4, 4)) != (end - position).to_bytes(4, "big"):
            yield self._finding(end - 4, "the blank's size is not repeated at its end")

    def first_used(self, position: int, end: int) -> int:
        """The log offset of the first byte that is not zero; -1 = all are."""
        start = self._segment.start
        for begin, stop in self._file.data_ranges(position - start) if position < end else []:
            for at in range(begin, min(stop, end - start), READ_BYTES):
                block = bytes(self._file.read(at, min(READ_BYTES, stop - at, end - start - at)))
                if block != _ZEROS[: len(block)]:
                    return start + at + len(block) - len(block.lstrip(b"\0"))
        return -1

    def _next_whole(self, position: int) -> int:
        """The next whole record of the segment behind `position`; -1 = none."""
        at = position
        end = self._segment.end
        while at < end:
            view = self._view(at, 2 * RECORD_BYTES_LIMIT)
            found = next_whole(view, at, 1 if at == position else 0)
            if found >= 0:
                return at + found
            is_last = at + len(view) >= end or len(view) < 2 * RECORD_BYTES_LIMIT
            at = end if is_last else at + len(view) - RECORD_BYTES_LIMIT
        return -1
