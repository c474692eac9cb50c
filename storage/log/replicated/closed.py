"""A copy's directory while no store has it open: its log is cut to the leader's, or given up.

::

    received.mdb        a leader's tables, before they take the place of those that are here
    begin-anew.json     written before the first file of a log that is given up goes; gone when all is done
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from holdmq.errors import StorageError, StoreFormatError, StoreFullError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import FULL_ERRORS, Disk
from storage.api.replication import Epoch, LogStart, TableSnapshot
from storage.core.epochs import Epochs
from storage.log.core.names import name_of
from storage.log.flusher import Checkpoint
from storage.log.home import STORE_FORMAT, StoreDirectory
from storage.log.replicated.identity import NAME as NOTE
from storage.log.segments import Segments
from storage.log.tables.files import save_copied

COPY_BYTES: Final = 4 << 20
INTENT: Final = "begin-anew.json"
RECEIVED: Final = "received.mdb"

log = structlog.get_logger("holdmq.storage")


class ClosedLogDirectory:
    """`storage.api.replication.ClosedLog` of the broker `name` in `directory`. Every method blocks."""

    def __init__(self, disk: Disk, directory: Path, name: str, segment_size: int) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self._segment_size = segment_size
        self._intent = AtomicFile(directory / INTENT, disk)

    def cut(self, position: int, epochs_kept: int) -> None:
        """Cut the log at `position`, a boundary of records at or above what is confirmed. StorageError."""
        home = StoreDirectory(self._disk, self._directory)
        home.open(self._name, accept_backup=False)
        try:
            self._cut(home, position, epochs_kept)
        except OSError as error:
            raise _failure(error, "cut", self._directory, position) from error
        finally:
            home.close()

    def _cut(self, home: StoreDirectory, position: int, epochs_kept: int) -> None:
        checkpoint = Checkpoint(home.checkpoint_file)
        checkpoint.load(accept_backup=False)
        if position < checkpoint.position:
            raise StorageError(
                f"the log is confirmed up to {checkpoint.position}",
                operation="cut",
                path=str(self._directory),
                offset=position,
                hint="the leader's log lacks what is confirmed here: find out which copy is right",
            )
        # The bytes first: an epoch without any says nothing that is not so, bytes without their epoch would.
        home.mark_open()
        segments = Segments(self._disk, home.commitlog, self._segment_size)
        segments.load()
        try:
            self._keep(home, segments, position)
            segments.cut(position)
            segments.sync()
        finally:
            segments.close()
        known = home.load_epochs(False)
        home.save_epochs(Epochs(list(known.all[:epochs_kept])))

    def _keep(self, home: StoreDirectory, segments: Segments, position: int) -> None:
        """Copy what is cut off to cut/: nobody was told that it is there, but somebody may look for it."""
        kept = 0
        for segment in segments.table:
            if segment.end <= position:
                continue
            begin = max(position, segment.start)
            file = self._disk.open_to_read(segment.path)
            try:
                written = max((end for _, end in file.data_ranges(begin - segment.start)), default=0)
                if written <= begin - segment.start:
                    continue
                self._disk.make_directory(home.cut)
                copy = self._disk.create_anew(home.cut / name_of(begin))
                try:
                    for at in range(begin - segment.start, written, COPY_BYTES):
                        copy.write(
                            [file.read(at, min(COPY_BYTES, written - at))], at - (begin - segment.start)
                        )
                    copy.sync()
                finally:
                    copy.close()
                kept += written - (begin - segment.start)
            finally:
                file.close()
        if kept:
            self._disk.sync_directory(home.cut)
        log.warning("the log was cut to its leader's", at=position, kept_in=str(home.cut), bytes=kept)

    def receive(self, data: bytes, offset: int) -> None:
        """Write bytes of a leader's tables, from offset 0 on. StorageError."""
        path = self._directory / RECEIVED
        try:
            file = self._disk.open(path) if offset else self._disk.create_anew(path)
            try:
                file.write([data], offset)
                file.sync()
            finally:
                file.close()
        except OSError as error:
            raise _failure(error, "receive tables", self._directory, None) from error

    def start_over(self, start: LogStart) -> None:
        """Give up everything in the directory, and begin an empty log at `start`. StorageError.

        Killed anywhere, `finish` goes on with it.
        """
        home = StoreDirectory(self._disk, self._directory)
        home.open(self._name, accept_backup=False)
        try:
            self._intent.save(_content(start), 1)
            self._begin_anew(home, start)
        except OSError as error:
            raise _failure(error, "begin anew", self._directory, None) from error
        finally:
            home.close()

    def finish(self) -> None:
        """Go on with what a crash interrupted, if anything: before the directory is opened. StorageError."""
        loaded = self._intent.load(accept_backup=True)
        if loaded is None:
            return
        log.warning("a log that was to begin anew is emptied now", path=str(self._directory))
        home = StoreDirectory(self._disk, self._directory)
        home.open(self._name, accept_backup=False)
        try:
            self._begin_anew(home, _start_of(loaded.content, str(self._intent.path)))
        except OSError as error:
            raise _failure(error, "begin anew", self._directory, None) from error
        finally:
            home.close()

    def _begin_anew(self, home: StoreDirectory, start: LogStart) -> None:
        home.mark_open()
        # Not the directory that it was: what it had acknowledged is gone.
        for name in (NOTE, NOTE + ".bak"):
            self._disk.unlink(self._directory / name)
        for directory in (home.commitlog, home.keyindex, home.timer):
            self._empty(directory)
        self._take_tables(home, start.tables)
        for topic in self._disk.list(home.consumequeue):
            for queue_id in self._disk.list(home.consumequeue / topic):
                self._empty(home.consumequeue / topic / queue_id)
        checkpoint = Checkpoint(home.checkpoint_file)
        checkpoint.load(accept_backup=True)
        checkpoint.first_position = start.position
        checkpoint.tombstones.clear()
        # The ends of the leader's queues now: what is copied of them begins before.
        checkpoint.floors = dict(start.queue_ends)
        checkpoint.save(start.position, 0, {})
        home.save_epochs(Epochs([Epoch(*epoch) for epoch in start.epochs]))
        segments = Segments(self._disk, home.commitlog, self._segment_size)
        segments.load()
        try:
            segments.cut(start.position)  # makes the segment that begins there
            segments.sync()
        finally:
            segments.close()
        file = AtomicFile(self._directory / "format.json", self._disk, STORE_FORMAT)
        identity = file.load(accept_backup=True)
        assert identity is not None
        content = {**identity.content, "storeId": start.store_id.hex()}
        file.save(content, identity.data_version + 1)
        for path in (self._intent.backup_path, self._intent.path):
            self._disk.unlink(path)
        self._disk.sync_directory(self._directory)

    def _take_tables(self, home: StoreDirectory, tables: TableSnapshot | None) -> None:
        """Put what was received in the place of the tables; a crash may have come after that."""
        received = self._directory / RECEIVED
        is_there = RECEIVED in self._disk.list(self._directory)
        self._empty(home.tables, "" if tables is None or is_there else tables.name)
        if tables is not None:
            self._disk.make_directory(home.tables)
            if is_there:
                self._disk.rename(received, home.tables / tables.name)
                self._disk.sync_directory(home.tables)
                self._disk.sync_directory(self._directory)
            save_copied(self._disk, home.tables, tables)
        elif is_there:
            self._disk.unlink(received)

    def _empty(self, directory: Path, but: str = "") -> None:
        names = [name for name in self._disk.list(directory) if name != but]
        for name in names:
            self._disk.unlink(directory / name)
        if names:
            self._disk.sync_directory(directory)


