"""A system table that is in memory as a whole: read at a start, changed by rows that the log has first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import structlog

from broker.kernel.table_pages import TablePages
from holdmq.errors import BusyError, HoldMQError, StorageError
from storage.api.batches import Batch
from storage.api.store import OrderedStore
from storage.api.tables import KeyChange, TableStore, VersionedRow

R = TypeVar("R")
"""What a row is."""
PAGE_ROWS: Final = 1_000
CHANGES_MAX: Final = 1_000
"""Changes that wait for the disk; past it BUSY."""
RETRY_S: Final = 1.0
"""How often a start tries to have the table, and to read it."""
RETRY_AFTER_MS: Final = 100

log = structlog.get_logger("holdmq.broker")


class RequiresTopics(Protocol):
    """Has system topics made."""

    def require(
        self, name: str, queues: int, done: Callable[[HoldMQError | None], None], *, is_table: bool = False
    ) -> None:
        """Have a system topic; `done` gets None when it is durable, or why it cannot be."""


class SmallTable(Generic[R]):
    """The rows of one table, by key. `start` it; `opened` is set when those of before are known.

    `decode` raises HoldMQError for a row that cannot be used, which is left out and said. `took` is called
    with all rows when they are known.
    """

    def __init__(
        self,
        store: OrderedStore,
        topics: RequiresTopics,
        topic: str,
        queues: int,
        decode: Callable[[bytes], R],
        took: Callable[[dict[str, R]], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self.opened = asyncio.Event()
        self.rows: dict[str, R] = {}
        self.changes = 0
        self.version = 0
        """Rises when rows come or go."""
        self.in_hand = 0
        self._store = store
        self._topics = topics
        self._topic = topic
        self._queues = queues
        self._decode = decode
        self._took_all = took
        self._clock_ms = clock_ms
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pages = TablePages(store, self._read_page, self._took, self._was_read)

    def start(self) -> None:
        """Have the table, and read it."""
        self._topics.require(self._topic, self._queues, self._have_table, is_table=True)

    def close(self) -> None:
        """Read and retry no more."""
        self._is_closed = True
        self._pages.close()
        if self._timer is not None:
            self._timer.cancel()

    def check_open(self) -> None:
        """Raise BUSY unless the rows of before are known."""
        if not self.opened.is_set() or self._is_closed:
            raise BusyError(f"the table {self._topic} is not open", RETRY_AFTER_MS)

    def check_ready(self) -> None:
        """Raise BUSY unless a row may be changed now."""
        self.check_open()
        if self.in_hand >= CHANGES_MAX:
            raise BusyError(f"changes of {self._topic} wait for the disk", RETRY_AFTER_MS)

    def put(self, key: str, value: bytes, row: R, done: Callable[[HoldMQError | None], None]) -> None:
        """Have a row; `done` when the log has it, or with why it has not."""
        self._change([KeyChange(0, key, value)], row, done)

    def drop(self, keys: Sequence[str], done: Callable[[HoldMQError | None], None]) -> None:
        """Have rows no more."""
        self._change([KeyChange(0, key, None) for key in keys], None, done)

    def _change(
        self, changes: list[KeyChange], row: R | None, done: Callable[[HoldMQError | None], None]
    ) -> None:
        def settled(_batch: Batch, error: StorageError | None) -> None:
            finish(error)

        def finish(error: HoldMQError | None) -> None:
            self.in_hand -= 1
            if error is None:
                self.version += 1
                for change in changes:
                    if row is not None:
                        self.rows[change.key] = row
                    else:
                        self.rows.pop(change.key, None)
            done(error)

        self.changes += len(changes)
        self.in_hand += 1
        try:
            self._tables.change_many(self._topic, changes, settled, self._clock_ms())
        except HoldMQError as error:
            finish(error)

    # Reading

    def _have_table(self, error: HoldMQError | None) -> None:
        if error is not None:
            self._failed(error)
        elif not self._is_closed:
            self.rows.clear()
            self._pages.begin()

    def _failed(self, error: HoldMQError) -> None:
        if not self._is_closed:
            log.error("a table cannot be read; trying again", table=self._topic, reason=str(error))
            self._timer = self._loop.call_later(RETRY_S, self.start)

    def _read_page(self, after: str | None) -> tuple[list[VersionedRow], str | None]:
        """On the reader pool."""
        page = self._tables.scan(self._topic, "", after, PAGE_ROWS)
        return page.rows, page.next_after

    def _took(self, found: list[VersionedRow]) -> None:
        for row in found:
            try:
                self.rows[row.key] = self._decode(row.value)
            except HoldMQError as failure:
                log.error("a row cannot be used", table=self._topic, row=row.key, reason=str(failure))

    def _was_read(self, error: HoldMQError | None) -> None:
        if error is not None:
            self._failed(error)
            return
        self.version += 1
        self._took_all(self.rows)
        self.opened.set()

    @property
    def _tables(self) -> TableStore:
        tables = self._store.tables
        assert tables is not None
        return tables
