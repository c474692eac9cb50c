"""Reads latency, backlog, devices and top talkers of any range out of the statistics job's Delta tables.

Everything here blocks on a disk: call it from a thread, never from an event loop. Each call opens the table
anew and reads it in pieces, so that its memory is that of what it returns. A range is ``since <= t < until``,
both aware; `step_s` cuts it into points that begin at multiples of it since the epoch (None: one point, at
`since`). All raise UsageError for a range that would make too many rows, deltalake's TableNotFoundError where
the job has not made the table yet, and DeltaError, OSError or HoldMQError where it cannot be read.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import deltalake
import pyarrow as pa
import pyarrow.compute as pc

from holdmq.analytics.schemas import LATENCY_ABOVE_MS
from holdmq.analytics.sketches import Union
from holdmq.errors import HoldMQError, UsageError

QUANTILES: Final = (0.5, 0.95, 0.99)
ROWS_MAX: Final = 20_000
"""Most rows of an answer: ten series over a chart's 2,000 points. A sketch in hand takes 4 KiB."""
PARTIAL_ROWS_MAX: Final = 1_000_000
"""Sums of parts that are kept before they are added up: some 50 MB."""

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_START: Final = "start"


class LatencyPoint(NamedTuple):
    """Latencies of `messages` from `start` on; `topic` "" = of all topics together.

    `quantiles_ms`: for each quantile that was asked for, the bound below which it lies; None = above the
    largest bound (60 s).
    """

    start: dt.datetime
    topic: str
    messages: int
    quantiles_ms: tuple[int | None, ...]


class BacklogPoint(NamedTuple):
    """The largest backlog of a group from `start` on, and the largest age of its oldest message.

    `topic` "" = the sum over its topics.
    """

    start: dt.datetime
    group: str
    topic: str
    lag: int
    age_ms: int


class DevicesPoint(NamedTuple):
    """How many different devices sent something from `start` on (±1.6 %); `topic` "" = to any topic."""

    start: dt.datetime
    topic: str
    devices: int


class Talker(NamedTuple):
    """A device, and how many messages of it were counted: at least those that it sent while in the top."""

    client_id: str
    messages: int


def read_latency(
    table_dir: str | Path,
    since: dt.datetime,
    until: dt.datetime,
    *,
    topic: str | None = None,
    by_topic: bool = False,
    step_s: int | None = None,
    quantiles: Sequence[float] = QUANTILES,
) -> list[LatencyPoint]:
    """Return percentiles of store time − born time, by time and topic; points without messages are left out.

    `topic` None = of all. `by_topic`: a row for each, else they are taken together.
    """
    asked = _Range(since, until, step_s, "minute")
    keys = [_START, *(["topic"] if by_topic else []), "le_ms"]
    found = _messages(table_dir, asked, topic, keys)
    histograms: dict[tuple[dt.datetime, str], dict[int, int]] = {}
    for row in found.to_pylist():
        key = (row[_START], row["topic"] if by_topic else topic or "")
        histograms.setdefault(key, {})[row["le_ms"]] = row["messages"]
    _check_rows(len(histograms))
    return [
        LatencyPoint(*key, sum(counts.values()), tuple(percentile(counts, one) for one in quantiles))
        for key, counts in sorted(histograms.items())
    ]


def percentile(counts: dict[int, int], quantile: float) -> int | None:
    """Return the bound of the bucket that the `quantile` (0 to 1) of a histogram lies in.

    `counts` are messages by their bucket's upper bound, in ms, at least one. None = it has no upper bound.
    """
    # 0.07 × 100 is a little more than 7 in binary.
    rank = max(1, math.ceil(round(quantile * sum(counts.values()), 6)))
    seen = 0
    for bound in sorted(counts):
        seen += counts[bound]
        if seen >= rank:
            break
    return None if bound == LATENCY_ABOVE_MS else bound


def read_backlog(
    table_dir: str | Path,
    since: dt.datetime,
    until: dt.datetime,
    *,
    group: str | None = None,
    by_topic: bool = False,
    step_s: int | None = None,
) -> list[BacklogPoint]:
    """Return the backlog of `group` (None = of each) over time, the largest of each point's samples.

    `by_topic`: a row for each topic, else their sum.
    """
    asked = _Range(since, until, step_s, "time")
    names = ["group", *(["topic"] if by_topic else [])]
    largest: dict[tuple[dt.datetime, str, str], tuple[int, int]] = {}
    # A sample is one commit, so that its rows are in one file, but may be in two pieces of it.
    sampled = _aggregated(
        _pieces(table_dir, asked, ["group", "topic", "lag", "age_ms"], [("group", group)]),
        ["time", _START, *names],
        [("lag", "sum"), ("age_ms", "max")],
    )
    for row in sampled.to_pylist():
        key = (row[_START], row["group"], row["topic"] if by_topic else "")
        lag, age_ms = largest.get(key, (0, 0))
        largest[key] = (max(lag, row["lag"]), max(age_ms, row["age_ms"]))
    _check_rows(len(largest))
    return [BacklogPoint(*key, *values) for key, values in sorted(largest.items())]


