"""The tables' database and its snapshots on disk.

::

    tables/current.mdb                  the database: all rows, and how far the log is applied
    tables/snapshot.<20 digits>.mdb     a copy, named by the log position that it is applied up to
    tables/snapshot.json                which copy counts, and up to where nothing changed since

Rows, the size of each table and the applied position change in one transaction, and LMDB syncs data
before it can refer to it: after any crash the database is the state at some applied position. Only LMDB
touches the database's bytes; what is done to whole files goes through the disk. Source: storage.md, Tables.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from threading import Condition
from typing import Final, NamedTuple

import lmdb
import structlog

from holdmq.errors import StorageError, StoreFormatError, StoreFullError, StoreReadOnlyError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk
from storage.api.replication import TableSnapshot
from storage.api.tables import END_OF_WALK, STOP, TAKE, Judge, RowChanged, TableSize, VersionedRow, WalkedRow
from storage.log.core.names import name_of
from storage.log.failures import FULL_HINT, READ_ONLY_HINT
from storage.log.tables.core.tables import (
    PLAIN_KEY_MAX,
    decode_row,
    encode_row,
    row_key,
    scan_prefix,
    split_row,
)

MAP_BYTES: Final = 64 << 20
"""The database's first size limit; it is doubled whenever it is reached, and disk is used as needed."""
COPY_BYTES: Final = 4 << 20
"""One read of a snapshot that is put in the database's place."""
FULL_BYTES: Final = 1 << 20
"""With less room an input/output error is the disk's being full: a transaction may need as much."""
READERS_MAX: Final = 512
"""Threads that may read at a time: LMDB has a slot for each."""
META: Final = b"\0applied"
"""No topic begins with a zero byte, so no row can have this key."""
APPLIED: Final = Struct(">QQ")
_SIZES: Final = b"\0sizes"
"""Before each table's name: its rows and bytes. Alone: the sizes of all tables are there."""
_SIZE: Final = Struct(">QQ")

log = structlog.get_logger("holdmq.storage")


class Applied(NamedTuple):
    """The database holds the log below `position`, as it was in this log epoch."""

    position: int
    epoch: int


def failure_of(error: lmdb.Error, operation: str, path: Path) -> StorageError:
    """What an error of LMDB means for the store."""
    reason = f"LMDB: {error}"
    if isinstance(error, (lmdb.MapFullError, lmdb.DiskError)):
        return full_failure(reason, operation, path)
    return StoreReadOnlyError(reason, operation=operation, path=str(path), hint=READ_ONLY_HINT)


def full_failure(reason: str, operation: str, path: Path) -> StoreFullError:
    """What it means for the store that there is no room: service resumes by itself."""
    return StoreFullError(reason, operation=operation, path=str(path), hint=FULL_HINT)


def save_copied(disk: Disk, directory: Path, snapshot: TableSnapshot) -> None:
    """Note that a leader's snapshot lies in `directory`: a start makes it the tables. StorageError."""
    file = AtomicFile(directory / "snapshot.json", disk)
    content = {"file": snapshot.name, "position": snapshot.position, "copied": snapshot.position}
    file.save(content, 1)


