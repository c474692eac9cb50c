from __future__ import annotations

import datetime as dt
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from spark_streaming.job.sink import MAINTENANCE_BATCHES, Sink
from spark_streaming.tables import TPS_1S, TPS_1S_SCHEMA, TpsRow, read_tps, table_path

BASE = dt.datetime(2026, 1, 2, 3, 0, 0, tzinfo=dt.UTC)


def rows(batch_id: int, *counts: tuple[int, str, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "second": BASE + dt.timedelta(seconds=second),
                "topic": topic,
                "messages": messages,
                "bytes": 10 * messages,
                "latency_max_ms": batch_id,
                "batch_id": batch_id,
            }
            for second, topic, messages in counts
        ],
        TPS_1S_SCHEMA,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return table_path(tmp_path, TPS_1S)


def open_sink(path: Path, hours: int = 24) -> Sink:
    return Sink(path, TPS_1S_SCHEMA, dt.timedelta(hours=hours))


def test_the_table_exists_from_the_first_start_and_is_for_every_delta_reader(path: Path) -> None:
    assert open_sink(path).is_empty()
    table = deltalake.DeltaTable(path)
    assert pa.schema(table.schema().to_arrow()).equals(TPS_1S_SCHEMA)
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)


def test_a_second_is_the_sum_of_its_batches(path: Path) -> None:
    sink = open_sink(path)
    assert sink.write("app", 0, rows(0, (0, "a", 3), (0, "b", 1)))
    assert sink.write("app", 1, rows(1, (0, "a", 4), (1, "a", 5)))
    assert read_tps(path, BASE) == [
        TpsRow(BASE, "a", 7, 70, 1),
        TpsRow(BASE, "b", 1, 10, 0),
        TpsRow(BASE + dt.timedelta(seconds=1), "a", 5, 50, 1),
    ]
    assert read_tps(path, BASE + dt.timedelta(seconds=1)) == [
        TpsRow(BASE + dt.timedelta(seconds=1), "a", 5, 50, 1)
    ]


def test_a_replayed_batch_changes_nothing(path: Path) -> None:
    assert open_sink(path).write("app", 4, rows(4, (0, "a", 3)))
    after_a_crash = open_sink(path)
    assert after_a_crash.last_batch("app") == 4
    assert not after_a_crash.write("app", 4, rows(4, (0, "a", 3)))
    assert after_a_crash.write("app", 5, rows(5, (0, "a", 2)))
    assert [row.messages for row in read_tps(path, BASE)] == [5]


def test_batches_of_another_checkpoint_count_for_themselves(path: Path) -> None:
    sink = open_sink(path)
    assert sink.write("one", 7, rows(7, (0, "a", 3)))
    assert sink.last_batch("two") == -1
    assert sink.write("two", 0, rows(0, (0, "a", 3)))


def test_a_batch_without_rows_makes_no_commit(path: Path) -> None:
    sink = open_sink(path)
    assert sink.write("app", 0, rows(0))
    assert sink.is_empty()


def test_many_batches_leave_few_files_and_the_replay_guard(path: Path) -> None:
    sink = open_sink(path)
    for batch_id in range(MAINTENANCE_BATCHES):
        assert not sink.maintain(BASE)
        sink.write("app", batch_id, rows(batch_id, (batch_id, "a", 1)))
    assert sink.maintain(BASE)
    assert len(deltalake.DeltaTable(path).file_uris()) == 1
    assert list((path / "_delta_log").glob("*.checkpoint.parquet"))
    assert sum(row.messages for row in read_tps(path, BASE)) == MAINTENANCE_BATCHES
    assert open_sink(path).last_batch("app") == MAINTENANCE_BATCHES - 1


def test_rows_go_at_their_age_and_not_before(path: Path) -> None:
    sink = open_sink(path, hours=2)
    for batch_id in range(MAINTENANCE_BATCHES):
        sink.write("app", batch_id, rows(batch_id, (600 * batch_id, "a", 1)))
    now = BASE + dt.timedelta(hours=5, minutes=30)
    assert sink.maintain(now)
    # 3 h 30 min of rows are too old; they go in whole hours.
    assert read_tps(path, BASE)[0].second == BASE + dt.timedelta(hours=3)
    assert sink.write("app", MAINTENANCE_BATCHES, rows(MAINTENANCE_BATCHES, (0, "a", 1)))


def test_a_reader_that_opened_before_a_compaction_still_reads(path: Path) -> None:
    sink = open_sink(path)
    for batch_id in range(MAINTENANCE_BATCHES):
        sink.write("app", batch_id, rows(batch_id, (batch_id, "a", 1)))
    reader = deltalake.DeltaTable(path)
    sink.maintain(BASE)
    assert reader.to_pyarrow_table().num_rows == MAINTENANCE_BATCHES
