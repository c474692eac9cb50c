from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import datasketches
import deltalake
import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import TableNotFoundError
from guides import examples_of

from holdmq.analytics import reading
from holdmq.analytics.reading import (
    BacklogPoint,
    DevicesPoint,
    LatencyPoint,
    Talker,
    percentile,
    read_backlog,
    read_devices,
    read_latency,
    read_talkers,
)
from holdmq.analytics.schemas import (
    BACKLOG_SCHEMA,
    DEVICES_1M_SCHEMA,
    LATENCY_ABOVE_MS,
    LATENCY_BOUNDS_MS,
    LATENCY_SCHEMA,
    TALKERS_1M_SCHEMA,
)
from holdmq.errors import HoldMQError, UsageError

Capture = pytest.CaptureFixture[str]

BASE = dt.datetime(2026, 1, 2, 3, 0, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def at(minutes: float) -> dt.datetime:
    return BASE + dt.timedelta(minutes=minutes)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def append(table: Path, schema: pa.Schema, *rows: tuple[Any, ...]) -> None:
    """Append rows, as one batch; the last column is its id."""
    dicts = [dict(zip(schema.names, (*row, 0), strict=True)) for row in rows]
    write_deltalake(table, pa.Table.from_pylist(dicts, schema), mode="append")


def sketch(*devices: int) -> bytes:
    made = datasketches.hll_sketch(12, datasketches.tgt_hll_type.HLL_8)
    for device in devices:
        made.update(f"device-{device}")
    return bytes(made.serialize_compact())


def test_a_percentile_is_the_bound_of_the_bucket_that_it_lies_in() -> None:
    counts = {1: 50, 10: 45, 200: 4, LATENCY_ABOVE_MS: 1}
    assert [percentile(counts, q) for q in (0, 0.5, 0.51, 0.95, 0.96, 0.99, 1)] == [
        *(1, 1, 10, 10, 200, 200),
        None,
    ]
    assert percentile({5: 1}, 0.5) == 5
    assert percentile({1: 1, 10: 2}, 0.5) == 10
    assert percentile({1: 7, 10: 93}, 0.07) == 1


def test_the_buckets_rise_and_end_nowhere() -> None:
    assert list(LATENCY_BOUNDS_MS) == sorted(set(LATENCY_BOUNDS_MS))
    assert LATENCY_BOUNDS_MS[-1] == pa.scalar(LATENCY_ABOVE_MS, pa.int64()).as_py()


def test_latencies_are_summed_over_batches_minutes_and_topics(table: Path) -> None:
    append(table, LATENCY_SCHEMA, (at(0), "a", 1, 90), (at(0), "b", 100, 5))
    append(table, LATENCY_SCHEMA, (at(0), "a", 1, 5), (at(1), "a", 50, 100), (at(60), "a", 1, 1000))
    whole = read_latency(table, BASE, BASE + HOUR)
    assert whole == [LatencyPoint(BASE, "", 200, (50, 50, 100))]
    assert read_latency(table, BASE, BASE + HOUR, by_topic=True, step_s=60, quantiles=(0.5,)) == [
        LatencyPoint(at(0), "a", 95, (1,)),
        LatencyPoint(at(0), "b", 5, (100,)),
        LatencyPoint(at(1), "a", 100, (50,)),
    ]
    assert read_latency(table, BASE, BASE + HOUR, topic="b", quantiles=(1,)) == [
        LatencyPoint(BASE, "b", 5, (100,))
    ]
    assert read_latency(table, BASE, BASE + HOUR, topic="none") == []


def test_the_backlog_of_a_point_is_its_largest_sample_summed_over_brokers_and_topics(table: Path) -> None:
    for minute, lag in ((0, 10), (1, 30), (2, 20)):
        append(
            table,
            BACKLOG_SCHEMA,
            (at(minute), "g", "a", "broker-0", lag, 1000 * minute),
            (at(minute), "g", "a", "broker-1", lag, 5),
            (at(minute), "g", "b", "broker-1", 1, 0),
            (at(minute), "h", "a", "broker-0", 0, 0),
        )
    assert read_backlog(table, BASE, BASE + HOUR, step_s=120) == [
        BacklogPoint(at(0), "g", "", 61, 1000),
        BacklogPoint(at(0), "h", "", 0, 0),
        BacklogPoint(at(2), "g", "", 41, 2000),
        BacklogPoint(at(2), "h", "", 0, 0),
    ]
    assert read_backlog(table, BASE, at(2), group="g", by_topic=True) == [
        BacklogPoint(BASE, "g", "a", 60, 1000),
        BacklogPoint(BASE, "g", "b", 1, 0),
    ]


def test_a_device_counts_once_over_minutes_and_topics(table: Path) -> None:
    append(table, DEVICES_1M_SCHEMA, (at(0), "a", 9, 5, sketch(*range(5))))
    append(table, DEVICES_1M_SCHEMA, (at(1), "a", 9, 5, sketch(*range(3, 8))), (at(1), "b", 1, 1, sketch(0)))
    assert read_devices(table, BASE, BASE + HOUR) == [DevicesPoint(BASE, "", 8)]
    assert read_devices(table, BASE, BASE + HOUR, by_topic=True) == [
        DevicesPoint(BASE, "a", 8),
        DevicesPoint(BASE, "b", 1),
    ]
    assert read_devices(table, BASE, BASE + HOUR, topic="a", step_s=60) == [
        DevicesPoint(at(0), "a", 5),
        DevicesPoint(at(1), "a", 5),
    ]


def test_many_devices_are_counted_within_two_per_cent(table: Path) -> None:
    append(
        table, DEVICES_1M_SCHEMA, *((at(m), "a", 0, 0, sketch(*range(m * 1000, 20_000))) for m in range(3))
    )
    (found,) = read_devices(table, BASE, BASE + HOUR)
    assert abs(found.devices - 20_000) < 20_000 * 3 * 0.016


def test_talkers_are_ordered_by_what_they_sent_in_the_range(table: Path) -> None:
    append(table, TALKERS_1M_SCHEMA, (at(0), "a", "x", 5), (at(0), "b", "y", 4), (at(60), "a", "z", 99))
    append(table, TALKERS_1M_SCHEMA, (at(0), "a", "y", 4), (at(1), "a", "w", 5))
    assert read_talkers(table, BASE, BASE + HOUR, limit=3) == [Talker("y", 8), Talker("w", 5), Talker("x", 5)]
    assert read_talkers(table, BASE, BASE + HOUR, topic="b") == [Talker("y", 4)]


def test_sums_are_the_same_when_they_are_added_up_in_parts(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(5):
        append(table, TALKERS_1M_SCHEMA, *((at(batch), "a", f"d{n}", n) for n in range(4)))
    whole = read_talkers(table, BASE, BASE + HOUR)
    monkeypatch.setattr(reading, "PARTIAL_ROWS_MAX", 4)
    assert read_talkers(table, BASE, BASE + HOUR) == whole == [Talker(f"d{n}", 5 * n) for n in (3, 2, 1, 0)]


def test_what_would_be_too_many_rows_is_refused_with_what_to_do(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, LATENCY_SCHEMA, *((at(n), topic, 1, 1) for n in range(3) for topic in "ab"))
    append_devices = [(at(n), topic, 1, 1, sketch(1)) for n in range(3) for topic in "ab"]
    append(table.parent / "devices", DEVICES_1M_SCHEMA, *append_devices)
    with pytest.raises(UsageError, match="shorter range"):
        read_latency(table, BASE, BASE + 24 * HOUR, step_s=1)
    monkeypatch.setattr(reading, "ROWS_MAX", 5)
    assert len(read_latency(table, BASE, at(3), step_s=60)) == 3
    with pytest.raises(UsageError, match="shorter range"):
        read_latency(table, BASE, at(3), step_s=60, by_topic=True)
    with pytest.raises(UsageError, match="shorter range"):
        read_devices(table.parent / "devices", BASE, at(3), step_s=60, by_topic=True)
    with pytest.raises(UsageError, match="shorter range"):
        read_talkers(table, BASE, at(3), limit=6)


def test_times_without_a_zone_and_steps_of_nothing_are_refused(table: Path) -> None:
    with pytest.raises(UsageError, match="time zone"):
        read_latency(table, BASE.replace(tzinfo=None), BASE)
    with pytest.raises(UsageError, match="at least 1"):
        read_latency(table, BASE, BASE + HOUR, step_s=0)


def test_a_table_that_is_not_there_says_so(table: Path) -> None:
    with pytest.raises(TableNotFoundError):
        read_talkers(table, BASE, BASE + HOUR)


def test_a_damaged_sketch_is_named(table: Path) -> None:
    append(table, DEVICES_1M_SCHEMA, (at(0), "a", 1, 1, b"\x00" * 8))
    with pytest.raises(HoldMQError, match="table has a sketch of 2026-01-02"):
        read_devices(table, BASE, BASE + HOUR)


def test_the_page_s_sql_finds_what_the_functions_find(table: Path) -> None:
    samples = table.parent / "backlog"
    append(table, LATENCY_SCHEMA, (at(0), "a", 1, 90), (at(0), "a", 50, 100), (at(1), "a", 100, 10))
    append(table, LATENCY_SCHEMA, (at(-1), "a", 1, 999), (at(0), "b", LATENCY_ABOVE_MS, 1))
    append(samples, BACKLOG_SCHEMA, (at(0), "g", "a", "b0", 3, 7), (at(0), "g", "b", "b1", 4, 5))
    latency, backlog = (deltalake.DeltaTable(path).to_pyarrow_table() for path in (table, samples))
    with duckdb.connect() as database:
        database.register("latency", latency)
        database.register("backlog", backlog)
        found = {
            name: database.sql(code.replace("…", f"timestamptz '{BASE.isoformat()}'"))
            .to_arrow_table()
            .to_pylist()
            for name in ("latency", "backlog")
            for _, code, _ in examples_of("spark.md", "sql")
            if f"FROM {name} " in code
        }
    whole = read_latency(table, BASE, BASE + HOUR, by_topic=True)
    assert tuple(found["latency"][0].values()) == ("a", *whole[0].quantiles_ms) == ("a", 50, 50, 100)
    assert tuple(found["latency"][1].values()) == ("b", *[LATENCY_ABOVE_MS] * 3)
    (point,) = read_backlog(samples, BASE, BASE + HOUR)
    (row,) = found["backlog"]
    assert (row["group"], row["lag"], row["age_ms"]) == (point.group, point.lag, point.age_ms) == ("g", 7, 7)


def test_the_page_s_program_runs(table: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    now = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    tables = table.parent / "holdmq-data/stats/tables"
    append(tables / "devices_1m", DEVICES_1M_SCHEMA, (now, "a", 9, 5, sketch(*range(5))))
    append(tables / "talkers_1m", TALKERS_1M_SCHEMA, (now, "a", "x", 9))
    monkeypatch.chdir(table.parent)
    (code,) = (code for _, code, _ in examples_of("spark.md", "python") if "read_talkers" in code)
    exec(compile(code, "spark.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "devices=5" in printed
    assert "Talker(client_id='x', messages=9)" in printed
