"""The timer's bucket files and its checkpoint, and reads of waiting records.

Entries reach the files in steps, and only those of fsynced records: timer/checkpoint.json first
says which files will grow, from which size on, and which will go; then it is done; then the
checkpoint says that it is. So after a crash every file is again what it was at the checkpoint's
position, and the log behind that is followed again. Everything here is derived: a directory that
is damaged or not complete is built again from the log. Source: storage.md, Other indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from holdmq.errors import RecordError, StorageError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk
from storage.core.delayed import Entry
from storage.log.core.entries import ranges_of
from storage.log.core.names import name_of, offsets_of
from storage.log.segments import Segments
from storage.log.timer.core.timer import (
    ENTRY_SIZE,
    Rows,
    decode_rows,
    encode_rows,
    entries_of_rows,
    minutes_of,
)

READ_ENTRIES: Final = 65_536
"""Entries of one read of a bucket: 1.3 MB."""
SYNC_ONE_BY_ONE_MAX: Final = 16
"""Past this many changed files one sync of the file system is cheaper than an fsync each."""
GAP_BYTES_MAX: Final = 16 << 10
"""Foreign bytes between two waiting records that are read along rather than in a read of their own."""
CHUNK_BYTES: Final = 1 << 20
"""One read of waiting records, at most, but for a record that is larger."""

log = structlog.get_logger("holdmq.storage")


class Saved(NamedTuple):
    """What a checkpoint says: the log below `position` is in the files.

    `pending` timers wait (-1 = they are not counted); `highest` is the newest timer's queue offset
    (-1 = there was none).
    """

    position: int
    pending: int
    highest: int


class BucketFiles:
    """All bucket files. One thread writes; `read` and `minutes` may be used on any. Every method blocks."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.directory = directory
        self.minutes: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.saved = Saved(0, 0, -1)
        self._disk = disk
        self._file = AtomicFile(directory / "checkpoint.json", disk)
        self._version = 0
        self.rebuilds = 0
        self._growing: dict[int, int] = {}
        self._is_half_done = False

    def load(self, log_first: int, log_end: int) -> bool:
        """Read the checkpoint and bring the files back to it; False = they must be built from the log.

        Then nothing is left of them, and `saved` is the log's first position.
        """
        problem = self._load(log_first, log_end)
        if not problem:
            return True
        names = self._disk.list(self.directory)
        if names:
            self.rebuilds += 1
            log.warning("the timer is built again from the log", why=problem)
        for name in names:
            self._disk.unlink(self.directory / name)
        self.minutes = np.empty(0, np.int64)
        self.saved = Saved(log_first, -1, -1)
        return False

    def _load(self, log_first: int, log_end: int) -> str:
        """What is wrong; empty = nothing."""
        try:
            loaded = self._file.load()
        except StoreFormatError as error:
            return str(error)
        if loaded is None:
            return "it has no checkpoint"
        content = loaded.content
        self._version = loaded.data_version
        self.saved = Saved(content["position"], content["pending"], content["highest"])
        if self.saved.position > log_end:
            return f"its checkpoint is at {self.saved.position}, the log's end at {log_end}"
        # No segment goes that has anything of the timer's which is not in the files.
        self.saved = self.saved._replace(position=max(log_first, self.saved.position))
        for minute, size in content["growing"].items():
            self._shrink(int(minute), size)
        removing = content["removing"]
        for minute in removing:
            self._disk.unlink(self._path(minute))
        self.minutes = np.array(offsets_of(self._disk.list(self.directory)), np.int64)
        wanted = (content["files"] - len(removing), content["sum"] - sum(removing))
        if wanted != (len(self.minutes), int(self.minutes.sum())):
            return "bucket files are missing"
        return ""

    def read(self, minute: int) -> Iterator[Rows]:
        """A bucket's rows in the order of the log, in parts; nothing when there is no file."""
        try:
            file = self._disk.open_to_read(self._path(minute))
        except FileNotFoundError:
            return
        try:
            at = 0
            while True:
                raw = file.read(at, READ_ENTRIES * ENTRY_SIZE)
                rows = decode_rows(raw, minute)
                if len(rows):
                    yield rows
                if len(rows) < READ_ENTRIES:
                    return
                at += len(rows) * ENTRY_SIZE
        finally:
            file.close()

    def commit(self, rows: Rows, gone: list[int], saved: Saved) -> None:
        """Add rows (in the order of the log) to their files, remove those of `gone`, durably.

        Raises OSError or StorageError; then nothing of it counts, and it may be called again.
        """
        if self._is_half_done:
            for minute, size in self._growing.items():
                self._shrink(minute, size)
            self._is_half_done = False
        minutes = minutes_of(rows)
        kept = ~np.isin(minutes, np.array(gone, np.int64))
        rows, minutes = rows[kept], minutes[kept]
        grown = np.unique(minutes)
        removing = np.intersect1d(self.minutes, np.array(gone, np.int64)).tolist()
        self._disk.make_directory(self.directory)
        if len(grown) or removing:
            self._growing = {minute: self._size(minute) for minute in grown.tolist()}
            self._save(self.saved, self.minutes, self._growing, removing)
            self._is_half_done = True
            self._write(rows, minutes, grown)
            for minute in removing:
                self._disk.unlink(self._path(minute))
        known = np.setdiff1d(np.union1d(self.minutes, grown), np.array(removing, np.int64))
        self._save(saved, known, {}, [])
        self._is_half_done = False
        self.minutes, self.saved = known, saved

    def _write(self, rows: Rows, minutes: npt.NDArray[np.int64], grown: npt.NDArray[np.int64]) -> None:
        order = np.argsort(minutes, kind="stable")
        rows, ends = rows[order], np.searchsorted(minutes[order], grown, "right")
        one_by_one = len(grown) <= SYNC_ONE_BY_ONE_MAX
        first = 0
        for minute, end in zip(grown.tolist(), ends.tolist(), strict=True):
            file = self._disk.open(self._path(minute), create=True)
            try:
                file.write([encode_rows(rows[first:end])], self._growing[minute])
                if one_by_one:
                    file.sync()
            finally:
                file.close()
            first = end
        if len(grown):
            if one_by_one:
                self._disk.sync_directory(self.directory)
            else:
                self._disk.sync_all(self.directory)

    def _save(
        self, saved: Saved, known: npt.NDArray[np.int64], growing: dict[int, int], removing: list[int]
    ) -> None:
        content: dict[str, Any] = saved._asdict()
        content["files"], content["sum"] = len(known), int(known.sum())
        content["growing"] = {str(minute): size for minute, size in growing.items()}
        content["removing"] = removing
        self._version += 1
        self._file.save(content, self._version)

    def _size(self, minute: int) -> int:
        at = int(np.searchsorted(self.minutes, minute))
        if at == len(self.minutes) or self.minutes[at] != minute:
            return 0
        file = self._disk.open_to_read(self._path(minute))
        try:
            return file.size()
        finally:
            file.close()

    def _shrink(self, minute: int, size: int) -> None:
        path = self._path(minute)
        if not size:
            self._disk.unlink(path)
            return
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return  # its absence shows when the files are counted
        try:
            file.truncate(size)
        finally:
            file.close()

    def _path(self, minute: int) -> Path:
        return self.directory / name_of(minute)