def read_devices(
    table_dir: str | Path,
    since: dt.datetime,
    until: dt.datetime,
    *,
    topic: str | None = None,
    by_topic: bool = False,
    step_s: int | None = None,
) -> list[DevicesPoint]:
    """Return how many different devices there were, by time and topic: sketches of minutes are merged.

    `topic` None = of all. `by_topic`: a row for each, else a device of two topics counts once.
    """
    asked = _Range(since, until, step_s, "minute")
    unions: dict[tuple[dt.datetime, str], Union] = {}
    for piece in _pieces(table_dir, asked, ["topic", "sketch"], [("topic", topic)]):
        for row in piece.to_pylist():
            key = (row[_START], row["topic"] if by_topic else topic or "")
            union = unions.get(key)
            if union is None:
                _check_rows(len(unions) + 1)
                union = unions[key] = Union()
            try:
                union.add(row["sketch"])
            except ValueError as error:
                raise HoldMQError(
                    f"the table {table_dir} has a sketch of {row[_START]} that cannot be read: {error}"
                ) from error
    return [DevicesPoint(*key, union.estimate()) for key, union in sorted(unions.items())]


def read_talkers(
    table_dir: str | Path,
    since: dt.datetime,
    until: dt.datetime,
    *,
    topic: str | None = None,
    limit: int = 20,
) -> list[Talker]:
    """Return the `limit` devices that sent most messages (to `topic`, None = to any), most first."""
    _check_rows(limit)
    found = _messages(table_dir, _Range(since, until, None, "minute"), topic, ["client_id"])
    first = found.sort_by([("messages", "descending"), ("client_id", "ascending")]).slice(0, limit)
    return [Talker(row["client_id"], row["messages"]) for row in first.to_pylist()]


class _Range:
    """A range of the column `column`, and the points that it is cut into."""

    def __init__(self, since: dt.datetime, until: dt.datetime, step_s: int | None, column: str) -> None:
        if since.tzinfo is None or until.tzinfo is None:
            raise UsageError("since and until need a time zone: datetime.now(datetime.UTC), for example")
        if step_s is not None and step_s < 1:
            raise UsageError(f"a step of {step_s} s: at least 1 is possible")
        self.since, self.until = since.astimezone(dt.UTC), until.astimezone(dt.UTC)
        self.step_s = step_s
        self.column = column
        if step_s is not None:
            _check_rows(math.ceil((self.until - self.since).total_seconds() / step_s))

    def filter(self) -> Any:
        """The rows of the range."""
        return (pc.field(self.column) >= pa.scalar(self.since, _US)) & (
            pc.field(self.column) < pa.scalar(self.until, _US)
        )

    def starts(self, times: pa.Array) -> pa.Array:
        """The beginning of the point that each time is in."""
        if self.step_s is None:
            return pa.repeat(pa.scalar(self.since, _US), len(times))
        step_us = self.step_s * 1_000_000
        micros = pc.cast(times, pa.int64())
        return pc.cast(pc.multiply(pc.divide(micros, step_us), step_us), _US)


_US: Final = pa.timestamp("us", tz="UTC")


def _pieces(
    table_dir: str | Path,
    asked: _Range,
    columns: Sequence[str],
    equal: Iterable[tuple[str, str | None]],
) -> Iterator[pa.Table]:
    """The rows of a range in pieces of bounded size, with the column `start` for the point they are in."""
    wanted = asked.filter()
    for column, value in equal:
        if value is not None:
            wanted &= pc.field(column) == value
    dataset = deltalake.DeltaTable(table_dir).to_pyarrow_dataset()
    for batch in dataset.to_batches(columns=[asked.column, *columns], filter=wanted):
        if batch.num_rows:
            yield pa.table(batch).append_column(_START, asked.starts(batch.column(asked.column)))


def _messages(table_dir: str | Path, asked: _Range, topic: str | None, keys: Sequence[str]) -> pa.Table:
    """The sums of the column `messages` by `keys`."""
    columns = [key for key in keys if key != _START]
    pieces = _pieces(table_dir, asked, [*columns, "messages"], [("topic", topic)])
    return _aggregated(pieces, keys, [("messages", "sum")])


def _aggregated(
    pieces: Iterable[pa.Table], keys: Sequence[str], aggregates: Sequence[tuple[str, str]]
) -> pa.Table:
    """The pieces' rows grouped by `keys`, under the columns' own names; sums and maxima add up in parts."""
    parts: list[pa.Table] = []
    rows = 0

    def add_up(tables: Sequence[pa.Table]) -> pa.Table:
        grouped = pa.concat_tables(tables).group_by(list(keys)).aggregate(list(aggregates))
        names = [f"{column}_{how}" for column, how in aggregates]
        renamed = grouped.select([*keys, *names])
        return renamed.rename_columns([*keys, *(column for column, _ in aggregates)])

    for piece in pieces:
        parts.append(add_up([piece]))
        rows += parts[-1].num_rows
        if rows > PARTIAL_ROWS_MAX:
            parts = [add_up(parts)]
            rows = 0
    if not parts:
        return pa.table({name: [] for name in (*keys, *(column for column, _ in aggregates))})
    return add_up(parts)


def _check_rows(rows: int) -> None:
    if rows > ROWS_MAX:
        raise UsageError(f"more than {ROWS_MAX} rows: ask for a shorter range, larger steps, or fewer topics")
