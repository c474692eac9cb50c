"""Saved queries: names, bounds, the file through damage and a restart."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from console.sql.questions import TEXT_MAX
from console.sql.saved import FILE, NAME_MAX, READY_MADE, SAVED, QueriesFullError, SavedQueries
from holdmq.errors import StorageError, UsageError


async def names(queries: SavedQueries) -> list[str]:
    return [row["name"] for row in (await queries.listing())["queries"] if not row["ready_made"]]


async def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    queries = SavedQueries(tmp_path / "console", 10)
    await queries.save("second", "SELECT 2")
    await queries.save("First", "SELECT 1")
    await queries.save("second", "SELECT 22")
    again = SavedQueries(tmp_path / "console", 10)
    assert await names(again) == ["First", "second"]
    assert (await again.listing())["queries"][1]["sql"] == "SELECT 22"
    assert await again.delete("First")
    assert not await again.delete("First")
    assert await names(SavedQueries(tmp_path / "console", 10)) == ["second"]


async def test_some_queries_are_there_from_the_beginning_and_stay(tmp_path: Path) -> None:
    queries = SavedQueries(tmp_path, 10)
    ready = [row["name"] for row in (await queries.listing())["queries"] if row["ready_made"]]
    assert ready == list(READY_MADE)
    with pytest.raises(UsageError, match="ready-made"):
        await queries.save(ready[0], "SELECT 1")
    with pytest.raises(UsageError, match="stay"):
        await queries.delete(ready[0])


@pytest.mark.parametrize("name", ["", "  ", "x" * (NAME_MAX + 1), "two\nlines", "nul\0"])
async def test_a_name_is_one_short_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        await SavedQueries(tmp_path, 10).save(name, "SELECT 1")


async def test_no_more_are_saved_than_may_be(tmp_path: Path) -> None:
    queries = SavedQueries(tmp_path, 2)
    await queries.save("a", "SELECT 1")
    await queries.save("b", "SELECT 1")
    with pytest.raises(QueriesFullError, match=r"console\.saved_queries_max"):
        await queries.save("c", "SELECT 1")
    await queries.save("b", "SELECT 2")
    assert SAVED._value.get() == 2
    with pytest.raises(UsageError, match="characters"):
        await queries.save("b", "x" * (TEXT_MAX + 1))


async def test_a_damaged_file_gives_way_to_its_backup_and_is_not_replaced_without_one(tmp_path: Path) -> None:
    queries = SavedQueries(tmp_path, 10)
    await queries.save("a", "SELECT 1")
    await queries.save("b", "SELECT 2")
    (tmp_path / FILE).write_bytes(b"{")
    assert await names(SavedQueries(tmp_path, 10)) == ["a"]
    (tmp_path / f"{FILE}.bak").write_bytes(b"{")
    with pytest.raises(StorageError, match="damaged"):
        await SavedQueries(tmp_path, 10).save("c", "SELECT 3")
    assert (tmp_path / FILE).read_bytes() == b"{"


async def test_what_the_disk_refuses_is_not_saved(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    queries = SavedQueries(blocked / "console", 10)
    with pytest.raises(StorageError, match=errno.errorcode[errno.ENOTDIR] + "|Not a directory"):
        await queries.save("a", "SELECT 1")
