from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.errors import StartupError
from spark_streaming.job.checkpoint import QueryCheckpoint
from spark_streaming.job.sink import Standing

TABLES = ["tps_1s", "tps_1m"]


def made(path: Path, *commits: int) -> QueryCheckpoint:
    """A checkpoint as Spark leaves it."""
    (path / "commits").mkdir(parents=True, exist_ok=True)
    (path / "metadata").write_text('{"id":"5d09"}')
    for number in commits:
        (path / "commits" / str(number)).write_text("v1\n{}")
        (path / "commits" / f".{number}.crc").write_bytes(b"crc")
    return QueryCheckpoint(path)


def standing(name: str, last_batch: int, *, is_used: bool = True) -> dict[str, Standing]:
    return {name: Standing(name, last_batch, is_used)}


def both(last_batch: int, *, is_used: bool = True) -> dict[str, Standing]:
    return {name: Standing(name, last_batch, is_used) for name in TABLES}


def test_the_app_is_the_checkpoint_s_own_id(tmp_path: Path) -> None:
    assert QueryCheckpoint(tmp_path / "absent").app == ""
    assert made(tmp_path / "tps_1s").app == "holdmq-tps-5d09"
    (tmp_path / "tps_1s" / "metadata").write_text('{"id"')
    with pytest.raises(
        StartupError, match=r"tps_1s/metadata is damaged: .*; restore the checkpoint, or holdmq"
    ):
        assert QueryCheckpoint(tmp_path / "tps_1s").app


def test_the_newest_commit_is_told_from_what_else_lies_there(tmp_path: Path) -> None:
    assert QueryCheckpoint(tmp_path / "absent").newest_commit() == -1
    assert made(tmp_path / "tps_1s").newest_commit() == -1
    assert made(tmp_path / "tps_1s", 9, 10).newest_commit() == 10


def test_a_first_start_makes_every_table(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(tmp_path / "tps_1s")
    assert checkpoint.check("delta", TABLES, {}) == TABLES
    checkpoint.note_tables("delta", TABLES)
    # Killed before the first batch, or in it.
    assert checkpoint.check("delta", TABLES, both(-1, is_used=False)) == []
    checkpoint = made(tmp_path / "tps_1s")
    assert checkpoint.check("delta", TABLES, {**both(-1, is_used=False), **standing("tps_1s", 0)}) == []


@pytest.mark.parametrize("last_batch", [7, 8])
def test_tables_that_have_every_batch_or_the_one_that_is_replayed_go_on(
    tmp_path: Path, last_batch: int
) -> None:
    checkpoint = made(tmp_path / "tps_1s")
    checkpoint.note_tables("delta", TABLES)
    made(tmp_path / "tps_1s", 6, 7)
    assert checkpoint.check("delta", TABLES, both(last_batch)) == []


def test_a_table_that_is_gone_is_named(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "tps_1s")
    checkpoint.note_tables("delta", TABLES)
    made(tmp_path / "tps_1s", 7)
    with pytest.raises(StartupError, match=r"batches up to 7, but its table tps_1m is gone: .*--rebuild"):
        checkpoint.check("delta", TABLES, standing("tps_1s", 7))
    with pytest.raises(StartupError, match="its table tps_1s is gone"):
        checkpoint.check("delta", TABLES, {})


def test_without_its_list_a_checkpoint_with_batches_needs_a_table_still(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="its table tps_1s is gone"):
        made(tmp_path / "tps_1s", 7).check("delta", TABLES, {})


def test_a_table_from_a_backup_is_refused(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "tps_1s")
    checkpoint.note_tables("delta", TABLES)
    made(tmp_path / "tps_1s", 7)
    with pytest.raises(StartupError, match=r"its table tps_1m has them up to 5: what was counted"):
        checkpoint.check("delta", TABLES, {**both(7), **standing("tps_1m", 5)})


def test_a_checkpoint_from_a_backup_is_refused(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "tps_1s", 7)
    with pytest.raises(StartupError, match=r"tps_1s has batches up to 9, but its checkpoint .* up to 7"):
        checkpoint.check("delta", TABLES, both(9))


def test_a_table_with_rows_whose_checkpoint_is_gone_is_not_counted_twice(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"tps_1s has rows, but its checkpoint .* is gone or another one"):
        QueryCheckpoint(tmp_path / "absent").check("delta", TABLES, both(-1))


def test_a_table_that_a_newer_holdmq_adds_has_rows_from_then_on(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "tps_1s")
    checkpoint.note_tables("delta", TABLES[:1])
    made(tmp_path / "tps_1s", 7)
    assert checkpoint.check("delta", TABLES, standing("tps_1s", 7)) == ["tps_1m"]
    checkpoint.note_tables("delta", TABLES)
    # Killed before its first batch.
    found = {**both(7), **standing("tps_1m", -1, is_used=False)}
    assert checkpoint.check("delta", TABLES, found) == []
    made(tmp_path / "tps_1s", 8)
    with pytest.raises(StartupError, match="tps_1m has them up to -1"):
        checkpoint.check("delta", TABLES, {**both(8), **standing("tps_1m", -1, is_used=False)})


def test_a_table_that_an_older_holdmq_did_not_fill_for_a_while_is_refused(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "tps_1s", 7)
    checkpoint.note_tables("delta", TABLES)
    made(tmp_path / "tps_1s", 8)
    older = TABLES[:1]
    assert checkpoint.check("delta", older, standing("tps_1s", 8)) == []
    checkpoint.note_tables("delta", older)
    made(tmp_path / "tps_1s", 9)
    with pytest.raises(StartupError, match="tps_1m has them up to 8: what was counted would be missing"):
        checkpoint.check("delta", TABLES, {**both(9), **standing("tps_1m", 8)})


def test_a_checkpoint_does_not_go_on_with_tables_of_another_kind(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "tps_1s", 7)
    checkpoint.note_tables("delta", TABLES)
    with pytest.raises(StartupError, match=r"belongs to tables in delta, and stats\.sink is postgresql"):
        checkpoint.check("postgresql", TABLES, {})


def test_a_damaged_list_is_named(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "tps_1s", 7)
    checkpoint.note_tables("delta", TABLES)
    (tmp_path / "tps_1s.tables.json").write_text("{ no JSON")
    with pytest.raises(StartupError, match=r"tps_1s\.tables\.json is damaged; remove it"):
        checkpoint.check("delta", TABLES, both(7))
