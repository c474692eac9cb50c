from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from statistics import median

import deltalake
import pyarrow as pa
import pytest
from tps_rows import TpsRow, read_tps

from holdmq.errors import HoldMQError, StartupError
from spark_streaming.job import delta_sink
from spark_streaming.job.delta_sink import DeltaSink
from spark_streaming.job.tps import rolled_up
from spark_streaming.tables import (
    TPS_1H,
    TPS_1H_TABLE,
    TPS_1M,
    TPS_1M_TABLE,
    TPS_1S,
    TPS_1S_TABLE,
    table_path,
)

BASE = dt.datetime(2026, 1, 2, 3, 0, 0, tzinfo=dt.UTC)
SPECS = (TPS_1S_TABLE, TPS_1M_TABLE, TPS_1H_TABLE)
COMMITS = int(os.environ.get("HOLDMQ_TEST_COMMITS", "100"))
"""Batches of the simulated day; 86,400 are a whole one."""
ROUND = 10
"""Batches between two rounds of housekeeping in these tests."""


@pytest.fixture
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_sink, "MAINTENANCE_BATCHES", ROUND)


def open_sink(data: Path, *, hours: int = 48) -> DeltaSink:
    sink = DeltaSink(data, SPECS, lambda _: dt.timedelta(hours=hours))
    sink.standings("app")
    sink.create()
    return sink


def batch(batch_id: int, *counts: tuple[int, str, int]) -> dict[str, pa.Table]:
    seconds, topics, messages = zip(*counts, strict=True)
    rows = pa.table(
        [
            pa.array([BASE + dt.timedelta(seconds=second) for second in seconds]),
            pa.array(topics),
            pa.array(messages),
            pa.array([10 * count for count in messages]),
            pa.array([batch_id] * len(counts)),
            pa.array([batch_id] * len(counts)),
        ],
        TPS_1S_TABLE.schema.names,
    ).cast(TPS_1S_TABLE.schema)
    minutes = rolled_up(rows, TPS_1S_TABLE, TPS_1M_TABLE)
    return {TPS_1S: rows, TPS_1M: minutes, TPS_1H: rolled_up(minutes, TPS_1M_TABLE, TPS_1H_TABLE)}


def maintain(sink: DeltaSink, now: dt.datetime = BASE) -> int:
    """Have every table maintained that is due, and return how many were."""
    return sum(iter(lambda: sink.maintain(now), False))


def stored(data: Path, name: str) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(table_path(data, name))


def row_count(data: Path, name: str) -> int:
    found: int = stored(data, name).to_pyarrow_table().num_rows
    return found


def test_the_tables_exist_from_the_first_start_and_are_for_every_delta_reader(tmp_path: Path) -> None:
    open_sink(tmp_path)
    for spec in SPECS:
        table = stored(tmp_path, spec.name)
        assert pa.schema(table.schema().to_arrow()).equals(spec.schema)
        assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)


