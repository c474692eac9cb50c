"""The job's Delta table, read incrementally."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

import console.live.tables
from console.live.core.window import Count, Row, TpsWindow
from console.live.tables import TpsTable

Append = Callable[..., None]


def counts(reader: TpsTable) -> dict[int, dict[str, Count]]:
    return {second: dict(topics) for second, topics in reader.window.since(0)}


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Have every data file that is opened noted in the list that this returns."""
    read: list[Path] = []
    rows = console.live.tables._rows

    def noted(path: Path, floor: int) -> list[Row]:
        read.append(path)
        return rows(path, floor)

    monkeypatch.setattr(console.live.tables, "_rows", noted)
    return read


def notice_of(reader: TpsTable) -> str:
    return reader.notice or ""


def test_an_absent_table_is_empty_and_says_how_to_get_one(table: Path) -> None:
    reader = TpsTable(table)
    reader.refresh(time.time())
    assert counts(reader) == {}
    assert "holdmq stats" in notice_of(reader)


def test_a_table_that_appears_later_is_found(table: Path, append_rows: Append) -> None:
    reader = TpsTable(table)
    now = int(time.time())
    reader.refresh(now)
    append_rows([(now - 2, "devices", 3, 30)])
    reader.refresh(now)
    assert counts(reader) == {now - 2: {"devices": Count(3, 30)}}
    assert reader.notice is None


def test_only_new_files_are_read(table: Path, append_rows: Append, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time())
    read = count_reads(monkeypatch)
    reader = TpsTable(table)
    append_rows([(now - 3, "devices", 1, 10)], 0)
    append_rows([(now - 2, "devices", 2, 20)], 1)
    reader.refresh(now)
    assert len(read) == 2
    append_rows([(now - 2, "devices", 5, 50)], 2)
    reader.refresh(now)
    reader.refresh(now)
    assert len(read) == 3
    assert counts(reader)[now - 2] == {"devices": Count(7, 70)}


def test_a_compaction_and_vacuum_change_no_count(table: Path, append_rows: Append) -> None:
    now = int(time.time())
    reader = TpsTable(table)
    for batch in range(6):
        append_rows([(now - 5 + batch // 2, "devices", 1, 10), (now - 5, "meters", 2, 1)], batch)
    reader.refresh(now)
    before = counts(reader)
    stored = DeltaTable(str(table))
    stored.optimize.compact()
    stored.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    reader.refresh(now)
    assert counts(reader) == before
    assert len(reader.window.files) == 1
    append_rows([(now - 1, "devices", 4, 40)], 7)
    reader.refresh(now)
    assert counts(reader)[now - 1] == {"devices": Count(4, 40)}


def test_files_older_than_the_window_are_not_opened(
    table: Path, append_rows: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time())
    append_rows([(now - 5000, "devices", 1, 1)], 0)
    append_rows([(now - 1, "devices", 2, 2)], 1)
    read = count_reads(monkeypatch)
    reader = TpsTable(table)
    reader.refresh(now)
    assert len(read) == 1
    assert counts(reader) == {now - 1: {"devices": Count(2, 2)}}


def test_a_wiped_table_starts_over(table: Path, append_rows: Append) -> None:
    now = int(time.time())
    reader = TpsTable(table)
    for batch in range(3):
        append_rows([(now - 3, "old", 1, 1)], batch)
    reader.refresh(now)
    shutil.rmtree(table)
    append_rows([(now - 2, "new", 5, 5)])
    reader.refresh(now)
    assert counts(reader) == {now - 2: {"new": Count(5, 5)}}


def test_damage_is_said_and_recovered_from(table: Path, append_rows: Append) -> None:
    now = int(time.time())
    append_rows([(now - 2, "devices", 1, 10)])
    broken = next(table.glob("*.parquet"))
    whole = broken.read_bytes()
    broken.write_bytes(b"no parquet")
    reader = TpsTable(table)
    reader.refresh(now)
    assert "cannot be read" in notice_of(reader)
    broken.write_bytes(whole)
    reader.refresh(now)
    assert reader.notice is None
    assert counts(reader) == {now - 2: {"devices": Count(1, 10)}}


def test_a_table_that_stands_still_says_for_how_long(table: Path, append_rows: Append) -> None:
    now = int(time.time())
    append_rows([(now - 100, "devices", 1, 10)])
    reader = TpsTable(table)
    reader.refresh(now)
    assert "100 s old" in notice_of(reader)


def test_the_bound_on_cells_keeps_the_newest_seconds(table: Path, append_rows: Append) -> None:
    now = int(time.time())
    for second in range(4):
        append_rows([(now - 4 + second, f"t{k}", 1, 1) for k in range(4)], second)
    reader = TpsTable(table, TpsWindow(cells_max=8))
    reader.refresh(now)
    assert sorted(counts(reader)) == [now - 2, now - 1]
    assert console.live.tables.CELLS._value.get() == 8
    assert console.live.tables.CUT_SECONDS._value.get() >= 1
