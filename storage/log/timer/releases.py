"""The way of due messages out of the timer: read, copied, appended, and taken back when refused.

Used by the timer's thread but for `_append` and `_answered`, which run on the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Final

import structlog

from holdmq.errors import RecordError, StorageError
from storage.api.batches import Appended, Batch, BatchRun, sizes_of
from storage.core.delayed import Entry, Released, released_copy
from storage.core.scan import KeyLevels
from storage.log.timer.core.timer import DueRows, rows_of
from storage.log.timer.files import WaitingRecords

PREPARE_AHEAD_MS: Final = 200
"""How early copies are built: a second's work of a busy timer is spread, and little is held."""
PREPARED_MAX: Final = 16_384
PREPARED_BYTES_MAX: Final = 16 << 20
"""Copies that wait in memory for their moment."""
READ_ROWS: Final = 512
"""Records read in one go."""
READ_BYTES: Final = 4 << 20
BATCH_RECORDS: Final = 512
BATCH_BYTES: Final = 512 << 10
"""One append: large enough to cost little per message, small enough to fit any segment's rest."""
IN_FLIGHT_MAX: Final = 8_192
"""Copies on their way to confirmation: a start with a million due does not flood the writer."""
RETRY_S: Final = 1.0
"""Wait after a refused append: a full disk is asked again about so often."""
LATE_MS: Final = 50
"""A release that is later counts as late: the promise is p99 within it."""

log = structlog.get_logger("holdmq.storage")


class TimerRelease(Batch):
    """A batch of copies, and the entries that they are of."""

    __slots__ = ("entries", "generation")

    def __init__(self, copies: list[tuple[Entry, Released]], runs: list[BatchRun], generation: int) -> None:
        records = [copy.record for _, copy in copies]
        super().__init__(memoryview(bytearray().join(records)), sizes_of(records), runs)
        self.entries = [entry for entry, _ in copies]
        self.generation = generation

    def released(self) -> list[Entry]:
        """The entries as the log now knows them: done, by this batch."""
        starts = (self.starts + self.position).tolist()
        return [
            entry._replace(position=start, size=0) for entry, start in zip(self.entries, starts, strict=True)
        ]


