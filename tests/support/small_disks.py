"""File systems of a test's own in memory, that can be filled: what is written then fails with a real ENOSPC.

Needs root, as mounts do; they are gone with the test.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
        """Make it no larger than what is written there, and so much more."""
        while True:
            stats = os.statvfs(self.path)
            used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
            try:
                self._resize(used + left_bytes)
            except AssertionError:
                # More has been written meanwhile.
                if os.statvfs(self.path).f_bfree == stats.f_bfree:
                    raise
            else:
                return

    def give_back(self) -> None:
        """Give the room back that `fill` took."""
        self._resize(self._size_bytes)

    def _resize(self, size_bytes: int) -> None:
        _run("mount", "-o", f"remount,size={size_bytes}", str(self.path))

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
