"""Where a broker's state files are: in its directory, or in its log, and how they move from one to the other.

::

    config/*.json ─► log: every file ─► settled ─► config/home.json: the log ─► config/before-log/*.json
    config/home.json ◄─ files: every file of the log, whole ─► home.json removed

A move that ends anywhere begins again at the next start, or has been made: `home.json` is what counts.
Without it the files of the directory do, if there are any, else the log: a copy of a log has no file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import structlog

from holdmq.errors import StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk

HOME_FILE: Final = "home.json"
ASIDE: Final = "before-log"
"""What the files were before they moved into the log stays there, for people."""
_STATE: Final = (".json", ".json.bak")

log = structlog.get_logger("holdmq.broker")


class StateHome:
    """The state files of one broker below `directory`. Every method blocks; OSError and StorageError."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._home = AtomicFile(directory / HOME_FILE, disk)

    def is_log(self) -> bool:
        """Whether the log has them. What lies in the directory besides counts for nothing then."""
        return self.is_marked() or not self._names(self._disk)

    def is_marked(self) -> bool:
        """Whether a move into the log was made here, and none back."""
        return self._home.load(accept_backup=True) is not None

    def refuse_without(self, names: Collection[str]) -> None:
        """Raise StoreFormatError unless the directory has these files."""
        there = self._names(self._disk)
        missing = [name for name in names if name not in there]
        if missing:
            raise StoreFormatError(
                "it is missing, but the log has records",
                operation="open",
                path=str(self._directory / missing[0]),
                hint="restore it from a backup, or start once with --accept-backup without what it held",
            )

    def give_up(self) -> None:
        """Let the log have the state, and count nothing of what the directory has: the log is another's."""
        self._home.save({"home": "log"}, 1)
        self._put_aside()

    def move_into_log(
        self, logged: Disk, accept_backup: bool = False, settle: Callable[[], None] | None = None
    ) -> None:
        """Let the log have them from now on; nothing if it has them already.

        `settle` does what else must be so before the log counts; it is called when the files are in there.
        Raises StoreFormatError, and moves nothing, when one of them cannot be read, unless `accept_backup`:
        in the directory it is more easily put right.
        """
        if not self.is_log():
            names = self._names(self._disk)
            for name in () if accept_backup else {name.removesuffix(".bak") for name in names}:
                AtomicFile(self._directory / name, self._disk).load()
            for name in names:
                _copy(self._disk, logged, self._directory / name)
            for name in set(self._names(logged)) - set(names):
                logged.unlink(self._directory / name)
            log.info("the broker's state has moved into its log", files=len(names))
            logged.sync_all(self._directory)
            if settle is not None:
                settle()
        if not self.is_marked():
            self._home.save({"home": "log"}, 1)
        self._put_aside()

    def move_out_of_log(self, logged: Disk) -> None:
        """Let the directory have them from now on; nothing if it has them already."""
        if not self.is_marked():
            return
        names = self._names(logged)
        self._disk.make_directory(self._directory)
        for name in names:
            _copy(logged, self._disk, self._directory / name)
        self._disk.sync_directory(self._directory)
        # The backup first: alone it would count.
        for path in (self._home.backup_path, self._home.path):
            self._disk.unlink(path)
            self._disk.sync_directory(self._directory)
        log.info("the broker's state has moved out of its log", files=len(names))

    def _names(self, disk: Disk) -> list[str]:
        names = disk.list(self._directory)
        return sorted(name for name in names if name.endswith(_STATE) and not name.startswith(HOME_FILE))

    def _put_aside(self) -> None:
        """Move files that do not count any more out of sight: no start must take them for the state."""
        names = self._names(self._disk)
        if not names:
            return
        aside = self._directory / ASIDE
        self._disk.make_directory(aside)
        for name in names:
            self._disk.rename(self._directory / name, aside / name)
        self._disk.sync_directory(aside)
        self._disk.sync_directory(self._directory)
        log.info("state files that the log has now were put aside", path=str(aside), files=names)


def _copy(source: Disk, target: Disk, path: Path) -> None:
    """Give the target the file of the source, whole or not at all."""
    file = source.open_to_read(path)
    try:
        content = bytes(file.read(0, file.size()))
    finally:
        file.close()
    draft = path.with_name(path.name + ".tmp")
    copy = target.create_anew(draft)
    try:
        copy.write([content], 0)
        copy.sync()
    finally:
        copy.close()
    target.rename(draft, path)
    target.sync_directory(path.parent)
