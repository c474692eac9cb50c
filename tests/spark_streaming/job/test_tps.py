from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from holdmq.errors import StartupError
from spark_streaming.job.sink import Sink
from spark_streaming.job.tps import TpsJob, app_of, as_rows, backlog_of
from spark_streaming.tables import TPS_1S_SCHEMA

SECOND = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def aggregated() -> pa.Table:
    # Columns, types and order as Spark gives them: everything nullable.
    return pa.table(
        {
            "second": pa.array([SECOND], pa.timestamp("us", "UTC")),
            "topic": ["a"],
            "messages": [3],
            "bytes": [30],
            "latency_max_ms": [2],
        }
    )


def test_rows_carry_their_batch_and_the_table_s_exact_schema() -> None:
    rows = as_rows(aggregated(), 9)
    assert rows.schema.equals(TPS_1S_SCHEMA)
    assert rows.to_pylist()[0]["batch_id"] == 9
    assert as_rows(aggregated().slice(1), 9).num_rows == 0


def test_the_app_is_the_checkpoint_s_own_id(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"5d09"}')
    assert app_of(tmp_path) == "holdmq-tps-5d09"


def test_the_backlog_counts_queues_and_not_epochs() -> None:
    end = json.dumps({"b": 1, "b/t/0": 5})
    assert backlog_of(end, json.dumps({"b": 9, "b/t/0": 7, "b/u/0": 3})) == 5
    assert backlog_of(end, None) == 0
    assert backlog_of(None, end) == 5


def test_a_table_with_rows_whose_checkpoint_is_gone_is_not_counted_twice(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "table", TPS_1S_SCHEMA, dt.timedelta(hours=1))
    TpsJob(tmp_path / "checkpoint", sink)
    sink.write("app", 0, as_rows(aggregated(), 0))
    with pytest.raises(StartupError, match=r"its checkpoint .* is gone"):
        TpsJob(tmp_path / "checkpoint", sink)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"5d09"}')
    TpsJob(tmp_path / "checkpoint", sink)
