"""Delta tables below the job's own directory, written by delta-rs: no JVM, and no server."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from holdmq.errors import HoldMQError, StartupError
from spark_streaming.job.home import unusable
from spark_streaming.job.sink import MAINTENANCE_BATCHES, Standing, expiry_edge, refuse_schema
from spark_streaming.job.spans import FileSpan, runs_to_fold
from spark_streaming.tables import TableSpec, fold, table_path

FILE_TARGET_BYTES: Final = 8 << 20
"""Size at which a compacted file is left alone: bounds what a round rewrites to a fraction of a second."""
FOLD_ROWS_MAX: Final = 1_000_000
"""Rows that are in memory while they are folded, some 100 MB; a span may have more, its neighbours wait."""

_VERSION_KEY: Final = "holdmq.schemaVersion"
_CONFIGURATION: Final = {
    # Readers are promised ten minutes with a snapshot (docs/spark.md).
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    # A reader needs the log for as long as opening the table takes.
    "delta.logRetentionDuration": "interval 1 minutes",
}
_DECORATION: Final = re.compile("\x1b\\[[0-9;]*m|\u21b3")
# Checkpoints and cleaning have their own round; a commit that now and then did more would be late.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class DeltaSink:
    """The tables `specs` below `data_dir`, each written in a commit of its own; one writer, this process."""

    def __init__(
        self, data_dir: Path, specs: Sequence[TableSpec], retention: Callable[[TableSpec], dt.timedelta]
    ) -> None:
        self._data_dir = data_dir
        self._tables = {spec.name: _DeltaTable(data_dir, spec, retention(spec)) for spec in specs}

    def standings(self, app: str) -> dict[str, Standing]:
        return {name: table.standing(app) for name, table in self._tables.items() if table.open()}

    def create(self) -> None:
        for table in self._tables.values():
            table.create()

    def last_batch(self, app: str) -> int:
        return min(table.last_batch(app) for table in self._tables.values())

    def write(self, app: str, batch_id: int, rows: Mapping[str, pa.Table]) -> bool:
        written = False
        for name, table in self._tables.items():
            written |= table.write(app, batch_id, rows.get(name))
        return written

    def maintain(self, now: dt.datetime) -> bool:
        # One table a call: the rounds of all together would make a batch late.
        return any(table.maintain(now) for table in self._tables.values())

    def put_aside(self, name: str) -> str:
        there = [table.path for table in self._tables.values() if table.path.exists()]
        if not there:
            return ""
        aside = self._data_dir / "aside" / name
        try:
            for path in there:
                kept = table_path(aside, path.name)
                kept.parent.mkdir(parents=True, exist_ok=True)
                path.rename(kept)
        except OSError as error:
            raise unusable(self._data_dir, error) from error
        return str(aside)

    def close(self) -> None:
        """Nothing is held between calls."""


class _DeltaTable:
    """One table; `open` or `create` comes first."""

    __slots__ = ("_commits", "_expired_to", "_is_swept", "_retention", "_spec", "_table", "path")

    def __init__(self, data_dir: Path, spec: TableSpec, retention: dt.timedelta) -> None:
        self.path = table_path(data_dir, spec.name)
        self._spec = spec
        self._retention = retention
        self._table: DeltaTable | None = None
        self._commits = 0
        self._expired_to: dt.datetime | None = None
        self._is_swept = False

    def open(self) -> bool:
        """Return whether the table is there; raises StartupError when it is not as this job writes it."""
        if not DeltaTable.is_deltatable(str(self.path)):
            return False
        try:
            table = DeltaTable(self.path)
        except DeltaError as error:
            raise StartupError(
                f"the table {self.path} is damaged: {str(error).splitlines()[0]}; restore it together with "
                "its checkpoint, or holdmq stats --rebuild puts both aside and counts anew from the log"
            ) from error
        version = int(table.metadata().configuration.get(_VERSION_KEY, "1"))
        refuse_schema(self._spec, f"the table {self.path}", version, pa.schema(table.schema().to_arrow()))
        self._table = table
        # Rounds are counted over restarts: a job that is started for a few batches at a time has them too.
        self._commits = table.version() - _checkpoint_version(self.path)
        return True

    def create(self) -> None:
        if self._table is not None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._table = DeltaTable.create(
                self.path,
                self._spec.schema,
                configuration={**_CONFIGURATION, _VERSION_KEY: str(self._spec.version)},
                raise_if_key_not_exists=False,
            )
        except OSError as error:
            raise StartupError(
                f"the table {self.path} cannot be made: {error.strerror or error}; "
                "choose another directory with --set stats.data_dir=DIR"
            ) from error

    def standing(self, app: str) -> Standing:
        # Version 0 is the table as it was made.
        return Standing(str(self.path), self.last_batch(app), self._opened.version() > 0)

    def last_batch(self, app: str) -> int:
        with self._named("read"):
            self._opened.update_incremental()
            found = self._opened.transaction_version(app)
        return -1 if found is None else int(found)

    def write(self, app: str, batch_id: int, rows: pa.Table | None) -> bool:
        if batch_id <= self.last_batch(app):
            return False
        with self._named("written"):
            write_deltalake(
                self._opened,
                self._spec.schema.empty_table() if rows is None else rows,
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction(app, batch_id)]),
                post_commithook_properties=_NO_HOOKS,
            )
        self._commits += 1
        return True

    def maintain(self, now: dt.datetime) -> bool:
        """Files that are replaced here stay readable for the table's deleted-file retention."""
        if self._commits < MAINTENANCE_BATCHES:
            return False
        self._commits = 0
        with self._named("compacted"):
            self._maintain(now)
        return True

    def _maintain(self, now: dt.datetime) -> None:
        self._expire(now)
        if self._spec.fold_s:
            self._fold()
        else:
            self._opened.optimize.compact(target_size=FILE_TARGET_BYTES, post_commithook_properties=_NO_HOOKS)
        self._opened.create_checkpoint()
        self._opened.cleanup_metadata()
        # Once, also files that a killed process wrote and no commit names.
        self._opened.vacuum(dry_run=False, full=not self._is_swept, post_commithook_properties=_NO_HOOKS)
        self._is_swept = True

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Say what fails in here as HoldMQError, in one line; delta-rs tells it in several, with colours."""
        try:
            yield
        except (DeltaError, OSError) as error:
            reason = " ".join(_DECORATION.sub(" ", str(error)).split())
            raise HoldMQError(f"the table {self.path} cannot be {what}: {reason}") from error

    @property
    def _opened(self) -> DeltaTable:
        assert self._table is not None, "open or create comes first"
        return self._table

    def _expire(self, now: dt.datetime) -> None:
        edge = expiry_edge(now, self._retention)
        if self._expired_to is not None and edge <= self._expired_to:
            return
        # A delete commits even when it finds nothing, and the first one of a process may find nothing to do.
        self._opened.delete(f"{self._spec.time} < {_literal(edge)}", post_commithook_properties=_NO_HOOKS)
        self._expired_to = edge

    def _fold(self) -> None:
        """Replace rows of the same keys by one, run by run, each in one commit."""
        spec, table = self._spec, self._opened
        for start_s, end_s in runs_to_fold(self._files(), spec.fold_s, FOLD_ROWS_MAX):
            start, end = (dt.datetime.fromtimestamp(at, dt.UTC) for at in (start_s, end_s))
            rows = table.to_pyarrow_table(filters=[(spec.time, ">=", start), (spec.time, "<", end)])
            write_deltalake(
                table,
                fold(spec, rows),
                mode="overwrite",
                predicate=f"{spec.time} >= {_literal(start)} AND {spec.time} < {_literal(end)}",
                post_commithook_properties=_NO_HOOKS,
            )

    def _files(self) -> list[FileSpan]:
        actions = pa.table(self._opened.get_add_actions(flatten=True))
        if not actions.num_rows:
            return []
        oldest, newest = (actions[f"{which}.{self._spec.time}"].to_pylist() for which in ("min", "max"))
        return [
            FileSpan(int(first.timestamp()), int(last.timestamp()), rows)
            for first, last, rows in zip(oldest, newest, actions["num_records"].to_pylist(), strict=True)
        ]


def _checkpoint_version(path: Path) -> int:
    """Return the version of the newest Delta checkpoint, 0 before the first."""
    try:
        newest = json.loads((path / "_delta_log" / "_last_checkpoint").read_text(encoding="utf-8"))
        return int(newest["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return 0


def _literal(time: dt.datetime) -> str:
    # The literal must have the column's exact type: files are pruned by their statistics without casts.
    return f"arrow_cast('{time.strftime('%Y-%m-%dT%H:%M:%SZ')}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
