"""Where batches are written to, each exactly once: what Delta and PostgreSQL have in common.

A micro-batch is replayed after a crash with the same id and the same records. The transaction that writes its
rows also writes (app, batch id), where the app names the checkpoint: a batch whose id is not above the newest
one of its app is already there, and is skipped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from holdmq.config.analytics import StatsSection
from holdmq.errors import StartupError
from spark_streaming.tables import TableSpec

MAINTENANCE_BATCHES: Final = 50
"""Batches between two rounds of compaction and cleaning: at most this many small files to read."""

_STEP_SHORT_S: Final = 3600
_STEP_LONG_S: Final = 86_400


class Standing(NamedTuple):
    """How a table stands to the checkpoint whose batches it is to get."""

    table: str
    """Name of the table, and where it is."""
    last_batch: int
    """The newest batch of that checkpoint, -1 if it has none."""
    is_used: bool
    """Whether it has batches of any checkpoint."""


class Sink(Protocol):
    """The tables of one query, or of another writer; used by one thread at a time, every call blocks.

    Raises HoldMQError, with what to do, where writing fails for longer than a moment.
    """

    def standings(self, app: str) -> dict[str, Standing]:
        """Return by name how those tables stand that are there.

        Raises StartupError for a table of another version, or with other columns.
        """

    def create(self) -> None:
        """Make the tables that are not there."""

    def last_batch(self, app: str) -> int:
        """Return the newest batch of `app` that every table has, -1 before the first."""

    def write(self, app: str, batch_id: int, rows: Mapping[str, pa.Table]) -> bool:
        """Write `rows`, by table, as batch `batch_id` of `app`; False when every table has it already.

        Tables that have it are left as they are. A batch without rows is written down too.
        """

    def maintain(self, now: dt.datetime) -> bool:
        """Expire rows, fold and clean, ``MAINTENANCE_BATCHES`` batches after the last time; True if it did.

        Call it after every batch: a call need not do it for every table that is due.
        """

    def put_aside(self, name: str) -> str:
        """Move the tables that are there out of the way, under `name`, and return where they are.

        Empty if there are none. They are made anew by `create`.
        """

    def close(self) -> None:
        """Give back what is held; nothing else may be called then."""


def refuse_schema(spec: TableSpec, what: str, version: int, schema: pa.Schema) -> None:
    """Raise StartupError unless `version` and `schema` of the table that is there are those of `spec`."""
    if version > spec.version:
        raise StartupError(
            f"{what} has schema version {version}, written by a newer HoldMQ; this one writes version "
            f"{spec.version}: start the newer one, or choose another place for this one's tables"
        )
    if version < spec.version:
        raise StartupError(
            f"{what} has schema version {version}, and this HoldMQ writes version {spec.version}; "
            "holdmq stats --rebuild puts it aside and counts anew from the log"
        )
    if not schema.equals(spec.schema):
        raise StartupError(
            f"{what} has other columns than version {version} of its schema: {', '.join(schema.names)}; "
            "move it away, or holdmq stats --rebuild puts it aside and counts anew from the log"
        )


def retention_of(stats: StatsSection, table: TableSpec) -> dt.timedelta:
    """Return the age at which rows of `table` go."""
    return dt.timedelta(seconds=getattr(stats, f"{table.name}_retention_s"))


def expiry_edge(now: dt.datetime, retention: dt.timedelta) -> dt.datetime:
    """Return the time before which rows go at `now`.

    In steps, as files at the edge are rewritten: hours, and days where rows are kept for longer than months.
    """
    oldest = now.astimezone(dt.UTC) - retention
    step = _STEP_LONG_S if retention > dt.timedelta(days=60) else _STEP_SHORT_S
    return dt.datetime.fromtimestamp(int(oldest.timestamp()) // step * step, dt.UTC)
