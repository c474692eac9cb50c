"""Data directories: their owner's only, since what is in them is readable by whoever may enter.

The log, the sessions and the tables hold what devices said; files in them are made with the modes of whatever
writes them (Spark, LMDB, ourselves), so the directory is what closes them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import structlog

from holdmq.files.disk import RealDisk

_TAKEN: Final = stat.S_IRWXO | stat.S_IWGRP
"""What nobody needs: anything of others, and writing of the group. A group's reading is a choice."""

log = structlog.get_logger("holdmq")


def close_to_others(directory: Path, mark: str) -> None:
    """Take from a data directory, if it is there, what others may do in it; blocking.

    One that has entries and none called `mark`, a name that only this use of it has, may be somebody's home:
    it is left alone, like one of another owner, and the log says what to do.
    """
    try:
        state = directory.stat()
    except OSError:
        return  # Who uses it says why it is not there.
    mode = stat.S_IMODE(state.st_mode)
    if not mode & _TAKEN:
        return
    try:
        names = os.listdir(directory)
        is_ours = state.st_uid == os.geteuid() and not mode & stat.S_ISVTX and (mark in names or not names)
        if is_ours:
            directory.chmod(mode & ~_TAKEN)
    except OSError:
        is_ours = False
    if is_ours:
        log.warning(
            "a data directory was open to other users, and is not any more",
            path=str(directory), mode=f"{mode:04o}",
        )  # fmt: skip
    else:
        log.warning(
            "a data directory is open to other users: chmod g-w,o-rwx",
            path=str(directory), mode=f"{mode:04o}",
        )  # fmt: skip


def make_private(directory: Path, mark: str) -> None:
    """Make a data directory for its owner only, or close one that is there to others; blocking. OSError."""
    RealDisk().make_directory(directory, durable=False)
    close_to_others(directory, mark)
