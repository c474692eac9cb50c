"""Progress on disk: records of a system topic, and a snapshot from which a start reads on.

What happens in one turn of the event loop becomes one append; while RECORDS_OUT of them are on their way
the next one grows. The snapshot is taken on the loop, and written once the log is fsynced up to what it
has seen: it never knows more than the log does after a crash.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import structlog

from broker.kernel.snapshot_file import SnapshotFile
from holdmq.errors import HoldMQError, RecordError, StorageError, StoreFormatError
from holdmq.record.batch import split_records
from holdmq.record.codec import decode_record, encode_record
from storage.api.batches import Batch, BatchRun
from storage.api.log_order import LogOrder
from storage.api.queues import MessageQueues, ReadStatus

RECORDS_OUT: Final = 2
"""Appends on their way: one is written while the next is gathered behind it."""
SNAPSHOT_INTERVAL_S: Final = 5.0
"""As often as consumer offsets are saved: a start reads the records of about ten seconds."""
SNAPSHOT_AGE_S: Final = 600.0
"""A snapshot that costs the log is taken this often all the same: what it has seen may go by retention."""
READ_BYTES: Final = 1 << 20
LOG_INTERVAL_S: Final = 10.0
"""A full disk refuses every append: it is said this often."""

log = structlog.get_logger("holdmq.broker")

Written = Callable[[StorageError | None], None]


class JournalNews(Protocol):
    """What is to be written down; false when there is nothing."""

    def __bool__(self) -> bool: ...

    def bodies(self) -> Iterable[bytes]:
        """The bodies of the records that say all of it."""


class JournalRestored(Protocol):
    """What a start finds: the entries of the snapshot, then the records behind it, in order."""

    def apply(self, entries: Any) -> None:
        """Take a snapshot's entries; RecordError if they are none."""

    def apply_body(self, body: bytes) -> None:
        """Take a record's body; RecordError if it is none."""


N = TypeVar("N", bound=JournalNews)


class _Snapshot(NamedTuple):
    content: dict[str, Any]
    seen: tuple[int, int]
    position: int
    size_bytes: int


