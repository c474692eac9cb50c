"""Finds a reader's messages among millions of foreign ones: sorted sidecars of the consume queues.

They are built on the reader pool, one after the other, of runs that lie below the checkpoint: no
crash takes such entries back, so a sidecar is right or damaged, never of other entries.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np
import structlog

from holdmq.record.batch import Ints
from storage.api.queues import HashFilter
from storage.log.consume_queue import ConsumeQueues, Key
from storage.log.core.entries import ENTRY, ENTRY_SIZE, Entries
from storage.log.core.names import name_of
from storage.log.core.sidecar import RUN_ENTRIES, SUFFIX, encode, search
from storage.log.open_files import OpenFiles

RANGES_MAX: Final = 64
"""A filter of more hashes than this reads all entries: each hash costs a block."""
MATCHES_MAX: Final = 2_048
"""A run of which more than this matches is read entry by entry: nothing is skipped there."""
WAITING_MAX: Final = 4_096
"""Runs that wait to be built; what does not fit is built when somebody reads it."""
_MISSING_MAX: Final = 8_192

log = structlog.get_logger("holdmq.storage")
Run = tuple[Key, int]


class Sidecars:
    """All sidecars of a store. Any thread may call it; what reads or writes files blocks."""

    def __init__(self, files: OpenFiles, queues: ConsumeQueues, executor: Executor | None) -> None:
        self.built = 0
        self.searched = 0
        self.damaged = 0
        self.failures = 0
        self._files = files
        self._queues = queues
        self._executor = executor
        self._lock = Lock()
        self._waiting: deque[Run] = deque()
        self._queued: set[Run] = set()
        self._missing: set[Run] = set()
        self._checkpoint = 0
        self._is_building = False

    def find(self, key: Key, first: int, indexed: int, wanted: HashFilter) -> Ints | None:
        """The offsets in the run that begins at entry `first` that may match; None = it is not known.

        Then the caller reads the entries, and the run is built for whoever comes next.
        """
        ranges = wanted.ranges()
        if first + RUN_ENTRIES > indexed or len(ranges) > RANGES_MAX:
            return None
        if (key, first) in self._missing:
            return None
        path = self._path(key, first)
        try:
            places = search(lambda at, size: self._files.read(path, at, size), first, ranges, MATCHES_MAX)
        except FileNotFoundError:
            self._remember_missing((key, first))
            self.want(key, first)
            return None
        except ValueError as error:
            self.damaged += 1
            log.warning("a sidecar is damaged and built again", path=str(path), reason=str(error))
            self._files.unlink(path)
            self.want(key, first)
            return None
        self.searched += 1
        return None if places is None else places + first

    def _remember_missing(self, run: Run) -> None:
        with self._lock:
            if len(self._missing) >= _MISSING_MAX:
                self._missing.clear()
            self._missing.add(run)

    def want(self, key: Key, first: int) -> None:
        """Have a completed run built."""
        with self._lock:
            run = (key, first)
            if run not in self._queued and len(self._queued) < WAITING_MAX:
                self._queued.add(run)
                self._waiting.append(run)

    def upkeep(self, checkpoint: int) -> None:
        """Go on building what lies below the checkpoint; to be called about every second."""
        self._checkpoint = checkpoint
        while self._queues.completed:
            self.want(*self._queues.completed.popleft())
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            if self._is_building or not self._waiting or self._executor is None:
                return
            self._is_building = True
        try:
            self._executor.submit(self._build_waiting)
        except RuntimeError:
            return  # the pool is shut down: the store closes

    def _build_waiting(self) -> None:
        """Build one run; the next one queues behind the reads that came meanwhile."""
        with self._lock:
            run = self._waiting.popleft() if self._waiting else None
        is_due = True
        if run is not None:
            try:
                is_due = self.build(*run)
            except OSError as error:
                # Reads do without it, and ask for it again.
                self.failures += 1
                log.warning("a sidecar could not be built", path=str(self._path(*run)), reason=str(error))
        with self._lock:
            self._is_building = False
            if run is not None and is_due:
                self._queued.discard(run)
            elif run is not None:
                self._waiting.append(run)
        if is_due:
            self._go_on()

    def build(self, key: Key, first: int) -> bool:
        """Write the sidecar of a run, unless entries of it are gone or damaged; False = it is too new."""
        entries = self._entries(key, first)
        if len(entries) < RUN_ENTRIES or not bool((entries["size"] != 0).all()):
            return True
        if int(entries["position"][-1]) >= self._checkpoint:
            return False
        path = self._path(key, first)
        making = path.with_suffix(".making")
        file = self._files.create_anew(making)
        try:
            file.write([encode(first, entries["hash"].astype(np.uint64))], 0)
        finally:
            file.close()
        self._files.rename(making, path)
        with self._lock:
            self._missing.discard((key, first))
        self.built += 1
        return True

    def _entries(self, key: Key, first: int) -> Entries:
        """The entries of a run, through the end of a file if need be."""
        parts: list[bytes] = []
        count = 0
        while count < RUN_ENTRIES:
            part = self._queues.read(key, first + count, RUN_ENTRIES - count)
            if not len(part):
                break
            parts.append(part.tobytes())
            count += len(part)
        return np.frombuffer(b"".join(parts), ENTRY)

    def _path(self, key: Key, first: int) -> Path:
        return self._queues.directory / key[0] / str(key[1]) / (name_of(first * ENTRY_SIZE) + SUFFIX)

    def numbers(self) -> dict[str, float]:
        """Counters and gauges, as `MessageStore.numbers`."""
        return {
            "sidecars_built_total": self.built,
            "sidecar_searches_total": self.searched,
            "sidecars_damaged_total": self.damaged,
            "sidecar_failures_total": self.failures,
            "sidecars_waiting": len(self._queued),
        }
