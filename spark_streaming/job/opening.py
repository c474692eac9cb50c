"""Opens the sinks and queries of the job, and refuses tables and checkpoints that do not belong together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from holdmq.config.analytics import StatsSection
from holdmq.errors import ConfigError, StartupError
from spark_streaming.job.backlog import BACKLOG_TABLE, SAMPLES_APP
from spark_streaming.job.checkpoint import QueryCheckpoint
from spark_streaming.job.delta_sink import DeltaSink
from spark_streaming.job.home import JobDirectory
from spark_streaming.job.parts import QueryPart
from spark_streaming.job.query import Query
from spark_streaming.job.sink import Sink, retention_of
from spark_streaming.tables import TableSpec

log = structlog.get_logger("holdmq.stats")


def open_sink(stats: StatsSection, tables: Sequence[TableSpec]) -> Sink:
    """Return the sink that ``stats.sink`` names, for one writer of `tables`.

    Raises ConfigError or StartupError when it cannot be used.
    """
    retention = partial(retention_of, stats)
    if stats.sink == "delta":
        return DeltaSink(Path(stats.data_dir), tables, retention)
    if stats.postgresql_url is None:
        raise ConfigError(
            "stats.sink is postgresql, but stats.postgresql_url is not set; set it to the database's "
            "address, like postgresql://user:password@host:5432/database"
        )
    try:
        from spark_streaming.job.postgresql_sink import PostgresqlSink
    except ModuleNotFoundError as error:
        raise StartupError(
            f"stats.sink = postgresql needs the package {error.name}; "
            "install it: pip install 'holdmq[postgresql]'"
        ) from error
    return PostgresqlSink(stats.postgresql_url.get_secret_value(), tables, retention)


def open_query(stats: StatsSection, home: JobDirectory, part: QueryPart) -> Query:
    """Return the query of `part` with its tables made; StartupError where its checkpoint is of others."""
    sink = open_sink(stats, part.tables)
    checkpoint = QueryCheckpoint(home.checkpoint(part.name))
    names = [table.name for table in part.tables]
    try:
        new = checkpoint.check(stats.sink, names, sink.standings(checkpoint.app))
        sink.create()
        checkpoint.note_tables(stats.sink, names)
    except BaseException:
        sink.close()
        raise
    if new and checkpoint.newest_commit() >= 0:
        log.warning(
            "new tables have rows from now on; holdmq stats --rebuild counts the whole log",
            tables=", ".join(new),
        )
    return Query(part, checkpoint, sink)


def open_samples(stats: StatsSection) -> Sink:
    """Return the sink of the backlog's samples with its table made; StartupError where it is of others."""
    sink = open_sink(stats, (BACKLOG_TABLE,))
    try:
        sink.standings(SAMPLES_APP)
        sink.create()
    except BaseException:
        sink.close()
        raise
    return sink


def put_aside(
    stats: StatsSection, home: JobDirectory, parts: Sequence[QueryPart], now: dt.datetime
) -> list[str]:
    """Move the checkpoints and tables of `parts` out of the way; return where they are now.

    What cannot be counted from the log again stays. Killed in the middle, it leaves what the next start
    refuses, and the next call puts aside.
    """
    name = now.astimezone(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    found = [home.put_checkpoints_aside(name)]
    for part in parts:
        sink = open_sink(stats, part.tables)
        try:
            found.append(sink.put_aside(name))
        finally:
            sink.close()
    return sorted({place for place in found if place})
