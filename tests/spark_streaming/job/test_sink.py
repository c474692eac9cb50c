"""What every kind of tables keeps to: Delta, and PostgreSQL in a server of this module's own."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import psycopg
import pyarrow as pa
import pytest
from postgresql import Postgresql, running_postgresql

from holdmq.config.analytics import StatsSection
from holdmq.errors import StartupError
from spark_streaming.job.opening import open_sink
from spark_streaming.job.sink import MAINTENANCE_BATCHES, Sink, expiry_edge
from spark_streaming.job.tps import rolled_up
from spark_streaming.tables import TPS_1H_TABLE, TPS_1M_TABLE, TPS_1S_TABLE, TableSpec, fold, table_path

BASE = dt.datetime(2026, 1, 2, 3, 0, 0, tzinfo=dt.UTC)
SPECS = (TPS_1S_TABLE, TPS_1M_TABLE, TPS_1H_TABLE)
NUMBERS = itertools.count()


class Place(NamedTuple):
    """Where the sink of one test writes to."""

    stats: StatsSection

    def open(self, specs: tuple[TableSpec, ...] = SPECS) -> Sink:
        sink = open_sink(self.stats, specs)
        sink.standings("")
        sink.create()
        return sink

    def rows(self, spec: TableSpec) -> list[dict[str, Any]]:
        """What a reader sees, summed over batches."""
        if self.stats.postgresql_url is None:
            path = table_path(self.stats.data_dir, spec.name)
            return fold(spec, deltalake.DeltaTable(path).to_pyarrow_table()).to_pylist()
        with psycopg.connect(self.stats.postgresql_url.get_secret_value()) as connection:
            found = connection.execute(f"SELECT * FROM holdmq.{spec.name}".encode()).fetchall()
        rows = [dict(zip(spec.schema.names, row, strict=True)) for row in found]
        return fold(spec, pa.Table.from_pylist(rows, spec.schema)).to_pylist()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Postgresql]:
    with running_postgresql() as server:
        yield server


@pytest.fixture(params=["delta", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    stats = StatsSection(data_dir=str(tmp_path), sink=request.param, tps_1s_retention_s=7200)
    if request.param == "postgresql":
        server: Postgresql = request.getfixturevalue("postgresql")
        url = server.new_database(f"test_{next(NUMBERS)}")
        stats = StatsSection.model_validate({**stats.model_dump(), "postgresql_url": url})
    return Place(stats)


def batch(batch_id: int, *counts: tuple[int, str, int]) -> dict[str, pa.Table]:
    """Rows of all tables: (second after BASE, topic, messages)."""
    seconds = pa.Table.from_pylist(
        [
            {
                "second": BASE + dt.timedelta(seconds=second),
                "topic": topic,
                "messages": messages,
                "bytes": 10 * messages,
                "latency_max_ms": 100 - batch_id,
                "batch_id": batch_id,
            }
            for second, topic, messages in counts
        ],
        TPS_1S_TABLE.schema,
    )
    minutes = rolled_up(seconds, TPS_1S_TABLE, TPS_1M_TABLE)
    return {"tps_1s": seconds, "tps_1m": minutes, "tps_1h": rolled_up(minutes, TPS_1M_TABLE, TPS_1H_TABLE)}


def messages(place: Place, spec: TableSpec) -> list[tuple[int, str, int]]:
    """(second after BASE, topic, messages) of every row that a reader sees."""
    return [
        (int((row[spec.time] - BASE).total_seconds()), row["topic"], row["messages"])
        for row in place.rows(spec)
    ]


def test_rows_of_the_same_second_minute_and_hour_add_up_over_batches(place: Place) -> None:
    sink = place.open()
    assert sink.write("app", 0, batch(0, (0, "a", 3), (59, "a", 1), (60, "b", 1)))
    assert sink.write("app", 1, batch(1, (0, "a", 4), (3600, "a", 5)))
    assert messages(place, TPS_1S_TABLE) == [
        (0, "a", 7),
        (59, "a", 1),
        (60, "b", 1),
        (3600, "a", 5),
    ]
    assert messages(place, TPS_1M_TABLE) == [(0, "a", 8), (60, "b", 1), (3600, "a", 5)]
    assert messages(place, TPS_1H_TABLE) == [(0, "a", 8), (0, "b", 1), (3600, "a", 5)]
    hour = place.rows(TPS_1H_TABLE)[0]
    assert (hour["bytes"], hour["latency_max_ms"], hour["batch_id"]) == (80, 100, 1)
    sink.close()


def test_a_batch_that_is_there_changes_nothing(place: Place) -> None:
    sink = place.open()
    assert sink.write("app", 4, batch(4, (0, "a", 3)))
    sink.close()
    after_a_crash = place.open()
    assert after_a_crash.last_batch("app") == 4
    assert not after_a_crash.write("app", 4, batch(4, (0, "a", 3)))
    assert not after_a_crash.write("app", 3, batch(3, (0, "a", 3)))
    assert after_a_crash.write("app", 5, batch(5, (0, "a", 2)))
    assert [messages(place, spec) for spec in SPECS] == [[(0, "a", 5)]] * 3
    after_a_crash.close()


def test_a_batch_without_rows_is_remembered_as_any_other(place: Place) -> None:
    sink = place.open()
    assert sink.write("app", 0, batch(0))
    assert not sink.write("app", 0, {})
    assert sink.last_batch("app") == 0
    assert place.rows(TPS_1S_TABLE) == []
    sink.close()


def test_batches_of_another_writer_count_for_themselves(place: Place) -> None:
    sink = place.open()
    assert sink.write("one", 7, batch(7, (0, "a", 3)))
    assert sink.last_batch("two") == -1
    assert {standing.last_batch for standing in sink.standings("two").values()} == {-1}
    assert all(standing.is_used for standing in sink.standings("two").values())
    assert sink.write("two", 0, batch(0, (0, "a", 3)))
    assert messages(place, TPS_1S_TABLE) == [(0, "a", 6)]
    sink.close()


def test_tables_that_are_not_there_are_told_from_empty_ones(place: Place) -> None:
    sink = open_sink(place.stats, SPECS)
    assert sink.standings("app") == {}
    sink.close()
    place.open((TPS_1S_TABLE,)).close()
    sink = open_sink(place.stats, SPECS)
    (name, standing), *others = sink.standings("app").items()
    assert (name, standing.last_batch, standing.is_used, others) == ("tps_1s", -1, False, [])
    sink.close()


def test_rows_go_at_their_age_and_not_before(place: Place) -> None:
    sink = place.open()
    for batch_id in range(MAINTENANCE_BATCHES):
        sink.write("app", batch_id, batch(batch_id, (600 * batch_id, "a", 1)))
    while sink.maintain(BASE + dt.timedelta(hours=5, minutes=30)):
        pass
    # 3 h 30 min of rows are too old; they go in whole hours.
    assert messages(place, TPS_1S_TABLE)[0] == (3 * 3600, "a", 1)
    assert messages(place, TPS_1M_TABLE)[0] == (0, "a", 1)
    assert messages(place, TPS_1H_TABLE)[0] == (0, "a", 6)
    assert not sink.maintain(BASE + dt.timedelta(hours=9))
    assert sink.write("app", MAINTENANCE_BATCHES, batch(MAINTENANCE_BATCHES, (0, "a", 1)))
    sink.close()


def test_tables_put_aside_are_made_anew_and_kept(place: Place) -> None:
    sink = place.open()
    assert sink.write("app", 0, batch(0, (0, "a", 3)))
    where = sink.put_aside("20260102T030000Z")
    assert "20260102t030000z" in where.lower()
    sink.close()
    sink = open_sink(place.stats, SPECS)
    assert sink.put_aside("20260102T030001Z") == ""
    assert sink.standings("app") == {}
    sink.create()
    assert sink.write("new", 0, batch(0, (0, "a", 4)))
    assert messages(place, TPS_1S_TABLE) == [(0, "a", 4)]
    sink.close()
    if place.stats.postgresql_url is None:
        kept = deltalake.DeltaTable(table_path(where, "tps_1m")).to_pyarrow_table().to_pylist()
        assert [row["messages"] for row in kept] == [3]
        return
    with psycopg.connect(place.stats.postgresql_url.get_secret_value()) as connection:
        kept = connection.execute("SELECT messages FROM holdmq_20260102t030000z.tps_1m").fetchall()
        assert kept == [(3,)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda spec: spec._replace(version=2),
            r"tps_1s.* has schema version 1, and this HoldMQ writes version 2; holdmq stats --rebuild",
        ),
        (
            lambda spec: spec._replace(version=0),
            r"tps_1s.* has schema version 1, written by a newer HoldMQ; this one writes version 0",
        ),
        (
            lambda spec: spec._replace(schema=spec.schema.remove(2)),
            r"tps_1s.* has other columns than version 1 of its schema: second, topic, messages",
        ),
    ],
    ids=["older", "newer", "other"],
)
def test_a_table_of_another_schema_is_refused_by_name(
    place: Place, change: Callable[[TableSpec], TableSpec], sentence: str
) -> None:
    place.open((TPS_1S_TABLE,)).close()
    sink = open_sink(place.stats, (change(TPS_1S_TABLE),))
    with pytest.raises(StartupError, match=sentence):
        sink.standings("app")
    sink.close()


def test_binary_values_are_put_together_by_their_table_s_own_function(place: Place) -> None:
    def longest_first(parts: list[bytes]) -> bytes:
        return b"+".join(sorted(parts, key=len, reverse=True))

    schema = TPS_1S_TABLE.schema.append(pa.field("sketch", pa.binary(), nullable=False))
    spec = TPS_1M_TABLE._replace(
        schema=schema, keys=("second", "topic"), merges={**TPS_1M_TABLE.merges, "sketch": longest_first}
    )
    sink = open_sink(place.stats, (spec,))
    sink.create()
    for batch_id, sketch in enumerate([b"a", b"bbb", b"cc"]):
        rows = batch(batch_id, (0, "a", 1), (batch_id, "b", 1))["tps_1s"]
        with_sketch = rows.append_column("sketch", [[sketch] * rows.num_rows]).cast(schema)
        assert sink.write("app", batch_id, {spec.name: with_sketch})
    found = place.rows(spec)
    assert (found[0]["topic"], found[0]["messages"]) == ("a", 3)
    assert sorted(found[0]["sketch"].split(b"+")) == [b"a", b"bbb", b"cc"]
    assert [row["sketch"] for row in found[1:]] == [b"a", b"bbb", b"cc"]
    sink.close()


def test_the_edge_of_expiry_moves_in_hours_and_for_long_times_in_days() -> None:
    now = BASE + dt.timedelta(minutes=59)
    assert expiry_edge(now, dt.timedelta(hours=1)) == BASE - dt.timedelta(hours=1)
    assert expiry_edge(now, dt.timedelta(days=730)) == dt.datetime(2024, 1, 3, tzinfo=dt.UTC)