class Releases:
    """`due` are pending rows of open buckets; from there they leave in the order of their due times."""

    def __init__(
        self,
        waiting: WaitingRecords,
        key_levels: KeyLevels,
        append: Callable[[Batch, Appended], None],
        post: Callable[[Callable[[], object]], object],
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.due = DueRows()
        self.released = self.released_late = self.refused = self.damaged = self.unreadable = 0
        self.lateness_max_ms = 0
        self._waiting = waiting
        self._key_levels = key_levels
        self._append_to_log = append
        self._post = post
        self._wake = wake
        self._clock = clock
        self._prepared: list[tuple[int, int, Entry, Released]] = []
        self._prepared_bytes = 0
        self._leaving: set[int] = set()
        self._moved: dict[int, Entry] = {}
        self._in_flight = 0
        self._generation = 0
        self._refused_until = 0.0
        self._returned: deque[tuple[TimerRelease, StorageError | None]] = deque()
        # The loop's own: batches of an older generation follow one that was refused.
        self._loop_generation = 0

    def is_leaving(self, first: int) -> bool:
        """Whether a timer was taken from `due` and is not done."""
        return first in self._leaving

    def left(self, first: int) -> bool:
        """Note that a timer's copy is in the log; False = it did not leave through here."""
        if first not in self._leaving:
            return False
        self._leaving.remove(first)
        self._moved.pop(first, None)
        self._in_flight -= 1
        return True

    def move(self, entry: Entry) -> None:
        """Note a timer's new place in the log, if it waits here or is leaving: it may come back."""
        if entry.first in self._leaving:
            self._moved[entry.first] = entry
        else:
            self.due.move(entry)

    def forget(self, damaged: list[Entry]) -> None:
        """Count timers as leaving that end without a copy; the caller notes them as done."""
        for entry in damaged:
            if self.due.remove(entry):
                self._leaving.add(entry.first)
                self._in_flight += 1
        self.damaged += len(damaged)

    def prepare(self, now_ms: int) -> list[Entry]:
        """Build copies of what is due soon; give those whose records are damaged, to be noted as done."""
        dropped: list[Entry] = []
        until = now_ms + PREPARE_AHEAD_MS
        while self._has_room():
            rows = self.due.take(until, READ_ROWS, READ_BYTES)
            if not len(rows):
                break
            self._leaving.update(rows["first"].tolist())
            for entry, error in self._waiting.read(rows, self._add_copy):
                if isinstance(error, RecordError):
                    log.error("a delayed message is damaged, and lost", reason=str(error))
                    self.damaged += 1
                    self._in_flight += 1
                    dropped.append(entry)
                else:
                    log.error(
                        "a delayed message cannot be read; the next start tries again", reason=str(error)
                    )
                    self.unreadable += 1
                    self._leaving.discard(entry.first)
                    self._moved.pop(entry.first, None)
        return dropped

    def _has_room(self) -> bool:
        prepared = self._prepared
        if len(prepared) < PREPARED_MAX and self._prepared_bytes < PREPARED_BYTES_MAX:
            return True
        due = self.due.next_due()
        # What was taken back goes before those that are ready: order is worth more than the bound.
        return due is not None and due < prepared[0][0]

    def _add_copy(self, raw: memoryview, entry: Entry) -> None:
        copy = released_copy(raw, entry)
        heappush(self._prepared, (entry.due_ms, entry.first, entry, copy))
        self._prepared_bytes += len(copy.record)

    def release(self, now_ms: int) -> int | None:
        """Append what is due; when to come again (None = when woken, or when a refusal is old enough)."""
        prepared = self._prepared
        if self._clock() < self._refused_until or self._generation != self._loop_generation:
            return None
        while prepared and prepared[0][0] <= now_ms:
            if self._in_flight >= IN_FLIGHT_MAX:
                return None
            self._release_batch(now_ms)
        if prepared:
            return prepared[0][0]
        due = self.due.next_due()
        return None if due is None else due - PREPARE_AHEAD_MS

    def _release_batch(self, now_ms: int) -> None:
        prepared = self._prepared
        copies: list[tuple[Entry, Released]] = []
        runs: list[BatchRun] = []
        size = 0
        while prepared and prepared[0][0] <= now_ms and len(copies) < BATCH_RECORDS:
            copy = prepared[0][3]
            if copies and size + len(copy.record) > BATCH_BYTES:
                break
            _, _, entry, _ = heappop(prepared)
            size += len(copy.record)
            copies.append((entry, copy))
            if runs and (runs[-1].topic, runs[-1].queue_id) == (copy.topic, copy.queue_id):
                runs[-1].count += 1
            else:
                runs.append(BatchRun(copy.topic, copy.queue_id, 1, self._key_levels(copy.topic)))
        self._prepared_bytes -= size
        self._in_flight += len(copies)
        self._post(partial(self._append, TimerRelease(copies, runs, self._generation)))

    def _append(self, batch: TimerRelease) -> None:
        """On the loop: append, unless one before it was refused."""
        if batch.generation != self._loop_generation:
            self._returned.append((batch, None))
            self._wake()
            return
        self._append_to_log(batch, self._answered)

    def _answered(self, batch: Batch, error: StorageError | None) -> None:
        """On the loop: count what was confirmed (the log tells the thread), give back what was refused."""
        assert isinstance(batch, TimerRelease)
        if error is None:
            self._count(batch)
            return
        if batch.generation == self._loop_generation:
            self._loop_generation += 1
        self._returned.append((batch, error))
        self._wake()

    def _count(self, batch: TimerRelease) -> None:
        self.released += len(batch.entries)
        for entry in batch.entries:
            lateness = batch.store_ms - entry.due_ms
            if lateness > LATE_MS:
                self.released_late += 1
            self.lateness_max_ms = max(self.lateness_max_ms, lateness)

    def take_back(self) -> None:
        """Let refused copies wait again; nothing is appended until all of them are back."""
        while self._returned:
            batch, error = self._returned.popleft()
            self._in_flight -= len(batch.entries)
            self._leaving.difference_update(entry.first for entry in batch.entries)
            # Where it waited first its segment may have gone: what left was appended again before.
            self.due.add(rows_of([self._moved.pop(entry.first, entry) for entry in batch.entries]))
            self.refused += len(batch.entries)
            if error is None:
                continue
            log.warning("due messages were refused and wait", reason=str(error), messages=len(batch.entries))
            self._refused_until = self._clock() + RETRY_S if error.retriable else inf
        if self._generation != self._loop_generation and self._in_flight == 0:
            self._generation = self._loop_generation
