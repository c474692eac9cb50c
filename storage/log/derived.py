"""What is derived from the log by threads of its own: timer and tables. Both follow confirmed records."""

from __future__ import annotations

from collections.abc import Callable

from holdmq.errors import StorageError
from holdmq.files.disk import Disk
from storage.api.batches import Appended, Batch
from storage.core.epochs import Epochs
from storage.core.scan import KeyLevels
from storage.log.home import StoreDirectory
from storage.log.reading.follower import Follower
from storage.log.reading.reader import ColdReader
from storage.log.segments import Segment, Segments
from storage.log.tables.files import TableFiles
from storage.log.tables.tables import LogTables, wanted_by
from storage.log.timer.files import BucketFiles, WaitingRecords
from storage.log.timer.timer import Timer, is_wanted

Append = Callable[[Batch, Appended], None]


class Derived:
    """Makes, starts and stops them together. `failed` gets what is final, on their threads."""

    def __init__(
        self,
        disk: Disk,
        home: StoreDirectory,
        segments: Segments,
        reader: ColdReader,
        key_levels: KeyLevels,
        append: Append,
        roll: Append,
        post: Callable[[Callable[[], object]], object],
        synced: Callable[[], int],
        clock_ms: Callable[[], int],
        clock: Callable[[], float],
        is_table: Callable[[str], bool] | None,
        failed: Callable[[StorageError], None],
        is_leading: Callable[[], bool],
    ) -> None:
        self._has_threads = True
        self.timer = Timer(
            BucketFiles(disk, home.timer),
            WaitingRecords(disk, segments),
            Follower(reader, "timer", is_wanted),
            key_levels,
            append,
            roll,
            post,
            synced,
            clock_ms,
            clock,
            failed,
            is_leading,
        )

        self.tables: LogTables | None = None
        if is_table is not None:
            files = TableFiles(disk, home.tables)
            self.tables = LogTables(
                files,
                Follower(reader, "tables", wanted_by(is_table, files)),
                is_table,
                append,
                post,
                synced,
                clock,
                failed,
            )

    def offer(self, batches: list[Batch]) -> None:
        """Batches that were confirmed. Called on the loop."""
        self.timer.follower.offer(batches)
        if self.tables is not None:
            self.tables.follower.offer(batches)

    def start(self, log_first: int, confirmed: int, log_end: int, epochs: Epochs, has_threads: bool) -> None:
        """Begin; the log is confirmed from `log_first` to `confirmed`. No threads: the caller steps them.

        Raises StorageError when the tables cannot be opened.
        """
        self._has_threads = has_threads
        if self.tables is not None:
            self.tables.start(log_first, confirmed, log_end, epochs, has_threads)
        self.timer.start(log_first, confirmed, log_end, has_threads)

    def stop(self) -> None:
        """Write down what is known, then end. Blocking; the log is synced."""
        self.timer.stop()
        if self.tables is not None:
            self.tables.stop()

    def before_delete(self, segment: Segment) -> bool:
        """Whether nothing here needs a segment any more; False = not yet. Never waits."""
        if not self._has_threads:
            self.timer.step()
            if self.tables is not None:
                self.tables.is_free(segment.end)
                self.tables.step()
        are_tables_free = self.tables is None or self.tables.is_free(segment.end)
        return self.timer.rolling.before_delete(segment) and are_tables_free

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges."""
        tables = {} if self.tables is None else self.tables.numbers()
        return {**self.timer.numbers(), **tables}
