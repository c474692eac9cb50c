"""A file of the broker's state, written by a thread of its own: the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.files.atomic_file import AtomicFile, Loaded
from holdmq.files.disk import Disk

Done = Callable[[HoldMQError | None], None]
"""Called once on the loop: None = it is durable."""


class StateFile:
    """One file that is replaced as a whole, with the one before it as `.bak` (holdmq.files.atomic_file).

    `load` and `close` block; `save` is called on the loop. Counters: `writes` that were begun, `failures`.
    """

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path
        self.writes = self.failures = 0
        self.data_version = 0
        """Of the newest file that was loaded or saved."""
        self._file = AtomicFile(path, disk)
        self._thread = ThreadPoolExecutor(1, path.stem)
        self._saving: asyncio.Future[None] | None = None

    @property
    def is_saving(self) -> bool:
        """Whether a write is under way: another one must wait for its end."""
        return self._saving is not None

    @property
    def backup_path(self) -> Path:
        """The file that was there before."""
        return self._file.backup_path

    def load(self, accept_backup: bool = False) -> Loaded | None:
        """Read the file, None when there is none; raises as `AtomicFile.load` does."""
        loaded = self._file.load(accept_backup)
        if loaded is not None:
            self.data_version = loaded.data_version
        return loaded

    def write(self, content: dict[str, Any], data_version: int, times: int = 1) -> None:
        """Replace the file here and now (blocking); with `times` 2 the `.bak` has the same content too."""
        for _ in range(times):
            self._file.save(content, data_version)
        self.data_version = data_version

    def save(self, content: dict[str, Any], data_version: int, done: Done, times: int = 1) -> None:
        """Replace the file on its thread, then call `done`. None may be under way (`is_saving`)."""
        self.writes += 1
        future = asyncio.get_running_loop().run_in_executor(
            self._thread, self.write, content, data_version, times
        )
        self._saving = future

        def saved(finished: asyncio.Future[None]) -> None:
            self._saving = None
            if finished.cancelled():
                return
            error = finished.exception()
            if error is not None:
                self.failures += 1
                if not isinstance(error, HoldMQError):
                    error = RemoteError(Code.SYSTEM_ERROR, f"{self.path.name} could not be written: {error}")
            done(error)

        future.add_done_callback(saved)

    def close(self) -> None:
        """Finish the write under way."""
        self._thread.shutdown(wait=True)
