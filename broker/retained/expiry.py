"""Retained messages that have expired are removed, by a pass over the table when the first of them is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Final, NamedTuple, Protocol

import structlog

from holdmq.errors import StorageError
from holdmq.wire.retained_headers import RETAINED_TOPIC, expires_ms_of
from storage.api.store import MessageStore
from storage.api.tables import STOP, TAKE, Judged, TableStore

CHECK_INTERVAL_S: Final = 60.0
"""How often it is looked whether something is due: until then nobody is shown it either."""
PAGE_ROWS: Final = 1_000
RETRY_S: Final = 10.0
"""Wait after a failure."""

log = structlog.get_logger("holdmq.broker")


class Remover(Protocol):
    """Removes the retained messages of topics."""

    @property
    def tables(self) -> TableStore:
        """The tables of the store."""

    def remove(self, topics: Sequence[str], done: Callable[[StorageError | None], None]) -> None:
        """Have these topics no message any more."""

    def unshown(self) -> Iterable[tuple[str, int]]:
        """Topics that were put and that the table may not show so yet, and when they expire (0 = never)."""


class _Page(NamedTuple):
    """`expired` topics of a page; `earliest_ms`: when the first of the others is due, 0 = none is."""

    expired: list[str]
    earliest_ms: int
    last: bytes | None


class RetainedExpiry:
    """Knows when the first message is due: 0 = none. A start does not know, and looks at all."""

    def __init__(
        self,
        store: MessageStore,
        remover: Remover,
        clock_ms: Callable[[], int],
    ) -> None:
        self.check_interval_s = CHECK_INTERVAL_S
        self.removed = 0
        self.passes = 0
        self.earliest_ms = 0
        self._store = store
        self._remover = remover
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._changed: set[str] | None = None
        """Topics of which a page that is read may show an older message; None = no page is."""

    def start(self) -> None:
        """Begin with a pass over the table."""
        self._begin_pass()

    def stop(self) -> None:
        """Stop: nothing more is removed."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def changed(self, topic: str, expires_ms: int) -> None:
        """A topic gets another message, or none; `expires_ms` 0 = it does not expire."""
        if self._changed is not None:
            self._changed.add(topic)
        if expires_ms:
            self.earliest_ms = min(self.earliest_ms or expires_ms, expires_ms)

    def _after(self, delay_s: float, work: Callable[..., None], *args: object) -> None:
        if not self._is_stopped:
            self._timer = self._loop.call_later(delay_s, work, *args)

    def check(self) -> None:
        """Look whether something is due."""
        if self.earliest_ms and self._clock_ms() >= self.earliest_ms:
            self._begin_pass()
        else:
            self._after(self.check_interval_s, self.check)

    def _begin_pass(self) -> None:
        self.earliest_ms = min((due for _, due in self._remover.unshown() if due), default=0)
        self._next_page(None)

    def _next_page(self, after: bytes | None) -> None:
        self._changed = {topic for topic, _ in self._remover.unshown()}
        future = self._loop.run_in_executor(
            self._store.reader_pool, _read_page, self._remover.tables, after, self._clock_ms()
        )
        future.add_done_callback(self._read)

    def _read(self, finished: asyncio.Future[_Page]) -> None:
        if finished.cancelled() or self._is_stopped:
            return
        error = finished.exception()
        if error is not None:
            self._failed(error)
            return
        page = finished.result()
        changed, self._changed = self._changed or set(), None
        if page.earliest_ms:
            self.earliest_ms = min(self.earliest_ms or page.earliest_ms, page.earliest_ms)
        expired = [topic for topic in page.expired if topic not in changed]
        if len(expired) < len(page.expired):
            self.earliest_ms = 1  # if the log refuses what came meanwhile, they are still there

        def done(failure: StorageError | None) -> None:
            if failure is not None:
                self._failed(failure)
                return
            self.removed += len(expired)
            if page.last is not None:
                self._after(0.0, self._next_page, page.last)
                return
            self.passes += 1
            self._after(self.check_interval_s, self.check)

        if expired:
            self._remover.remove(expired, done)
        else:
            done(None)

    def _failed(self, error: BaseException | None) -> None:
        self._changed = None
        if self._is_stopped:
            return
        log.error("looking for expired retained messages failed; trying again", reason=str(error))
        self._after(RETRY_S, self._begin_pass)


def _read_page(tables: TableStore, after: bytes | None, now_ms: int) -> _Page:
    """Blocking: what has expired of a page of rows."""
    looked_at = 0
    last = b""

    def judge(topic: bytes) -> Judged:
        nonlocal looked_at, last
        if looked_at >= PAGE_ROWS:
            return STOP
        looked_at += 1
        last = topic
        return TAKE

    expired: list[str] = []
    earliest_ms = 0
    with closing(tables.walk(RETAINED_TOPIC, b"", after, judge)) as walk:
        for row in walk:
            expires_ms = expires_ms_of(row.value)
            if not expires_ms:
                continue
            if expires_ms <= now_ms:
                expired.append(row.key.decode())
            else:
                earliest_ms = min(earliest_ms or expires_ms, expires_ms)
    return _Page(expired, earliest_ms, last if looked_at >= PAGE_ROWS else None)
