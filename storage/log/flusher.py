"""The second thread: index files, checkpoints, segments ahead of need, and fsync in async flush.

Nothing here is in the way of confirmation. Batches are indexed in log order; what a checkpoint
says is durable before it is written. Source: storage.md, Append and Recovery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, Protocol

import numpy as np

from holdmq.errors import StorageError
from holdmq.files.atomic_file import AtomicFile
from storage.api.batches import Batch
from storage.core.queues import Queue
from storage.log.consume_queue import ConsumeQueues, Key
from storage.log.core.entries import ENTRY, ENTRY_SIZE, Entries, entries_of
from storage.log.failures import sync_failure, thread_failure, write_failure
from storage.log.writer import Writer

CHECKPOINT_INTERVAL_S: Final = 10.0
"""How old a checkpoint gets while records come: what a restart scans at most at low rates."""
CHECKPOINT_BYTES: Final = 32 << 20
"""How far the log may grow past it: half of the 64 MiB that a restart may have to scan."""
GROUP_BATCHES_MAX: Final = 4096
"""Batches indexed in one go: the arrays of a group stay in a few MB."""
PART_RUNS_MAX: Final = 256
"""Runs sorted in one go: half a ms."""
WORK_S: Final = 0.001
"""After this much work the thread rests for REST_PART times as long. The event loop wants the interpreter as
well, and each thread gets half of it: after half a second of small batches the loop ran at half its speed for
tens of ms, and whoever was answered then waited for ms."""
REST_PART: Final = 4
REST_MAX_S: Final = 0.02
"""What waited for the disk took long without being in anybody's way."""


class Checkpoint:
    """checkpoint.json: a record boundary below which log and indexes are durable.

    `queues` has first and next offset of every queue at that position; `first_position` is where the
    log begins, and `tombstones` has log offset and next queue offset of every deleted queue: changes of
    these two are written by the next save. `floors` has next offsets of queues that the leader of this
    copy had, and of which nothing is in this log: they go once something is.
    """

    def __init__(self, file: AtomicFile) -> None:
        self.position = 0
        self.store_ms = 0
        self.queues: dict[Key, tuple[int, int]] = {}
        self.first_position = 0
        self.tombstones: dict[Key, tuple[int, int]] = {}
        self.floors: dict[Key, int] = {}
        self._file = file
        self._version = 0

    def load(self, accept_backup: bool) -> bool:
        """Read the file; False = there is none. Raises StorageError when it is damaged."""
        loaded = self._file.load(accept_backup)
        if loaded is None:
            return False
        content = loaded.content
        self._version = loaded.data_version
        self.position = content["position"]
        self.store_ms = content["storeMs"]
        self.first_position = content.get("firstPosition", 0)
        self.queues = _by_queue(content["queues"])
        self.tombstones = _by_queue(content.get("tombstones", {}))
        self.floors = {key: end for key, (end, _) in _by_queue(content.get("floors", {})).items()}
        return True

    def save(self, position: int, store_ms: int, queues: dict[Key, tuple[int, int]]) -> None:
        """Replace the file durably."""
        self._version += 1
        self.floors = {key: end for key, end in self.floors.items() if key not in queues}
        content: dict[str, Any] = {
            "position": position,
            "storeMs": store_ms,
            "queues": _by_topic(queues),
            "firstPosition": self.first_position,
            "tombstones": _by_topic(self.tombstones),
        }
        if self.floors:
            content["floors"] = _by_topic({key: (end, end) for key, end in self.floors.items()})
        self._file.save(content, self._version)
        # Copied: the caller goes on counting in its own, and what is saved must stay of one moment.
        self.position, self.store_ms, self.queues = position, store_ms, dict(queues)

    def save_firsts(self, ends: Mapping[Key, tuple[int, int]]) -> None:
        """Replace the file durably, with the first offsets of `ends` and everything else as it was."""
        queues = dict(self.queues)
        for key, (_, following) in self.queues.items():
            if key in ends:
                queues[key] = (min(ends[key][0], following), following)
        self.save(self.position, self.store_ms, queues)


def _by_topic(queues: Mapping[Key, tuple[int, int]]) -> dict[str, Any]:
    by_topic: dict[str, Any] = {}
    for (topic, queue_id), pair in queues.items():
        by_topic.setdefault(topic, {})[str(queue_id)] = pair
    return by_topic


def _by_queue(content: dict[str, Any]) -> dict[Key, tuple[int, int]]:
    return {
        (topic, int(queue_id)): (pair[0], pair[1])
        for topic, queues in content.items()
        for queue_id, pair in queues.items()
    }


class Retains(Protocol):
    """What removes old segments: `storage.log.retention.retention.Retention`."""

    @property
    def wanted_checkpoint(self) -> int:
        """The log offset that a checkpoint must reach before something can go."""

    def note_full(self) -> None:
        """Something that is written before a segment may go found no space."""

    def run(self, ends: dict[Key, tuple[int, int]], indexed: int) -> None:
        """Do what is due; StorageError when the disk failed for good."""