class Journal(Generic[N]):
    """Writes down what `news` gathers. `capture` gives the entries of a snapshot, on the loop.

    `unwritten` counts progress that no record tells of: a snapshot keeps it, or it is made again.
    """

    TOPIC: ClassVar[str]
    WHAT: ClassVar[str]
    """What its records are of, for people."""

    def __init__(
        self,
        queues: MessageQueues,
        order: LogOrder,
        file: SnapshotFile,
        make_news: Callable[[], N],
        capture: Callable[[], list[Any]],
        unwritten: Callable[[], int],
    ) -> None:
        self.news = make_news()
        self._make_news = make_news
        self.records = self.refused = self.snapshots = self.snapshot_failures = 0
        self._queues = queues
        self._order = order
        self._file = file
        self._capture = capture
        self._unwritten = unwritten
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Written] = []
        self._told_last: list[Written] = []
        """Whom the newest append is for, while it is on its way."""
        self._out = 0
        self._is_scheduled = False
        self._offset = 0
        self._version = 0
        self._saved = (-1, 0)
        self._bytes = self._saved_bytes = 0
        self._saved_at = self._loop.time()
        self._snapshot: _Snapshot | None = None
        self._thread = ThreadPoolExecutor(1, file.path.stem)
        self._saving: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._logged_at = float("-inf")

    # Start

    def read(self, restored: JournalRestored, accept_backup: bool = False) -> None:
        """Read snapshot and log (blocking). StorageError if the snapshot is damaged."""
        loaded = self._file.load(accept_backup)
        offset = 0
        if loaded is None and self._queues.bounds(self.TOPIC, 0)[0] > 0 and not accept_backup:
            raise StoreFormatError(
                f"it is missing, and the first {self.WHAT} are not in the log any more",
                operation="open",
                path=str(self._file.path),
                hint="restore it from a backup, or start once with --accept-backup: what was done long ago "
                "and is still kept then comes again",
            )
        if loaded is not None and loaded.from_backup:
            log.error("a snapshot cannot be used; its backup is", path=str(self._file.path))
        if loaded is not None:
            self._version = loaded.data_version
            offset = loaded.content.get("offset", 0)
            try:
                restored.apply(loaded.content.get("entries", []))
            except RecordError as error:
                raise StorageError(str(error), operation="open", path=str(self._file.path)) from error
        self._offset = self._replay(restored, offset)

    def _replay(self, restored: JournalRestored, offset: int) -> int:
        first, end = self._queues.bounds(self.TOPIC, 0)
        if offset < first:
            log.warning(
                "records older than the log's retention are missing: messages may come again",
                journal=self.WHAT,
                snapshot_offset=offset,
                first_offset=first,
            )
        offset = min(max(offset, first), end)
        while offset < end:
            read = self._queues.read_queue_cold(self.TOPIC, 0, 0, offset, READ_BYTES, 65_536)
            for part in read.parts:
                at = 0
                for size in split_records(part).tolist():
                    self._apply(restored, part, at)
                    at += size
            if read.status is ReadStatus.CORRUPT:
                log.error(
                    "records are damaged: messages may come again", journal=self.WHAT, reason=read.reason
                )
            if read.next_offset <= offset:
                break
            offset = read.next_offset
        return end

    def _apply(self, restored: JournalRestored, part: memoryview, at: int) -> None:
        try:
            restored.apply_body(decode_record(part, at).body)
        except RecordError as error:
            log.error("a record is skipped: messages may come again", journal=self.WHAT, reason=str(error))

    def start(self) -> None:
        """Begin to take snapshots."""
        self._timer = self._loop.call_later(SNAPSHOT_INTERVAL_S, self._tick)

    # Writing

    def write(self, written: Written | None = None) -> None:
        """Write down the news at the end of this turn.

        `written` is told when the log has these and all that came before, or refuses. Without any, what it
        waits for may have left with the news of another one.
        """
        if written is not None and not self.news and self._out:
            self._told_last.append(written)
            return
        if written is not None:
            self._waiting.append(written)
        if not self._is_scheduled and self._out < RECORDS_OUT:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        if not self.news and not self._waiting:
            return
        news, self.news = self.news, self._make_news()
        waiting, self._waiting = self._waiting, []
        now_ms = time.time_ns() // 1_000_000
        records = [encode_record(self.TOPIC.encode(), 0, body, b"", now_ms) for body in news.bodies()]
        if not records:
            for written in waiting:
                written(None)
            return

        def done(batch: Batch, error: StorageError | None) -> None:
            self._out -= 1
            if error is None:
                self._offset = batch.runs[0].base_offset + len(records)
                self._bytes += len(batch.records)
                self.records += len(records)
            else:
                self._refusal(error, len(waiting))
            for written in waiting:
                written(error)
            if self.news or self._waiting:
                self.write()

        sizes = np.array([len(record) for record in records], np.int64)
        batch = Batch(memoryview(bytearray().join(records)), sizes, [BatchRun(self.TOPIC, 0, len(records))])
        self._out += 1
        self._told_last = waiting
        self._queues.append(batch, done)

    def _refusal(self, error: StorageError, waiting: int) -> None:
        self.refused += 1
        now = self._loop.time()
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            log.error("records are refused", journal=self.WHAT, reason=str(error), waiting=waiting)

    # Snapshots

    def _tick(self) -> None:
        self._timer = self._loop.call_later(SNAPSHOT_INTERVAL_S, self._tick)
        self.save_snapshot()

    def save_snapshot(self) -> None:
        """Take a snapshot if there is news, or save the one that was taken if the log is fsynced that far."""
        if self._saving is not None:
            return
        if self._snapshot is None:
            if (self._offset, self._unwritten()) == self._saved or not self._is_due():
                return
            content = {"offset": self._offset, "entries": self._capture()}
            seen = (self._offset, self._unwritten())
            self._snapshot = _Snapshot(content, seen, self._order.confirmed_position, self._bytes)
        snapshot = self._snapshot
        if self._order.synced_position < snapshot.position:
            return
        self._snapshot = None
        self._version += 1
        future = self._loop.run_in_executor(self._thread, self._file.save, snapshot.content, self._version)
        self._saving = future

        def done(finished: asyncio.Future[None]) -> None:
            self._saving = None
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                self._saved = snapshot.seen
                self._saved_bytes, self._saved_at = snapshot.size_bytes, self._loop.time()
                self.snapshots += 1
                return
            self.snapshot_failures += 1
            if not isinstance(error, HoldMQError):
                raise error
            log.error("a snapshot is not written; the log has it", journal=self.WHAT, reason=str(error))

        future.add_done_callback(done)

    def _is_due(self) -> bool:
        # Without any, what is due is whatever retention could take first.
        is_old = not self._version or self._loop.time() - self._saved_at >= SNAPSHOT_AGE_S
        return is_old or self._file.is_worth(self._bytes - self._saved_bytes)

    def close(self) -> None:
        """Stop; a snapshot under way is finished (blocking)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._thread.shutdown(wait=True)
