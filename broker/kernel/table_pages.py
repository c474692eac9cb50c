"""Reads of tables on the reader pool: one, or page by page of all that a start finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

import structlog

from holdmq.errors import HoldMQError, StorageError
from storage.api.store import OrderedStore

T = TypeVar("T")

log = structlog.get_logger("holdmq.broker")


def read_on_pool(pool: Executor, read: Callable[[], T], done: Callable[[T | HoldMQError], object]) -> None:
    """Call `read` on the pool, then `done` on the loop with what it returned, or with its error."""

    def finished(ended: asyncio.Future[T]) -> None:
        if ended.cancelled():
            return
        error = ended.exception()
        if error is None:
            done(ended.result())
        elif isinstance(error, HoldMQError):
            done(error)
        else:
            log.error("the read of a table failed", exc_info=error)
            done(StorageError(str(error), operation="read"))

    asyncio.get_running_loop().run_in_executor(pool, read).add_done_callback(finished)


class TablePages(Generic[T]):
    """Goes through a table, once it shows all that is confirmed when that begins.

    `read` is called on the reader pool with the key behind which it reads a page (None = from the first one
    on), and returns what it found and the key to go on behind (None = that was all); `took` gets each of
    these on the loop, and `done` is called behind the last one, or with the error that ends it. After `close`
    nothing is called.
    """

    def __init__(
        self,
        store: OrderedStore,
        read: Callable[[str | None], tuple[T, str | None]],
        took: Callable[[T], object],
        done: Callable[[HoldMQError | None], object],
    ) -> None:
        self._store = store
        self._read = read
        self._took = took
        self._done = done
        self._is_closed = False

    def begin(self) -> None:
        """Go through the table from its first row on; after an error it may be called again."""
        tables = self._store.tables
        assert tables is not None
        tables.wait_applied(self._store.confirmed_position, self._applied)

    def close(self) -> None:
        """Read no further page."""
        self._is_closed = True

    def _applied(self, error: StorageError | None) -> None:
        if self._is_closed:
            return
        if error is not None:
            self._done(error)
        else:
            self._next(None)

    def _next(self, after: str | None) -> None:
        read_on_pool(self._store.reader_pool, lambda: self._read(after), self._page)

    def _page(self, page: tuple[T, str | None] | HoldMQError) -> None:
        if self._is_closed:
            return
        if isinstance(page, HoldMQError):
            self._done(page)
            return
        found, next_after = page
        self._took(found)
        if next_after is None:
            self._done(None)
        else:
            self._next(next_after)
