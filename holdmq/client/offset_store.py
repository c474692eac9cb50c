"""Where a broadcast consumer stands, in a file of its own, because brokers keep nothing for it.

`<directory>/<client id>/<group>/offsets.json`, replaced as a whole, its predecessor beside it as `.bak`;
`lock` is held while a consumer uses them. All methods block: call them on a thread. A position is the
log epoch and the next offset. Source: broker.md, Three ways to consume.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import structlog

from holdmq.client.cursors import Position
from holdmq.errors import StorageError, StoreFormatError, UsageError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk, RealDisk
from holdmq.message import TopicQueue
from holdmq.names.tenants import in_tenant, within

DIRECTORY: Final = "~/.holdmq_offsets"
FILE: Final = "offsets.json"
NAME_BYTES_MAX: Final = 255
"""What a file system takes as a name."""

log = structlog.get_logger("holdmq.client")


class OffsetStore:
    """One consumer's file. `open`, then `save` as often as wanted, then `close`.

    `tenant`: whose words the names are in; the file has whole ones, as two tenants may name groups alike.
    """

    def __init__(
        self,
        directory: str | Path,
        client_id: str,
        group: str,
        disk: Disk | None = None,
        *,
        tenant: str = "",
    ) -> None:
        name = quote(client_id, safe=" @+=,:")
        if name in ("", ".", "..") or len(name) > NAME_BYTES_MAX:
            raise UsageError(f"client id {client_id!r} names no directory: give one of 1 to 255 characters")
        self._home = Path(directory).expanduser() / name / in_tenant(tenant, group)
        self._tenant = tenant
        self._file = AtomicFile(self._home / FILE, disk)
        self._version = 0
        self._backed: dict[TopicQueue, Position] = {}
        """Positions that file and `.bak` have, or are ahead of."""
        self._lock = -1

    @property
    def path(self) -> Path:
        """Where the positions are."""
        return self._file.path

    def open(self) -> dict[TopicQueue, Position]:
        """Take the lock and read the positions; {} when there never were any.

        A damaged or missing file is replaced by its `.bak`, which is logged: what was consumed since is
        consumed again. Raises StoreFormatError when neither can be used (nothing is guessed: repair or remove
        them), UsageError when another consumer has the lock, StorageError.
        """
        self._take_lock()
        self._backed = {}
        try:
            try:
                loaded = self._file.load()
            except StoreFormatError as error:
                loaded = self._file.load(accept_backup=True)
                log.error("positions are those of the backup: messages since are consumed again",
                          path=str(self.path), reason=str(error))  # fmt: skip
            if loaded is None:
                return {}
            self._version = loaded.data_version
            return {
                queue._replace(topic=within(self._tenant, queue.topic)): position
                for queue, position in _positions(loaded.content, self.path).items()
            }
        except BaseException:
            self.close()
            raise

    def save(self, positions: Mapping[TopicQueue, Position]) -> None:
        """Replace the file durably. Raises StorageError.

        What begins or goes back is written twice, so that the `.bak` has it: a consumer that has to go on
        with that may go back, and never jumps.
        """
        content: dict[str, dict[str, dict[str, list[int]]]] = {}
        for queue, position in sorted(positions.items()):
            topic = in_tenant(self._tenant, queue.topic)
            of_broker = content.setdefault(topic, {}).setdefault(queue.broker, {})
            of_broker[str(queue.queue_id)] = list(position)
        is_raise = all(q in self._backed and p >= self._backed[q] for q, p in positions.items())
        for _ in range(1 if is_raise else 2):
            self._version += 1
            self._file.save(content, self._version)
        self._backed = dict(positions)

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _take_lock(self) -> None:
        path = self._home / "lock"
        try:
            RealDisk().make_directory(self._home, durable=False)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(path, flags, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageError(
                f"another consumer uses {self._home}: each needs a client_id of its own"
            ) from None
        except OSError as error:
            self.close()
            raise StorageError(
                error.strerror or str(error),
                operation="open",
                path=str(path),
                hint="give a writable offsets_directory",
            ) from error


def _positions(content: dict[str, Any], path: Path) -> dict[TopicQueue, Position]:
    positions: dict[TopicQueue, Position] = {}
    try:
        for topic, brokers in content.items():
            for broker, queues in brokers.items():
                for queue_id, (epoch, offset) in queues.items():
                    if not all(isinstance(n, int) and n >= 0 for n in (epoch, offset)):
                        raise ValueError(f"{topic}: {broker}: {queue_id}")
                    positions[TopicQueue(topic, broker, int(queue_id))] = Position(epoch, offset)
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreFormatError(
            f"an entry is no position: {error}", operation="open", path=str(path), hint="repair or remove it"
        ) from error
    return positions
