"""A file with a snapshot of what the log says, and when another one is worth its bytes.

In a directory of its own a snapshot costs the log nothing, and is taken often, so that a start reads little.
In the log itself it would fill the log: it is taken when the log has grown by several times its size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from holdmq.files.atomic_file import AtomicFile, Loaded
from holdmq.files.disk import Disk

LOG_PART: Final = 8
"""So many bytes of the log for each of a snapshot: it takes 12 % of the log at most."""
LOG_BYTES_MIN: Final = 1 << 20
"""What a start may read at least: some ten milliseconds."""


class SnapshotFile:
    """One snapshot at `path` of `disk`; `is_in_log`: what it holds is appended to the log that it is of."""

    def __init__(self, path: Path, disk: Disk | None, is_in_log: bool) -> None:
        self.path = path
        self._file = AtomicFile(path, disk)
        self._is_in_log = is_in_log

    def load(self, accept_backup: bool = False) -> Loaded | None:
        """Read it; as `AtomicFile.load`."""
        return self._file.load(accept_backup)

    def save(self, content: dict[str, Any], data_version: int) -> None:
        """Replace it durably; as `AtomicFile.save`."""
        self._file.save(content, data_version)

    def is_worth(self, grown_bytes: int) -> bool:
        """Whether the log has grown enough since the last one for another one."""
        return not self._is_in_log or grown_bytes >= max(LOG_BYTES_MIN, LOG_PART * self._file.size_bytes)
