from __future__ import annotations

import datetime as dt

import pyarrow as pa

from holdmq.analytics.schemas import LATENCY_SCHEMA
from spark_streaming.job.latency import LATENCY_TABLE, latency_rows
from spark_streaming.tables import fold

MINUTE = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)


def counted(*rows: tuple[int, str, int, int]) -> pa.Table:
    """What Spark counted: seconds after MINUTE, topic, le_ms, messages; bytes are not asked for."""
    return pa.table(
        {
            "second": pa.array(
                [MINUTE + dt.timedelta(seconds=row[0]) for row in rows], pa.timestamp("us", "UTC")
            ),
            "topic": pa.array([row[1] for row in rows], pa.string()),
            "le_ms": pa.array([row[2] for row in rows], pa.int64()),
            "messages": pa.array([row[3] for row in rows], pa.int64()),
            "bytes": pa.array([0] * len(rows), pa.int64()),
        }
    )


def test_seconds_of_a_minute_become_one_histogram() -> None:
    rows = latency_rows(
        counted((0, "a", 1, 3), (59, "a", 1, 4), (59, "a", 5, 1), (60, "a", 1, 9), (0, "b", 1, 2)), 6
    )
    assert rows.schema.equals(LATENCY_SCHEMA)
    assert {tuple(row.values()) for row in rows.to_pylist()} == {
        (MINUTE, "a", 1, 7, 6),
        (MINUTE, "a", 5, 1, 6),
        (MINUTE + dt.timedelta(minutes=1), "a", 1, 9, 6),
        (MINUTE, "b", 1, 2, 6),
    }


def test_nothing_counted_makes_no_rows() -> None:
    rows = latency_rows(counted(), 0)
    assert rows.num_rows == 0
    assert rows.schema.equals(LATENCY_SCHEMA)


def test_rows_of_several_batches_fold_into_the_sum() -> None:
    batches = [latency_rows(counted((0, "a", 1, n)), n) for n in (1, 2, 3)]
    folded = fold(LATENCY_TABLE, pa.concat_tables(batches))
    assert folded.to_pylist() == [{"minute": MINUTE, "topic": "a", "le_ms": 1, "messages": 6, "batch_id": 3}]
