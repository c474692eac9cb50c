"""Arbitrary delay: messages wait in the log and leave it again, at their time, as copies.

Threads: `schedule` and all appends run on the event loop; everything else is the thread `log-timer`,
which follows the log (that is how it learns of new timers, and of its own copies once they are
confirmed), loads due buckets, builds copies shortly before they are due, and keeps the files.
A timer is done when its copy is in the log, and by nothing else: after a crash the log is followed
again from the checkpoint, copies included, before anything is released. Source: storage.md, Moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Final, TypeVar

import numpy as np
import structlog

from holdmq.errors import Code, RecordError, StorageError
from holdmq.names.topics import is_temporary
from storage.api.batches import Appended, Batch, BatchRun, ForeignBatch, sizes_of
from storage.api.timer import TIMER_QUEUE, TIMER_TOPIC, DelayedRecord, waiting_record
from storage.core.delayed import Entry, entries_in, has_waiting, may_have_copies, rolled_record
from storage.core.scan import KeyLevels
from storage.log.failures import guarded, write_failure
from storage.log.reading.follower import Follower
from storage.log.timer.core.timer import (
    MINUTE_MS,
    NO_ROWS,
    LaterMinutes,
    Lowest,
    Rows,
    entries_of_rows,
    pending_of,
    rows_of,
)
from storage.log.timer.files import BucketFiles, Saved, WaitingRecords
from storage.log.timer.releases import Releases, TimerRelease
from storage.log.timer.rolling import Roll, Rolling

CHECKPOINT_INTERVAL_S: Final = 10.0
"""How long entries stay in memory only: what a restart follows again, at low rates."""
CHECKPOINT_BYTES: Final = 32 << 20
"""How far the log may grow past the checkpoint when there is nothing of the timer's in it."""
FRESH_ENTRIES: Final = 65_536
"""Entries in memory past which a checkpoint does not wait its interval: 2 MB, and as many files at most."""
FRESH_ENTRIES_MAX: Final = 1 << 20
"""Entries in memory past which the log is not followed on, when files cannot be written: 29 MB."""
LOAD_ROWS: Final = 131_072
"""Rows of one load: a bucket with more is loaded in slices, each a pass over its file."""
LOAD_AHEAD_MS: Final = 2_000
"""How early a bucket is loaded: a few passes over a file of millions take less."""
WAIT_MAX_S: Final = 1.0
"""The thread looks at the clock at least so often: the wall clock may be set."""
RETRY_S: Final = 1.0
"""Wait after a refused append or a full disk."""
SWEEP_BUCKETS: Final = 64
"""Past buckets that a copy looks through in a checkpoint's interval: some hundred times what time brings."""

T = TypeVar("T")

log = structlog.get_logger("holdmq.storage")


