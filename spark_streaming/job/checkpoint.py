"""A query's checkpoint, and whether it and the tables it fills belong together.

Spark keeps offsets and commits of every batch in the checkpoint; each table keeps (app, batch id) of what it
has. A checkpoint without its table, or a table without its checkpoint, would make counts that are wrong and
look right, so that neither is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from holdmq.errors import StartupError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from spark_streaming.job.sink import Standing

_REBUILD: Final = "holdmq stats --rebuild puts both aside and counts anew from the log"


class _Listed(NamedTuple):
    """The tables that a checkpoint's batches went to, by the first batch of each, and their kind."""

    sink: str
    tables: dict[str, int]


class QueryCheckpoint:
    """The directory of one query's checkpoint; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._list = AtomicFile(path.with_name(f"{path.name}.tables.json"))

    @property
    def app(self) -> str:
        """The name of its batches' writer: Spark's id of the query; empty before the first start."""
        try:
            query = json.loads((self.path / "metadata").read_text(encoding="utf-8"))
            return f"holdmq-tps-{query['id']}"
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, TypeError) as error:
            raise StartupError(
                f"{self.path / 'metadata'} is damaged: {error}; restore the checkpoint, or {_REBUILD}"
            ) from error

    def newest_commit(self) -> int:
        """Return the newest batch that Spark knows to be written, -1 before the first."""
        try:
            names = [path.name for path in (self.path / "commits").iterdir()]
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def check(self, sink: str, tables: Iterable[str], standings: Mapping[str, Standing]) -> list[str]:
        """Return those of `tables` that are new here; StartupError for what does not belong together.

        `sink` names the kind of the tables, `standings` are those that are there.
        """
        listed = self._listed()
        newest = self.newest_commit()
        if listed.sink not in ("", sink):
            raise StartupError(
                f"the checkpoint {self.path} belongs to tables in {listed.sink}, and stats.sink is {sink}; "
                f"set it back, or {_REBUILD}"
            )
        new = []
        for name in tables:
            standing = standings.get(name)
            if standing is not None:
                self._check_standing(standing, newest, listed.tables.get(name))
            # Without a list nobody knows which tables there were, but one there was.
            elif name in listed.tables or (newest >= 0 and not listed.tables and not standings):
                raise StartupError(
                    f"the checkpoint {self.path} is of batches up to {newest}, but its table {name} is gone: "
                    f"what was counted would be missing; restore the table, or {_REBUILD}"
                )
            else:
                new.append(name)
        return new

    def note_tables(self, sink: str, tables: Iterable[str]) -> None:
        """Write down that the tables exist, and from which batch on those that are new have rows."""
        listed = self._listed()
        start = self.newest_commit() + 1
        # Tables of a newer HoldMQ stay listed: what this one does not write to them will be missing there.
        noted = {**dict.fromkeys(tables, start), **listed.tables}
        if (sink, noted) != (listed.sink, listed.tables):
            self._list.save({"sink": sink, "tables": noted}, 1)

    def _check_standing(self, standing: Standing, newest: int, expected_from: int | None) -> None:
        if standing.last_batch < 0 and standing.is_used:
            raise StartupError(
                f"the table {standing.table} has rows, but its checkpoint {self.path} is gone or another "
                f"one: counting from the log would count twice; restore the checkpoint, or {_REBUILD}"
            )
        if expected_from is not None and expected_from <= newest and standing.last_batch < newest:
            raise StartupError(
                f"the checkpoint {self.path} is of batches up to {newest}, but its table {standing.table} "
                f"has them up to {standing.last_batch}: what was counted would be missing; restore the table "
                f"of that time, or {_REBUILD}"
            )
        if standing.last_batch > newest + 1:
            raise StartupError(
                f"the table {standing.table} has batches up to {standing.last_batch}, but its checkpoint "
                f"{self.path} is of batches up to {newest}: what came between would be skipped; restore the "
                f"checkpoint of that time, or {_REBUILD}"
            )

    def _listed(self) -> _Listed:
        try:
            loaded = self._list.load()
        except StoreFormatError as error:
            raise StartupError(
                f"{self._list.path} is damaged; remove it, and its .bak, to have the tables taken as they are"
            ) from error
        if loaded is None:
            return _Listed("", {})
        return _Listed(loaded.content["sink"], loaded.content["tables"])
