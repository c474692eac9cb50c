"""Which directory this is, and whether it surely has all that it acknowledged: replica.json.

A copy that was restored from a backup, or whose machine lost power before everything was fsynced, must not be
taken for one that has everything. Inodes tell a directory from its backup, the boot id tells whether the
machine has been started since.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from holdmq.errors import StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk

NAME: Final = "replica.json"
INCARNATION_BYTES: Final = 16
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

log = structlog.get_logger("holdmq.storage")


class Machine(Protocol):
    """What tells one start of a machine, and one file, from another."""

    def boot_id(self) -> str:
        """Another one after each start of the machine; empty = it is not known."""

    def inode_of(self, path: Path) -> int:
        """A number that a file or directory keeps for its life, and its copy does not have. OSError."""


class RealMachine:
    """The machine that this process runs on."""

    def boot_id(self) -> str:
        try:
            return BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def inode_of(self, path: Path) -> int:
        return os.stat(path).st_ino


class ReplicaNote:
    """replica.json. Every method blocks; StorageError and OSError as the disk says.

    `is_sync`: from now on nothing is acknowledged before it is fsynced.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        machine: Machine,
        is_sync: bool,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.incarnation = b""
        self.is_whole = False
        self._file = AtomicFile(directory / NAME, disk)
        self._identified = (directory / "format.json", directory / "commitlog")
        self._machine = machine
        self._is_sync = is_sync
        self._random_bytes = random_bytes
        self._version = 0

    def open(self, is_clean: bool, is_damaged: bool) -> None:
        """Read what was noted, judge it, and note the judgement.

        `is_clean`: the log was closed, and is as it was then; `is_damaged`: records were lost at this start
        that had been written.
        """
        content = self._load()
        files = [self._machine.inode_of(path) for path in self._identified]
        boot_id = self._machine.boot_id()
        is_same = content.get("files") == files
        self.incarnation = bytes.fromhex(content["incarnation"]) if is_same else b""
        if not self.incarnation:
            self.incarnation = self._random_bytes(INCARNATION_BYTES)
        was_whole = is_same and content.get("isWhole") is True
        # As it was flushed until now, whatever the configuration says today.
        is_certain = is_clean or content.get("isSynced") is True
        is_running_on = boot_id != "" and content.get("bootId") == boot_id
        is_whole = was_whole and not is_damaged and (is_certain or is_running_on)
        if was_whole and not is_whole:
            log.error(
                "this copy may lack what it has acknowledged: it does not lead before it has all of it again",
                why="records were damaged" if is_damaged else "the machine was started again without a close",
            )
        self.save(is_whole)

    def _load(self) -> dict[str, Any]:
        try:
            loaded = self._file.load()
        except StoreFormatError as error:
            log.error("it is not known what this copy had", reason=str(error))
            return {}
        if loaded is None:
            return {}
        self._version = loaded.data_version
        return loaded.content

    def save(self, is_whole: bool) -> None:
        """Note durably whether the copy is whole."""
        self._version += 1
        content = {
            "incarnation": self.incarnation.hex(),
            "isWhole": is_whole,
            "isSynced": self._is_sync,
            "bootId": self._machine.boot_id(),
            "files": [self._machine.inode_of(path) for path in self._identified],
        }
        self._file.save(content, self._version)
        self.is_whole = is_whole
