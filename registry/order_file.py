"""orderTopic.json: ordered topics are durable before ORDER_SET is answered.

One thread writes; what changes while a write is under way goes into the next one together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from holdmq.errors import Code, HoldMQError, RemoteError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from holdmq.service import telemetry
from registry.core.order import OrderTable

WAITING_MAX: Final = 1_000
"""ORDER_SETs waiting for the file; past it BUSY."""

OnSaved = Callable[[HoldMQError | None], None]


class OrderFile:
    """Keeps an OrderTable in a file. `failures`: writes that did not succeed; the next change tries again."""

    def __init__(self, path: Path, table: OrderTable) -> None:
        self.failures = 0
        self._table = table
        self._file = AtomicFile(path)
        self._thread = ThreadPoolExecutor(1, "order file")
        self._waiting: list[OnSaved] = []
        self._writing: asyncio.Future[None] | None = None
        self._saved_version = 0
        self._log = telemetry.get_logger()

    def load(self, accept_backup: bool = False) -> None:
        """Read the file (blocking); an absent one is an empty table. StorageError if it is damaged."""
        loaded = self._file.load(accept_backup)
        if loaded is None:
            return
        fault = self._table.load(loaded.content, loaded.data_version)
        if fault:
            raise StoreFormatError(fault, operation="open", path=str(self._file.path), hint="restore it")
        self._saved_version = self._table.version
        if loaded.from_backup:
            self._log.warning("ordered topics are those of the backup", path=str(self._file.path))

    def save(self, on_saved: OnSaved | None = None) -> None:
        """Write the table if it changed; `on_saved` is called once it is durable, with the error if not.

        RemoteError (BUSY) while WAITING_MAX wait.
        """
        if on_saved is not None:
            if len(self._waiting) >= WAITING_MAX:
                raise RemoteError(Code.BUSY, f"{WAITING_MAX} changes wait to be written")
            self._waiting.append(on_saved)
        if self._writing is None:
            self._write()

    def close(self) -> None:
        """Finish the write under way, and write what is not written yet (blocking)."""
        self._thread.shutdown(wait=True)
        if self._saved_version != self._table.version:
            try:
                self._file.save(self._table.content(), self._table.version)
            except HoldMQError as error:
                self._log.error("ordered topics are not kept", reason=str(error))

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        version = self._table.version
        if version == self._saved_version:
            for on_saved in waiting:
                on_saved(None)
            return
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(self._thread, self._file.save, self._table.content(), version)
        self._writing = writing

        def done(finished: asyncio.Future[None]) -> None:
            self._writing = None
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                self._saved_version = version
            else:
                self.failures += 1
                if not isinstance(error, HoldMQError):
                    error = RemoteError(Code.SYSTEM_ERROR, f"orderTopic.json could not be written: {error}")
                self._log.error("ordered topics are not written", reason=str(error))
            for on_saved in waiting:
                on_saved(error)
            if self._waiting or (error is None and self._saved_version != self._table.version):
                self._write()

        writing.add_done_callback(done)
