"""A disk whose files are in the log: `holdmq.files.disk.Disk` as far as state files use it.

A file is written anew as a draft, in memory, and is in the log once it is renamed to its name: when `rename`
returns it is as durable as the log's records are, and every copy of the log has it. A file that is there is
never written in place. What changes files blocks, and is not called on the event loop: it appends there, and
waits for the confirmation.

One change at a time: what a change appends depends on all that is there. A change whose outcome was not known
in time is waited for before the next one; whatever became of it, the files are as the log has them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Final

import structlog

from holdmq.errors import RecordError, StorageError
from holdmq.files.disk import Buffer, OpenFile, Space
from storage.api.batches import Appended, Batch
from storage.api.tables import KeyChange
from storage.core.table_appends import TableAppends
from storage.log.state.core.files import CONFIG_TOPIC, LoggedFiles, is_listing

BATCH_BYTES: Final = 256 << 10
"""What is appended in one turn of the event loop: encoding it takes less than a millisecond."""
BATCH_ROWS: Final = 128
SYNC_LOOK_S: Final = 0.01
WAIT_S: Final = 30.0
"""How long a change waits for its confirmation: longer than a loaded log, or a new set of copies, takes."""

log = structlog.get_logger("holdmq.storage")


class LogFile:
    """A draft, or a whole file as it was when it was opened."""

    def __init__(self, path: Path, content: bytearray, is_draft: bool) -> None:
        self._path = path
        self._content = content
        self._is_draft = is_draft

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._check_draft()
        data = b"".join(buffers)
        if len(self._content) < offset:
            self._content.extend(bytes(offset - len(self._content)))
        self._content[offset : offset + len(data)] = data

    def read(self, offset: int, size: int) -> bytes:
        return bytes(memoryview(self._content)[offset : offset + size])

    def read_ahead(self, offset: int, size: int) -> None:
        """All of it is in memory."""

    def sync(self) -> None:
        """A draft is nobody's after a crash; `LogDisk.rename` makes it durable."""

    def truncate(self, size: int) -> None:
        self._check_draft()
        if size < len(self._content):
            del self._content[size:]
        else:
            self._content.extend(bytes(size - len(self._content)))

    def preallocate(self, size: int) -> None:
        """Memory is taken as it is needed."""

    def size(self) -> int:
        return len(self._content)

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        return [(offset, len(self._content))] if offset < len(self._content) else []

    def try_lock(self) -> bool:
        """Whoever has the log's directory locked has its files."""
        return True

    def close(self) -> None:
        """The disk keeps drafts until they are renamed or made anew."""

    def _check_draft(self) -> None:
        if not self._is_draft:
            raise OSError(errno.EROFS, "state files are replaced as a whole", str(self._path))


