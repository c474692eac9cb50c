"""Files that stay open for reading, the least recently used closed first.

Reading through one costs a preadv instead of an open, a preadv and a close. It is a disk itself:
whoever removes or replaces a file through it makes it forget the old one.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Final

from holdmq.files.disk import Disk, OpenFile, Space

READ_FILES_MAX: Final = 256
"""Files open for reading: with those of the writers it leaves half of the usual 1,024 to connections."""


class _HeldFile:
    __slots__ = ("file", "is_forgotten", "readers")

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self.readers = 0
        self.is_forgotten = False


class OpenFiles:
    """`holdmq.files.disk.Disk` with `read`. Any thread may call it; every method blocks.

    At most `files_max` files stay open, and one more for each thread that reads at the moment.
    """

    def __init__(self, disk: Disk, files_max: int = READ_FILES_MAX) -> None:
        self.files_max = files_max
        self.opened = 0
        self._disk = disk
        self._lock = Lock()
        self._files: OrderedDict[Path, _HeldFile] = OrderedDict()

    @classmethod
    def of(cls, disk: Disk) -> OpenFiles:
        """The disk itself if it keeps files open, else one around it that keeps none."""
        return disk if isinstance(disk, cls) else cls(disk, files_max=0)

    def __len__(self) -> int:
        return len(self._files)

    def read(self, path: Path, offset: int, size: int, ahead: int = 0) -> bytes | bytearray:
        """Up to `size` bytes of a file from `offset` on; shorter only at its end. Raises OSError.

        The disk is asked to read `ahead` bytes behind them meanwhile.
        """
        entry = self._enter(path)
        try:
            if ahead > 0:
                entry.file.read_ahead(offset + size, ahead)
            return entry.file.read(offset, size)
        finally:
            self._leave(entry)

    def _enter(self, path: Path) -> _HeldFile:
        with self._lock:
            entry = self._files.get(path)
            if entry is not None:
                entry.readers += 1
                self._files.move_to_end(path)
                return entry
        # Outside the lock: a slow disk must not hold up those whose file is open.
        made = _HeldFile(self._disk.open_to_read(path))
        made.readers = 1
        gone: list[_HeldFile] = []
        with self._lock:
            self.opened += 1
            entry = self._files.get(path)
            if entry is not None:
                entry.readers += 1
                self._files.move_to_end(path)
                gone.append(made)
                made = entry
            else:
                self._files[path] = made
                while len(self._files) > self.files_max:
                    self._forget(next(iter(self._files)), gone)
        for one in gone:
            one.file.close()
        return made

    def _leave(self, entry: _HeldFile) -> None:
        with self._lock:
            entry.readers -= 1
            is_last = entry.is_forgotten and not entry.readers
        if is_last:
            entry.file.close()

    def _forget(self, path: Path, closing: list[_HeldFile]) -> None:
        entry = self._files.pop(path, None)
        if entry is None:
            return
        entry.is_forgotten = True
        if not entry.readers:
            closing.append(entry)

    def forget(self, path: Path) -> None:
        """Close a file, after the reads that are under way."""
        closing: list[_HeldFile] = []
        with self._lock:
            self._forget(path, closing)
        for entry in closing:
            entry.file.close()

    def close(self) -> None:
        """Close all; nobody reads any more."""
        for path in list(self._files):
            self.forget(path)

    # The disk

    def open(self, path: Path, create: bool = False) -> OpenFile:
        return self._disk.open(path, create)

    def create_anew(self, path: Path) -> OpenFile:
        file = self._disk.create_anew(path)
        self.forget(path)
        return file

    def open_to_read(self, path: Path) -> OpenFile:
        return self._disk.open_to_read(path)

    def make_directory(self, directory: Path, durable: bool = True) -> None:
        self._disk.make_directory(directory, durable)

    def rename(self, source: Path, target: Path) -> None:
        self._disk.rename(source, target)
        self.forget(source)
        self.forget(target)

    def unlink(self, path: Path) -> None:
        self._disk.unlink(path)
        self.forget(path)

    def sync_directory(self, directory: Path) -> None:
        self._disk.sync_directory(directory)

    def sync_all(self, directory: Path) -> None:
        self._disk.sync_all(directory)

    def space(self, directory: Path) -> Space:
        return self._disk.space(directory)

    # Last: the name hides the built-in type from what follows it.
    def list(self, directory: Path) -> list[str]:
        return self._disk.list(directory)
