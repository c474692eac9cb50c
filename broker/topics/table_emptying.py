"""A table's rows before its topic goes: rows outlive the messages that put them, so they are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final

from holdmq.errors import Code, HoldMQError, RemoteError, StorageError
from storage.api.batches import Batch
from storage.api.tables import Page, TableStore

PAGE_ROWS: Final = 500
"""Rows deleted at a time: their records are one write of the log, and the loop turns between pages."""

Emptied = Callable[[HoldMQError | None], None]


class TableEmptying:
    """Deletes the rows of one table and then calls `done`, once; not `force`: only looks whether it has any.

    Other changes of the table are not held off: the caller's topic goes right after `done`.
    """

    def __init__(self, tables: TableStore, pool: Executor, topic: str, force: bool, done: Emptied) -> None:
        self._tables = tables
        self._pool = pool
        self._topic = topic
        self._force = force
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._left = 0
        self._end = 0
        self._error: StorageError | None = None

    def start(self, confirmed_position: int) -> None:
        """Look for rows, once what was confirmed up to there is applied: it may be rows, too."""
        self._tables.wait_applied(confirmed_position, self._applied)

    def _scan(self) -> None:
        scan = partial(self._tables.scan, self._topic, max_count=PAGE_ROWS if self._force else 1)
        self._loop.run_in_executor(self._pool, scan).add_done_callback(self._scanned)

    def _scanned(self, finished: asyncio.Future[Page]) -> None:
        if finished.cancelled():
            return
        error = finished.exception()
        if error is not None:
            known = isinstance(error, HoldMQError)
            self._done(error if known else RemoteError(Code.SYSTEM_ERROR, f"the scan failed: {error}"))  # type: ignore[arg-type]
            return
        found = finished.result().rows
        if not found:
            self._done(None)
        elif not self._force:
            reason = f"table {self._topic!r} has rows: delete them, or delete it with force"
            self._done(RemoteError(Code.TOPIC_IN_USE, reason))
        else:
            self._left = len(found)
            for row in found:
                self._tables.delete(self._topic, row.key, self._deleted)

    def _deleted(self, batch: Batch, error: StorageError | None) -> None:
        self._error = self._error or error
        self._end = max(self._end, batch.end)
        self._left -= 1
        if self._left:
            return
        if self._error is not None:
            self._done(self._error)
        else:
            self._tables.wait_applied(self._end, self._applied)

    def _applied(self, error: StorageError | None) -> None:
        if error is not None:
            self._done(error)
        else:
            self._scan()
