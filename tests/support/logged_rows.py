"""The tables of a log, and its event loop, below a disk whose files are in that log."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from holdmq.errors import StorageError
from storage.api.batches import Appended, Batch
from storage.api.tables import KeyChange
from storage.core.table_records import changes_in
from storage.log.state.core.files import CONFIG_TOPIC, LoggedFiles
from storage.log.state.disk import LogDisk

ROOT = Path("/store")


class LoggedRows:
    """Every append is confirmed, unless it is refused or held."""

    def __init__(self) -> None:
        self.files = LoggedFiles()
        self.appended: list[list[KeyChange]] = []
        self.refusals: dict[int, StorageError] = {}
        self.held: list[Callable[[], None]] | None = None
        self.position = 0
        self.synced_rows = 0
        self._posted: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (callback := self._posted.get()) is not None:
            callback()

    def post(self, callback: Callable[[], object]) -> None:
        self._posted.put(callback)

    def end(self) -> None:
        self._posted.put(None)
        self._thread.join()

    def append(self, batch: Batch, done: Appended) -> None:
        batch.position = self.position
        self.position = batch.end
        rows, _ = changes_in(batch, {CONFIG_TOPIC})
        changes = [KeyChange(0, row.key.decode(), row.value) for row in rows]
        refusal = self.refusals.get(len(self.appended))
        self.appended.append([] if refusal else list(changes))

        def confirm() -> None:
            if refusal is None:
                for change in changes:
                    self.files.apply(change.key.encode(), change.value)
            done(batch, refusal)

        if self.held is not None:
            self.held.append(confirm)
        else:
            self.post(confirm)

    def release(self) -> None:
        """Confirm what was held."""
        held, self.held = self.held or [], None
        for confirm in held:
            self.post(confirm)

    def sync(self) -> int:
        """Have all of it on disk; up to which position that is."""
        self.synced_rows = self.rows
        return self.position

    def after(self, rows: int) -> LoggedFiles:
        """The files after a crash that left so many rows."""
        files = LoggedFiles()
        for change in [change for batch in self.appended for change in batch][:rows]:
            files.apply(change.key.encode(), change.value)
        return files

    @property
    def rows(self) -> int:
        return sum(map(len, self.appended))

    def cut(self, rows: int) -> None:
        """Lose what a crash took: all but so many rows."""
        self.files = self.after(rows)
        self.appended = [[change for batch in self.appended for change in batch][:rows]]
        self.synced_rows = min(rows, self.synced_rows)

    def disk(self, files: LoggedFiles | None = None, wait_s: float = 30.0) -> LogDisk:
        """A disk in this log, which has `files` or its own."""
        return LogDisk(files or self.files, self.append, self.post, self.sync, ROOT, wait_s)
