"""Removes what is due, on the flushing thread: segments, then the index files that spoke of them.

The order is safe at every crash: first offsets rise in memory, then in checkpoint.json, then
segments go, oldest first, each durably, then index files. A start completes what was begun
(`complete`). When the disk is too full for first offsets, segments go all the same: the start then
finds them by itself. What must be written before a segment may go has the spare room (`spare.py`).
Source: storage.md, Retention.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final, NamedTuple

import structlog

from holdmq.config.model import StorageSection
from holdmq.errors import CorruptRecordError, StorageError, StoreFullError, UsageError
from holdmq.files.disk import FULL_ERRORS, Disk, Space
from storage.api.retention import Need
from storage.core.queues import Queue
from storage.log.consume_queue import ConsumeQueues, Key
from storage.log.failures import FULL_HINT, sync_failure
from storage.log.flusher import Checkpoint
from storage.log.reading.backwards import BackwardReader
from storage.log.reading.times import Times
from storage.log.retention.core.retention import (
    Oldest,
    Reason,
    RetentionLimits,
    percent_used,
    reasons_to_delete,
    who_needs,
)
from storage.log.retention.spare import Spare
from storage.log.segments import Segment, Segments

TOMBSTONES_MAX: Final = 100_000
"""Deleted queues that are remembered (6 MB of checkpoint): past it those go whose records are all gone."""

START_BYTES: Final = 1 << 20
"""Free space that a start needs: checkpoint and epochs, written beside their backups."""


def limits_of(settings: StorageSection) -> RetentionLimits:
    """The limits of a configuration."""
    return RetentionLimits(
        settings.retention_age_s * 1000,
        settings.retention_bytes,
        settings.retention_segments,
        settings.disk_early_percent,
        settings.disk_forced_percent,
        settings.disk_refuse_percent,
        settings.delete == "consumed",
        settings.group_expiry_s * 1000,
    )


BeforeDelete = Callable[[Segment], bool]
"""Called on the flushing thread, again and again, while the oldest segment is due: True = it may go.

