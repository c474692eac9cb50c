"""File systems of a test's own in memory, that can be filled: what is written then fails with a real ENOSPC.

Needs root, as mounts do; they are gone with the test.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BALLAST: Final = "ballast"


class SmallDisk:
    """A directory that is a file system of `size_bytes`; memory is used for what is written only."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self._size_bytes = size_bytes

    def mount(self) -> None:
        """Make the directory, and the file system there."""
        self.path.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={self._size_bytes},mode=755", "holdmq-test", str(self.path))

    def fill(self, left_bytes: int = 0) -> None:
        """Take all the room that is left, but so much of it."""
        with (self.path / BALLAST).open("wb") as file:
            while True:
                stats = os.statvfs(self.path)
                free = stats.f_bavail * stats.f_frsize
                if free <= left_bytes:
                    return
                size = file.seek(0, os.SEEK_END)
                try:
                    os.posix_fallocate(file.fileno(), size, free - left_bytes)
                except OSError as error:
                    # Another one took some of it meanwhile.
                    if error.errno != errno.ENOSPC:
                        raise

    def give_back(self) -> None:
        """Give the room back that `fill` took."""
        (self.path / BALLAST).unlink(missing_ok=True)

    def unmount(self) -> None:
        """Take the file system away, whoever still has files of it open."""
        _run("umount", "--lazy", str(self.path))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}; these tests need root"


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A file system for a test."""
    disk = SmallDisk(path, size_bytes)
    disk.mount()
    try:
        yield disk
    finally:
        disk.unmount()