def test_a_second_is_the_sum_of_its_batches_for_who_reads_without_spark(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    assert sink.write("app", 0, batch(0, (0, "a", 3), (0, "b", 1)))
    assert sink.write("app", 1, batch(1, (0, "a", 4), (1, "a", 5)))
    path = table_path(tmp_path, TPS_1S)
    later = BASE + dt.timedelta(seconds=1)
    assert read_tps(path, BASE) == [
        TpsRow(BASE, "a", 7, 70, 1),
        TpsRow(BASE, "b", 1, 10, 0),
        TpsRow(later, "a", 5, 50, 1),
    ]
    assert read_tps(path, later) == [TpsRow(later, "a", 5, 50, 1)]
    assert read_tps(table_path(tmp_path, TPS_1H), BASE, TPS_1H_TABLE) == [
        TpsRow(BASE, "a", 12, 120, 1),
        TpsRow(BASE, "b", 1, 10, 0),
    ]


def test_a_table_that_has_a_batch_is_left_alone_while_the_others_get_it(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    # As after a kill between the commits of two tables.
    only_seconds = DeltaSink(tmp_path, (TPS_1S_TABLE,), lambda _: dt.timedelta(hours=48))
    only_seconds.standings("app")
    assert only_seconds.write("app", 0, batch(0, (0, "a", 3)))
    assert sink.last_batch("app") == -1
    assert sink.write("app", 0, batch(0, (0, "a", 3)))
    assert not sink.write("app", 0, batch(0, (0, "a", 3)))
    for spec in SPECS:
        assert [row.messages for row in read_tps(table_path(tmp_path, spec.name), BASE, spec)] == [3]


@pytest.mark.usefixtures("_short_rounds")
def test_minutes_and_hours_are_folded_to_one_row_a_topic(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    for batch_id in range(2 * ROUND):
        # A live topic, and one whose backlog of hours comes in between.
        sink.write("app", batch_id, batch(batch_id, (batch_id, "live", 1), (1500 * batch_id, "lagging", 2)))
        maintain(sink)
    assert row_count(tmp_path, TPS_1S) == 4 * ROUND
    assert row_count(tmp_path, TPS_1M) == 1 + 2 * ROUND
    assert row_count(tmp_path, TPS_1H) == 1 + 8
    for spec in SPECS:
        rows = read_tps(table_path(tmp_path, spec.name), BASE, spec)
        for topic, share in (("live", 1), ("lagging", 2)):
            total = sum(row.messages for row in rows if row.topic == topic)
            assert total == share * 2 * ROUND
    assert open_sink(tmp_path).last_batch("app") == 2 * ROUND - 1


@pytest.mark.usefixtures("_short_rounds")
def test_rounds_are_counted_over_restarts(tmp_path: Path) -> None:
    done = []
    for batch_id in range(ROUND):
        sink = open_sink(tmp_path)
        sink.write("app", batch_id, batch(batch_id, (batch_id, "a", 1)))
        done.append(maintain(sink))
    assert done == [0] * (ROUND - 1) + [3]
    assert len(stored(tmp_path, TPS_1S).file_uris()) == 1
    assert not open_sink(tmp_path).maintain(BASE)


@pytest.mark.usefixtures("_short_rounds")
def test_a_reader_that_opened_before_a_round_still_reads(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    for batch_id in range(ROUND):
        sink.write("app", batch_id, batch(batch_id, (batch_id, "a", 1)))
    readers = [stored(tmp_path, spec.name) for spec in SPECS]
    assert maintain(sink) == 3
    assert [reader.to_pyarrow_table().num_rows for reader in readers] == [ROUND] * 3
    assert row_count(tmp_path, TPS_1M) == 1


@pytest.mark.usefixtures("_short_rounds")
def test_files_that_a_killed_process_left_behind_go(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    orphans = [table_path(tmp_path, TPS_1M) / f"part-{age}.parquet" for age in ("old", "new")]
    for orphan in orphans:
        orphan.write_bytes(b"rows that no commit names")
    hour_ago = time.time() - 3600
    os.utime(orphans[0], (hour_ago, hour_ago))
    for batch_id in range(ROUND):
        sink.write("app", batch_id, batch(batch_id, (batch_id, "a", 1)))
    assert maintain(sink) == 3
    assert [orphan.exists() for orphan in orphans] == [False, True]


def test_a_damaged_table_is_one_sentence(tmp_path: Path) -> None:
    open_sink(tmp_path)
    (table_path(tmp_path, TPS_1H) / "_delta_log" / f"{0:020d}.json").write_text("{ no JSON")
    with pytest.raises(StartupError, match=r"the table .*tps_1h is damaged: .*; restore it together with"):
        open_sink(tmp_path)


@pytest.mark.timeout(max(600, COMMITS // 5))
def test_a_day_of_batches_leaves_few_files_and_commits_as_fast_as_the_first(tmp_path: Path) -> None:
    """HOLDMQ_TEST_COMMITS=86400 is the whole day: a batch a second, three topics, one an hour late."""
    sink = open_sink(tmp_path, hours=2)
    for spec in SPECS:
        # Seconds pass some sixty times as fast as they do for the job; so must what is measured in them.
        stored(tmp_path, spec.name).alter.set_table_properties(
            {
                "delta.logRetentionDuration": "interval 1 seconds",
                "delta.deletedFileRetentionDuration": "interval 10 seconds",
            }
        )
    commit_s: list[float] = []
    query_s: list[float] = []
    files_max: dict[str, int] = {}
    logs_max = 0
    for batch_id in range(COMMITS):
        late = max(0, batch_id - 3600)
        rows = batch(batch_id, (batch_id, "a", 1), (batch_id, "b", 2), (late, "late", 3))
        begun = time.process_time()
        sink.write("app", batch_id, rows)
        commit_s.append(time.process_time() - begun)
        if maintain(sink, BASE + dt.timedelta(seconds=batch_id)):
            begun = time.process_time()
            read_tps(table_path(tmp_path, TPS_1M), BASE + dt.timedelta(seconds=batch_id - 900), TPS_1M_TABLE)
            query_s.append(time.process_time() - begun)
            for spec in SPECS:
                path = table_path(tmp_path, spec.name)
                files_max[spec.name] = max(
                    files_max.get(spec.name, 0), len(deltalake.DeltaTable(path).file_uris())
                )
                logs_max = max(logs_max, len(list((path / "_delta_log").iterdir())))
    quarter = COMMITS // 4
    print(
        f"{COMMITS} commits: first quarter {median(commit_s[:quarter]) * 1e3:.2f} ms of CPU each, "
        f"last {median(commit_s[-quarter:]) * 1e3:.2f} ms; query of 15 min {median(query_s) * 1e3:.2f} ms, "
        f"last {query_s[-1] * 1e3:.2f} ms; files {files_max}, log files {logs_max}"
    )
    # Two hours, or two that are begun, of 8 MiB or of one span each.
    assert all(files <= 4 for files in files_max.values())
    assert logs_max <= 4 * delta_sink.MAINTENANCE_BATCHES
    assert row_count(tmp_path, TPS_1M) <= 3 * (COMMITS // 60 + 2 + delta_sink.MAINTENANCE_BATCHES)
    hours = read_tps(table_path(tmp_path, TPS_1H), BASE - dt.timedelta(days=1), TPS_1H_TABLE)
    if COMMITS <= 3600:
        assert sum(row.messages for row in hours) == 6 * COMMITS
    else:
        assert median(commit_s[-quarter:]) < 1.5 * median(commit_s[:quarter])


def test_a_table_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    log = table_path(tmp_path, TPS_1M) / "_delta_log"
    log.rename(log.with_name("moved"))
    log.write_text("")
    with pytest.raises(
        HoldMQError, match=r"^the table \S+/tps_1m cannot be read: .*Not a directory"
    ) as caught:
        sink.write("app", 0, batch(0, (0, "a", 1)))
    assert str(caught.value).isprintable()
    log.unlink()
    log.with_name("moved").rename(log)
    assert sink.write("app", 0, batch(0, (0, "a", 1)))
    assert [row.messages for row in read_tps(table_path(tmp_path, TPS_1S), BASE)] == [1]
