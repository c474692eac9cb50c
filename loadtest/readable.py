"""When each second of the job's table `tps_1s` was readable in full, seen by a reader who keeps looking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

_US_PER_S: Final = 1_000_000


class Readable:
    """The messages of each second as they were seen last, and when they became so many; no IO.

    Counts only grow: the last change of a second is the moment at which it was readable in full.
    """

    def __init__(self) -> None:
        self.totals: dict[int, int] = {}
        self._since: dict[int, float] = {}

    def see(self, totals: Mapping[int, int], now: float) -> None:
        """Take messages by second as they are readable at `now`; both are seconds of the epoch."""
        for second, total in totals.items():
            if self.totals.get(second) != total:
                self.totals[second] = total
                self._since[second] = now

    def lags_s(self, first: int, end: int) -> list[float]:
        """Return, for the seconds that have messages from `first` to before `end`, when they were readable.

        In seconds after the second's end; in order of the seconds.
        """
        return [self._since[second] - (second + 1) for second in sorted(self._since) if first <= second < end]


class Seconds(Protocol):
    """Where the counts are read from; blocking."""

    def totals(self) -> Mapping[int, int]:
        """Return messages by second, of those at least that changed since the last call."""

    def close(self) -> None:
        """Give back what is held."""


class DeltaSeconds:
    """Reads the Delta table at `path` as the console does: a snapshot is advanced, new files are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: DeltaTable | None = None
        self._version = -1
        self._files: dict[str, dict[int, int]] = {}
        self._totals: Counter[int] = Counter()

    def totals(self) -> Mapping[int, int]:
        """Return messages by second; nothing while there is no table."""
        if self._table is None:
            try:
                self._table = DeltaTable(self._path)
            except TableNotFoundError:
                return {}
        else:
            self._table.update_incremental()
        if self._table.version() != self._version:
            self._take(self._table)
            self._version = self._table.version()
        return self._totals

    def _take(self, table: DeltaTable) -> None:
        names = set(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())
        for gone in self._files.keys() - names:
            self._totals.subtract(self._files.pop(gone))
        for new in names - self._files.keys():
            self._files[new] = self._read(new)
            self._totals.update(self._files[new])

    def _read(self, name: str) -> dict[int, int]:
        rows: Any = pq.read_table(self._path / name, columns=["second", "messages"])
        found = rows.group_by("second").aggregate([("messages", "sum")])
        seconds = pc.divide(pc.cast(found["second"], pa.int64()), _US_PER_S).to_pylist()
        return dict(zip(seconds, found["messages_sum"].to_pylist(), strict=True))

    def close(self) -> None:
        """Nothing is held between calls."""


class PostgresqlSeconds:
    """Reads the table of a PostgreSQL database: the last `LOOK_BACK_S` seconds."""

    LOOK_BACK_S: Final = 300

    def __init__(self, url: str) -> None:
        import psycopg  # of the extra holdmq[postgresql]

        self._missing = psycopg.errors.UndefinedTable
        self._connection = psycopg.connect(url, autocommit=True)

    def totals(self) -> Mapping[int, int]:
        """Return messages by second; nothing while there is no table."""
        query = (
            "SELECT extract(epoch FROM second)::bigint, sum(messages)::bigint FROM holdmq.tps_1s "
            "WHERE second >= now() - make_interval(secs => %s) GROUP BY second"
        )
        try:
            return dict(self._connection.execute(query, (self.LOOK_BACK_S,)).fetchall())
        except self._missing:
            return {}

    def close(self) -> None:
        """End the connection to the database."""
        self._connection.close()
