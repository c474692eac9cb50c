"""State files in the log of a store that nobody has open: read, and verified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import run_here
from kept_store import MakeKept, killed

from holdmq.cli.kept_state import state_file
from holdmq.cli.kv_import import _state_files
from holdmq.errors import StorageError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from storage.core.table_appends import TableAppends
from storage.log.offline.state import logged_files
from storage.log.offline.store import Finding, OfflineStore
from storage.log.offline.verify import Verification
from storage.log.state.core.files import CONFIG_TOPIC, LoggedFiles


def opened(directory: Path) -> OfflineStore:
    store = OfflineStore(directory)
    store.open()
    return store


def read(directory: Path) -> LoggedFiles:
    store = opened(directory)
    try:
        return logged_files(store)
    finally:
        store.close()


def verified(directory: Path) -> list[Finding]:
    store = opened(directory)
    try:
        return list(Verification(store, None).run(lambda _done, _total: None))
    finally:
        store.close()


@pytest.mark.parametrize("lost", ["", "tables"])
def test_they_are_read_from_tables_and_from_the_log(make_kept: MakeKept, tmp_path: Path, lost: str) -> None:
    kept = make_kept()
    for version in range(1, 4):
        kept.save("a.json", {"version": version}, version)
    expected = {name: kept.files.content(name) for name in kept.files.names()}
    left = killed(kept, tmp_path / "killed")
    if lost:
        shutil.rmtree(left / lost)
    found = read(left)
    assert {name: found.content(name) for name in found.names()} == expected
    kept.close()
    found = read(kept.directory)
    assert {name: found.content(name) for name in found.names()} == expected


def test_they_are_verified(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.save("a.json", {"a": 1}, 1)
    kept.close()
    assert verified(kept.directory) == []
    again = make_kept()
    assert again.store.tables is not None
    chunk = next(row for row in again.store.tables.rows_of(CONFIG_TOPIC)[1] if row.key.startswith("c"))
    again.post(lambda: rows_of(again).delete(CONFIG_TOPIC, chunk.key, lambda *_: None))
    again.append("t", 1)
    again.close()
    (finding,) = verified(again.directory)
    assert finding.path.endswith("config/a.json")
    assert "is missing" in finding.what


def rows_of(kept: Any) -> TableAppends:
    return TableAppends(lambda _: True, kept.store.append_state)


def test_rows_of_a_newer_format_are_a_finding(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.post(lambda: rows_of(kept).put(CONFIG_TOPIC, "x", b"1", lambda *_: None))
    kept.append("t", 1)
    kept.close()
    with pytest.raises(StoreFormatError, match="no known kind"):
        read(kept.directory)
    assert any("no known kind" in finding.what for finding in verified(kept.directory))


def test_a_database_that_is_none_is_told(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.save("a.json", {"a": 1}, 1)
    kept.close()
    (kept.directory / "tables" / "current.mdb").write_bytes(b"no database" * 1_000)
    with pytest.raises(StorageError):
        read(kept.directory)


def topic_json(**levels: int) -> dict[str, Any]:
    names = ("name", "read_queues", "write_queues", "key_levels", "stored_queues")
    return {topic: dict(zip(names, (topic, 1, 1, count, 1), strict=True)) for topic, count in levels.items()}


def test_the_tools_know_topics_that_only_the_log_has(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.levels["deep"] = 2
    kept.save("topic.json", topic_json(deep=2), 1)
    kept.append("deep", 3, b"42/temp/x")
    kept.close()
    assert run_here("log", "verify", str(kept.directory)).returncode == 0
    again = make_kept()
    again.levels["deep"] = 1
    again.append("deep", 3, b"42/temp/x")
    again.close()
    # What was indexed as topic.json does not say is seen to be wrong.
    found = json.loads(run_here("log", "verify", str(kept.directory), "--json").stdout)
    assert len(found["findings"]) == 3


def test_an_import_takes_them_from_where_they_are(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.save("a.json", {"a": 1}, 1)
    kept.save("a.json", {"a": 2}, 2)
    kept.close()
    store = opened(kept.directory)
    try:
        found = dict(_state_files(store))
        loaded = state_file(store, "a.json")
        assert state_file(store, "b.json") is None
    finally:
        store.close()
    assert loaded is not None
    assert loaded.content == {"a": 2}
    assert found == {name: kept.files.content(name) for name in ("config/a.json", "config/a.json.bak")}
    # A directory that has files of its own is not a copy of a log.
    file = AtomicFile(kept.directory / "config" / "a.json")
    file.save({"a": 3}, 3)
    store = opened(kept.directory)
    try:
        assert state_file(store, "a.json") == ({"a": 3}, 3, False)
        assert list(dict(_state_files(store))) == ["config/a.json"]
    finally:
        store.close()
