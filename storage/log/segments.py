"""The segments of the commit log on disk: made ahead of need, found by bisecting their names.

A segment is New (preallocated, empty), Ongoing (the log's end lies in it) or Completed. The
writer thread moves on from one to the next; the flushing thread makes New ones, fsyncs and
removes the oldest; readers see an immutable table. `reserve` is a preallocated segment without a
place: it becomes the next one when the disk is full and only rolling may go on.
"""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from holdmq.files.disk import Disk, OpenFile
from holdmq.record.codec import BLANK_SIZE_MIN
from storage.log.core.names import holding, name_of, offsets_of

RESERVE: Final = "reserve"


class Segment(NamedTuple):
    """One segment: log offsets of its first byte and of the one behind its last."""

    start: int
    end: int
    path: Path


class Segments:
    """All segments of a log. Every method blocks, but for `locate` and `table`."""

    def __init__(self, disk: Disk, directory: Path, segment_size: int) -> None:
        self.directory = directory
        self.segment_size = segment_size
        self.table: list[Segment] = []
        self.current: OpenFile | None = None
        self.has_reserve = False
        self.is_in_reserve = False
        self._disk = disk
        self._lock = Lock()
        # Held while files are fsynced or cut: neither may see the other's files half done.
        self._sync_lock = Lock()
        # With the offsets that their segments begin at, in the order of the log.
        self._unsynced: list[tuple[int, OpenFile]] = []

    def load(self) -> None:
        """Read the directory; each segment ends where the next begins, the last with its file."""
        self._disk.make_directory(self.directory)
        names = self._disk.list(self.directory)
        starts = offsets_of(names)
        self.has_reserve = RESERVE in names
        table = []
        for start, following in zip(starts, [*starts[1:], -1], strict=False):
            path = self.directory / name_of(start)
            end = following
            if following < 0:
                file = self._disk.open_to_read(path)
                end = start + file.size()
                file.close()
            table.append(Segment(start, end, path))
        self.table = table

    @property
    def first_position(self) -> int:
        return self.table[0].start if self.table else 0

    def locate(self, position: int) -> Segment | None:
        """The segment that holds a log offset; None = no segment does."""
        table = self.table
        index = holding([segment.start for segment in table], position)
        return table[index] if index >= 0 and position < table[index].end else None

    def prepare(self, start: int, behind: int | None = None) -> Segment:
        """Make the New segment that begins at `start`, durably, unless it is there.

        `behind`: where the ongoing segment begins, if others may have been made ahead behind it at places
        where it does not end: they go.
        """
        with self._lock:
            if behind is not None:
                self._drop_new(behind, start)
            return self._prepare(start)

    def _prepare(self, start: int) -> Segment:
        for segment in reversed(self.table):
            if segment.start == start:
                return segment
        path = self.directory / name_of(start)
        self._preallocate(path)
        self._disk.sync_directory(self.directory)
        segment = Segment(start, start + self.segment_size, path)
        self.table = [*self.table, segment]
        return segment

    def prepare_next(self, start: int) -> None:
        """`prepare` ahead of need: not when the log has gone on elsewhere meanwhile."""
        with self._lock:
            if self.table and self.table[-1].end == start:
                self._prepare(start)

    def _drop_new(self, start: int, end: int) -> None:
        """Remove, durably, segments behind the one at `start` that do not begin at `end`."""
        gone = [segment for segment in self.table if start < segment.start != end]
        for segment in gone:
            self._disk.unlink(segment.path)
        if gone:
            self.table = [segment for segment in self.table if segment not in gone]
            self._disk.sync_directory(self.directory)

    def resize(self, start: int, end: int) -> None:
        """Let the current segment, which begins at `start`, end at `end`; New ones at other places go."""
        with self._lock:
            self._drop_new(start, end)
            index = next(i for i, segment in enumerate(self.table) if segment.start == start)
            segment = self.table[index]
            file = self.current
            assert file is not None
            if end > segment.end:
                file.preallocate(end - start)
            elif end < segment.end:
                file.truncate(end - start)
            self.table = [*self.table[:index], segment._replace(end=end), *self.table[index + 1 :]]

    def _preallocate(self, path: Path) -> None:
        file = self._disk.create_anew(path)
        try:
            file.preallocate(self.segment_size)
            file.sync()
        except OSError:
            # Half a segment must not be taken for a whole one at the next start.
            file.close()
            self._disk.unlink(path)
            raise
        file.close()

    def make_reserve(self) -> None:
        """Preallocate the reserve, durably; OSError when there is no room for it."""
        making = self.directory / (RESERVE + ".tmp")
        self._preallocate(making)
        with self._lock:
            self._disk.rename(making, self.directory / RESERVE)
            self._disk.sync_directory(self.directory)
            self.has_reserve = True
            self.is_in_reserve = False

    def take_reserve(self, start: int) -> bool:
        """Make the reserve the segment that begins at `start`, durably; False = there is none that fits."""
        with self._lock:
            reserve = self.directory / RESERVE
            if not self.has_reserve:
                return False
            file = self._disk.open_to_read(reserve)
            size = file.size()
            file.close()
            if size != self.segment_size:
                return False  # made under another storage.segment_size_bytes
            path = self.directory / name_of(start)
            self._disk.rename(reserve, path)
            self._disk.sync_directory(self.directory)
            self.has_reserve = False
            self.is_in_reserve = True
            self.table = [*self.table, Segment(start, start + size, path)]
            return True

    def drop_reserve(self) -> None:
        """Remove the reserve, durably, if there is one."""
        if self.has_reserve:
            self._disk.unlink(self.directory / RESERVE)
            self._disk.sync_directory(self.directory)
            self.has_reserve = False

    def drop_oldest(self) -> Segment:
        """Remove the oldest segment, durably: names go in the order of the log, whatever the disk loses."""
        segment = self.table[0]
        # Outside the lock: removing a large file takes time, and the writer may need the next segment.
        self._disk.unlink(segment.path)
        self._disk.sync_directory(self.directory)
        with self._lock:
            self.table = self.table[1:]
        return segment

    def enter(self, start: int) -> OpenFile:
        """Open the segment that begins at `start` for writing; what was current waits for its fsync."""
        segment = self.prepare(start)
        file = self._disk.open(segment.path)
        with self._lock:
            self.current = file
            self._unsynced.append((start, file))
        return file

    def sync(self) -> None:
        """fdatasync everything written so far, oldest segment first; OSError as the disk says."""
        with self._sync_lock:
            with self._lock:
                unsynced = list(self._unsynced)
            for _, file in unsynced:
                file.sync()
            with self._lock:
                for start, file in unsynced:
                    if file is not self.current:
                        self._unsynced.remove((start, file))
                        file.close()

    def cut(self, end: int) -> OpenFile:
        """Remove everything at and behind `end`, durably, and go on in the segment that holds it.

        The segment is preallocated again, so that what follows the log's end reads as zeros.
        """
        with self._sync_lock:
            with self._lock:
                for start, file in list(self._unsynced):
                    if start > end:
                        self._unsynced.remove((start, file))
                        file.close()
                # Also the one that begins there: gone before those behind it, it would leave a hole.
                keep = [segment for segment in self.table if segment.start <= end]
                for segment in self.table[len(keep) :]:
                    self._disk.unlink(segment.path)
                self.table = keep
                self._disk.sync_directory(self.directory)
            last = keep[-1] if keep else None
            if last is not None and last.start == end and last.end - end < BLANK_SIZE_MIN:
                # A file that has lost even its room, and nothing is in it: it gets that again.
                last = last._replace(end=end + self.segment_size)
                self.table = [*keep[:-1], last]
            if last is None or last.end <= end:
                return self.enter(end)
            file = self._reopen(last)
            file.truncate(end - last.start)
            if last.end - end < BLANK_SIZE_MIN:
                # Only a file that lost its end has so little room: not even for a blank, so it ends here.
                self._sync_cut(file, last.path)
                self.table = [*keep[:-1], last._replace(end=end)]
                return self.enter(end)
            try:
                file.preallocate(last.end - last.start)
            finally:
                # Also without room for it: what was cut must not come back after a power loss.
                self._sync_cut(file, last.path)
            return file

    def _reopen(self, segment: Segment) -> OpenFile:
        """Make a segment the current one; what it has that is not yet fsynced still will be."""
        for start, file in self._unsynced:
            if start == segment.start:
                self.current = file
                return file
        file = self._disk.open(segment.path)
        with self._lock:
            self.current = file
            self._unsynced.append((segment.start, file))
        return file

    def _sync_cut(self, file: OpenFile, path: Path) -> None:
        try:
            file.sync()
        except OSError as error:
            # Whatever its reason, a failed fsync is not to be retried: it must not look like a full disk.
            raise OSError(errno.EIO, f"fsync: {error.strerror}", str(path)) from error

    def close(self) -> None:
        """Close all files; the caller has synced."""
        with self._lock:
            for _, file in self._unsynced:
                file.close()
            self._unsynced.clear()
            self.current = None