def _content(start: LogStart) -> dict[str, Any]:
    queues: dict[str, dict[str, int]] = {}
    for (topic, queue_id), end in start.queue_ends.items():
        queues.setdefault(topic, {})[str(queue_id)] = end
    return {
        "storeId": start.store_id.hex(),
        "position": start.position,
        "epochs": [[epoch.epoch, epoch.start] for epoch in start.epochs],
        "queues": queues,
        "tables": None if start.tables is None else list(start.tables),
    }


def _start_of(content: Mapping[str, Any], path: str) -> LogStart:
    try:
        ends = {
            (topic, int(queue_id)): int(end)
            for topic, queues in content["queues"].items()
            for queue_id, end in queues.items()
        }
        epochs = [Epoch(int(epoch), int(start)) for epoch, start in content["epochs"]]
        found = content.get("tables")
        tables = None if found is None else TableSnapshot(str(found[0]), int(found[1]), int(found[2]))
        return LogStart(bytes.fromhex(content["storeId"]), int(content["position"]), epochs, ends, tables)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise StoreFormatError(
            f"it says no beginning of a log: {error}", operation="open", path=path
        ) from error


def _failure(error: OSError, operation: str, directory: Path, position: int | None) -> StorageError:
    kind = StoreFullError if error.errno in FULL_ERRORS else StorageError
    return kind(
        error.strerror or str(error),
        operation=operation,
        path=error.filename or str(directory),
        offset=position,
        hint="the copy is as it was or half emptied; it goes on at the next start",
    )