class Timer:
    """The timer of one log. Times are ms since the epoch, by the clock that it was given.

    `is_leading` False: the log is a copy whose leader releases and rolls, or is not confirmed as far as
    another leader may have; whatever is due waits.
    """

    def __init__(
        self,
        files: BucketFiles,
        waiting: WaitingRecords,
        follower: Follower,
        key_levels: KeyLevels,
        append: Callable[[Batch, Appended], None],
        append_rolled: Callable[[Batch, Appended], None],
        post: Callable[[Callable[[], object]], object],
        synced: Callable[[], int],
        clock_ms: Callable[[], int],
        clock: Callable[[], float],
        failed: Callable[[StorageError], None],
        is_leading: Callable[[], bool],
    ) -> None:
        self.follower = follower
        self.rolled = 0
        self.failures = 0
        self._files = files
        self._waiting = waiting
        self._append = append
        self._append_rolled = append_rolled
        self._post = post
        self._synced = synced
        self._clock_ms = clock_ms
        self._clock = clock
        self._failed = failed
        self._is_leading = is_leading
        self._release_from: int | None = None
        self._releases = Releases(waiting, key_levels, append, post, follower.wake.set, clock)
        self._fresh: list[Rows] = []
        self._fresh_count = 0
        self._fresh_minutes = LaterMinutes()
        self._pending = 0
        self._highest = -1
        self._opened = -1
        self._slice: tuple[int, tuple[int, int]] | None = None
        self._outstanding: dict[int, int] = {}
        self._gone: set[int] = set()
        self._log_first = 0
        self._log_end = 0
        self._is_caught_up = False
        self._is_counted = True
        self._swept = -1
        self._sweep_at = 0.0
        self._checkpointed_at = 0.0
        self._retry_at = 0.0
        self._requests: deque[Roll] = deque()
        self.rolling = Rolling(files, self._ask, self._is_idle)
        self._stopping = False
        self._has_ended = False
        self._has_thread = True
        self._is_loaded = False
        self._has_failed = False
        self._thread = Thread(target=self._run, name="log-timer", daemon=True)

    # Called on the loop

    def schedule(self, delayed: Sequence[DelayedRecord], done: Appended) -> None:
        """Store messages that appear in their queues when they are due, at once if that is past.

        `done` is called as by `MessageStore.append`: stored means that they will be released, once,
        whatever happens. Raises RecordError for a message of a temporary or the timer's own topic,
        a due time that is none, or one with no room for the timer's properties (ORIGIN_ROOM).
        """
        records = [waiting_record(message.record, message.due_ms, _check_topic) for message in delayed]
        self._append(_waiting_batch(records), done)

    # Called on any thread

    @property
    def pending(self) -> int:
        """Timers that are not due yet; on a copy that began after some of them, about that."""
        return max(0, self._pending)

    @property
    def kept_from(self) -> int:
        """The log position from which on a restart follows the log: no segment there may go."""
        return self._files.saved.position

    def wake(self) -> None:
        """Look at the clock now: it was set."""
        self.follower.wake.set()

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges."""
        releases = self._releases
        return {
            "timer_pending": self.pending,
            "timer_released_total": releases.released,
            "timer_released_late_total": releases.released_late,
            "timer_lateness_max_ms": releases.lateness_max_ms,
            "timer_refused_releases_total": releases.refused,
            "timer_damaged_total": releases.damaged,
            "timer_unreadable_total": releases.unreadable,
            "timer_rolled_total": self.rolled,
            "timer_roll_failures_total": self.rolling.failures,
            "timer_open_rows": len(releases.due),
            "timer_unwritten_entries": self._fresh_count,
            "timer_buckets": len(self._files.minutes),
            "timer_file_failures_total": self.failures,
            "timer_rebuilds_total": self._files.rebuilds,
            "timer_replays_total": self.follower.replays,
            "timer_checkpoint_position": self._files.saved.position,
        }

    def _is_idle(self, position: int) -> bool:
        """Whether nothing waits, and nothing of the log below a position needs to be written down."""
        is_empty = self._pending == 0 and not self._fresh_count and not self._gone
        return self._is_caught_up and self._is_counted and is_empty and self.follower.position >= position

    def _ask(self, request: Roll) -> None:
        if self._has_ended:
            raise StorageError("the timer is closed", operation="roll")
        self._requests.append(request)
        self.follower.wake.set()

    # Life of the thread

    def start(self, log_first: int, confirmed: int, log_end: int, has_thread: bool = True) -> None:
        """Begin; the log is confirmed from `log_first` to `confirmed`. No thread: the caller calls `step`."""
        self._log_first, self._log_end = log_first, log_end
        self.follower.start(confirmed, confirmed)
        self._has_thread = self.rolling.has_thread = has_thread
        if has_thread:
            self._thread.start()

    def stop(self) -> None:
        """Write a last checkpoint, then end. Blocking; the log is synced."""
        self._stopping = True
        self.follower.wake.set()
        if not self._has_thread:
            self._guarded(self._end)
        elif self._thread.ident is not None:
            self._thread.join()

    def step(self) -> float:
        """Do what there is to do; how many seconds there is nothing. Blocking, without a thread only."""
        before = -1
        wait_s = 0.0
        while before != self.follower.position or not self._is_caught_up:
            before = self.follower.position
            wait_s = self._guarded(self._work) or 0.0
            if self._has_failed:
                break
        return wait_s

    def _run(self) -> None:
        self._guarded(self._work_until_stopped)

    def _work_until_stopped(self) -> None:
        try:
            while not self._stopping:
                self.follower.wake.wait(self._work())
                self.follower.wake.clear()
            self._end()
        finally:
            self._has_ended = True
            while self._requests:
                closed = StorageError("the timer is closed", operation="roll")
                self._requests.popleft().answer.set_exception(closed)

    def _end(self) -> None:
        if self._is_loaded:
            self._follow()
            self._try_checkpoint()

    def _guarded(self, work: Callable[[], T]) -> T | None:
        """Do some work; what is final makes the store read-only."""
        return guarded(work, self._fail, str(self._files.directory), "log-timer")

    def _fail(self, error: StorageError) -> None:
        self._has_failed = True
        self._failed(error)

    def _load_files(self) -> None:
        """Begin where the checkpoint is."""
        self._files.load(self._log_first, self._log_end)
        self.follower.position, self._pending, self._highest = self._files.saved
        self._is_counted = self._pending >= 0
        self._checkpointed_at = self._clock()
        self._is_loaded = True

    def _work(self) -> float:
        """One round; how many seconds there is nothing to do."""
        if not self._is_loaded:
            self._load_files()
        more = self._follow()
        releases = self._releases
        releases.take_back()
        self._answer_requests()
        wait_s = WAIT_MAX_S
        if self._is_caught_up and not self._may_release():
            self._sweep()
        elif self._is_caught_up:
            if not self._is_counted:
                self._pending, self._is_counted = self._count(), True
            now_ms = self._clock_ms()
            self._open_buckets(now_ms)
            dropped = releases.prepare(now_ms)
            if dropped:
                self._drop(dropped)
            due_ms = releases.release(self._clock_ms())
            if due_ms is not None:
                wait_s = min(wait_s, max(0.0, (due_ms - self._clock_ms()) / 1e3))
        if self._is_checkpoint_due():
            self._try_checkpoint()
        return 0.0 if more else wait_s

    # What the log says

    def _follow(self) -> bool:
        """Take what the log has; True = there is more."""
        if self._fresh_count > FRESH_ENTRIES_MAX:
            return False
        stretches = self.follower.take()
        for stretch in stretches:
            batch = stretch.batch
            if batch is None:
                continue
            if isinstance(batch, TimerRelease) and not stretch.is_replayed:
                entries = batch.released()
            else:
                entries = entries_in(batch, stretch.is_replayed or isinstance(batch, ForeignBatch))
            if entries:
                self._note(entries)
        if not stretches and not self._is_caught_up:
            if not self._is_counted:
                # A copy that began where its leader's log does may get copies, and timers appended again, of
                # which it has not seen the first record: it counts once more before it leads.
                self._pending, self._is_counted = self._count(), self._is_leading() or self._log_first == 0
            self._is_caught_up = True
        return bool(stretches)

    def _note(self, entries: list[Entry]) -> None:
        """Note new timers, rolled ones and copies."""
        arrived: list[Entry] = []
        for entry in entries:
            minute = entry.due_ms // MINUTE_MS
            if minute > self._opened:
                self._fresh_minutes.add(minute)
                if entry.size:
                    self._gone.discard(minute)
            if not entry.size:
                self._pending -= 1
                if self._releases.left(entry.first):
                    self._settle(minute, 1)
            elif entry.first > self._highest:
                self._highest = entry.first
                self._pending += 1
                if self._is_in_memory(entry):
                    arrived.append(entry)
                    self._outstanding[minute] = self._outstanding.get(minute, 0) + 1
                    self._gone.discard(minute)
            elif minute <= self._opened:
                self._releases.move(entry)
        self._fresh.append(rows_of(entries))
        self._fresh_count += len(entries)
        if arrived:
            self._releases.due.add(rows_of(arrived))

    def _is_in_memory(self, entry: Entry) -> bool:
        """Whether an entry's part of its bucket was loaded."""
        minute = entry.due_ms // MINUTE_MS
        if minute > self._opened:
            return False
        return (
            self._slice is None or minute != self._slice[0] or (entry.due_ms, entry.first) <= self._slice[1]
        )

    def _settle(self, minute: int, count: int) -> None:
        """Count timers of an open bucket that are done; an empty bucket goes with the next checkpoint."""
        left = self._outstanding.get(minute, 0) - count
        if left > 0:
            self._outstanding[minute] = left
            return
        self._outstanding.pop(minute, None)
        if self._slice is None or self._slice[0] != minute:
            self._gone.add(minute)

    def _drop(self, entries: list[Entry]) -> None:
        """Note timers whose records are damaged as done: nothing can ever be released for them."""
        at = self.follower.position - 1
        self._note([entry._replace(position=at, size=0) for entry in entries])

    # Buckets

    def _open_buckets(self, now_ms: int) -> None:
        """Load what is due soon, oldest first, while there is room."""
        horizon = (now_ms + LOAD_AHEAD_MS) // MINUTE_MS
        due = self._releases.due
        while len(due) < LOAD_ROWS // 2:
            if self._slice is None:
                minute = self._next_minute()
                if minute is None or minute > horizon:
                    self._opened = max(self._opened, horizon)
                    return
                self._opened = minute
                self._load(minute, None)
            else:
                self._load(*self._slice)

    def _next_minute(self) -> int | None:
        """The next bucket that is not open; None = there is none."""
        minutes = self._files.minutes
        at = int(np.searchsorted(minutes, self._opened, "right"))
        on_disk = int(minutes[at]) if at < len(minutes) else None
        fresh = self._fresh_minutes.first_after(self._opened)
        return fresh if on_disk is None or (fresh is not None and fresh < on_disk) else on_disk

    def _load(self, minute: int, after: tuple[int, int] | None) -> None:
        lowest = Lowest(LOAD_ROWS, after)
        for rows in self._rows_of(minute):
            lowest.add(rows)
        rows = lowest.rows()
        self._slice = None
        if lowest.is_cut:
            self._slice = (minute, (int(rows["due"][-1]), int(rows["first"][-1])))
        rows = pending_of(rows)
        self._outstanding[minute] = self._outstanding.get(minute, 0) + len(rows)
        self._releases.due.load(rows)
        self._settle(minute, 0)

    def _sweep(self) -> None:
        """Let past buckets go that the leader has emptied: a copy, which opens none, would keep all."""
        now = self._clock()
        if now < self._sweep_at:
            return
        self._sweep_at = now + CHECKPOINT_INTERVAL_S
        minutes = self._files.minutes
        past = minutes[: np.searchsorted(minutes, self._clock_ms() // MINUTE_MS)]
        first = np.searchsorted(past, self._swept, "right")
        some = past[first : first + SWEEP_BUCKETS].tolist()
        self._swept = some[-1] if len(some) == SWEEP_BUCKETS else -1
        for minute in some:
            if not len(pending_of(np.concatenate([NO_ROWS, *self._rows_of(minute)]))):
                self._gone.add(minute)

    def _count(self) -> int:
        """Count what waits, when all was built again: copies then have no timer that was counted."""
        minutes = set(self._files.minutes.tolist())
        for rows in self._fresh:
            minutes.update((rows["due"] // MINUTE_MS).tolist())
        return sum(len(pending_of(np.concatenate(self._rows_of(minute)))) for minute in minutes)

    def _rows_of(self, minute: int) -> list[Rows]:
        """All rows of a bucket, of its file and since."""
        fresh = [rows[rows["due"] // MINUTE_MS == minute] for rows in self._fresh]
        return [*self._files.read(minute), *fresh]

    # Checkpoints

    def _is_checkpoint_due(self) -> bool:
        now = self._clock()
        if now < self._retry_at:
            return False
        if self._fresh_count >= FRESH_ENTRIES:
            return True
        grown = self.follower.position - self._files.saved.position
        has_news = self._fresh_count > 0 or bool(self._gone)
        return grown >= CHECKPOINT_BYTES or (
            has_news and now - self._checkpointed_at >= CHECKPOINT_INTERVAL_S
        )

    def _try_checkpoint(self) -> bool:
        """Write a checkpoint; False = the disk is full, it is tried again. Raises what is final."""
        try:
            self._checkpoint()
        except OSError as error:
            failure: StorageError = write_failure(error, "write", str(self._files.directory), None)
            if not failure.retriable:
                raise failure from error
        except StorageError as error:
            failure = error
            if not failure.retriable:
                raise
        else:
            return True
        self.failures += 1
        self._retry_at = self._clock() + RETRY_S
        log.warning("the timer's files cannot be written", reason=str(failure))
        return False

    def _checkpoint(self) -> None:
        """Bring the files to where the log is followed and fsynced."""
        limit = min(self.follower.position, self._synced())
        if limit < self._files.saved.position:
            return
        rows = np.concatenate(self._fresh) if self._fresh else NO_ROWS
        known = int(np.searchsorted(rows["position"], limit))
        # A bucket whose last copy is not yet on disk has not gone.
        waits = set((rows["due"][known:] // MINUTE_MS).tolist())
        gone = [minute for minute in self._gone if minute not in waits]
        later = rows[known:]
        self._files.commit(rows[:known], gone, self._state_at(limit, rows[:known], later))
        self._gone.difference_update(gone)
        self._fresh = [later] if len(later) else []
        self._fresh_count = len(later)
        self._fresh_minutes = LaterMinutes((later["due"] // MINUTE_MS).tolist())
        self._checkpointed_at = self._clock()

    def _state_at(self, limit: int, known: Rows, later: Rows) -> Saved:
        """What a checkpoint at `limit` says, with `known` entries before and `later` ones behind it."""
        waiting = known["first"][known["size"] > 0]
        highest = max(self._files.saved.highest, int(waiting.max()) if len(waiting) else -1)
        new = int(((later["size"] > 0) & (later["first"] > highest)).sum())
        released = int((later["size"] == 0).sum())
        return Saved(limit, self._pending - new + released if self._is_counted else -1, highest)

    # Rolling, on the timer's thread

    def _may_release(self) -> bool:
        """Whether copies are appended here: by the leader, once it knows of those that another one did."""
        if not self._is_leading():
            self._release_from = None
            return False
        if self._release_from is None:
            self._release_from = self.follower.end
        return self.follower.position >= self._release_from

    def _answer_requests(self) -> None:
        while self._requests and self._is_caught_up:
            request = self._requests.popleft()
            if request.rows is not None:
                self._roll(request, request.rows)
            else:
                request.answer.set_result(self._files.saved.position if self._try_checkpoint() else -1)

    def _roll(self, request: Roll, rows: Rows) -> None:
        """Append again what still waits of these rows; leaving ones are told, not touched."""
        if not self._may_release():
            request.answer.set_result(-1)  # the leader does it
            return
        released: set[int] = set()
        for fresh in self._fresh:
            released.update(fresh["first"][fresh["size"] == 0].tolist())
        wanted: list[Entry] = []
        is_leaving = False
        for entry in entries_of_rows(rows):
            if self._releases.is_leaving(entry.first):
                is_leaving = True
            elif entry.first not in released and (
                not self._is_in_memory(entry) or self._releases.due.has(entry)
            ):
                wanted.append(entry)
        records: list[bytes] = []
        failed = self._waiting.read(
            rows_of(wanted), lambda raw, entry: records.append(rolled_record(raw, entry))
        )
        unreadable = [error for _, error in failed if isinstance(error, StorageError)]
        if unreadable:
            request.answer.set_exception(unreadable[0])
            return
        if failed:
            for _, error in failed:
                log.error("a delayed message is damaged, and lost", reason=str(error))
            damaged = [entry for entry, _ in failed]
            self._releases.forget(damaged)
            self._drop(damaged)
        if records:
            answered = partial(self._roll_answered, request)
            self._post(partial(self._append_rolled, _waiting_batch(records), answered))
        else:
            request.answer.set_result(-1 if is_leaving else 0)

    def _roll_answered(self, request: Roll, batch: Batch, error: StorageError | None) -> None:
        """On the loop."""
        if error is not None:
            request.answer.set_exception(error)
            return
        self.rolled += len(batch.sizes)
        request.answer.set_result(batch.end)


def is_wanted(batch: Batch) -> bool:
    """Whether the timer must look at a confirmed batch."""
    if isinstance(batch, ForeignBatch) and may_have_copies(batch):
        return True
    return isinstance(batch, TimerRelease) or has_waiting(batch)


def _check_topic(name: bytes) -> None:
    topic = name.decode("utf-8", "surrogateescape")
    if is_temporary(topic) or topic == TIMER_TOPIC:
        raise RecordError(f"messages of topic {topic} cannot be delayed", Code.TOPIC_INVALID)


def _waiting_batch(records: list[bytes]) -> Batch:
    raw = bytearray().join(records)
    return Batch(memoryview(raw), sizes_of(records), [BatchRun(TIMER_TOPIC, TIMER_QUEUE, len(records))])