True says that nothing is lost with it: what was pending in it is appended again and lies below
the store's `synced_position` (timers), or is kept elsewhere (the tables' snapshot). False = not
yet; whoever answers so has begun to see to it. It must not wait.
"""

Drop = Callable[[int], int]
"""Remove the files of an index that speak only of the log below a position; how many those were."""

log = structlog.get_logger("holdmq.storage")


class Deletion(NamedTuple):
    """A queue to delete: everything below `next_offset`, at log offset `position`."""

    queue: Queue
    position: int
    next_offset: int
    done: Callable[[StorageError | None], object]


class Retention:
    """One store's retention. `run` belongs to the flushing thread; the rest says where it may be called.

    Until `keep_for` is called nothing goes that somebody may need, when `keeps_needed`; `before_delete` and
    `indexes` are filled before the store opens.
    """

    def __init__(
        self,
        disk: Disk,
        segments: Segments,
        files: ConsumeQueues,
        checkpoint: Checkpoint,
        limits: RetentionLimits,
        interval_s: float,
        clock_ms: Callable[[], int],
        queue_of: Callable[[Key], Queue | None],
        refuse: Callable[[StoreFullError | None], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.before_delete: list[BeforeDelete] = []
        self.indexes: list[Drop] = []
        self.deletions: deque[Deletion] = deque()
        self.leader_first: int | None = None
        """Where the leader's log begins: only what ends below it goes. None = this log decides itself."""
        self.copies_from: int | None = None
        """From where on copies fetch the log now: no segment behind it goes unless the disk fills up."""
        self.wanted_checkpoint = 0
        self.used_percent = 0.0
        self.segments_deleted = self.bytes_deleted = self.files_deleted = 0
        self.forced = self.waits = self.failures = self.topic_raises = 0
        self.spare = Spare(disk, segments.directory.parent, segments.segment_size)
        self._needs: Callable[[], Iterable[Need]] | None = None
        self._disk = disk
        self._segments = segments
        self._files = files
        self._checkpoint = checkpoint
        self._limits = limits
        self._interval_s = interval_s
        self._clock_ms = clock_ms
        self._clock = clock
        self._queue_of = queue_of
        self._refuse = refuse
        self._is_refusing = False
        self._has_met_full = False
        self._space = Space(0, 0)
        self._backwards = BackwardReader(disk, segments)
        self._times = Times(disk, segments, files)
        self._topic_ages: dict[str, int] = {}
        self._first_ms: dict[Key, tuple[int, int]] = {}
        self._newest_ms: tuple[int, int] = (-1, 0)
        self._to_trim: dict[Key, int] = {}
        self._held_by = ""
        self._indexed = 0
        self._ran_at = float("-inf")

    # On the loop

    def keep_for(self, needs: Callable[[], Iterable[Need]]) -> None:
        """Ask these, on the flushing thread, what readers still need before a segment goes by its age."""
        self._needs = needs

    def reconfigure(self, settings: StorageSection) -> None:
        """Keep by other rules from the next round on, and look for what is due at another interval."""
        # One reference each: a round on the flushing thread has the old rules or the new ones.
        self._limits = limits_of(settings)
        self._interval_s = settings.retention_interval_ms / 1e3

    def set_topic_age(self, topic: str, age_ms: int | None) -> None:
        """Keep a topic's messages for so long only (None = as long as the log): its first offsets rise.

        Raises UsageError when that is longer than the log keeps anything.
        """
        if age_ms is None:
            self._topic_ages.pop(topic, None)
            return
        if not 0 < age_ms <= self._limits.age_ms:
            raise UsageError(
                f"topic {topic!r} cannot keep messages for {age_ms} ms: the log keeps them for "
                f"{self._limits.age_ms} ms; choose less, or raise storage.retention_age_s"
            )
        self._topic_ages[topic] = age_ms

    def numbers(self) -> dict[str, float]:
        """Counters and gauges for metrics; any thread."""
        return {
            "retention_segments_deleted_total": self.segments_deleted,
            "retention_bytes_deleted_total": self.bytes_deleted,
            "retention_index_files_deleted_total": self.files_deleted,
            "retention_forced_total": self.forced,
            "retention_waits_total": self.waits,
            "retention_failures_total": self.failures,
            "retention_topic_raises_total": self.topic_raises,
            "disk_used_percent": self.used_percent,
            "reserve_segments": float(self._segments.has_reserve),
            "spare_bytes": float(self.spare.size_bytes * self.spare.is_there),
            "tombstones": len(self._checkpoint.tombstones),
        }

    # At a start, before anything is written

    def find_room(self) -> None:
        """Give up what is kept aside when the disk is too full for what a start writes. OSError."""
        spare, segments = self.spare, self._segments
        spare.load()
        total, free = self._disk.space(segments.directory)
        if total and free < min(START_BYTES, spare.size_bytes) and not spare.give_up():
            segments.drop_reserve()

    # On the flushing thread

    def note_full(self) -> None:
        """Something that is written before a segment may go found no space."""
        self._has_met_full = True

    def run(self, ends: dict[Key, tuple[int, int]], indexed: int) -> None:
        """Do what is due; `ends` has first and next offset of every queue and is kept up to date.

        The log is indexed up to `indexed`.

        Raises StorageError when the disk failed for good; anything else is counted, logged and tried again.
        """
        self._indexed = indexed
        if self.deletions:
            self._delete_queues(ends)
        now = self._clock()
        if now - self._ran_at < self._interval_s:
            return
        self._ran_at = now
        try:
            self.measure()
            self._keep_aside()
            if self._topic_ages and self.leader_first is None:
                self._raise_topics(ends)
            while self._delete_oldest(ends):
                self.measure()
        except OSError as error:
            self.failures += 1
            log.error("retention failed; it is tried again", reason=str(error))
        except StorageError as error:
            if not error.retriable:
                raise
            self.failures += 1
            log.error("retention failed; it is tried again", reason=str(error))

    def measure(self) -> None:
        """Look how full the disk is; refuse writes, or take them again."""
        self._space = space = self._disk.space(self._segments.directory)
        self.used_percent = percent_used(*space)
        refuses = self.used_percent >= self._limits.refuse_percent
        if refuses == self._is_refusing:
            return
        self._is_refusing = refuses
        self._refuse(
            StoreFullError(
                f"the file system is filled to {self.used_percent:.1f} %, "
                f"storage.disk_refuse_percent is {self._limits.refuse_percent:g}",
                operation="append",
                path=str(self._segments.directory),
                hint=FULL_HINT,
            )
            if refuses
            else None
        )

    def _keep_aside(self) -> None:
        """Keep spare room; and a segment for rolling, once there is something to roll that could go."""
        segments, spare = self._segments, self.spare
        if not spare.is_there and self._has_room(2 * spare.size_bytes):
            spare.make()
            self._has_met_full = False
        if segments.has_reserve or not self.before_delete or len(segments.table) < 2:
            return
        if self._has_room(segments.segment_size):
            segments.make_reserve()

    def _has_room(self, size_bytes: int) -> bool:
        total, free = self._space
        return not total or (
            free >= size_bytes and percent_used(total, free - size_bytes) < self._limits.refuse_percent
        )

    def _use_spare(self) -> None:
        """Something must be written before a segment can go: give it the spare room if there is no other."""
        total, free = self._space
        if self._has_met_full or (total and free < self.spare.size_bytes):
            self._has_met_full = False
            self.spare.give_up()

    # Segments

    def _delete_oldest(self, ends: dict[Key, tuple[int, int]]) -> bool:
        """Remove the oldest segment if it is due and nothing holds it; True = look at the next one."""
        table = self._segments.table
        reasons = self._reasons(table) if len(table) > 1 else []
        if not reasons:
            return False
        oldest = table[0]
        if oldest.end > self._checkpoint.position:
            # Only what no start has to scan may go.
            self.wanted_checkpoint = max(self.wanted_checkpoint, oldest.end)
            self._use_spare()
            return False
        firsts = self._firsts_after(oldest.end, ends)
        copies_from = self.copies_from
        if (
            copies_from is not None
            and copies_from < oldest.end
            and not {Reason.FORCED, Reason.EARLY, Reason.LEADER} & set(reasons)
        ):
            self._hold(oldest, reasons[0], "a copy that fetches it")
            return False
        if not {Reason.FORCED, Reason.LEADER} & set(reasons) and self._limits.keeps_needed:
            holder = self._who_needs(oldest.end, firsts)
            if holder is not None:
                self._hold(oldest, reasons[0], holder)
                return False
        reason = reasons[0]
        if not all(hook(oldest) for hook in list(self.before_delete)):
            self._hold(oldest, reason, "timers or tables, which are being copied out of it")
            self._use_spare()
            return False
        self._delete(oldest, reason, firsts, ends)
        if Reason.FORCED in reasons:
            self.forced += 1
        return reason is not Reason.EARLY or Reason.FORCED in reasons

    def _reasons(self, table: list[Segment]) -> list[Reason]:
        leader_first = self.leader_first
        if leader_first is not None:
            return [Reason.LEADER] if table[0].end <= leader_first else []
        written = max(self._checkpoint.position, self._indexed)
        # The New one, made ahead of need, is no segment of the log yet.
        used = [segment for segment in table if segment.start < written]
        oldest = Oldest(self._newest_of(table), written - table[0].start, len(used))
        return reasons_to_delete(oldest, self._clock_ms(), self.used_percent, self._limits)

    def _newest_of(self, table: list[Segment]) -> int:
        """The store time of the oldest segment's last record; damage there: of a later one."""
        start, newest_ms = self._newest_ms
        if start == table[0].start:
            return newest_ms
        newest_ms = self._clock_ms()
        for segment in table:
            if segment.end > max(self._checkpoint.position, self._indexed):
                return newest_ms  # not cached: the ongoing segment still grows
            try:
                record = self._backwards.last_of(segment)
            except CorruptRecordError as error:
                log.error(
                    "a segment's last record is damaged; it is kept as long as the next", reason=str(error)
                )
                continue
            if record is not None:
                newest_ms = record.store_ms
                break
        self._newest_ms = (table[0].start, newest_ms)
        return newest_ms

    def _firsts_after(self, end: int, ends: dict[Key, tuple[int, int]]) -> dict[Key, int]:
        """Each queue's first offset when the log begins at `end`; only those that change."""
        firsts: dict[Key, int] = {}
        for key, (first, following) in ends.items():
            if first < following:
                low = max(first, self._files.first_offset(key))
                raised = self._files.first_at_or_after(key, low, following, end)
                if raised > first:
                    firsts[key] = raised
        return firsts

    def _who_needs(self, end: int, firsts: dict[Key, int]) -> str | None:
        if self._needs is None:
            return "readers that nobody has told of yet"
        return who_needs(self._needs(), end, firsts, self._clock_ms(), self._limits.group_expiry_ms)

    def _hold(self, segment: Segment, reason: Reason, holder: str) -> None:
        self.waits += 1
        held_by = f"{segment.start} {holder}"
        if held_by != self._held_by:
            self._held_by = held_by
            log.info(
                "a segment is due, but kept", segment=str(segment.path), due=reason.value, kept_for=holder
            )

    def _delete(
        self, segment: Segment, reason: Reason, firsts: dict[Key, int], ends: dict[Key, tuple[int, int]]
    ) -> None:
        for key, first in firsts.items():
            self._raise(key, first, ends)
        self._checkpoint.first_position = max(self._checkpoint.first_position, segment.end)
        is_saved = self._save_firsts(ends)
        try:
            self._segments.drop_oldest()
        except OSError as error:
            if error.errno in FULL_ERRORS:
                raise
            raise sync_failure(error, str(self._segments.directory), self._checkpoint.position) from error
        self.segments_deleted += 1
        self.bytes_deleted += segment.end - segment.start
        log.info(
            "a segment was deleted",
            segment=str(segment.path),
            why=reason.value,
            first_position=segment.end,
            disk_used_percent=round(self.used_percent, 1),
        )
        if is_saved:
            self._trim(ends)

    def _raise(self, key: Key, first: int, ends: dict[Key, tuple[int, int]]) -> None:
        """Raise a first offset in memory: from now on readers before it are answered BEHIND."""
        following = ends[key][1]
        ends[key] = (first, following)
        queue = self._queue_of(key)
        if queue is not None:
            queue.first_offset = max(queue.first_offset, first)
        self._to_trim[key] = first

    def _save_firsts(self, ends: dict[Key, tuple[int, int]]) -> bool:
        """Make first offsets durable; False = no room for that now."""
        try:
            self._checkpoint.save_firsts(ends)
        except StoreFullError as error:
            self.failures += 1
            log.warning("first offsets wait for space; a start would find them itself", reason=str(error))
            return False
        return True

    def _trim(self, ends: dict[Key, tuple[int, int]]) -> None:
        """Remove index files that only speak of what is gone."""
        for key, first in self._to_trim.items():
            self.files_deleted += self._files.trim(key, first, ends[key][1])
        self._to_trim.clear()
        for drop in self.indexes:
            self.files_deleted += drop(self._checkpoint.first_position)

    # Topics and queues

    def _raise_topics(self, ends: dict[Key, tuple[int, int]]) -> None:
        """Raise the first offsets of topics that keep less than the log."""
        now_ms = self._clock_ms()
        raised = 0
        for key, (first, following) in ends.items():
            age_ms = self._topic_ages.get(key[0])
            if age_ms is None or first >= following:
                continue
            known = self._first_ms.get(key)
            if known is None or known[0] != first:
                found = self._times.of_first_readable(key, first, following)
                if found is None:
                    continue
                known = self._first_ms[key] = (first, found[1])
            if known[1] > now_ms - age_ms:
                continue
            kept = self._times.first_at(key, first, following, now_ms - age_ms + 1)
            if kept > first:
                self._raise(key, kept, ends)
                raised += 1
        if raised:
            self.topic_raises += raised
            if self._save_firsts(ends):
                self._trim(ends)

    def _delete_queues(self, ends: dict[Key, tuple[int, int]]) -> None:
        """Delete queues whose end the checkpoint has reached; the others ask for one."""
        position = self._checkpoint.position
        ready = [deletion for deletion in self.deletions if deletion.position <= position]
        self.wanted_checkpoint = max(self.wanted_checkpoint, *(d.position for d in self.deletions))
        if not ready:
            return
        for deletion in ready:
            key = (deletion.queue.topic, deletion.queue.queue_id)
            # A queue without a record has nothing that could come back.
            if key in ends:
                self._raise(key, max(ends[key][0], deletion.next_offset), ends)
                self._checkpoint.tombstones.pop(key, None)
                self._checkpoint.tombstones[key] = (deletion.position, deletion.next_offset)
        self._bound_tombstones(ends)
        if not self._save_firsts(ends):
            return
        self._trim(ends)
        for deletion in ready:
            self.deletions.remove(deletion)
            deletion.done(None)

    def _bound_tombstones(self, ends: dict[Key, tuple[int, int]]) -> None:
        tombstones = self._checkpoint.tombstones
        for key in list(tombstones):
            if len(tombstones) <= TOMBSTONES_MAX:
                return
            position, following = tombstones[key]
            if position <= self._segments.first_position and ends.get(key) == (following, following):
                del tombstones[key], ends[key]


def complete(segments: Segments, checkpoint: Checkpoint) -> None:
    """At a start, before anything reads: remove segments that were given up before a crash. OSError."""
    while len(segments.table) > 1 and segments.table[0].end <= checkpoint.first_position:
        log.info("a segment that retention had given up is removed", segment=str(segments.table[0].path))
        segments.drop_oldest()


def raise_firsts(segments: Segments, files: ConsumeQueues, checkpoint: Checkpoint) -> None:
    """At a start, indexes complete: first offsets after segments that went without a checkpoint. OSError."""
    first_position = segments.first_position
    if first_position <= checkpoint.first_position:
        return
    for key, (first, following) in checkpoint.queues.items():
        low = max(first, files.first_offset(key))
        if low < following:
            known = len(files.read(key, low, 1))
            low = files.first_at_or_after(key, low, following, first_position) if known else following
        checkpoint.queues[key] = (min(low, following), following)
    checkpoint.first_position = first_position
