"""A real disk that records what is asked of it, and fails on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from holdmq.files.disk import Buffer, OpenFile, RealDisk, Space


class WatchedFile:
    """A real file; every call goes through the disk's `check` first."""

    def __init__(self, disk: WatchedDisk, file: OpenFile, path: Path) -> None:
        self._disk, self._file, self._path = disk, file, path

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._disk.check("write", self._path)
        self._file.write(buffers, offset)

    def read(self, offset: int, size: int) -> bytearray:
        self._disk.check("read", self._path)
        return self._file.read(offset, size)

    def read_ahead(self, offset: int, size: int) -> None:
        self._disk.check("read_ahead", self._path)
        self._file.read_ahead(offset, size)

    def sync(self) -> None:
        self._disk.check("sync", self._path)
        if not self._disk.is_quick:
            self._file.sync()

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self._path)
        self._file.truncate(size)

    def preallocate(self, size: int) -> None:
        self._disk.check("preallocate", self._path)
        self._file.preallocate(size)

    def size(self) -> int:
        return self._file.size()

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        return self._file.data_ranges(offset)

    def try_lock(self) -> bool:
        return self._file.try_lock()

    def close(self) -> None:
        self._file.close()


class WatchedDisk(RealDisk):
    """A real disk that writes down what is asked of it, and fails where a test says so.

    `is_quick` leaves fsync out: what a test's process writes cannot be lost by it anyway.
    """

    def __init__(self, is_quick: bool = True) -> None:
        self.is_quick = is_quick
        self.calls: list[tuple[str, str]] = []
        # How full the machine that runs the tests is must not matter to them.
        self.filled: Space | None = Space(100 << 30, 90 << 30)
        self.failing: Callable[[str, Path], int | None] = lambda _operation, _path: None

    def check(self, operation: str, path: Path) -> None:
        self.calls.append((operation, path.parent.name))
        code = self.failing(operation, path)
        if code is not None:
            raise OSError(code, f"injected into {operation}", str(path))

    def open(self, path: Path, create: bool = False) -> OpenFile:
        return WatchedFile(self, super().open(path, create), path)

    def create_anew(self, path: Path) -> OpenFile:
        return WatchedFile(self, super().create_anew(path), path)

    def open_to_read(self, path: Path) -> OpenFile:
        return WatchedFile(self, super().open_to_read(path), path)

    def sync_directory(self, directory: Path) -> None:
        if not self.is_quick:
            super().sync_directory(directory)

    def space(self, directory: Path) -> Space:
        return self.filled or super().space(directory)

    def unlink(self, path: Path) -> None:
        self.check("unlink", path)
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self.check("rename", target)
        super().rename(source, target)

    def sync_all(self, directory: Path) -> None:
        if not self.is_quick:
            super().sync_all(directory)
