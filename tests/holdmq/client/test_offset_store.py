from __future__ import annotations

import errno
from pathlib import Path

import pytest
from sim_disk import SimDisk
from structlog.testing import capture_logs

from holdmq.client.cursors import Position
from holdmq.client.offset_store import OffsetStore
from holdmq.errors import StorageError, StoreFormatError, UsageError
from holdmq.message import TopicQueue

QUEUE = TopicQueue("t", "broker-0", 3)
ONE, TWO = {QUEUE: Position(1, 10)}, {QUEUE: Position(1, 20)}
BEGUN = {**TWO, TopicQueue("u", "b", 0): Position(2, 7)}


@pytest.fixture
def store(tmp_path: Path) -> OffsetStore:
    return OffsetStore(tmp_path, "me", "g")


def saved(store: OffsetStore, *positions: dict[TopicQueue, Position]) -> None:
    store.open()
    for each in positions:
        store.save(each)
    store.close()


def test_positions_are_where_the_guide_says_and_come_back(store: OffsetStore, tmp_path: Path) -> None:
    assert store.path == tmp_path / "me" / "g" / "offsets.json"
    assert store.open() == {}
    store.save(ONE)
    store.save({**TWO, TopicQueue("u", "b", 0): Position(2, 0)})
    store.close()
    assert store.open() == {**TWO, TopicQueue("u", "b", 0): Position(2, 0)}
    store.close()


@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 100, None])
def test_a_damaged_or_missing_file_is_replaced_by_its_backup_and_said(
    store: OffsetStore, damage: bytes | None
) -> None:
    saved(store, ONE, TWO)
    if damage is None:
        store.path.unlink()
    else:
        store.path.write_bytes(damage)
    with capture_logs() as logs:
        assert store.open() == ONE
    assert [entry["event"] for entry in logs] == [
        "positions are those of the backup: messages since are consumed again"
    ]
    assert str(store.path) in logs[0]["path"]
    store.save(TWO)
    store.close()
    assert store.open() == TWO
    store.close()


@pytest.mark.parametrize("last", [BEGUN, ONE], ids=["begun", "back"])
def test_a_beginning_and_a_way_back_are_in_the_backup_too(
    store: OffsetStore, last: dict[TopicQueue, Position]
) -> None:
    saved(store, TWO)
    saved(store, TWO, last)
    store.path.unlink()
    assert store.open() == last
    store.close()


def test_one_flipped_digit_is_noticed(store: OffsetStore) -> None:
    saved(store, ONE, TWO)
    store.path.write_bytes(store.path.read_bytes().replace(b"20", b"21"))
    assert store.open() == ONE
    store.close()


def test_without_a_usable_backup_nothing_is_guessed(store: OffsetStore) -> None:
    saved(store, ONE, TWO)
    for name in ("offsets.json", "offsets.json.bak"):
        (store.path.parent / name).write_bytes(b"no")
    with pytest.raises(StoreFormatError, match=r"offsets\.json.*its backup too"):
        store.open()
    (store.path.parent / "offsets.json").unlink()
    (store.path.parent / "offsets.json.bak").unlink()
    assert store.open() == {}
    store.close()


def test_an_entry_that_is_no_position_is_named(store: OffsetStore) -> None:
    store.open()
    store._file.save({"t": {"b": {"0": [1, -5]}}}, 1)
    store.close()
    with pytest.raises(StoreFormatError, match="t: b: 0"):
        store.open()


def test_a_second_consumer_of_the_same_name_is_refused(store: OffsetStore, tmp_path: Path) -> None:
    store.open()
    with pytest.raises(UsageError, match="client_id of its own"):
        OffsetStore(tmp_path, "me", "g").open()
    other = OffsetStore(tmp_path, "you", "g")
    other.open()
    other.close()
    store.close()
    store.open()
    store.close()


@pytest.mark.parametrize("client_id", ["", ".", "..", "x" * 256])
def test_a_client_id_that_names_no_directory_is_refused(client_id: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no directory"):
        OffsetStore(tmp_path, client_id, "g")


def test_a_client_id_cannot_leave_the_directory(tmp_path: Path) -> None:
    assert OffsetStore(tmp_path, "../x/y", "g").path == tmp_path / "..%2Fx%2Fy" / "g" / "offsets.json"


def test_a_directory_that_cannot_be_made_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "me").write_text("a file")
    with pytest.raises(StorageError, match="give a writable offsets_directory"):
        OffsetStore(tmp_path, "me", "g").open()


def test_a_full_disk_leaves_the_positions_of_before(tmp_path: Path) -> None:
    disk = SimDisk()
    store = OffsetStore(tmp_path, "me", "g", disk)
    store.open()
    store.save(ONE)
    disk.failing = lambda operation, _: errno.ENOSPC if operation == "write" else None
    with pytest.raises(StorageError, match="write of"):
        store.save(TWO)
    disk.failing = lambda *_: None
    store.close()
    assert store.open() == ONE
    store.close()
