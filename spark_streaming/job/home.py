"""The job's own directory: one job at a time, and nothing left behind by one that was killed.

::

    <stats.data_dir>/lock              held (flock) while a job runs
    <stats.data_dir>/checkpoints/<table>   Spark's: offsets and commits of every batch
    <stats.data_dir>/tables/<table>    Delta: what everybody reads
    <stats.data_dir>/aside/<time>      both as they were when `holdmq stats --rebuild` began to count anew
    <stats.data_dir>/tmp               Spark's scratch space, emptied at every start
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from holdmq.errors import StartupError
from holdmq.files.disk import DIRECTORY_MODE
from holdmq.files.private_directory import make_private


class JobDirectory:
    """An opened and locked data directory; `close` releases it."""

    __slots__ = ("_lock", "data")

    def __init__(self, data: Path) -> None:
        """Make the directory if it is not there, lock it, empty its scratch space.

        Raises StartupError when it cannot be used, or another job runs in it.
        """
        self.data = data
        try:
            make_private(data, "checkpoints")
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(data / "lock", flags, 0o600)
        except OSError as error:
            raise unusable(data, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StartupError(
                f"another stats job runs in {data} (stats.data_dir); stop it, or choose another directory"
            ) from error
        try:
            if self.scratch.exists():
                shutil.rmtree(self.scratch)
            self.scratch.mkdir(mode=DIRECTORY_MODE)
        except OSError as error:
            self.close()
            raise unusable(data, error) from error

    @property
    def scratch(self) -> Path:
        """The directory of Spark's scratch space."""
        return self.data / "tmp"

    def checkpoint(self, name: str) -> Path:
        """Return the directory of the checkpoint of the query `name`."""
        return self.data / "checkpoints" / name

    def put_checkpoints_aside(self, name: str) -> str:
        """Move all checkpoints out of the way, to `name`; return where, empty if there are none."""
        checkpoints = self.data / "checkpoints"
        if not checkpoints.exists():
            return ""
        aside = self.data / "aside" / name
        try:
            aside.mkdir(parents=True)
            checkpoints.rename(aside / "checkpoints")
        except OSError as error:
            raise unusable(self.data, error) from error
        return str(aside)

    def close(self) -> None:
        """Release the directory's lock."""
        os.close(self._lock)


def unusable(data: Path, error: OSError) -> StartupError:
    """Return the error that says why ``stats.data_dir`` cannot be used, and what to do."""
    return StartupError(
        f"the directory {data} (stats.data_dir) cannot be used: {error.strerror or error}; "
        "choose another with --set stats.data_dir=DIR"
    )
