from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from holdmq.config.analytics import StatsSection
from holdmq.errors import ConfigError, StartupError
from spark_streaming.job.home import JobDirectory
from spark_streaming.job.opening import open_query, open_sink, put_aside
from spark_streaming.job.parts import parts_of
from spark_streaming.tables import TPS_1S, TPS_1S_TABLE, table_path

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def count_one(stats: StatsSection) -> None:
    sink = open_sink(stats, (TPS_1S_TABLE,))
    sink.standings("")
    sink.create()
    row = {"second": NOW, "topic": "a", "messages": 1, "bytes": 2, "latency_max_ms": 3, "batch_id": 0}
    assert sink.write("app", 0, {TPS_1S: pa.Table.from_pylist([row], TPS_1S_TABLE.schema)})


def test_tables_of_all_parts_are_different_and_say_how_every_column_is_merged_and_how_long_it_is_kept() -> (
    None
):
    stats = StatsSection()
    tables = [table for part in parts_of(stats) for table in part.tables]
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        assert [*table.keys, *table.merges] == table.schema.names
        assert table.schema.field(table.time).type == pa.timestamp("us", tz="UTC")
        assert not any(field.nullable for field in table.schema)
        assert getattr(stats, f"{table.name}_retention_s") >= 3600


def test_a_table_whose_checkpoint_is_gone_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    stats = StatsSection(data_dir=str(tmp_path))
    count_one(stats)
    home = JobDirectory(tmp_path)
    (part,) = [part for part in parts_of(stats) if TPS_1S_TABLE in part.tables]
    with pytest.raises(StartupError, match=r"tps_1s has rows, but its checkpoint .* is gone or another one"):
        open_query(stats, home, part)
    assert not table_path(tmp_path, "tps_1m").exists()
    home.close()


def test_what_is_put_aside_is_where_it_says_and_the_next_start_is_a_first_one(tmp_path: Path) -> None:
    stats = StatsSection(data_dir=str(tmp_path))
    home = JobDirectory(tmp_path)
    parts = parts_of(stats)
    assert put_aside(stats, home, parts, NOW) == []
    count_one(stats)
    (home.checkpoint("tps_1s") / "commits").mkdir(parents=True)
    assert put_aside(stats, home, parts, NOW) == [str(tmp_path / "aside" / "20260102T030405Z")]
    kept = tmp_path / "aside" / "20260102T030405Z"
    assert (kept / "checkpoints" / "tps_1s" / "commits").is_dir()
    assert (kept / "tables" / "tps_1s" / "_delta_log").is_dir()
    for part in parts:
        open_query(stats, home, part).close()
    home.close()


def test_a_rebuild_that_was_killed_half_way_is_refused_and_then_done_again(tmp_path: Path) -> None:
    stats = StatsSection(data_dir=str(tmp_path))
    home = JobDirectory(tmp_path)
    parts = parts_of(stats)
    for part in parts:
        open_query(stats, home, part).close()
    count_one(stats)
    home.put_checkpoints_aside("20260102T030405Z")
    with pytest.raises(StartupError, match="holdmq stats --rebuild puts both aside"):
        open_query(stats, home, parts[0])
    (place,) = put_aside(stats, home, parts, NOW + dt.timedelta(seconds=1))
    assert (Path(place) / "tables" / "tps_1s").is_dir()
    open_query(stats, home, parts[0]).close()
    home.close()


def test_a_place_that_nothing_can_be_put_aside_to_is_one_sentence(tmp_path: Path) -> None:
    stats = StatsSection(data_dir=str(tmp_path))
    count_one(stats)
    home = JobDirectory(tmp_path)
    (tmp_path / "aside").write_text("a file in the way")
    with pytest.raises(
        StartupError, match=r"the directory .* \(stats\.data_dir\) cannot be used: .*directory"
    ):
        put_aside(stats, home, parts_of(stats), NOW)
    assert (table_path(tmp_path, TPS_1S) / "_delta_log").is_dir()
    home.close()


def test_postgresql_without_an_address_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stats\.sink is postgresql, but stats\.postgresql_url is not set"):
        open_sink(StatsSection(data_dir=str(tmp_path), sink="postgresql"), (TPS_1S_TABLE,))
