"""The rows of a store's tables, read while no broker has it open; nothing of the database is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from storage.api.tables import RowChanged
from storage.log.tables.core.tables import split_row
from storage.log.tables.files import APPLIED, META, failure_of


class OfflineTables:
    """The tables of one store: `applied_position` is the log position up to which rows have what it says."""

    def __init__(self, env: lmdb.Environment | None, path: Path) -> None:
        self.applied_position = 0
        self._env = env
        self._path = path
        if env is not None:
            with env.begin() as txn:
                raw = txn.get(META)
            self.applied_position = APPLIED.unpack(raw)[0] if raw else 0

    def rows(self, wanted: str = "") -> Iterator[RowChanged]:
        """Every row, of one table or of all, by topic and key. Raises StorageError."""
        if self._env is None:
            return
        try:
            with self._env.begin(buffers=True) as txn, txn.cursor() as cursor:
                for place, raw in cursor.iternext() if cursor.set_range(wanted.encode()) else ():
                    name, zero, _ = bytes(place).partition(b"\0")
                    if wanted and name != wanted.encode():
                        return
                    if name and zero:
                        topic = name.decode()
                        row = split_row(topic, bytes(place), raw)
                        yield RowChanged(topic, row.key, bytes(row.value), row.version)
        except lmdb.Error as error:
            raise failure_of(error, "read", self._path) from error


@contextmanager
def opened_tables(directory: Path) -> Iterator[OfflineTables]:
    """Read the tables of a store's directory, whose lock the caller has. Raises StorageError."""
    path = directory / "tables" / "current.mdb"
    if not path.exists():
        yield OfflineTables(None, path)
        return
    try:
        env = lmdb.open(str(path), subdir=False, readonly=True, lock=False)
    except lmdb.Error as error:
        raise failure_of(error, "open", path) from error
    try:
        yield OfflineTables(env, path)
    finally:
        env.close()
