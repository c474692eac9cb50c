"""Reads the statistics job's table `tps_1s` into a `TpsWindow`, at the cost of the new files alone.

Everything here blocks on a disk: call it from one thread, never from the event loop. The table's
columns are described in docs/spark.md; rows of the same second and topic are summed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from prometheus_client import Counter, Gauge, Histogram

from console.live.core.window import Row, TpsWindow
from holdmq.service import telemetry

REOPEN_AFTER_S: Final = 60.0
"""A snapshot that was not advanced for so long is opened anew: the job cleans its log behind itself."""

_COLUMNS: Final = ["second", "topic", "messages", "bytes"]

REFRESH_SECONDS: Final = Histogram(
    "holdmq_console_tps_refresh_seconds",
    "Time to bring the window up to date with the table.",
    registry=telemetry.METRICS,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)
REFRESH_FAILED: Final = Counter(
    "holdmq_console_tps_refresh_failed_total",
    "Times that the table could not be read.",
    registry=telemetry.METRICS,
)
CELLS: Final = Gauge(
    "holdmq_console_tps_cells",
    "(second, topic) pairs that the live window holds.",
    registry=telemetry.METRICS,
)
CUT_SECONDS: Final = Gauge(
    "holdmq_console_tps_cut_seconds",
    "Seconds dropped from the live window before their time, because it holds too many topics.",
    registry=telemetry.METRICS,
)


class DataFile(NamedTuple):
    """A data file of the table: its path below the table, and its newest second (None: not said)."""

    path: str
    newest: int | None


class TpsTable:
    """The table at `path`, kept open. `window` is what has been read of it."""

    def __init__(self, path: Path, window: TpsWindow | None = None) -> None:
        self.path = path
        self.window = window or TpsWindow()
        self.notice: str | None = None
        """Why the window is empty or may be behind, as a sentence; None when there is nothing to say."""
        self._table: DeltaTable | None = None
        self._table_id = ""
        self._mark: tuple[int, int] | None = None
        self._version = -1
        self._read_at = 0.0

    def refresh(self, now: float) -> None:
        """Bring `window` and `notice` up to date; `now` is seconds since the epoch. Blocking.

        Raises nothing for an absent, empty, damaged or unreadable table: `notice` says it.
        """
        with REFRESH_SECONDS.time():
            try:
                self._refresh(now)
            except TableNotFoundError:
                self._forget()
                self.notice = (
                    f"there is no table {self.path} yet: start the job that writes it, with holdmq stats"
                )
            except (DeltaError, pa.ArrowException, OSError) as error:
                REFRESH_FAILED.inc()
                self._table = None
                self.notice = f"the table {self.path} cannot be read at present: {_first_line(error)}"
        CELLS.set(self.window.cell_count)
        CUT_SECONDS.set(self.window.cut_seconds)

    def _refresh(self, now: float) -> None:
        self.window.forget_before(now)
        table = self._advance()
        if table.version() != self._version:
            self._take(table)
            self._version = table.version()
        self._read_at = time.monotonic()
        self.notice = self._notice(now)

    def _advance(self) -> DeltaTable:
        """Return the table at its newest version, opened anew where going on is impossible."""
        table = self._table
        fresh = time.monotonic() - self._read_at <= REOPEN_AFTER_S
        # Another table in the same place (a data directory that was wiped) has other commits, and going on
        # from the old one's would find nothing, forever.
        if table is not None and fresh and self._commit_mark(table.version()) == self._mark:
            table.update_incremental()
        else:
            table = DeltaTable(str(self.path))
            if (table_id := str(table.metadata().id)) != self._table_id:
                self._forget()
                self._table_id = table_id
        self._table = table
        self._mark = self._commit_mark(table.version())
        return table

    def _commit_mark(self, version: int) -> tuple[int, int] | None:
        """Return what tells the commit of this version from another of the same number; None: it is gone."""
        try:
            stat = (self.path / "_delta_log" / f"{version:020d}.json").stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _take(self, table: DeltaTable) -> None:
        files = {file.path: file for file in _files(table)}
        window = self.window
        for gone in window.files - files.keys():
            window.remove(gone)
        known = window.files
        new = [file for path, file in files.items() if path not in known]
        # Newest first: when the window holds too many topics, it is the oldest seconds that are cut.
        for file in sorted(new, key=lambda f: f.newest if f.newest is not None else 1 << 62, reverse=True):
            if file.newest is None or file.newest >= window.floor:
                window.add(file.path, _rows(self.path / file.path, window.floor))

    def _forget(self) -> None:
        for file in self.window.files:
            self.window.remove(file)
        self._table = None
        self._table_id = ""
        self._version = -1

    def _notice(self, now: float) -> str | None:
        newest = self.window.newest()
        if newest is None:
            if self._table is not None and not self._table.file_uris():
                return "the table has no rows yet: they come about two seconds after the first message"
            return "no messages were counted in the last 15 minutes"
        behind = now - newest
        if behind > 30:
            return f"the newest count is {behind:.0f} s old: no messages came since, or the job stands still"
        return None


def _files(table: DeltaTable) -> Iterator[DataFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    paths: list[str] = actions.column("path").to_pylist()
    newest: list[datetime | None] = (
        actions.column("max.second").to_pylist()
        if "max.second" in actions.column_names
        else [None] * len(paths)
    )
    for path, second in zip(paths, newest, strict=True):
        yield DataFile(path, None if second is None else int(second.timestamp()))


def _rows(path: Path, floor: int) -> list[Row]:
    """Read the rows of one file from the second `floor` on."""
    since = datetime.fromtimestamp(max(0, floor), UTC)
    rows: Any = pq.read_table(path, columns=_COLUMNS, filters=[("second", ">=", since)])
    seconds = pc.divide(pc.cast(rows.column("second"), pa.int64()), 1_000_000)
    return list(
        zip(
            seconds.to_pylist(),
            rows.column("topic").to_pylist(),
            rows.column("messages").to_pylist(),
            rows.column("bytes").to_pylist(),
            strict=True,
        )
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
