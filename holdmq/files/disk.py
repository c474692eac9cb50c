"""Every byte that the log engine and small durable files read or write goes through these two Protocols.

`RealDisk` is the operating system; tests put a disk in its place that fails, tears or
forgets. Errors are OSError everywhere: callers say what they mean for the store.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

IOV_MAX: Final = 1024
"""Buffers of one pwritev: Linux' UIO_MAXIOV."""
FULL_ERRORS: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
"""No space: refused, and service resumes by itself."""

DIRECTORY_MODE: Final = 0o700
"""Of the directories that are made here: files in them have the modes of whatever writes them."""
_ANEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Buffer = bytes | bytearray | memoryview


class Space(NamedTuple):
    """A file system's bytes: all of them, and those that this process may still use."""

    total: int
    free: int


class OpenFile(Protocol):
    """One open file; every method blocks. Offsets and sizes are bytes."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers, one after the other, from `offset` on."""

    def read(self, offset: int, size: int) -> bytes | bytearray:
        """Up to `size` bytes from `offset` on; shorter only at the file's end."""

    def read_ahead(self, offset: int, size: int) -> None:
        """Say that this stretch will be read soon, so that the disk may begin; does not wait for it."""

    def sync(self) -> None:
        """Make what was written, and the size that is needed to read it, durable (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Cut or extend (by zeros, without blocks) to `size`."""

    def preallocate(self, size: int) -> None:
        """Reserve blocks up to `size`; what was not written reads as zeros."""

    def size(self) -> int:
        """Return the file's size in bytes."""

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        """(begin, end) of what may have been written from `offset` on; the rest reads as zeros."""

    def try_lock(self) -> bool:
        """Take the exclusive lock of this file until it is closed; False = someone else has it."""

    def close(self) -> None:
        """Close; nothing is made durable by it."""


class Disk(Protocol):
    """A file system; every method blocks."""

    def open(self, path: Path, create: bool = False) -> OpenFile:
        """Open for reading and writing; `create` it if it is missing."""

    def create_anew(self, path: Path) -> OpenFile:
        """Make an empty file in place of whatever has the name: what a crash left, or a link, goes."""

    def open_to_read(self, path: Path) -> OpenFile:
        """Open for reading only."""

    def list(self, directory: Path) -> list[str]:
        """Names in a directory; empty if it is missing."""

    def make_directory(self, directory: Path, durable: bool = True) -> None:
        """Make it and its parents, for their owner only, durably or not, unless it is there."""

    def rename(self, source: Path, target: Path) -> None:
        """Give `source` the name `target`, atomically; a file that has it is replaced."""

    def unlink(self, path: Path) -> None:
        """Remove a file; a missing one is no error."""

    def sync_directory(self, directory: Path) -> None:
        """Make names created, renamed or removed in it durable."""

    def sync_all(self, directory: Path) -> None:
        """Make everything written to the directory's file system durable."""

    def space(self, directory: Path) -> Space:
        """How much the directory's file system holds."""


def create_anew(path: Path, mode: int) -> int:
    """Return a descriptor of an empty file that nobody had open, in place of whatever has the name. OSError.

    A draft is written like this: what a crash left of one goes, and a link that somebody laid there is not
    followed, nor is a file taken that he made, and may still hold open.
    """
    try:
        return os.open(path, _ANEW, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, _ANEW, mode)


class RealFile:
    """A file of the operating system."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        for first in range(0, len(buffers), IOV_MAX):
            group = buffers[first : first + IOV_MAX]
            wanted = sum(map(len, group))
            written = os.pwritev(self.fd, group, offset)
            if written < wanted:
                self._write_rest(b"".join(group), written, offset)
            offset += wanted

    def _write_rest(self, data: bytes, done: int, offset: int) -> None:
        # A short write is how a filling disk begins; the next one says why.
        view = memoryview(data)
        while done < len(data):
            written = os.pwrite(self.fd, view[done:], offset + done)
            if not written:
                raise OSError(errno.EIO, "pwrite wrote nothing", str(self.path))
            done += written

    def read(self, offset: int, size: int) -> bytes:
        # pread into memory that nobody has filled with zeros before.
        data = os.pread(self.fd, size, offset)
        while data and len(data) < size:
            more = os.pread(self.fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_ahead(self, offset: int, size: int) -> None:
        os.posix_fadvise(self.fd, offset, size, os.POSIX_FADV_WILLNEED)

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def preallocate(self, size: int) -> None:
        os.posix_fallocate(self.fd, 0, size)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        end = offset
        try:
            while True:
                begin = os.lseek(self.fd, end, os.SEEK_DATA)
                end = os.lseek(self.fd, begin, os.SEEK_HOLE)
                ranges.append((begin, end))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        return ranges

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self.fd)


class RealDisk:
    """The operating system's file systems."""

    def open(self, path: Path, create: bool = False) -> OpenFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o640), path)

    def create_anew(self, path: Path) -> OpenFile:
        return RealFile(create_anew(path, 0o640), path)

    def open_to_read(self, path: Path) -> OpenFile:
        return RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def list(self, directory: Path) -> list[str]:
        try:
            return os.listdir(directory)
        except FileNotFoundError:
            return []

    def make_directory(self, directory: Path, durable: bool = True) -> None:
        if directory.is_dir():
            return
        if not directory.parent.exists():
            self.make_directory(directory.parent, durable)
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        if durable:
            self.sync_directory(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # syncfs reports write-back errors of the whole file system (Linux ≥ 5.8); os has no name for it.
            if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(directory))
        finally:
            os.close(fd)

    def space(self, directory: Path) -> Space:
        found = os.statvfs(directory)
        # As df counts: what is kept for root is neither used nor free.
        used = found.f_blocks - found.f_bfree
        return Space((used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize)
