"""Tables: the newest value by key, applied from the log by a thread of its own, `log-tables`.

A table shows confirmed records, all of them up to `applied_position`, and nothing else. What a power
loss takes from the log it takes from the tables: a database that was applied past the log's end is
given up for the last snapshot, and the log is followed from there. Source: storage.md, Tables.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from heapq import heappop, heappush
from threading import Thread
from typing import Final, TypeVar

import structlog

from holdmq.errors import StorageError
from storage.api.batches import Appended, Batch
from storage.api.replication import TableSnapshot
from storage.api.tables import (
    Changed,
    Judge,
    Page,
    Reached,
    RowChanged,
    TableSize,
    VersionedRow,
    WalkedRow,
)
from storage.core.epochs import Epochs
from storage.core.table_appends import KeyWatches, TableAppends
from storage.core.table_records import changes_in
from storage.log.failures import guarded, write_failure
from storage.log.reading.follower import Followed, Follower
from storage.log.tables.files import Applied, TableFiles

APPLY_BYTES: Final = 32 << 20
"""How far the log may grow past the applied position while no table changes."""
SNAPSHOT_BYTES: Final = 1 << 30
"""How far it may grow past the last snapshot while tables change: what a lost table follows at most."""
SCAN_ROWS: Final = 1_000
SCAN_BYTES: Final = 4 << 20
"""One page of a scan, unless asked for less: an answer that fits any frame."""
WAIT_MAX_S: Final = 1.0
RETRY_S: Final = 1.0
"""Wait after a full disk."""

T = TypeVar("T")

log = structlog.get_logger("holdmq.storage")


class LogTables(TableAppends):
    """All tables of one log. `is_table` says of a topic whether it is one."""

    def __init__(
        self,
        files: TableFiles,
        follower: Follower,
        is_table: Callable[[str], bool],
        append: Callable[[Batch, Appended], None],
        post: Callable[[Callable[[], object]], object],
        synced: Callable[[], int],
        clock: Callable[[], float],
        failed: Callable[[StorageError], None],
    ) -> None:
        super().__init__(is_table, append)
        self.follower = follower
        self.applied_position = 0
        self.changes = self.keyless = self.failures = self.restores = 0
        self._files = files
        self._is_followed = partial(_is_followed, is_table, files)
        self._post = post
        self._synced = synced
        self._epochs = Epochs([])
        self._clock = clock
        self._failed = failed
        self._log_first = 0
        self._log_end = 0
        self._changed_since_snapshot = True
        self._wanted_snapshot = -1
        self._retry_at = 0.0
        self._unapplied: list[Followed] = []
        self._watches = KeyWatches()
        self._waiting: list[tuple[int, int, Reached]] = []
        self._snapshots_awaited: list[tuple[int, Reached]] = []
        self._waits = 0
        self._failure: StorageError | None = None
        self._is_open = False
        self._stopping = False
        self._has_thread = True
        self._thread = Thread(target=self._run, name="log-tables", daemon=True)

    # Called on the loop

    def watch(self, topic: str, prefix: str, changed: Changed) -> Callable[[], None]:
        """Call `changed` on the loop with changes of keys that begin with `prefix`; returns what ends it.

        A change was applied when it is told. Who wants everything watches first and scans then.
        """
        return self._watches.add(topic, prefix, changed)

    def wait_applied(self, position: int, reached: Reached) -> None:
        """Call `reached` on the loop once the log below `position` is applied; an error if it never will."""
        self._waits += 1
        heappush(self._waiting, (position, self._waits, reached))
        if self.applied_position >= position or self._failure is not None:
            self._post(self._tell_waiting)
        self.follower.wake.set()

    def wait_snapshot(self, position: int, reached: Reached) -> None:
        """Call `reached` on the loop once a snapshot has the log below `position`, or an error.

        Copies that begin anew get it: nothing of the log below it changes their tables.
        """
        self._snapshots_awaited.append((position, reached))
        if self.is_free(position) or self._failure is not None:
            self._post(self._tell_waiting)

    def _tell(self, changes: list[RowChanged]) -> None:
        self._watches.tell(changes)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting = self._waiting
        while waiting and (waiting[0][0] <= self.applied_position or self._failure is not None):
            reached = heappop(waiting)[2]
            reached(self._failure)
        if self._snapshots_awaited:
            done = self._files.snapshot_position
            awaited, self._snapshots_awaited = self._snapshots_awaited, []
            for position, told in awaited:
                if position <= done or self._failure is not None:
                    told(self._failure)
                else:
                    self._snapshots_awaited.append((position, told))

    # Called on any thread; these may wait for the disk

    def get(self, topic: str, key: str) -> VersionedRow | None:
        """The row of a key; None = it has no value. Raises StorageError."""
        return self._files.get(topic, key.encode())

    def get_many(
        self, topic: str, keys: Sequence[str], max_bytes: int | None = None
    ) -> list[VersionedRow | None]:
        """The rows of keys, in their order, all as they were at one moment. Raises StorageError.

        Only the first ones when their values together exceed `max_bytes`, but always one.
        """
        return self._files.get_many(topic, [key.encode() for key in keys], max_bytes)

    def scan(
        self,
        topic: str,
        prefix: str = "",
        after: str | None = None,
        max_count: int = SCAN_ROWS,
        max_bytes: int = SCAN_BYTES,
    ) -> Page:
        """A page of the rows whose keys begin with `prefix`, behind the key `after`; at least one row.

        In the order of the keys' bytes; among keys of more than 367 bytes that have the first 367 in
        common, in some fixed order. Each page is of one moment, two need not be. Raises StorageError.
        """
        rows, is_more = self._files.scan(
            topic, prefix.encode(), None if after is None else after.encode(), max_count, max_bytes
        )
        return Page(rows, rows[-1].key if is_more else None)

    def walk(self, topic: str, begin: bytes, after: bytes | None, judge: Judge) -> Generator[WalkedRow]:
        """The rows that `judge` takes, from the key `begin` on, or behind `after`; as of one moment.

        Close it soon: it holds a transaction open. Raises StorageError.
        """
        return self._files.walk(topic, begin, after, judge)

    def rows_of(self, topic: str) -> tuple[Applied, list[VersionedRow]]:
        """All rows of a small table, and how far the log is in them: both of one moment.

        `open` is enough for it: before `start` they may be of a log that was longer.
        """
        return self._files.rows_of(topic)

    def size_of(self, topic: str) -> TableSize:
        """What a table has, as of `applied_position`; never waits."""
        return self._files.size_of(topic)

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges."""
        files = self._files
        return {
            "tables_changes_total": self.changes,
            "tables_keyless_total": self.keyless,
            "tables_failures_total": self.failures,
            "tables_restores_total": self.restores,
            "tables_snapshots_total": files.snapshots,
            "tables_map_growths_total": files.growths,
            "tables_map_bytes": files.map_bytes,
            "tables_replays_total": self.follower.replays,
            "tables_applied_position": self.applied_position,
            "tables_snapshot_position": files.snapshot_position,
            "tables_watches": len(self._watches),
        }

    @property
    def kept_from(self) -> int:
        """The log position from which on a lost table is built again: no segment there may go."""
        return self._files.snapshot_position

    def is_free(self, position: int) -> bool:
        """Whether nothing below `position` is needed; if it is, a snapshot is made. Never waits."""
        if self._files.snapshot_position >= position:
            return True
        self._wanted_snapshot = max(self._wanted_snapshot, position)
        self.follower.wake.set()
        return False

    # Life of the thread

    def open(self) -> None:
        """Open the database, for who must read it before the log's end is known. Blocking. StorageError."""
        self._files.open()

    def start(
        self, log_first: int, confirmed: int, log_end: int, epochs: Epochs, has_thread: bool = True
    ) -> None:
        """Open the database and follow the log. Blocking. Raises StorageError. No thread: call `step`."""
        self._log_first, self._log_end, self._epochs = log_first, log_end, epochs
        self._files.open()
        self._is_open = True
        self._begin(confirmed)
        self.applied_position = self.follower.position
        self._has_thread = has_thread
        if has_thread:
            self._thread.start()

    def stop(self) -> None:
        """Note what is applied, then close. Blocking; the log is synced."""
        self._stopping = True
        self.follower.wake.set()
        if self._has_thread and self._thread.ident is not None:
            self._thread.join()
        if self._is_open:
            self._is_open = False
            if self._failure is None:
                self._guarded(self._work)
        self._files.close()

    def step(self) -> float:
        """Do what there is to do; how many seconds there is nothing. Blocking, without a thread only."""
        return self._guarded(self._work) or 0.0

    def newest_snapshot(self) -> TableSnapshot | None:
        """The newest snapshot, for a copy of the log. Blocking; StorageError."""
        try:
            return self._files.newest()
        except OSError as error:
            raise write_failure(error, "read", str(self._files.directory), None) from error

    def read_snapshot(self, name: str, offset: int, max_bytes: int) -> bytes:
        """Bytes of a snapshot, while it is the newest. Blocking; StorageError."""
        return self._files.read_snapshot(name, offset, max_bytes)

    def _begin(self, confirmed: int) -> None:
        """Choose where to follow the log from: the database, the snapshot, or the log's beginning."""
        files = self._files
        problem = self._problem()
        for from_snapshot in (True, False):
            if not problem:
                break
            self.restores += 1
            log.warning("the tables are built again", why=problem, from_snapshot=from_snapshot)
            files.restore(from_snapshot)
            problem = self._problem()
        position = max(files.applied.position, files.snapshot_position)
        if position < self._log_first:
            log.error(
                "the log no longer holds all that the tables have not applied: what they show may be older",
                applied=position,
                first_position=self._log_first,
            )
        self.follower.start(max(position, self._log_first), confirmed)

    def _problem(self) -> str:
        """Why the database is not the log's; empty = it is."""
        position, epoch = self._files.applied
        limit = self._epochs.limit_of(epoch) if epoch else None
        end = max(self._log_end, self._files.copied_position)
        if position > end or (limit is not None and position > limit):
            return f"they were applied up to {position}, which the log lost"
        if position < self._files.base_position:
            return f"they are applied up to {position} only, the snapshot to {self._files.base_position}"
        return ""

    def _run(self) -> None:
        while not self._stopping and self._failure is None:
            wait_s = self._guarded(self._work)
            if wait_s is None:
                return
            self.follower.wake.wait(wait_s)
            self.follower.wake.clear()

    def _guarded(self, work: Callable[[], T]) -> T | None:
        """Do some work; what is final makes the store read-only."""
        return guarded(work, self._fail, str(self._files.directory), "log-tables")

    def _fail(self, error: StorageError) -> None:
        self._failure = error
        self._failed(error)
        self._post(self._tell_waiting)

    def _work(self) -> float:
        """One round; how many seconds there is nothing to do."""
        if not self._stopping and self._clock() < self._retry_at:
            return WAIT_MAX_S
        try:
            is_more = self._apply()
            self._keep_snapshot()
        except OSError as error:
            failure = write_failure(error, "write", str(self._files.directory), None)
        except StorageError as error:
            failure = error
        else:
            return 0.0 if is_more else WAIT_MAX_S
        if not failure.retriable:
            raise failure
        self.failures += 1
        self._retry_at = self._clock() + RETRY_S
        log.warning("the tables cannot be written", reason=str(failure))
        return RETRY_S

    def _apply(self) -> bool:
        """Apply what the log has; True = there may be more."""
        # What could not be applied is still here: the follower gives everything once.
        taken = self._unapplied or self.follower.take()
        self._unapplied = taken
        changes: list[RowChanged] = []
        keyless = 0
        for stretch in taken:
            if stretch.batch is not None:
                tables = {run.topic for run in stretch.batch.runs if self._is_followed(run.topic)}
                if tables:
                    found, without = changes_in(stretch.batch, tables)
                    changes.extend(found)
                    keyless += without
        position = taken[-1].end if taken else self.follower.position
        grown = position - self._files.applied.position
        if changes or grown >= APPLY_BYTES or (self._stopping and grown):
            self._files.apply(changes, Applied(position, self._epochs.current))
        self._unapplied = []
        self.changes += len(changes)
        self.keyless += keyless
        self._changed_since_snapshot = self._changed_since_snapshot or bool(changes)
        self.applied_position = position
        if changes and self._watches:
            self._post(partial(self._tell, changes))
        elif self._waiting:
            self._post(self._tell_waiting)
        return bool(taken)

    def _keep_snapshot(self) -> None:
        """Make a snapshot where one is wanted; it never holds what a power loss could take back."""
        position = self.applied_position
        grown = position - self._files.snapshot_position
        is_wanted = self._wanted_snapshot > self._files.snapshot_position
        if not (is_wanted or grown >= SNAPSHOT_BYTES) or position < self._wanted_snapshot:
            return
        if self._synced() < position:
            return
        if self._changed_since_snapshot:
            if self._files.applied.position < position:
                self._files.apply([], Applied(position, self._epochs.current))
            self._files.snapshot()
            self._changed_since_snapshot = False
        else:
            self._files.extend_snapshot(position)
        if self._snapshots_awaited:
            self._post(self._tell_waiting)


def wanted_by(is_table: Callable[[str], bool], files: TableFiles) -> Callable[[Batch], bool]:
    """What of the log the tables must look at."""
    return lambda batch: any(_is_followed(is_table, files, topic) for topic in batch.topics())


def _is_followed(is_table: Callable[[str], bool], files: TableFiles, topic: str) -> bool:
    """Whether records of a topic change rows.

    Those of a table that is deleted meanwhile still do, as long as it has rows: the records that delete
    these lie before its end, and who applies the log late must not keep them.
    """
    return is_table(topic) or files.size_of(topic).rows > 0
