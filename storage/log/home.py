"""The store's directory: its format and identity, its lock, and how it was left.

::

    format.json      format, engine, broker name, store id; written first
    lock             flock while open
    clean            the log's end, written by a clean close; gone while open
    epoch.json       log epochs          checkpoint.json   what is durable, and every queue's end
    commitlog/       segments            consumequeue/     derived       cut/   what recovery cut off
    keyindex/        derived
    spare            room that is given up when the disk is full
    timer/           derived             tables/           derived, with the snapshots they start from
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from holdmq.errors import StorageError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk, OpenFile
from storage.core.epochs import Epochs

STORE_FORMAT: Final = 1
ENGINE: Final = "log"


class StoreDirectory:
    """An opened, locked store directory. Every method blocks."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.directory = directory
        self.commitlog = directory / "commitlog"
        self.consumequeue = directory / "consumequeue"
        self.cut = directory / "cut"
        self.timer = directory / "timer"
        self.keyindex = directory / "keyindex"
        self.tables = directory / "tables"
        self.checkpoint_file = AtomicFile(directory / "checkpoint.json", disk)
        self.store_id = b""
        self.made_ms = 0
        """When the store was made, ms since the epoch; 0 = by a build that did not write it down."""
        self.is_new = False
        self._disk = disk
        self._clean = directory / "clean"
        self._epoch_file = AtomicFile(directory / "epoch.json", disk)
        self._lock: OpenFile | None = None

    def open(self, broker_name: str, accept_backup: bool) -> None:
        """Lock the directory and check, or give it, format and identity.

        Raises StoreFormatError for a directory that is in use, of another broker or engine, or of a
        newer format.
        """
        try:
            self._disk.make_directory(self.directory)
            lock = self._disk.open(self.directory / "lock", create=True)
        except OSError as error:
            raise StorageError(
                error.strerror or str(error),
                operation="open",
                path=str(self.directory),
                hint="storage.data_dir must be a directory that this user may write",
            ) from error
        if not lock.try_lock():
            lock.close()
            raise StoreFormatError(
                "another process has it open",
                operation="lock",
                path=str(self.directory),
                hint="stop that broker, or set another storage.data_dir",
            )
        self._lock = lock
        self._identify(broker_name, accept_backup)

    def _identify(self, broker_name: str, accept_backup: bool) -> None:
        file = AtomicFile(self.directory / "format.json", self._disk, STORE_FORMAT)
        loaded = file.load(accept_backup)
        if loaded is None:
            if self._disk.list(self.commitlog):
                raise StoreFormatError(
                    "it is missing, but there is a log",
                    operation="open",
                    path=str(file.path),
                    hint="restore it: it holds the store's id",
                )
            self.store_id = os.urandom(8)
            self.is_new = True
            self.made_ms = time.time_ns() // 1_000_000
            identity = {
                "engine": ENGINE,
                "brokerName": broker_name,
                "storeId": self.store_id.hex(),
                "madeMs": self.made_ms,
            }
            file.save(identity, 1)
            return
        content = loaded.content
        if content.get("engine") != ENGINE:
            raise StoreFormatError(
                f"its engine is {content.get('engine')!r}, not {ENGINE!r}",
                operation="open",
                path=str(file.path),
                hint="set another storage.data_dir",
            )
        if content.get("brokerName") != broker_name:
            raise StoreFormatError(
                f"it belongs to broker {content.get('brokerName')!r}, not {broker_name!r}",
                operation="open",
                path=str(file.path),
                hint="set broker.name to that, or another storage.data_dir",
            )
        try:
            self.store_id = bytes.fromhex(content["storeId"])
        except (KeyError, TypeError, ValueError):
            self.store_id = b""
        made_ms = content.get("madeMs")
        self.made_ms = made_ms if isinstance(made_ms, int) else 0
        if len(self.store_id) != 8:
            raise StoreFormatError("it has no store id of 8 bytes", operation="open", path=str(file.path))

    def load_epochs(self, accept_backup: bool) -> Epochs:
        """The log's epochs; the first one for a new store."""
        loaded = self._epoch_file.load(accept_backup)
        if loaded is None:
            return Epochs([])
        return Epochs.of_content(loaded.content, str(self._epoch_file.path))

    def save_epochs(self, epochs: Epochs) -> None:
        """Make the epochs durable."""
        self._epoch_file.save(epochs.content(), epochs.current)

    def clean_end(self) -> int | None:
        """The log's end as a clean close wrote it; None = the store was not closed cleanly."""
        try:
            file = self._disk.open_to_read(self._clean)
        except FileNotFoundError:
            return None
        text = bytes(file.read(0, 32)).strip()
        file.close()
        return int(text) if text.isdigit() else None

    def mark_open(self) -> None:
        """Remove the mark of a clean close, before anything is appended."""
        self._disk.unlink(self._clean)
        self._disk.sync_directory(self.directory)

    def mark_clean(self, end: int) -> None:
        """Say that everything up to `end` is durable and nothing lies behind it."""
        file = self._disk.open(self._clean, create=True)
        file.truncate(0)
        file.write([f"{end}\n".encode()], 0)
        file.sync()
        file.close()
        self._disk.sync_directory(self.directory)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
