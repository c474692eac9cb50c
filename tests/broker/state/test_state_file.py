"""A file of state: what is durable, what a failed write leaves, and that changes wait for each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.state.planned_changes import PlannedChanges
from broker.state.state_file import StateFile
from holdmq.errors import BusyError, HoldMQError, StoreFullError


async def saved(file: StateFile, content: dict[str, Any], version: int, times: int = 1) -> HoldMQError | None:
    ended: asyncio.Future[HoldMQError | None] = asyncio.get_running_loop().create_future()
    file.save(content, version, ended.set_result, times)
    assert file.is_saving
    return await ended


async def test_what_was_saved_is_found_again_with_its_version(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    assert file.load() is None
    assert await saved(file, {"a": 1}, 7) is None
    file.close()
    again = StateFile(tmp_path / "state.json")
    loaded = again.load()
    assert loaded is not None
    assert (loaded.content, again.data_version) == ({"a": 1}, 7)


async def test_saved_twice_the_backup_has_the_same(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    await saved(file, {"a": 1}, 1)
    await saved(file, {"a": 2}, 2, times=2)
    (tmp_path / "state.json").unlink()
    loaded = file.load(accept_backup=True)
    assert loaded is not None
    assert (loaded.content, loaded.from_backup) == ({"a": 2}, True)


async def test_a_write_that_fails_is_told_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile(tmp_path / "state.json")
    await saved(file, {"a": 1}, 1)

    def full(*_: object) -> None:
        raise StoreFullError("no space", operation="write", path="state.json")

    with monkeypatch.context() as patched:
        patched.setattr("holdmq.files.atomic_file.AtomicFile.save", full)
        assert isinstance(await saved(file, {"a": 2}, 2), StoreFullError)
    assert (file.failures, file.data_version) == (1, 1)
    loaded = file.load()
    assert loaded is not None
    assert loaded.content == {"a": 1}


async def test_changes_of_one_turn_are_one_write_and_a_refused_one_changes_nothing(tmp_path: Path) -> None:
    table: dict[str, int] = {}
    told: list[object] = []
    changes: PlannedChanges[dict[str, int]] = PlannedChanges(
        StateFile(tmp_path / "state.json"),
        lambda: dict(table),
        lambda stage: None if stage == table else (dict(stage), 1),
        table.update,
        2,
    )

    def refuse(_: dict[str, int]) -> None:
        raise HoldMQError("not so")

    changes.submit(lambda stage: stage.update(first=1), told.append)
    changes.submit(lambda stage: stage.update(second=2), told.append)
    changes.submit(refuse, told.append)
    with pytest.raises(BusyError, match=r"state\.json"):
        changes.submit(lambda stage: stage.update(third=3), told.append)
    assert (table, told) == ({}, [])
    while changes.file.is_saving or changes.waiting:
        await asyncio.sleep(0)
    assert table == {"first": 1, "second": 2}
    assert changes.file.writes == 2
    assert [str(answer) for answer in told] == ["None", "not so", "None"]
    changes.close()
