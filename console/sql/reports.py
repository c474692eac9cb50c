"""What the analysis page shows besides an analyst's own statements.

The past by topic is a statement over sums; what cannot be summed is read by `holdmq.analytics`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from deltalake.exceptions import DeltaError, TableNotFoundError

from console.live.core.cells import cell, csv_line
from console.sql.core import history
from console.sql.engine import Engine, QueryError, StatementBounds
from holdmq.analytics.reading import read_backlog, read_latency, read_talkers
from holdmq.analytics.schemas import BACKLOG, LATENCY, TALKERS_1M
from holdmq.errors import HoldMQError, UsageError

TALKERS: Final = 20
"""Devices that are listed: a glance; the table has more."""

BACKLOG_POINTS: Final = 200
"""Points of a group: a hundred groups still make no more rows than are read."""

SINK: Final = 'with stats.sink = "delta"'
"""What the job needs for there to be tables here: in PostgreSQL they are read by other tools."""

NEEDS: Final = {BACKLOG: "stats.backlog_interval_s above 0", TALKERS_1M: "stats.devices = true"}
"""What it needs besides, for tables that can be left out."""

STEP_MIN_S: Final = 60
"""What these tables keep by."""

Report = Callable[..., tuple[bytes, str]]


def past(
    engine: Engine,
    bounds: StatementBounds,
    form: str,
    first: int,
    until: int,
    top: int,
    kept_from: dict[str, int],
) -> tuple[bytes, str]:
    """Messages, bytes and latency by topic and step between two moments, in seconds since the epoch."""
    with engine.reading(bounds.seconds) as (rows, present):
        chosen = history.plan(first, until, present, kept_from)
        found = [] if chosen is None else rows(*history.statement(chosen, top))
    if form == "csv":
        lines = [(datetime.fromtimestamp(second, UTC), *rest) for second, *rest in found]
        return _csv(("time", "topic", "messages", "bytes", "latency_max_ms"), lines), ""
    if chosen is None:
        empty: dict[str, Any] = {
            "first": first,
            "until": until,
            "step_seconds": 1,
            "table": None,
            "topics": [],
            "others": None,
        }
        return _json({**empty, "notice": _absent("tps_1s")}), ""
    return _json(history.answer(chosen, found)), ""


def latency(engine: Engine, _bounds: StatementBounds, form: str, first: int, until: int) -> tuple[bytes, str]:
    """Percentiles of store time − born time over all topics, by step; None = above the largest bucket."""

    def points(table: Path, since: datetime, end: datetime, step_s: int) -> Iterable[tuple[Any, ...]]:
        found = read_latency(table, since, end, step_s=step_s)
        return [(point.start, point.messages, *point.quantiles_ms) for point in found]

    return _report(
        engine, form, first, until, LATENCY, ("time", "messages", "p50_ms", "p95_ms", "p99_ms"), points
    )


def backlog(engine: Engine, _bounds: StatementBounds, form: str, first: int, until: int) -> tuple[bytes, str]:
    """The largest backlog of each group by step, in messages and ms of age; with many groups of the range."""

    def points(table: Path, since: datetime, end: datetime, _step_s: int) -> Iterable[tuple[Any, ...]]:
        try:
            step_s = history.step_of(until - first, STEP_MIN_S, BACKLOG_POINTS)
            found = read_backlog(table, since, end, step_s=step_s)
        except UsageError:
            found = read_backlog(table, since, end)
        return [(point.start, point.group, point.lag, point.age_ms) for point in found]

    return _report(engine, form, first, until, BACKLOG, ("time", "group", "messages", "age_ms"), points)


def talkers(engine: Engine, _bounds: StatementBounds, form: str, first: int, until: int) -> tuple[bytes, str]:
    """The devices that sent most messages."""

    def points(table: Path, since: datetime, end: datetime, _step_s: int) -> Iterable[tuple[Any, ...]]:
        return read_talkers(table, since, end, limit=TALKERS)

    return _report(engine, form, first, until, TALKERS_1M, ("client_id", "messages"), points)


REPORTS: Final[dict[str, Report]] = {
    "history": past,
    "latency": latency,
    "backlog": backlog,
    "talkers": talkers,
}


def _report(
    engine: Engine,
    form: str,
    first: int,
    until: int,
    table: str,
    names: tuple[str, ...],
    points: Callable[[Path, datetime, datetime, int], Iterable[tuple[Any, ...]]],
) -> tuple[bytes, str]:
    step_s = history.step_of(until - first, STEP_MIN_S)
    since = datetime.fromtimestamp(first - first % step_s, UTC)
    notice = ""
    try:
        found = list(points(engine.path(table), since, datetime.fromtimestamp(until, UTC), step_s))
    except TableNotFoundError:
        found, notice = [], _absent(table)
    except (HoldMQError, DeltaError, OSError) as error:
        raise QueryError("error", f"the table {table} cannot be read at present: {error}") from error
    if form == "csv":
        return _csv(names, found), notice
    answer: dict[str, Any] = {
        "first": int(since.timestamp()),
        "until": until,
        "step_seconds": step_s,
        "columns": list(names),
        "rows": [[cell(value) for value in row] for row in found],
    }
    return _json({**answer, "notice": notice} if notice else answer), ""


def _absent(table: str) -> str:
    needs = f"{SINK} and {NEEDS[table]}" if table in NEEDS else SINK
    return f"there is no table {table} yet: the statistics job writes it (holdmq stats, {needs})"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _csv(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> bytes:
    return "".join(csv_line([cell(value) for value in row]) for row in [names, *rows]).encode()
