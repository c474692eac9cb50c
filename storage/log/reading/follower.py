"""Follows the confirmed log on a thread of its own: from memory while it keeps up, else from the files.

What is derived from the log (timer, tables) is built by one of these each. The loop offers every
group of confirmed batches; the thread takes them in order, whatever happened between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Event, Lock
from typing import Final

import structlog

from holdmq.errors import CorruptRecordError
from storage.api.batches import Batch
from storage.log.reading.reader import ColdReader

MEMORY_BYTES: Final = 8 << 20
"""Batches held for a follower that is late; past it the oldest are read from the log again."""
READ_BYTES: Final = 4 << 20
"""What one read of the log brings: a disk's full speed in little memory."""
TAKE_BATCHES: Final = 1024
"""Batches given at a time, so that the thread comes to its other work."""

log = structlog.get_logger("holdmq.storage")


class Followed:
    """A stretch of the log: its `batch`, or None when nothing in it is of interest.

    `is_replayed`: it was read from the files, so that nobody has looked at it yet.
    """

    __slots__ = ("batch", "end", "is_replayed", "start")

    def __init__(self, start: int, end: int, batch: Batch | None, is_replayed: bool) -> None:
        self.start = start
        self.end = end
        self.batch = batch
        self.is_replayed = is_replayed


class Follower:
    """`position`: everything below was taken. `end`: everything below is confirmed."""

    def __init__(self, reader: ColdReader, name: str, is_wanted: Callable[[Batch], bool]) -> None:
        self.position = 0
        self.end = 0
        self.replays = 0
        self.wake = Event()
        self._reader = reader
        self._name = name
        self._is_wanted = is_wanted
        self._held: deque[Followed] = deque()
        self._held_bytes = 0
        self._lock = Lock()

    def start(self, position: int, end: int) -> None:
        """Follow from `position` on; the log is confirmed up to `end`."""
        self.position, self.end = position, end

    def offer(self, batches: list[Batch]) -> None:
        """Batches that were confirmed, in log order. Called on the loop."""
        with self._lock:
            start = self.end
            woken = False
            for batch in batches:
                wanted = self._is_wanted(batch)
                if wanted or not self._held or self._held[-1].batch is not None:
                    self._held.append(Followed(start, batch.end, batch if wanted else None, False))
                    self._held_bytes += len(batch.records) if wanted else 0
                    woken = woken or wanted
                else:
                    self._held[-1].end = batch.end
                start = batch.end
            self.end = start
            while self._held_bytes > MEMORY_BYTES:
                gone = self._held.popleft()
                self._held_bytes -= 0 if gone.batch is None else len(gone.batch.records)
        if woken:
            self.wake.set()

    def take(self) -> list[Followed]:
        """What follows `position`, which moves behind it; empty = everything was taken.

        Blocking when it must be read. Raises OSError and StorageError of the disk. Damaged records
        are logged and passed over.
        """
        with self._lock:
            taken = self._take_held()
            # A read stops where memory goes on, so that no record comes twice.
            end = self._held[0].start if self._held else self.end
        if taken:
            self.position = taken[-1].end
            return taken
        if self.position >= end:
            return []
        self.replays += 1
        start = self.position
        try:
            batches = self._reader.read_log(start, READ_BYTES, end, keep=False)
        except CorruptRecordError as error:
            log.error("the log is damaged", follower=self._name, reason=str(error))
            self.position = error.resume_at
            return [Followed(start, error.resume_at, None, True)]
        for batch in batches:
            taken.append(Followed(start, batch.end, batch, True))
            start = batch.end
        if not taken:
            # Only the blank that closes a segment lies between.
            taken.append(Followed(start, end, None, True))
        self.position = taken[-1].end
        return taken

    def _take_held(self) -> list[Followed]:
        held = self._held
        # One that begins before was followed in part when the store was closed: the rest is read.
        while held and held[0].start < self.position:
            self._drop_first()
        if not held or held[0].start > self.position:
            return []
        taken: list[Followed] = []
        while held and len(taken) < TAKE_BATCHES:
            taken.append(self._drop_first())
        return taken

    def _drop_first(self) -> Followed:
        first = self._held.popleft()
        if first.batch is not None:
            self._held_bytes -= len(first.batch.records)
        return first
