"""A disk in the log, below the files of state that are kept on it."""

from __future__ import annotations

import errno
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest

from holdmq.errors import StorageError, StoreFullError
from holdmq.files.atomic_file import AtomicFile
from storage.api.batches import Appended, Batch, BatchRun, sizes_of
from storage.api.tables import KeyChange
from storage.core.table_records import table_record
from storage.log.state import disk as log_disk
from storage.log.state.core.files import LoggedFiles
from storage.log.state.disk import LogDisk

ROOT = Path("/store")
FILE = ROOT / "config" / "some.json"


class Rows:
    """The tables of a log, and its event loop: every append is confirmed, unless it is refused or held."""

    def __init__(self) -> None:
        self.files = LoggedFiles()
        self.appended: list[list[KeyChange]] = []
        self.refusals: dict[int, StorageError] = {}
        self.held: list[Callable[[], None]] | None = None
        self._posted: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (callback := self._posted.get()) is not None:
            callback()

    def post(self, callback: Callable[[], object]) -> None:
        self._posted.put(callback)

    def end(self) -> None:
        self._posted.put(None)
        self._thread.join()

    def change_many(self, topic: str, changes: list[KeyChange], done: Appended, born_ms: int = 0) -> Batch:
        records = [table_record(topic, 0, change.key, change.value, born_ms) for change in changes]
        batch = Batch(
            memoryview(bytearray().join(records)), sizes_of(records), [BatchRun(topic, 0, len(records))]
        )
        refusal = self.refusals.get(len(self.appended))
        self.appended.append([] if refusal else list(changes))

        def confirm() -> None:
            if refusal is None:
                for change in changes:
                    self.files.apply(change.key.encode(), change.value)
            done(batch, refusal)

        if self.held is not None:
            self.held.append(confirm)
        else:
            self.post(confirm)
        return batch

    def put(self, *_: Any) -> Batch:
        raise AssertionError("state files are changed by batches")

    delete = put

    def release(self) -> None:
        """Confirm what was held."""
        held, self.held = self.held or [], None
        for confirm in held:
            self.post(confirm)

    def after(self, rows: int) -> LoggedFiles:
        """The files after a crash that left so many rows."""
        files = LoggedFiles()
        for change in [change for batch in self.appended for change in batch][:rows]:
            files.apply(change.key.encode(), change.value)
        return files

    @property
    def rows(self) -> int:
        return sum(map(len, self.appended))


@pytest.fixture
def rows() -> Iterator[Rows]:
    made = Rows()
    yield made
    made.end()


def disk_of(rows: Rows, files: LoggedFiles | None = None, wait_s: float = 30.0) -> LogDisk:
    return LogDisk(files or rows.files, rows, rows.post, ROOT, wait_s)


def many(seed: int, entries: int = 4_000) -> dict[str, Any]:
    chance = Random(seed)
    return {f"key-{n}": {"a": chance.randrange(10**12)} for n in range(entries)}


def test_a_state_file_is_saved_and_read_with_its_backup(rows: Rows) -> None:
    file = AtomicFile(FILE, disk_of(rows))
    assert file.load() is None
    file.save({"a": 1}, 1)
    file.save({"a": 2}, 2)
    again = AtomicFile(FILE, disk_of(rows))
    loaded = again.load()
    assert loaded is not None
    assert (loaded.content, loaded.data_version) == ({"a": 2}, 2)
    backup = AtomicFile(file.backup_path, disk_of(rows)).load()
    assert backup is not None
    assert backup.content == {"a": 1}
    assert disk_of(rows).list(FILE.parent) == ["some.json", "some.json.bak"]


def test_a_backup_costs_one_row_however_large_the_file_is(rows: Rows) -> None:
    file = AtomicFile(FILE, disk_of(rows))
    file.save(many(1), 1)
    before = len(rows.appended)
    file.save(many(2), 2)
    assert len(rows.appended[before]) == 1


def test_half_of_a_large_file_is_never_seen_wherever_the_log_ends(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_disk, "BATCH_ROWS", 3)
    file = AtomicFile(FILE, disk_of(rows))
    whole_at: list[tuple[int, int]] = []
    for version in range(1, 5):
        file.save(many(version % 3, 3_000 + version), version)
        whole_at.append((rows.rows, version))
    assert len(rows.appended) > 3 * 4, "it must have needed several batches"
    for cut in range(rows.rows + 1):
        loaded = AtomicFile(FILE, disk_of(rows, rows.after(cut))).load()
        least = max((version for end, version in whole_at if end <= cut), default=0)
        found = 0 if loaded is None else loaded.data_version
        assert found in (least, least + 1)
        if loaded is not None:
            assert loaded.content == many(found % 3, 3_000 + found)
            assert not loaded.from_backup