class FollowsLog(Protocol):
    """An index that fills itself from the log: `storage.log.index.key_index.KeyIndex`. OSError is final."""

    def add(self, batches: list[Batch]) -> None:
        """Take confirmed batches, in log order."""

    def step(self) -> bool:
        """Write what was taken; True = more is left to do."""

    def sync(self) -> None:
        """Make what was written durable."""


class Flusher:
    """Indexes what was confirmed. `indexed` and `synced` may be read from any thread.

    `upkeep` is called after every step: what else is due about once a second.
    """

    def __init__(
        self,
        writer: Writer,
        queues: ConsumeQueues,
        checkpoint: Checkpoint,
        is_sync: bool,
        interval_s: float,
        failed: Callable[[StorageError], None],
        clock: Callable[[], float] = monotonic,
        retention: Retains | None = None,
    ) -> None:
        self.indexed = 0
        self.fsyncs = 0
        self.checkpoints = 0
        self.index_failures = 0
        self.confirmed: deque[tuple[Batch, list[Queue]]] = deque()
        self.wake = Event()
        self.prepare_at = -1
        self.upkeep: Callable[[], None] | None = None
        self.keys: FollowsLog | None = None
        self._writer = writer
        self._queues = queues
        self._checkpoint = checkpoint
        self._is_sync = is_sync
        self._interval_s = interval_s
        self._failed = failed
        self._clock = clock
        self._retention = retention
        self._ends: dict[Key, tuple[int, int]] = {}
        self._store_ms = 0
        self._unwritten: dict[Key, tuple[Queue, int, Entries]] = {}
        self._unwritten_end = 0
        self._stopping = False
        self._has_ended = False
        self._has_thread = True
        self._checkpointed_at = 0.0
        self._rested_at = self._rests_until = 0.0
        self._thread = Thread(target=self._run, name="log-flusher", daemon=True)

    def start(
        self, end: int, store_ms: int, ends: dict[Key, tuple[int, int]], has_thread: bool = True
    ) -> None:
        """Begin at the log's end; `ends` are first and next offset of every queue there.

        No thread: the caller calls `step`.
        """
        self.indexed = self._unwritten_end = end
        self._store_ms = store_ms
        self._ends = ends
        self._checkpointed_at = self._clock()
        self._has_thread = has_thread
        if has_thread:
            self._thread.start()

    def stop(self) -> None:
        """Do everything once more, then end. Blocking; the writer has ended."""
        self._stopping = True
        self.wake.set()
        if self._has_thread:
            self._thread.join()
        else:
            self.step()

    def _run(self) -> None:
        try:
            self._flush_until_stopped()
        except BaseException as error:
            self._fail(thread_failure(error, "log-flusher"))
            raise

    def _flush_until_stopped(self) -> None:
        due = self._clock() + self._interval_s
        while not self._has_ended:
            # Short of sleep only when asked to be: a segment to make, much to index, the end.
            self.wake.wait(max(0.0, due - self._clock()))
            self.wake.clear()
            # Counted from the beginning: with its rests a step may take half of the interval.
            due = self._clock() + self._interval_s
            self.step()

    def step(self) -> None:
        """What is due once per interval; does nothing once the disk has failed or all is done."""
        if not self._has_ended:
            stopping = self._stopping
            self._has_ended = not self._flush(stopping) or stopping
        if self.upkeep is not None:
            self.upkeep()

    def _flush(self, stopping: bool) -> bool:
        """False = the disk failed, for good."""
        self._prepare_segment()
        # Indexing what is not yet fsynced is fine: after a crash entries past the checkpoint go.
        if not self._is_sync and not self._sync_log():
            return False
        self._rested_at = self._clock()
        self._rests_until = self._rested_at + self._interval_s / 2
        if not self._index() or not self._step_keys(stopping):
            return False
        if self._is_checkpoint_due(stopping) and not self._save_checkpoint():
            return False
        return stopping or self._retain()

    def _retain(self) -> bool:
        """Let retention do its part; False = the disk failed, for good."""
        if self._retention is None:
            return True
        try:
            self._retention.run(self._ends, self.indexed)
        except StorageError as error:
            self._fail(error)
            return False
        return True

    def _note_full(self) -> None:
        if self._retention is not None:
            self._retention.note_full()

    def _prepare_segment(self) -> None:
        start, self.prepare_at = self.prepare_at, -1
        if start < 0:
            return
        try:
            self._writer.segments.prepare_next(start)
        except OSError:
            # The writer makes it itself when it gets there, and says what is wrong then.
            self.index_failures += 1

    def _sync_log(self) -> bool:
        """fsync what was written; False = it failed, for good."""
        written = self._writer.written
        if written == self._writer.synced:
            return True
        if self._writer.fatal is not None:
            return False
        try:
            self._writer.segments.sync()
        except OSError as error:
            self._fail(sync_failure(error, str(self._writer.segments.directory), self._writer.synced))
            return False
        self.fsyncs += 1
        self._writer.synced = written
        return True

    def _index(self) -> bool:
        """Write the entries of what was confirmed; False = the disk failed, for good."""
        while True:
            self._collect()
            if not self._unwritten:
                return True
            try:
                for key, (queue, first, entries) in list(self._unwritten.items()):
                    self._queues.write(key, first, entries)
                    queue.indexed = first + len(entries)
                    self._ends[key] = (queue.first_offset, queue.indexed)
                    del self._unwritten[key]
                    self._rest()
            except OSError as error:
                self.index_failures += 1
                failure = write_failure(error, "write", str(self._queues.directory), None)
                if not failure.retriable:
                    self._fail(failure)
                    return False
                self._note_full()
                return True  # again after the next interval
            self.indexed = self._unwritten_end

    def _step_keys(self, stopping: bool) -> bool:
        """Let the index of keys write; False = the disk failed, for good."""
        if self.keys is None:
            return True
        try:
            if self.keys.step() and not stopping:
                self.wake.set()
        except OSError as error:
            self._fail(write_failure(error, "write", str(self._queues.directory), None))
            return False
        return True

    def _collect(self) -> None:
        """Take confirmed batches and sort their entries by queue."""
        if self._unwritten:
            return
        by_queue: dict[Key, tuple[Queue, int, list[bytes]]] = {}
        left = GROUP_BATCHES_MAX
        while self.confirmed and left > 0:
            left -= self._sort(by_queue, left)
            self._rest()
        for key, (queue, first, parts) in by_queue.items():
            self._unwritten[key] = (queue, first, np.frombuffer(b"".join(parts), ENTRY))

    def _sort(self, by_queue: dict[Key, tuple[Queue, int, list[bytes]]], batches_max: int) -> int:
        """Add the entries of some confirmed batches to their queues'; of how many."""
        batches: list[Batch] = []
        queues: list[Queue] = []
        while self.confirmed and len(batches) < batches_max and len(queues) < PART_RUNS_MAX:
            batch, of_batch = self.confirmed.popleft()
            batches.append(batch)
            queues.extend(of_batch)
        if self.keys is not None:
            self.keys.add(batches)
        # As bytes: a slice of an array takes several times as long, for each run.
        entries = entries_of(batches).tobytes()
        at = 0
        runs = (run for batch in batches for run in batch.runs)
        for run, queue in zip(runs, queues, strict=True):
            end = at + run.count * ENTRY_SIZE
            part = entries[at:end]
            at = end
            known = by_queue.get((run.topic, run.queue_id))
            if known is None:
                by_queue[run.topic, run.queue_id] = (queue, run.base_offset, [part])
            else:
                known[2].append(part)
        self._unwritten_end = batches[-1].end
        self._store_ms = batches[-1].store_ms
        return len(batches)

    def _rest(self) -> None:
        """Leave the interpreter to the event loop for a while, when it is time.

        Not when much is to be indexed, or a segment to be made: who wakes this thread waits for it. Nor
        beyond half of the interval, at whose end the log is to be fsynced.
        """
        now = self._clock()
        worked_s = now - self._rested_at
        if worked_s >= WORK_S:
            if self._has_thread and not self._stopping and now < self._rests_until:
                self.wake.wait(min(REST_MAX_S, worked_s * REST_PART))
            self._rested_at = self._clock()

    def _is_checkpoint_due(self, stopping: bool) -> bool:
        grown = self.indexed - self._checkpoint.position
        if grown <= 0 or self._unwritten:
            return False
        return (
            stopping
            or grown >= CHECKPOINT_BYTES
            or self._is_checkpoint_wanted()
            or self._clock() - self._checkpointed_at >= CHECKPOINT_INTERVAL_S
        )

    def _is_checkpoint_wanted(self) -> bool:
        wanted = 0 if self._retention is None else self._retention.wanted_checkpoint
        return self._checkpoint.position < wanted <= self.indexed

    def _save_checkpoint(self) -> bool:
        """Make log and index durable, then say so; False = the disk failed, for good."""
        position, store_ms, ends = self.indexed, self._store_ms, dict(self._ends)
        if self._writer.synced < position and not self._sync_log():
            return False
        try:
            self._queues.sync()
            if self.keys is not None:
                self.keys.sync()
        except OSError as error:
            self._fail(sync_failure(error, str(self._queues.directory), self._writer.synced))
            return False
        try:
            self._checkpoint.save(position, store_ms, ends)
        except StorageError as error:
            self.index_failures += 1
            if not error.retriable:
                self._fail(error)
                return False
            self._note_full()
            return True
        self.checkpoints += 1
        self._checkpointed_at = self._clock()
        return True

    def _fail(self, error: StorageError) -> None:
        self._writer.fatal = error
        self._failed(error)