class TableFiles:
    """The opened database. One thread writes, reads may be on any; all of it may wait for the disk.

    `snapshot_position`: the snapshot holds the log below it, as nothing changed since it was made.
    `base_position`: where it was made; 0 without one. `copied_position`: up to where the tables, which are a
    leader's, may be ahead of this copy's log.
    """

    def __init__(self, disk: Disk, directory: Path, map_bytes: int = MAP_BYTES) -> None:
        self.directory = directory
        self.applied = Applied(0, 0)
        self.snapshot_position = 0
        self.base_position = 0
        self.copied_position = 0
        self.map_bytes = map_bytes
        self.growths = 0
        self.snapshots = 0
        self._disk = disk
        self._current = directory / "current.mdb"
        self._file = AtomicFile(directory / "snapshot.json", disk)
        self._version = 0
        self._snapshot: str | None = None
        self._env: lmdb.Environment | None = None
        self._gate = Condition()
        self._readers = 0
        self._is_growing = False
        self._sizes: dict[str, TableSize] = {}
        self._has_sizes = False
        """Whether the database says them; else the next transaction does."""

    # Opening

    def open(self) -> None:
        """Open the database, or an empty one; `applied` is where it stands. Raises StorageError.

        When it is open already nothing happens.
        """
        if self._env is not None:
            return
        self._disk.make_directory(self.directory)
        self._load_snapshot()
        self._open_env()

    def _open_env(self) -> None:
        try:
            self._env = self._open_database()
        except lmdb.Error as error:
            log.error("the tables' database cannot be used", reason=str(error), path=str(self._current))
            self._remove_current()
            try:
                self._env = self._open_database()
            except lmdb.Error as again:
                raise failure_of(again, "open", self._current) from again

    def _open_database(self) -> lmdb.Environment:
        # Without metasync a power loss may undo the newest transactions, never tear one: the log has them.
        env = lmdb.open(
            str(self._current),
            self.map_bytes,
            subdir=False,
            metasync=False,
            max_readers=READERS_MAX,
            mode=0o640,
        )
        try:
            self.map_bytes = max(self.map_bytes, env.info()["map_size"])
            env.reader_check()  # a killed process leaves its slots
            with env.begin() as txn:
                raw = txn.get(META)
                self._has_sizes = txn.get(_SIZES) is not None
                self._sizes = _read_sizes(txn) if self._has_sizes else _count_sizes(txn)
        except lmdb.Error:
            env.close()
            raise
        self.applied = Applied(*APPLIED.unpack(raw)) if raw else Applied(0, 0)
        return env

    def _load_snapshot(self) -> None:
        try:
            loaded = self._file.load()
        except StoreFormatError as error:
            log.error("the tables' snapshot cannot be used", reason=str(error))
            loaded = None
        if loaded is not None:
            self._version = loaded.data_version
            self._set_snapshot(loaded.content["file"], loaded.content["position"])
            self.copied_position = loaded.content.get("copied", 0)
        for name in self._disk.list(self.directory):
            if (
                name.startswith("snapshot.")
                and name.endswith((".mdb", ".mdb.tmp"))
                and name != self._snapshot
            ):
                self._disk.unlink(self.directory / name)

    def restore(self, from_snapshot: bool) -> None:
        """Put the last snapshot in the database's place, or nothing: then, or without one, it is empty."""
        self.close()
        self._remove_current()
        if not from_snapshot or self._snapshot is None or not self._copy_snapshot(self._snapshot):
            self._set_snapshot(None, 0)
        self._open_env()

    def _copy_snapshot(self, name: str) -> bool:
        try:
            source = self._disk.open_to_read(self.directory / name)
        except FileNotFoundError:
            return False
        target = self._disk.open(self._current, create=True)
        try:
            for at in range(0, source.size(), COPY_BYTES):
                target.write([source.read(at, COPY_BYTES)], at)
            target.sync()
        finally:
            source.close()
            target.close()
        return True

    def _remove_current(self) -> None:
        self._disk.unlink(self._current)
        self._disk.unlink(self._current.with_name(self._current.name + "-lock"))

    def close(self) -> None:
        """Close the database; reads from now on are refused."""
        with self._alone():
            if self._env is not None:
                self._env.close()
                self._env = None

    # Reads

    def get(self, topic: str, key: bytes) -> VersionedRow | None:
        """The row of a key; None = it has no value."""
        row_key_ = row_key(topic, key)
        with self._reading() as env:
            try:
                with env.begin() as txn:
                    raw = txn.get(row_key_)
            except lmdb.Error as error:
                raise failure_of(error, "get", self._current) from error
        return None if raw is None else decode_row(topic, row_key_, raw)

    def get_many(
        self, topic: str, keys: Sequence[bytes], max_bytes: int | None = None
    ) -> list[VersionedRow | None]:
        """The rows of keys, as they were at one moment; the first ones that fit `max_bytes`, but one."""
        row_keys = [row_key(topic, key) for key in keys]
        with self._reading() as env:
            try:
                with env.begin() as txn:
                    found: list[bytes | None] = []
                    left = max_bytes
                    for row_key_ in row_keys:
                        raw = txn.get(row_key_)
                        if left is not None and raw is not None:
                            if found and len(raw) > left:
                                break
                            left -= len(raw)
                        found.append(raw)
            except lmdb.Error as error:
                raise failure_of(error, "get", self._current) from error
        return [
            None if raw is None else decode_row(topic, row_key_, raw)
            for row_key_, raw in zip(row_keys, found, strict=False)
        ]

    def scan(
        self, topic: str, prefix: bytes, after: bytes | None, count: int, size: int
    ) -> tuple[list[VersionedRow], bool]:
        """Rows whose key begins with `prefix`, behind the key `after`; True = there are more."""
        begin = scan_prefix(topic, prefix)
        rows: list[VersionedRow] = []
        start = begin if after is None else max(begin, row_key(topic, after) + b"\0")
        with self._reading() as env:
            try:
                with env.begin() as txn, txn.cursor() as cursor:
                    going_on = cursor.set_range(start)
                    while going_on:
                        row_key_ = cursor.key()
                        if not row_key_.startswith(begin):
                            return rows, False
                        row = decode_row(topic, row_key_, cursor.value())
                        if row.key.encode().startswith(prefix):
                            if rows and (len(rows) >= count or size < len(row.value)):
                                return rows, True
                            rows.append(row)
                            size -= len(row.value)
                        going_on = cursor.next()
            except lmdb.Error as error:
                raise failure_of(error, "scan", self._current) from error
        return rows, False

    def walk(self, topic: str, begin: bytes, after: bytes | None, judge: Judge) -> Generator[WalkedRow]:
        """The rows that `judge` takes, from the key `begin` on, or behind `after`, in the order of the keys.

        Keys of more than 367 bytes lie in no order among those that begin as they do: there it goes on one
        by one, whatever the judge says.
        """
        base = scan_prefix(topic, b"")
        start = scan_prefix(topic, begin)
        if after is not None:
            start = max(start, row_key(topic, after) + b"\0")
        with self._reading() as env:
            try:
                with env.begin(buffers=True) as txn, txn.cursor() as cursor:
                    going_on = cursor.set_range(start)
                    while going_on:
                        place = bytes(cursor.key())
                        if not place.startswith(base):
                            return
                        row = split_row(topic, place, cursor.value())
                        judged = judge(row.key)
                        if judged is STOP:
                            return
                        if judged is TAKE:
                            yield row
                        elif len(row.key) <= PLAIN_KEY_MAX:
                            if judged is END_OF_WALK:
                                return
                            target = scan_prefix(topic, judged)
                            if target > place:
                                going_on = cursor.set_range(target)
                                continue
                        going_on = cursor.next()
            except lmdb.Error as error:
                raise failure_of(error, "walk", self._current) from error

    def rows_of(self, topic: str) -> tuple[Applied, list[VersionedRow]]:
        """All rows of a small table, and how far the log is in them: both of one moment."""
        begin = scan_prefix(topic, b"")
        rows: list[VersionedRow] = []
        with self._reading() as env:
            try:
                with env.begin() as txn, txn.cursor() as cursor:
                    raw = txn.get(META)
                    going_on = cursor.set_range(begin)
                    while going_on and cursor.key().startswith(begin):
                        rows.append(decode_row(topic, cursor.key(), cursor.value()))
                        going_on = cursor.next()
            except lmdb.Error as error:
                raise failure_of(error, "read", self._current) from error
        return Applied(*APPLIED.unpack(raw)) if raw else Applied(0, 0), rows

    def size_of(self, topic: str) -> TableSize:
        """What a table has."""
        return self._sizes.get(topic, TableSize(0, 0))

    # Writes

    def apply(self, changes: Sequence[RowChanged], applied: Applied) -> None:
        """Apply changes in their order, and note how far the log is applied: all or nothing."""
        while True:
            try:
                self._apply(changes, applied)
            except lmdb.MapFullError:
                self._grow()
            except lmdb.Error as error:
                raise self._write_failure(error) from error
            else:
                self.applied = applied
                return

    def _write_failure(self, error: lmdb.Error) -> StorageError:
        # The write with which a disk fills is a short one, which LMDB calls an input/output error.
        if os.strerror(errno.EIO) in str(error):
            try:
                free = self._disk.space(self.directory).free
            except OSError:
                free = FULL_BYTES
            if free < FULL_BYTES:
                return full_failure(f"LMDB: {error}, on a full disk", "write", self._current)
        return failure_of(error, "write", self._current)

    def _apply(self, changes: Sequence[RowChanged], applied: Applied) -> None:
        sizes = dict(self._sizes)
        changed = set() if self._has_sizes else set(sizes)
        with self._reading() as env, env.begin(write=True, buffers=True) as txn:
            for topic, key, value, version in changes:
                place = row_key(topic, key)
                before = txn.get(place)
                rows, size = sizes.get(topic, (0, 0))
                if before is not None:
                    rows, size = rows - 1, size - len(place) - len(before)
                if value is not None:
                    row = encode_row(key, value, version)
                    rows, size = rows + 1, size + len(place) + len(row)
                    txn.put(place, row)
                elif before is not None:
                    txn.delete(place)
                sizes[topic] = TableSize(rows, size)
                changed.add(topic)
            for topic in changed:
                txn.put(_SIZES + topic.encode(), _SIZE.pack(*sizes[topic]))
            if not self._has_sizes:
                txn.put(_SIZES, b"")
            txn.put(META, APPLIED.pack(*applied))
        self._sizes, self._has_sizes = sizes, True

    def _grow(self) -> None:
        with self._alone():
            assert self._env is not None
            try:
                self._env.set_mapsize(self.map_bytes * 2)
            except lmdb.Error as error:
                raise failure_of(error, "grow", self._current) from error
            self.map_bytes *= 2
            self.growths += 1
        log.info("the tables' database may grow", map_bytes=self.map_bytes)

    def snapshot(self) -> None:
        """Copy the database aside, durably; the last copy goes."""
        name = f"snapshot.{name_of(self.applied.position)}.mdb"
        path = self.directory / name
        temporary = self.directory / (name + ".tmp")
        self._disk.unlink(temporary)
        with self._reading() as env:
            try:
                env.copy(str(temporary), compact=True)
            except lmdb.Error as error:
                raise failure_of(error, "copy", temporary) from error
        file = self._disk.open(temporary)
        try:
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, path)
        self._disk.sync_directory(self.directory)
        before = self._snapshot
        self.snapshots += 1
        self._save(name, self.applied.position)
        if before is not None and before != name:
            self._disk.unlink(self.directory / before)

    def newest(self) -> TableSnapshot | None:
        """The snapshot that counts, for a copy of the log; None = there is none."""
        name, position = self._snapshot, self.snapshot_position
        if name is None:
            return None
        file = self._disk.open_to_read(self.directory / name)
        try:
            return TableSnapshot(name, position, file.size())
        finally:
            file.close()

    def read_snapshot(self, name: str, offset: int, max_bytes: int) -> bytes:
        """Bytes of the snapshot of that name. StorageError when it has gone, or the disk fails."""
        path = self.directory / name
        try:
            if name != self._snapshot:
                raise FileNotFoundError(errno.ENOENT, "a newer one has taken its place", str(path))
            file = self._disk.open_to_read(path)
            try:
                return bytes(file.read(offset, max_bytes))
            finally:
                file.close()
        except OSError as error:
            raise StorageError(error.strerror or str(error), operation="read", path=str(path)) from error

    def extend_snapshot(self, position: int) -> None:
        """Note that nothing changed up to `position`, so that the snapshot holds for it."""
        self._save(self._snapshot, position)

    def _save(self, name: str | None, position: int) -> None:
        self._version += 1
        self._file.save({"file": name, "position": position}, self._version)
        self._set_snapshot(name, position)

    def _set_snapshot(self, name: str | None, position: int) -> None:
        self._snapshot, self.snapshot_position = name, position
        self.base_position = 0 if name is None else int(name.split(".")[1])

    # LMDB's map must not move under a transaction

    @contextmanager
    def _reading(self) -> Iterator[lmdb.Environment]:
        with self._gate:
            while self._is_growing:
                self._gate.wait()
            env = self._env
            if env is None:
                raise StorageError("the tables are closed", operation="read", path=str(self._current))
            self._readers += 1
        try:
            yield env
        finally:
            with self._gate:
                self._readers -= 1
                if not self._readers:
                    self._gate.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._gate:
            self._is_growing = True
            while self._readers:
                self._gate.wait()
        try:
            yield
        finally:
            with self._gate:
                self._is_growing = False
                self._gate.notify_all()


def _read_sizes(txn: lmdb.Transaction) -> dict[str, TableSize]:
    """The size of each table, as the database says."""
    found: dict[str, TableSize] = {}
    with txn.cursor() as cursor:
        going_on = cursor.set_range(_SIZES)
        while going_on and (place := bytes(cursor.key())).startswith(_SIZES):
            topic = place[len(_SIZES) :].decode()
            if topic:
                found[topic] = TableSize(*_SIZE.unpack(cursor.value()))
            going_on = cursor.next()
    return found


def _count_sizes(txn: lmdb.Transaction) -> dict[str, TableSize]:
    """The size of each table of a database that does not say them."""
    found: dict[str, TableSize] = {}
    with txn.cursor() as cursor:
        for place, value in cursor:
            name, zero, _ = bytes(place).partition(b"\0")
            if name and zero:
                rows, size = found.get(name.decode(), (0, 0))
                found[name.decode()] = TableSize(rows + 1, size + len(place) + len(value))
    return found
