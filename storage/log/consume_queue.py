"""Consume-queue files: written coalesced by the indexing thread, read by the reader pool."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from pathlib import Path
from typing import Final

import numpy as np

from holdmq.files.disk import Disk, OpenFile
from storage.log.core.entries import (
    ENTRY,
    ENTRY_SIZE,
    Entries,
    file_size_of,
    first_at_or_after,
    span_to_read,
    spans_to_write,
)
from storage.log.core.names import name_of, offset_of, offsets_of
from storage.log.core.sidecar import RUN_ENTRIES
from storage.log.core.sidecar import SUFFIX as SIDECAR
from storage.log.open_files import OpenFiles

OPEN_FILES_MAX: Final = 256
"""Files that stay open for writing: a broker with 10,000 queues has 1,024 descriptors in all by default."""
SYNC_ONE_BY_ONE_MAX: Final = 16
"""Past this many changed files one sync of the file system is cheaper than an fsync each."""

COMPLETED_MAX: Final = 4_096
"""Complete runs that are remembered for their sidecars; the others get theirs when they are searched."""

Key = tuple[str, int]


class ConsumeQueues:
    """All consume-queue files of a store. One thread writes; any may read. Every method blocks."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int) -> None:
        self.directory = directory
        self.writes = 0
        self._disk = disk
        self._files = OpenFiles.of(disk)
        self._file_size = file_size_of(file_bytes)
        self._starts: dict[Key, list[int]] = {}
        self._open: OrderedDict[Path, OpenFile] = OrderedDict()
        self._changed: set[Path] = set()
        self._has_new_names = False
        self.completed: deque[tuple[Key, int]] = deque(maxlen=COMPLETED_MAX)
        """Runs of RUN_ENTRIES that became complete: key and first entry, for sidecars."""

    def write(self, key: Key, first: int, entries: Entries) -> None:
        """Write entries from offset `first` on; files appear as they are needed."""
        starts = self._starts_of(key)
        directory = self._directory(key)
        for span in spans_to_write(starts, first, len(entries), self._file_size):
            if span.start not in starts:
                self._disk.make_directory(directory, durable=False)
                insort(starts, span.start)
                self._has_new_names = True
            begin = span.first - first
            path = directory / name_of(span.start)
            self._to_write(path).write([entries[begin : begin + span.entries].tobytes()], span.at)
            self._changed.add(path)
            self.writes += 1
        for end in range(first // RUN_ENTRIES + 1, (first + len(entries)) // RUN_ENTRIES + 1):
            self.completed.append((key, (end - 1) * RUN_ENTRIES))

    def read(self, key: Key, first: int, wanted: int) -> Entries:
        """Up to `wanted` entries from offset `first` on; fewer where a file ends."""
        # A copy: the writer may add or remove a file meanwhile.
        span = span_to_read(self._starts_of(key).copy(), first, wanted)
        if span is None:
            return np.empty(0, ENTRY)
        path = self._directory(key) / name_of(span.start)
        raw = self._files.read(path, span.at, span.entries * ENTRY_SIZE)
        return np.frombuffer(raw, ENTRY, len(raw) // ENTRY_SIZE)

    def first_at_or_after(self, key: Key, low: int, high: int, position: int) -> int:
        """The first entry in [low, high) whose record lies at `position` or behind; `high` if none."""

        def position_of(offset: int) -> int:
            entries = self.read(key, offset, 1)
            return int(entries["position"][0]) if len(entries) and entries["size"][0] else -1

        return first_at_or_after(low, high, position, position_of)

    def first_offset(self, key: Key) -> int:
        """The first offset that the files can hold; 0 when there are none."""
        starts = self._starts_of(key)
        return starts[0] // ENTRY_SIZE if starts else 0

    def is_complete(self, key: Key, first: int, end: int) -> bool:
        """Whether entries `first` and `end - 1`, and the files between, are there."""
        if end <= first:
            return True
        ends = (self.read(key, first, 1), self.read(key, end - 1, 1))
        return all(len(entries) and int(entries["size"][0]) > 0 for entries in ends)

    def on_disk(self) -> list[Key]:
        """Every queue that has a directory."""
        found: list[Key] = []
        for topic in self._disk.list(self.directory):
            names = self._disk.list(self.directory / topic)
            found.extend((topic, int(name)) for name in names if name.isascii() and name.isdigit())
        return found

    def cut(self, key: Key, end: int) -> None:
        """Remove entries from offset `end` on: the log was cut, or they are written again."""
        directory = self._directory(key)
        starts = self._starts_of(key)
        for start in list(starts):
            path = directory / name_of(start)
            if start >= end * ENTRY_SIZE:
                self._close(path)
                self._disk.unlink(path)
                starts.remove(start)
                continue
            file = self._to_write(path)
            if file.size() > end * ENTRY_SIZE - start:
                file.truncate(end * ENTRY_SIZE - start)
                self._changed.add(path)

    def trim(self, key: Key, first: int, end: int) -> int:
        """Remove files that hold nothing in [first, end); how many those were."""
        directory = self._directory(key)
        starts = self._starts_of(key)
        removed = 0
        while starts:
            following = starts[1] if len(starts) > 1 else end * ENTRY_SIZE
            if following > first * ENTRY_SIZE:
                break
            path = directory / name_of(starts.pop(0))
            self._close(path)
            self._changed.discard(path)
            self._disk.unlink(path)
            removed += 1
        if removed:
            self._trim_sidecars(key, first)
        return removed

    def _trim_sidecars(self, key: Key, first: int) -> None:
        """Remove the sidecars of runs that end at or before entry `first`."""
        for name in self._disk.list(self._directory(key)):
            start = offset_of(name.removesuffix(SIDECAR)) if name.endswith(SIDECAR) else None
            if start is not None and start // ENTRY_SIZE + RUN_ENTRIES <= first:
                self._disk.unlink(self._directory(key) / name)

    def sync(self) -> None:
        """Make everything written durable."""
        changed, self._changed = self._changed, set()
        if self._has_new_names or len(changed) > SYNC_ONE_BY_ONE_MAX:
            self._has_new_names = False
            self._disk.sync_all(self.directory)
            return
        for path in changed:
            self._to_write(path).sync()

    def close(self) -> None:
        """Close all files; the caller has synced."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _directory(self, key: Key) -> Path:
        return self.directory / key[0] / str(key[1])

    def _starts_of(self, key: Key) -> list[int]:
        starts = self._starts.get(key)
        if starts is None:
            listed = offsets_of(self._disk.list(self._directory(key)))
            starts = self._starts.setdefault(key, listed)
        return starts

    def _to_write(self, path: Path) -> OpenFile:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self._disk.open(path, create=True)
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        return file

    def _close(self, path: Path) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            file.close()