class WaitingRecords:
    """Reads the records of entries from the log, wherever they lie. Every method blocks."""

    def __init__(self, disk: Disk, segments: Segments) -> None:
        self.reads = 0
        self._disk = disk
        self._segments = segments

    def read(
        self, rows: Rows, use: Callable[[memoryview, Entry], object]
    ) -> list[tuple[Entry, RecordError | StorageError]]:
        """Call `use` with the bytes of every row's record; give the rows where that failed, and why.

        A RecordError is `use`'s, which finds damage; a StorageError says that the disk gave nothing.
        """
        failed: list[tuple[Entry, RecordError | StorageError]] = []
        rows = rows[np.argsort(rows["position"])]
        entries = entries_of_rows(rows)
        starts = [segment.start for segment in self._segments.table]
        sizes = rows["size"].astype(np.int64)
        for part in ranges_of(rows["position"], sizes, starts, GAP_BYTES_MAX, CHUNK_BYTES):
            of_part = entries[part.first : part.first + part.entries]
            try:
                view = self._read(part.position, part.size)
            except StorageError as error:
                failed.extend((entry, error) for entry in of_part)
                continue
            for entry in of_part:
                at = entry.position - part.position
                try:
                    use(view[at : at + entry.size], entry)
                except RecordError as error:
                    failed.append((entry, error))
        return failed

    def _read(self, position: int, size: int) -> memoryview:
        self.reads += 1
        segment = self._segments.locate(position)
        if segment is None:
            return memoryview(b"")
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
