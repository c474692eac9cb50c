"""State files as the log has them: read at a start, and followed from then on.

The tables have the rows of `%CONFIG%` up to some log position; the rest is read from its queue. Whoever needs
to know what the files say while the log is read, such as how many levels of a key count, is told of each
change in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import structlog

from holdmq.errors import RecordError, StorageError, StoreFormatError
from holdmq.record.batch import split_records
from storage.api.batches import Batch, BatchRun
from storage.api.queues import ReadStatus
from storage.api.tables import RowChanged, VersionedRow
from storage.core.queues import Queue
from storage.core.table_records import changes_in
from storage.log.consume_queue import ConsumeQueues
from storage.log.reading.reader import ColdReader
from storage.log.state.core.files import CONFIG_QUEUE, CONFIG_TOPIC, LoggedFiles
from storage.log.tables.files import Applied

READ_BYTES = 1 << 20
READ_RECORDS = 4096
CONFIG_KEY = (CONFIG_TOPIC, CONFIG_QUEUE)

RowsOf = Callable[[str], tuple[Applied, Sequence[VersionedRow]]]
"""The rows of a table, and up to where it has the log."""

log = structlog.get_logger("holdmq.storage")


class LoggedState:
    """Keeps `files` as the log says. `changed(name)` is called for each file that is another one.

    One thread at a time: who opens the store, then the event loop.
    """

    def __init__(self, files: LoggedFiles, changed: Callable[[str], None]) -> None:
        self.files = files
        self._changed = changed

    def load(
        self, rows_of: RowsOf, reader: ColdReader, queues: ConsumeQueues, bounds: tuple[int, int], end: int
    ) -> None:
        """Read everything anew, up to the log position `end`. Blocking.

        `bounds` are first and next offset of the queue of `%CONFIG%` there. Raises StorageError when the disk
        fails, or a newer HoldMQ wrote it.
        """
        files = self.files
        files.clear()
        applied, rows = rows_of(CONFIG_TOPIC)
        try:
            for row in rows:
                files.apply(row.key.encode(), row.value)
            files.position = applied.position
            if applied.position < end:
                for batch in _batches(reader, queues, bounds, applied.position, end):
                    self._apply(batch, files.position)
        except RecordError as error:
            raise StoreFormatError(
                str(error),
                operation="open",
                path=str(queues.directory / CONFIG_TOPIC),
                hint="start the newer HoldMQ that wrote it",
            ) from error
        files.position = max(end, applied.position)
        for name in files.names():
            self._changed(name)

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
            changed = self._apply(batch, known)
        except RecordError as error:
            log.error("the log has state that this HoldMQ cannot read", reason=str(error))
            return False
        for name in changed:
            self._changed(name)
        return bool(changed)

    def _apply(self, batch: Batch, known: int) -> list[str]:
        """Apply the rows of a batch that lie at `known` or behind it."""
        rows, _ = changes_in(batch, {CONFIG_TOPIC})
        return list(dict.fromkeys(self._changed_by(rows, known)))

    def _changed_by(self, rows: list[RowChanged], known: int) -> Iterator[str]:
        for row in rows:
            if row.version >= known:
                name = self.files.apply(row.key, row.value)
                if name is not None:
                    yield name


def _batches(
    reader: ColdReader, queues: ConsumeQueues, bounds: tuple[int, int], position: int, end: int
) -> Iterator[Batch]:
    """The records of `%CONFIG%` from the log position on, read by their index, which is complete."""
    first, following = bounds
    low = max(first, queues.first_offset(CONFIG_KEY))
    if low >= following:
        return
    try:
        offset = queues.first_at_or_after(CONFIG_KEY, low, following, position)
    except OSError as error:
        raise StorageError(
            error.strerror or str(error), operation="read", path=str(queues.directory / CONFIG_TOPIC)
        ) from error
    queue = Queue(CONFIG_TOPIC, CONFIG_QUEUE, low, following)
    while offset < following:
        read = reader.read_queue(queue, offset, READ_BYTES, READ_RECORDS, None, end)
        if read.status is ReadStatus.CORRUPT:
            log.error(
                "a record of the state files is damaged: what it changed is missing", reason=read.reason
            )
        for part in read.parts:
            sizes = split_records(part)
            yield Batch(part, sizes, [BatchRun(CONFIG_TOPIC, CONFIG_QUEUE, len(sizes))])
        if read.next_offset <= offset:
            return
        offset = read.next_offset
