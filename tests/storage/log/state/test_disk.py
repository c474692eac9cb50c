"""A disk in the log, below the files of state that are kept on it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from logged_rows import ROOT, LoggedRows

from holdmq.errors import StorageError, StoreFullError
from holdmq.files.atomic_file import AtomicFile
from storage.log.state import disk as log_disk
from storage.log.state.disk import LogDisk

FILE = ROOT / "config" / "some.json"


@pytest.fixture
def rows() -> Iterator[LoggedRows]:
    made = LoggedRows()
    yield made
    made.end()


def many(seed: int, entries: int = 4_000) -> dict[str, Any]:
    chance = Random(seed)
    return {f"key-{n}": {"a": chance.randrange(10**12)} for n in range(entries)}


def test_a_state_file_is_saved_and_read_with_its_backup(rows: LoggedRows) -> None:
    file = AtomicFile(FILE, rows.disk())
    assert file.load() is None
    file.save({"a": 1}, 1)
    file.save({"a": 2}, 2)
    again = AtomicFile(FILE, rows.disk())
    loaded = again.load()
    assert loaded is not None
    assert (loaded.content, loaded.data_version) == ({"a": 2}, 2)
    backup = AtomicFile(file.backup_path, rows.disk()).load()
    assert backup is not None
    assert backup.content == {"a": 1}
    assert rows.disk().list(FILE.parent) == ["some.json", "some.json.bak"]


def test_a_backup_costs_one_row_however_large_the_file_is(rows: LoggedRows) -> None:
    file = AtomicFile(FILE, rows.disk())
    file.save(many(1), 1)
    before = len(rows.appended)
    file.save(many(2), 2)
    assert len(rows.appended[before]) == 1


def test_half_of_a_large_file_is_never_seen_wherever_the_log_ends(
    rows: LoggedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_disk, "BATCH_ROWS", 3)
    file = AtomicFile(FILE, rows.disk())
    whole_at: list[tuple[int, int]] = []
    for version in range(1, 5):
        file.save(many(version % 3, 3_000 + version), version)
        whole_at.append((rows.rows, version))
    assert len(rows.appended) > 3 * 4, "it must have needed several batches"
    for cut in range(rows.rows + 1):
        loaded = AtomicFile(FILE, rows.disk(rows.after(cut))).load()
        least = max((version for end, version in whole_at if end <= cut), default=0)
        found = 0 if loaded is None else loaded.data_version
        assert found in (least, least + 1)
        if loaded is not None:
            assert loaded.content == many(found % 3, 3_000 + found)
            assert not loaded.from_backup


def test_after_a_crash_between_chunks_the_file_is_saved_again_and_nothing_is_left_over(
    rows: LoggedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_disk, "BATCH_ROWS", 3)
    AtomicFile(FILE, rows.disk()).save(many(1), 1)
    for cut in range(0, rows.rows, 5):
        rows.files = rows.after(cut)
        file = AtomicFile(FILE, rows.disk())
        file.load()
        file.save(many(2), 2)
        assert AtomicFile(FILE, rows.disk()).load() == (many(2), 2, False)
        used = {id_ for name in rows.files.names() for id_ in rows.files.listing(name).ids}  # type: ignore[union-attr]
        assert set(rows.files._chunks) == used
        rows.appended = [[change for batch in rows.appended for change in batch]]


def test_what_the_log_refuses_is_told_and_the_file_is_as_before(rows: LoggedRows) -> None:
    file = AtomicFile(FILE, rows.disk())
    file.save({"a": 1}, 1)
    rows.refusals[len(rows.appended) + 1] = StoreFullError("full", operation="append")
    with pytest.raises(StoreFullError):
        file.save({"a": 2}, 2)
    assert AtomicFile(FILE, rows.disk()).load() == ({"a": 1}, 1, False)
    file.save({"a": 3}, 3)
    assert AtomicFile(FILE, rows.disk()).load() == ({"a": 3}, 3, False)


def test_a_change_that_is_made_is_not_told_as_failed_when_its_leftovers_stay(
    rows: LoggedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_disk, "BATCH_ROWS", 1)
    disk = rows.disk()
    _put(disk, "a", b"1")
    _put(disk, "a", b"2")
    rows.refusals[len(rows.appended) + 2] = StoreFullError("full", operation="append")
    _put(disk, "a", b"3")
    assert rows.files.content("config/a") == b"3"
    assert len(rows.files._chunks) == 2
    _put(disk, "a", b"4")
    assert len(rows.files._chunks) == 1


def test_an_outcome_that_comes_late_counts_and_the_next_change_knows_of_it(rows: LoggedRows) -> None:
    disk = rows.disk(wait_s=0.05)
    _put(disk, "a", b"1" * 5_000)
    rows.held = []
    with pytest.raises(StorageError, match="has not confirmed it"):
        _put(disk, "a", b"2" * 5_000)
    with pytest.raises(StorageError, match="has not confirmed it"):
        _put(disk, "a", b"1" * 5_000)  # it cannot be known yet what this one needs
    assert len(rows.held) == 1
    rows.release()
    disk._wait_s = 30.0
    _put(disk, "a", b"1" * 5_000)
    assert rows.files.content("config/a") == b"1" * 5_000


def test_files_that_threads_save_at_a_time_share_chunks_and_stay_whole(rows: LoggedRows) -> None:
    disk = rows.disk()

    def save(number: int) -> None:
        file = AtomicFile(ROOT / "config" / f"{number}.json", disk)
        for version in range(1, 8):
            file.save(many(version * (number + 1) % 5, 500), version)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    for number in range(4):
        loaded = AtomicFile(ROOT / "config" / f"{number}.json", disk).load()
        assert loaded == (many(7 * (number + 1) % 5, 500), 7, False)


def test_a_draft_is_no_file_of_the_log(rows: LoggedRows) -> None:
    disk = rows.disk()
    file = disk.create_anew(FILE)
    file.write([b"ab", b"c"], 2)
    file.truncate(4)
    file.truncate(6)
    file.sync()
    file.close()
    assert disk.open_to_read(FILE).read(0, 10) == b"\0\0ab\0\0"
    assert disk.open(FILE).size() == 6
    assert disk.open(FILE).data_ranges(2) == [(2, 6)]
    assert disk.open(FILE).data_ranges(6) == []
    assert disk.list(FILE.parent) == ["some.json"]
    assert rows.rows == 0
    disk.unlink(FILE)
    assert disk.list(FILE.parent) == []
    with pytest.raises(FileNotFoundError):
        disk.open_to_read(FILE)
    assert disk.open(FILE, create=True).size() == 0


def test_a_file_of_the_log_is_not_written_in_place(rows: LoggedRows) -> None:
    disk = rows.disk()
    _put(disk, "a", b"1")
    file = disk.open(ROOT / "config" / "a")
    for change in (lambda: file.write([b"2"], 0), lambda: file.truncate(0)):
        with pytest.raises(OSError, match="replaced as a whole") as raised:
            change()
        assert raised.value.errno == errno.EROFS


def test_a_file_that_is_removed_leaves_nothing(rows: LoggedRows) -> None:
    disk = rows.disk()
    _put(disk, "a", b"1")
    disk.unlink(ROOT / "config" / "a")
    disk.unlink(ROOT / "config" / "a")
    assert disk.list(ROOT / "config") == []
    assert rows.files.size_bytes == 0
    with pytest.raises(FileNotFoundError):
        disk.rename(ROOT / "config" / "a", ROOT / "config" / "b")


def test_damage_is_an_error_of_the_file(rows: LoggedRows) -> None:
    disk = rows.disk()
    _put(disk, "a", b"1")
    rows.files._chunks.clear()
    with pytest.raises(OSError, match="is missing"):
        disk.open_to_read(ROOT / "config" / "a")


def _put(disk: LogDisk, name: str, content: bytes) -> None:
    draft = ROOT / "config" / (name + ".tmp")
    disk.create_anew(draft).write([content], 0)
    disk.rename(draft, ROOT / "config" / name)


def test_what_counts_elsewhere_waits_for_the_disk(rows: LoggedRows) -> None:
    rows.files.position = 10
    synced = iter([0, 9, 10])
    disk = LogDisk(rows.files, rows.append, rows.post, lambda: next(synced), ROOT)
    disk.sync_all(ROOT)
    assert next(synced, None) is None
    behind = LogDisk(rows.files, rows.append, rows.post, lambda: 9, ROOT, wait_s=0.02)
    with pytest.raises(StorageError, match="not on disk up to 10"):
        behind.sync_all(ROOT)
