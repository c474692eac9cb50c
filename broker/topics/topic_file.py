"""Changes of the topic table: planned on what is there, written to topic.json, then made. One after another.

Changes are written by one thread; those that are asked for while a write is under way go into the next
one together, each planned on what the one before it left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker.topics.core.table import (
    Topic,
    TopicTable,
)
from holdmq.errors import BusyError, Code, HoldMQError, RemoteError
from holdmq.files.atomic_file import AtomicFile

CHANGES_MAX: Final = 1_000
"""Changes waiting for the file; past it BUSY. A write takes some ms, so it is a second of them."""
RETRY_AFTER_MS: Final = 500

Done = Callable[[HoldMQError | None], None]
Applied = Callable[[Topic | None, Topic | None], None]


class Staged:
    """The table as it will be: changes that are planned and not written yet lie over it."""

    def __init__(self, table: TopicTable) -> None:
        self.changed: dict[str, Topic | None] = {}
        self._table = table

    def __len__(self) -> int:
        added = sum(t is not None and self._table.find(n) is None for n, t in self.changed.items())
        return len(self._table) + added

    def get(self, name: str) -> Topic | None:
        """The topic as the changes so far leave it, one that is being deleted included."""
        return self.changed[name] if name in self.changed else self._table.find(name)

    def put(self, topic: Topic) -> None:
        """Add a topic or give it new settings; no change is none."""
        if self.get(topic.name) != topic:
            self.changed[topic.name] = topic

    def remove(self, name: str) -> None:
        """Take a topic out."""
        self.changed[name] = None


Plan = Callable[[Staged], None]


class TopicFile:
    """Runs plans against the table and keeps topic.json.

    `applied(before, after)` is called for each topic that changed, when the change is durable and in the
    table; None = it was, or is, not there. Changes of temporary topics are in no file.
    """

    def __init__(self, file: AtomicFile, table: TopicTable, applied: Applied) -> None:
        self.file = file
        self.table = table
        self.writes = 0
        self._applied = applied
        self._thread = ThreadPoolExecutor(1, "topics")
        self._waiting: list[tuple[Plan, Done]] = []
        self._writing: asyncio.Future[None] | None = None
        self._is_planning = False
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Changes that wait for the file."""
        return len(self._waiting)

    def submit(self, plan: Plan, done: Done, *, is_bounded: bool = True) -> None:
        """Make a change; `plan` may raise HoldMQError. `done` is called once, perhaps before this returns.

        Raises BusyError when CHANGES_MAX wait; not for the broker's own changes (`is_bounded` False).
        """
        if is_bounded and len(self._waiting) >= CHANGES_MAX:
            raise BusyError(f"{CHANGES_MAX} changes of topics wait for topic.json", RETRY_AFTER_MS)
        self._waiting.append((plan, done))
        self._go_on()

    def close(self) -> None:
        """Finish the write under way (blocking); what waits behind it is refused."""
        self._is_closed = True
        self._thread.shutdown(wait=True)

    def _go_on(self) -> None:
        while self._waiting and self._writing is None and not self._is_planning:
            waiting, self._waiting = self._waiting, []
            staged = Staged(self.table)
            planned: list[Done] = []
            self._is_planning = True
            try:
                for plan, done in waiting:
                    try:
                        plan(staged)
                    except HoldMQError as error:
                        done(error)
                    else:
                        planned.append(done)
            finally:
                self._is_planning = False
            self._carry_out(staged.changed, planned)

    def _carry_out(self, changed: dict[str, Topic | None], planned: list[Done]) -> None:
        durable = sum(not self._is_temporary(name, topic) for name, topic in changed.items())
        if not durable:
            self._apply(changed, planned)
            return
        if self._is_closed:
            self._refuse(BusyError("the broker is ending; ask again later", RETRY_AFTER_MS), planned)
            return
        content = self.table.content(changed)
        version = self.table.data_version + durable
        self.writes += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, self.file.save, content, version)
        self._writing = future

        def written(finished: asyncio.Future[None]) -> None:
            self._writing = None
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                self._apply(changed, planned)
            else:
                self._refuse(error, planned)
            self._go_on()

        future.add_done_callback(written)

    def _is_temporary(self, name: str, topic: Topic | None) -> bool:
        known = topic or self.table.find(name)
        return known is not None and known.is_temporary

    def _apply(self, changed: dict[str, Topic | None], planned: list[Done]) -> None:
        for name, topic in changed.items():
            before = self.table.find(name)
            if topic is None:
                self.table.remove(name)
            else:
                self.table.add(topic)
            self._applied(before, topic)
        for done in planned:
            done(None)

    def _refuse(self, error: BaseException, planned: list[Done]) -> None:
        if not isinstance(error, HoldMQError):
            error = RemoteError(Code.SYSTEM_ERROR, f"topic.json could not be written: {error}")
        for done in planned:
            done(error)