def test_after_a_crash_between_chunks_the_file_is_saved_again_and_nothing_is_left_over(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_disk, "BATCH_ROWS", 3)
    AtomicFile(FILE, disk_of(rows)).save(many(1), 1)
    for cut in range(0, rows.rows, 5):
        rows.files = rows.after(cut)
        file = AtomicFile(FILE, disk_of(rows))
        file.load()
        file.save(many(2), 2)
        assert AtomicFile(FILE, disk_of(rows)).load() == (many(2), 2, False)
        used = {id_ for name in rows.files.names() for id_ in rows.files.listing(name).ids}  # type: ignore[union-attr]
        assert set(rows.files._chunks) == used
        rows.appended = [[change for batch in rows.appended for change in batch]]


def test_what_the_log_refuses_is_told_and_the_file_is_as_before(rows: Rows) -> None:
    file = AtomicFile(FILE, disk_of(rows))
    file.save({"a": 1}, 1)
    rows.refusals[len(rows.appended) + 1] = StoreFullError("full", operation="append")
    with pytest.raises(StoreFullError):
        file.save({"a": 2}, 2)
    assert AtomicFile(FILE, disk_of(rows)).load() == ({"a": 1}, 1, False)
    file.save({"a": 3}, 3)
    assert AtomicFile(FILE, disk_of(rows)).load() == ({"a": 3}, 3, False)


def test_a_change_that_is_made_is_not_told_as_failed_when_its_leftovers_stay(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_disk, "BATCH_ROWS", 1)
    disk = disk_of(rows)
    _put(disk, "a", b"1")
    _put(disk, "a", b"2")
    rows.refusals[len(rows.appended) + 2] = StoreFullError("full", operation="append")
    _put(disk, "a", b"3")
    assert rows.files.content("config/a") == b"3"
    assert len(rows.files._chunks) == 2
    _put(disk, "a", b"4")
    assert len(rows.files._chunks) == 1


def test_an_outcome_that_comes_late_counts_and_the_next_change_knows_of_it(rows: Rows) -> None:
    disk = disk_of(rows, wait_s=0.05)
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


def test_files_that_threads_save_at_a_time_share_chunks_and_stay_whole(rows: Rows) -> None:
    disk = disk_of(rows)

    def save(number: int) -> None:
        file = AtomicFile(ROOT / "config" / f"{number}.json", disk)
        for version in range(1, 8):
            file.save(many(version * (number + 1) % 5, 500), version)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    for number in range(4):
        loaded = AtomicFile(ROOT / "config" / f"{number}.json", disk).load()
        assert loaded == (many(7 * (number + 1) % 5, 500), 7, False)


def test_a_draft_is_no_file_of_the_log(rows: Rows) -> None:
    disk = disk_of(rows)
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


def test_a_file_of_the_log_is_not_written_in_place(rows: Rows) -> None:
    disk = disk_of(rows)
    _put(disk, "a", b"1")
    file = disk.open(ROOT / "config" / "a")
    for change in (lambda: file.write([b"2"], 0), lambda: file.truncate(0)):
        with pytest.raises(OSError, match="replaced as a whole") as raised:
            change()
        assert raised.value.errno == errno.EROFS


def test_a_file_that_is_removed_leaves_nothing(rows: Rows) -> None:
    disk = disk_of(rows)
    _put(disk, "a", b"1")
    disk.unlink(ROOT / "config" / "a")
    disk.unlink(ROOT / "config" / "a")
    assert disk.list(ROOT / "config") == []
    assert rows.files.size_bytes == 0
    with pytest.raises(FileNotFoundError):
        disk.rename(ROOT / "config" / "a", ROOT / "config" / "b")


def test_damage_is_an_error_of_the_file(rows: Rows) -> None:
    disk = disk_of(rows)
    _put(disk, "a", b"1")
    rows.files._chunks.clear()
    with pytest.raises(OSError, match="is missing"):
        disk.open_to_read(ROOT / "config" / "a")


def test_numbers_count_changes_and_bytes(rows: Rows) -> None:
    disk = disk_of(rows)
    _put(disk, "a", b"1")
    numbers = disk.numbers()
    assert numbers["state_changes_total"] == 1
    assert numbers["state_files"] == 1
    assert numbers["state_bytes_total"] > 100
    assert numbers["state_file_bytes"] == 2


def _put(disk: LogDisk, name: str, content: bytes) -> None:
    draft = ROOT / "config" / (name + ".tmp")
    disk.create_anew(draft).write([content], 0)
    disk.rename(draft, ROOT / "config" / name)