class LogDisk:
    """Files of `files`, below `root`; `append` takes their batches, `post` runs a callable on the event loop.

    `synced` is the log position below which all is on this machine's disk, too.

    Where the disks of an operating system raise OSError, a refused append raises the store's StorageError:
    it says more, and whether the same may succeed later.
    """

    def __init__(
        self,
        files: LoggedFiles,
        append: Callable[[Batch, Appended], None],
        post: Callable[[Callable[[], object]], object],
        synced: Callable[[], int],
        root: Path,
        wait_s: float = WAIT_S,
    ) -> None:
        self._files = files
        self._rows = TableAppends(lambda topic: topic == CONFIG_TOPIC, append)
        self._post = post
        self._synced = synced
        self._root = root
        self._wait_s = wait_s
        self._drafts: dict[str, bytearray] = {}
        self._lock = Lock()
        self._unknown: Future[StorageError | None] | None = None

    # holdmq.files.disk.Disk

    def open(self, path: Path, create: bool = False) -> OpenFile:
        name = self._name(path)
        draft = self._drafts.get(name)
        if draft is not None:
            return LogFile(path, draft, True)
        content = self._content(name, path)
        if content is not None:
            return LogFile(path, bytearray(content), False)
        if not create:
            raise FileNotFoundError(errno.ENOENT, "no such state file in the log", str(path))
        return self.create_anew(path)

    def create_anew(self, path: Path) -> OpenFile:
        draft = self._drafts[self._name(path)] = bytearray()
        return LogFile(path, draft, True)

    def open_to_read(self, path: Path) -> OpenFile:
        return self.open(path)

    def list(self, directory: Path) -> list[str]:
        prefix = self._name(directory) + "/"
        names = [*self._files.names(), *self._drafts]
        return sorted({name.removeprefix(prefix) for name in names if name.startswith(prefix)})

    def make_directory(self, directory: Path, durable: bool = True) -> None:
        """Names need no directory."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a draft the name `target`: as one change of the log, confirmed on return."""
        old, new = self._name(source), self._name(target)
        draft = self._drafts.get(old)
        if draft is None:
            raise FileNotFoundError(errno.ENOENT, "no such draft of a state file", str(source))
        content = bytes(draft)
        self._change(lambda: self._files.replaced(new, content), target)
        self._drafts.pop(old, None)

    def unlink(self, path: Path) -> None:
        name = self._name(path)
        if self._drafts.pop(name, None) is None:
            self._change(lambda: self._files.removed(name), path)

    def sync_directory(self, directory: Path) -> None:
        """Every change is confirmed when its call returns, and as durable as any record of this log."""

    def sync_all(self, directory: Path) -> None:
        """Wait until every change is on this machine's disk, as it must be before it counts elsewhere."""
        position = self._files.position
        give_up_at = monotonic() + self._wait_s
        while self._synced() < position:
            if monotonic() > give_up_at:
                raise StorageError(
                    f"the log is not on disk up to {position} after {self._wait_s:g} s",
                    operation="fsync",
                    path=str(directory),
                )
            sleep(SYNC_LOOK_S)

    def space(self, directory: Path) -> Space:
        """As much as one asks for: a full log refuses by itself."""
        return Space(1 << 50, 1 << 50)

    # Changes

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)

    def _content(self, name: str, path: Path) -> bytes | None:
        try:
            return self._files.content(name)
        except RecordError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error

    def _change(self, plan: Callable[[], Sequence[KeyChange]], path: Path) -> None:
        with self._lock:
            if self._unknown is not None:
                self._wait(self._unknown, path)
            try:
                changes = plan()
            except RecordError as error:
                raise OSError(errno.EFBIG, str(error), str(path)) from error
            self._carry_out(changes, path)

    def _carry_out(self, changes: Sequence[KeyChange], path: Path) -> None:
        """Append rows in their order; the change is made with the row that says what its file consists of."""
        is_made = False
        for some in _in_batches(changes):
            error = self._append(some, path)
            if error is not None and is_made:
                log.warning("chunks that no state file has stay in the log for now", reason=str(error))
                return
            if error is not None:
                raise error
            is_made = is_made or any(map(is_listing, some))

    def _append(self, changes: Sequence[KeyChange], path: Path) -> StorageError | None:
        """Append one batch; why it was refused. Raises StorageError when nobody knows in time."""
        ended: Future[StorageError | None] = Future()

        def done(_batch: Batch, error: StorageError | None) -> None:
            ended.set_result(error)

        self._post(lambda: self._rows.change_many(CONFIG_TOPIC, changes, done))
        return self._wait(ended, path)

    def _wait(self, ended: Future[StorageError | None], path: Path) -> StorageError | None:
        self._unknown = ended
        try:
            error = ended.result(self._wait_s)
        except TimeoutError:
            raise StorageError(
                f"the log has not confirmed it within {self._wait_s:g} s; it may do so later",
                operation="write",
                path=str(path),
                hint="see why the log confirms nothing: its disk, or copies that are missing",
            ) from None
        self._unknown = None
        return error


def _in_batches(changes: Sequence[KeyChange]) -> Iterator[list[KeyChange]]:
    """The changes in their order, in batches that are appended one after the other."""
    some: list[KeyChange] = []
    size = 0
    for change in changes:
        length = len(change.key) + len(change.value or b"")
        if some and (size + length > BATCH_BYTES or len(some) == BATCH_ROWS):
            yield some
            some, size = [], 0
        some.append(change)
        size += length
    if some:
        yield some
