"""State files as the log has them: read at a start, and followed from then on.

The tables have the rows of `%CONFIG%` up to some log position; the rest is read from its queue. Whoever needs
to know what the files say while the log is read, such as how many levels of a key count, is told of each
change in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from holdmq.errors import RecordError, StoreFormatError
from storage.api.batches import Batch
from storage.api.tables import RowChanged, VersionedRow
from storage.core.table_records import changes_in
from storage.log.consume_queue import ConsumeQueues
from storage.log.reading.queue_batches import queue_batches
from storage.log.reading.reader import ColdReader
from storage.log.state.core.files import CONFIG_QUEUE, CONFIG_TOPIC, LoggedFiles
from storage.log.tables.files import Applied

CONFIG_KEY = (CONFIG_TOPIC, CONFIG_QUEUE)

NO_STATE: Final = dict.fromkeys(
    ("state_changes_total", "state_log_bytes_total", "state_files", "state_file_bytes"), 0.0
)
"""The numbers of a log that has no state files."""

RowsOf = Callable[[str], tuple[Applied, Sequence[VersionedRow]]]
"""The rows of a table, and up to where it has the log."""

log = structlog.get_logger("holdmq.storage")


class LoggedState:
    """Keeps `files` as the log says. `changed(name)` is called for each file that is another one.

    One thread at a time: who opens the store, then the event loop.
    """

    def __init__(self, files: LoggedFiles, changed: Callable[[str], None]) -> None:
        self.files = files
        self.changes = self.bytes = 0
        self._changed = changed
        self._scanned: list[RowChanged] = []
        self._scanned_end = 0

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges."""
        return {
            "state_changes_total": self.changes,
            "state_log_bytes_total": self.bytes,
            "state_files": len(self.files.names()),
            "state_file_bytes": self.files.size_bytes,
        }

    def load(
        self, rows_of: RowsOf, reader: ColdReader, queues: ConsumeQueues, bounds: tuple[int, int], end: int
    ) -> None:
        """Read everything anew, up to the log position `end`, and what was scanned behind it. Blocking.

        `bounds` are first and next offset of the queue of `%CONFIG%` there. Raises StorageError when the disk
        fails, or a newer HoldMQ wrote it.
        """
        scanned, scanned_end = self._scanned, self._scanned_end
        self._scanned, self._scanned_end = [], 0
        files = self.files
        files.clear()
        applied, rows = rows_of(CONFIG_TOPIC)
        try:
            for row in rows:
                files.apply(row.key.encode(), row.value)
            files.position = applied.position
            if applied.position < end:
                for batch in queue_batches(reader, queues, CONFIG_KEY, bounds, applied.position, end):
                    self._apply(changes_in(batch, {CONFIG_TOPIC})[0], files.position)
            files.position = max(end, applied.position)
            self._apply(scanned, files.position)
            files.position = max(files.position, scanned_end)
        except RecordError as error:
            raise StoreFormatError(
                str(error),
                operation="open",
                path=str(queues.directory / CONFIG_TOPIC),
                hint="start the newer HoldMQ that wrote it",
            ) from error
        for name in files.names():
            self._changed(name)

    def scan(self, batch: Batch) -> bool:
        """As `take`, of a log that is being opened: the next `load` may end before it."""
        if any(run.topic == CONFIG_TOPIC for run in batch.runs):
            self._scanned += changes_in(batch, {CONFIG_TOPIC})[0]
        self._scanned_end = batch.end
        return self.take(batch)

    def offer(self, batches: list[Batch]) -> None:
        """Take batches that were confirmed, in log order; those that were taken before change nothing."""
        for batch in batches:
            self.take(batch)

    def take(self, batch: Batch) -> bool:
        """Take the next batch of the log; True = some file is another one by it."""
        files = self.files
        known, files.position = files.position, max(files.position, batch.end)
        if batch.end <= known or not any(run.topic == CONFIG_TOPIC for run in batch.runs):
            return False
        try:
            changed = self._apply(changes_in(batch, {CONFIG_TOPIC})[0], known)
        except RecordError as error:
            log.error("the log has state that this HoldMQ cannot read", reason=str(error))
            return False
        self.bytes += len(batch.records)
        self.changes += len(changed)
        for name in changed:
            self._changed(name)
        return bool(changed)

    def _apply(self, rows: list[RowChanged], known: int) -> list[str]:
        """Apply those of the rows that lie at `known` or behind it; the names of files that are others."""
        return list(dict.fromkeys(self._changed_by(rows, known)))

    def _changed_by(self, rows: list[RowChanged], known: int) -> Iterator[str]:
        for row in rows:
            if row.version >= known:
                name = self.files.apply(row.key, row.value)
                if name is not None:
                    yield name
