"""A little room that is kept for a full disk: what old segments wait for is written into it.

A segment goes only when checkpoint and indexes have passed it, and a start must write a checkpoint:
on a disk without a byte left neither can be. The file `spare` is then given up, and made again
when there is room. Source: storage.md, Retention.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from holdmq.files.disk import FULL_ERRORS, Disk

SPARE: Final = "spare"
SEGMENT_PART: Final = 16
"""A sixteenth of a segment: index entries of what memory holds, and the checkpoint of 10,000 queues."""
SIZE_MIN: Final = 4096

log = structlog.get_logger("holdmq.storage")


class Spare:
    """The spare file of a store. Every method blocks, and belongs to the flushing thread once it runs."""

    def __init__(self, disk: Disk, directory: Path, segment_size: int) -> None:
        self.size_bytes = max(segment_size // SEGMENT_PART, SIZE_MIN)
        self.is_there = False
        self._disk = disk
        self._path = directory / SPARE

    def load(self) -> None:
        """Look whether it is there."""
        self.is_there = SPARE in self._disk.list(self._path.parent)

    def make(self) -> None:
        """Set the room aside, unless there is none; OSError of other kinds as the disk says."""
        try:
            file = self._disk.open(self._path, create=True)
            try:
                file.preallocate(self.size_bytes)
                file.sync()
            finally:
                file.close()
            self._disk.sync_directory(self._path.parent)
        except OSError as error:
            self._disk.unlink(self._path)
            if error.errno not in FULL_ERRORS:
                raise
            return
        self.is_there = True

    def give_up(self) -> bool:
        """Let others have the room; False = it was given up before."""
        if not self.is_there:
            return False
        self._disk.unlink(self._path)
        self._disk.sync_directory(self._path.parent)
        self.is_there = False
        log.warning("the disk is full: the spare room is used", path=str(self._path), bytes=self.size_bytes)
        return True
