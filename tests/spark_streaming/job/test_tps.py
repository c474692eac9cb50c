from __future__ import annotations

import datetime as dt

import pyarrow as pa

from spark_streaming.job.tps import as_rows, rolled_up
from spark_streaming.tables import TPS_1H_TABLE, TPS_1M_TABLE, TPS_1S_TABLE

SECOND = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def aggregated(*seconds: dt.datetime) -> pa.Table:
    # Columns, types and order as Spark gives them: everything nullable.
    return pa.table(
        {
            "second": pa.array(seconds, pa.timestamp("us", "UTC")),
            "topic": ["a"] * len(seconds),
            "messages": [3] * len(seconds),
            "bytes": [30] * len(seconds),
            "latency_max_ms": list(range(len(seconds))),
        }
    )


def test_rows_carry_their_batch_and_the_table_s_exact_schema() -> None:
    rows = as_rows(aggregated(SECOND), 9)
    assert rows.schema.equals(TPS_1S_TABLE.schema)
    assert rows.to_pylist()[0]["batch_id"] == 9
    assert as_rows(aggregated(SECOND).slice(1), 9).num_rows == 0


def test_seconds_become_the_minute_and_the_hour_that_they_began_in() -> None:
    before, after = SECOND.replace(minute=59, second=59), SECOND.replace(hour=4, minute=0, second=0)
    seconds = as_rows(aggregated(SECOND, SECOND + dt.timedelta(seconds=1), before, after), 9)
    minutes = rolled_up(seconds, TPS_1S_TABLE, TPS_1M_TABLE)
    assert minutes.schema.equals(TPS_1M_TABLE.schema)
    assert [tuple(row.values()) for row in minutes.to_pylist()] == [
        (SECOND.replace(second=0), "a", 6, 60, 1, 9),
        (before.replace(second=0), "a", 3, 30, 2, 9),
        (after, "a", 3, 30, 3, 9),
    ]
    hours = rolled_up(minutes, TPS_1M_TABLE, TPS_1H_TABLE)
    assert hours.schema.equals(TPS_1H_TABLE.schema)
    assert [tuple(row.values())[:3] for row in hours.to_pylist()] == [
        (SECOND.replace(minute=0, second=0), "a", 9),
        (after, "a", 3),
    ]
    assert rolled_up(seconds.slice(4), TPS_1S_TABLE, TPS_1M_TABLE).num_rows == 0
