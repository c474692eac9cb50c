"""What Spark itself computes for the tables that cannot be summed: one session for all of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest
from guides import examples_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdmq.analytics.schemas import (
    DEVICES_1M,
    DEVICES_1M_SCHEMA,
    LATENCY_ABOVE_MS,
    LATENCY_BOUNDS_MS,
    TALKERS_1M,
    TALKERS_1M_SCHEMA,
)
from holdmq.analytics.sketches import estimate, merge_sketches
from holdmq.config.analytics import StatsSection
from spark_streaming.job.devices import DEVICES_TABLE, TALKERS_LEFT_OUT, note, rows_of
from spark_streaming.job.latency import bucket
from spark_streaming.job.session import start_session
from spark_streaming.tables import fold

# The first one waits for a JVM, and each for jobs of Spark's, beside all the other tests.
pytestmark = pytest.mark.timeout(900)

MINUTE = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)
INSTANT = pa.timestamp("us", "UTC")
HEAVY = {"heavy-a": 900, "heavy-b": 600, "heavy-c": 300}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(
        StatsSection(data_dir=str(tmp_path_factory.mktemp("spark")), cores=1), lambda _: None
    )
    try:
        yield session.spark
    finally:
        session.stop()


def messages(rows: list[tuple[float, str, str | None]]) -> pa.Table:
    """Messages of the source: seconds after MINUTE, topic, client id."""
    return pa.table(
        {
            "store_time": pa.array([MINUTE + dt.timedelta(seconds=row[0]) for row in rows], INSTANT),
            "topic": pa.array([row[1] for row in rows], pa.string()),
            "client_id": pa.array([row[2] for row in rows], pa.string()),
        }
    )


def test_spark_puts_each_latency_into_the_first_bucket_that_holds_it(spark: SparkSession) -> None:
    latencies = [-(10**12), -1, 0, 1, 2, 3, 60_000, 60_001, 10**15]
    given = spark.createDataFrame(pa.table({"ms": pa.array(latencies, pa.int64())}))
    found = given.select("ms", bucket(F.col("ms")).alias("le_ms")).toArrow()
    assert found.schema.field("le_ms").type == pa.int64()
    assert dict(zip(found["ms"].to_pylist(), found["le_ms"].to_pylist(), strict=True)) == {
        ms: next(bound for bound in LATENCY_BOUNDS_MS if ms <= bound) for ms in latencies
    }
    assert found["le_ms"].to_pylist()[-2:] == [LATENCY_ABOVE_MS] * 2


def test_devices_and_talkers_are_counted_by_minute_and_topic(spark: SparkSession) -> None:
    given = messages(
        [
            (0, "a", "x"),
            (59.999999, "a", "x"),
            (1, "a", "y"),
            (1, "a", None),
            (60, "a", "x"),
            (0, "b", "x"),
            (0, "only-sdk", None),
        ]
    )
    rows = rows_of(spark.createDataFrame(given), 7, talkers_max=5)
    devices, talkers = rows[DEVICES_1M], rows[TALKERS_1M]
    assert devices.schema.equals(DEVICES_1M_SCHEMA)
    assert talkers.schema.equals(TALKERS_1M_SCHEMA)
    later = MINUTE + dt.timedelta(minutes=1)
    assert {tuple(row.values()) for row in devices.drop_columns("sketch").to_pylist()} == {
        (MINUTE, "a", 3, 2, 7),
        (later, "a", 1, 1, 7),
        (MINUTE, "b", 1, 1, 7),
    }
    assert {tuple(row.values()) for row in talkers.to_pylist()} == {
        (MINUTE, "a", "x", 2, 7),
        (MINUTE, "a", "y", 1, 7),
        (later, "a", "x", 1, 7),
        (MINUTE, "b", "x", 1, 7),
    }


def test_of_many_devices_the_heaviest_are_kept_and_the_sketch_reads_the_same_in_python(
    spark: SparkSession,
) -> None:
    light = [f"device-{n}" for n in range(5000)]
    senders = light + [name for name, count in HEAVY.items() for _ in range(count)]
    before = TALKERS_LEFT_OUT._value.get()
    given = messages([(0, "a", sender) for sender in senders])
    rows = rows_of(spark.createDataFrame(given), 0, talkers_max=3)
    note(rows)
    (counted,) = rows[DEVICES_1M].to_pylist()
    assert counted["messages"] == len(senders)
    assert abs(counted["devices"] - 5003) < 5003 * 3 * 0.016
    assert estimate([counted["sketch"]]) == counted["devices"]
    assert len(counted["sketch"]) < 4096 + 64

    kept = {row["client_id"]: row["messages"] for row in rows[TALKERS_1M].to_pylist()}
    assert kept.keys() == HEAVY.keys()
    assert all(abs(kept[name] - count) <= 0.002 * len(senders) for name, count in HEAVY.items())
    assert TALKERS_LEFT_OUT._value.get() - before == len(senders) - sum(kept.values())


def test_the_same_devices_in_another_batch_add_nothing_to_the_union(spark: SparkSession) -> None:
    devices = []
    for batch_id in range(2):
        given = messages([(0, "a", f"device-{n}") for n in range(20)])
        devices.append(rows_of(spark.createDataFrame(given), batch_id, talkers_max=5)[DEVICES_1M])
    parts = pa.concat_tables(devices)["sketch"].to_pylist()
    assert estimate(parts) == estimate([merge_sketches(parts)]) == 20
    (code,) = (code for _, code, _ in examples_of("spark.md", "sql") if "FROM devices_1m" in code)
    spark.createDataFrame(pa.concat_tables(devices)).createOrReplaceTempView("devices_1m")
    (row,) = spark.sql(code.replace("…", f"timestamp '{MINUTE.isoformat()}'")).collect()
    assert row.devices == 20


def test_rows_of_a_minute_that_are_put_together_have_the_estimate_of_their_sketch(
    spark: SparkSession,
) -> None:
    given = [messages([(0, "a", f"device-{n}") for n in range(part, part + 20)]) for part in (0, 10)]
    rows = [rows_of(spark.createDataFrame(one), 0, talkers_max=5)[DEVICES_1M] for one in given]
    (row,) = fold(DEVICES_TABLE, pa.concat_tables(rows)).to_pylist()
    assert (row["messages"], row["devices"]) == (40, 30)


def test_a_batch_without_devices_has_no_rows(spark: SparkSession) -> None:
    rows = rows_of(spark.createDataFrame(messages([(0, "a", None)])), 0, talkers_max=5)
    assert [table.num_rows for table in rows.values()] == [0, 0]
    note(rows)
