"""State files move from a directory into the log, and back: whole, whatever moment the power goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from logged_rows import ROOT, LoggedRows
from sim_disk import PowerLoss, SimDisk

from broker.state.home import ASIDE, StateHome
from holdmq.errors import StorageError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk

CONFIG = ROOT / "config"
NAMES = ("topic.json", "consumerOffset.json", "shared.json")
State = dict[str, tuple[dict[str, Any], int]]


@pytest.fixture
def rows() -> Iterator[LoggedRows]:
    made = LoggedRows()
    yield made
    made.end()


def filled(disk: Disk, version: int = 2) -> State:
    """Save every file twice, so that each has a backup; what they hold."""
    disk.make_directory(CONFIG)
    for name in NAMES:
        file = AtomicFile(CONFIG / name, disk)
        for each in (version - 1, version):
            file.save({"name": name, "values": list(range(each))}, each)
    return state_on(disk)


def state_on(disk: Disk) -> State:
    """What a start finds: every file, and its backup."""
    found: State = {}
    for name in NAMES:
        for each in (name, name + ".bak"):
            loaded = AtomicFile(CONFIG / each, disk).load()
            if loaded is not None:
                found[each] = (loaded.content, loaded.data_version)
    return found


def json_names(disk: Disk, directory: Path = CONFIG) -> list[str]:
    return sorted(name for name in disk.list(directory) if name.endswith((".json", ".bak")))


def test_files_move_into_the_log_and_are_put_aside(rows: LoggedRows) -> None:
    disk = SimDisk()
    state = filled(disk)
    home = StateHome(CONFIG, disk)
    assert not home.is_log()
    home.move_into_log(rows.disk())
    assert home.is_log()
    assert home.is_marked()
    assert state_on(rows.disk()) == state
    assert json_names(disk) == ["home.json"]
    assert json_names(disk, CONFIG / ASIDE) == sorted(state)
    appended = len(rows.appended)
    home.move_into_log(rows.disk())
    assert len(rows.appended) == appended, "a second time nothing happens"


def test_the_log_counts_only_once_what_belongs_to_it_is_settled(rows: LoggedRows) -> None:
    disk = SimDisk()
    state = filled(disk)
    home = StateHome(CONFIG, disk)

    def fail() -> None:
        assert state_on(rows.disk()) == state, "the log has all of it by then"
        raise StorageError("the tables cannot be written", operation="write", path="tables")

    with pytest.raises(StorageError, match="tables"):
        home.move_into_log(rows.disk(), settle=fail)
    assert not home.is_log()
    settled: list[bool] = []
    home.move_into_log(rows.disk(), settle=lambda: settled.append(home.is_log()))
    assert settled == [False]
    assert home.is_log()


def test_and_back_again_with_what_changed_there(rows: LoggedRows) -> None:
    disk = SimDisk()
    filled(disk)
    home = StateHome(CONFIG, disk)
    home.move_into_log(rows.disk())
    changed = filled(rows.disk(), 5)
    home.move_out_of_log(rows.disk())
    assert not home.is_log()
    assert state_on(disk) == changed
    # What the log still has is of an earlier time from now on.
    rows.disk().unlink(CONFIG / "topic.json")
    home.move_out_of_log(rows.disk())
    assert state_on(disk) == changed


def test_into_the_log_again_replaces_what_it_had_and_removes_the_rest(rows: LoggedRows) -> None:
    disk = SimDisk()
    filled(disk)
    home = StateHome(CONFIG, disk)
    home.move_into_log(rows.disk())
    AtomicFile(CONFIG / "deadLetters.json", rows.disk()).save({"old": 1}, 1)
    home.move_out_of_log(rows.disk())
    disk.unlink(CONFIG / "deadLetters.json")
    state = filled(disk, 9)
    home.move_into_log(rows.disk())
    assert state_on(rows.disk()) == state
    assert json_names(rows.disk()) == sorted(state)


def test_a_copy_of_a_log_has_no_file_and_takes_nothing_away(rows: LoggedRows) -> None:
    state = filled(rows.disk())
    disk = SimDisk()
    home = StateHome(CONFIG, disk)
    assert home.is_log()
    assert not home.is_marked()
    home.move_into_log(rows.disk())
    assert state_on(rows.disk()) == state
    assert home.is_marked()


def test_a_directory_without_files_has_nothing_to_take_out_of_a_log(rows: LoggedRows) -> None:
    disk = SimDisk()
    StateHome(CONFIG, disk).move_out_of_log(rows.disk())
    assert disk.list(CONFIG) == []


def test_a_damaged_file_stays_where_it_can_be_put_right_unless_backups_are_accepted(rows: LoggedRows) -> None:
    disk = SimDisk()
    filled(disk)
    raw = disk.content(CONFIG / "topic.json")
    raw[len(raw) // 2] ^= 1
    home = StateHome(CONFIG, disk)
    with pytest.raises(StoreFormatError, match=r"topic\.json"):
        home.move_into_log(rows.disk())
    assert not home.is_log()
    assert rows.rows == 0
    home.move_into_log(rows.disk(), accept_backup=True)
    loaded = AtomicFile(CONFIG / "topic.json", rows.disk()).load(accept_backup=True)
    assert loaded is not None
    assert (loaded.data_version, loaded.from_backup) == (1, True)


Move = Callable[[StateHome, LoggedRows], None]


def into(home: StateHome, rows: LoggedRows) -> None:
    home.move_into_log(rows.disk())


def out(home: StateHome, rows: LoggedRows) -> None:
    home.move_out_of_log(rows.disk())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("move", [into, out])
def test_the_power_may_go_at_any_moment_of_a_move(rows: LoggedRows, move: Move, seed: int) -> None:
    begun = SimDisk()
    state = filled(begun)
    if move is out:
        StateHome(CONFIG, begun).move_into_log(rows.disk())
        state = filled(rows.disk(), 4)
    begun = begun.copy()
    begun_rows = rows.rows
    points = 0
    while True:
        points += 1
        disk = begun.copy()
        disk.at_point = _off_at(disk, points)
        rows.synced_rows = begun_rows
        try:
            move(StateHome(CONFIG, disk), rows)
        except PowerLoss:
            disk = disk.after_power_loss(seed)
            rows.cut(rows.synced_rows)
        else:
            break
        home = StateHome(CONFIG, disk)
        # One place counts, and it has all; then the move goes on.
        assert state_on(rows.disk() if home.is_log() else disk) == state
        move(home, rows)
        assert home.is_log() is (move is into)
        assert state_on(rows.disk() if move is into else disk) == state
        rows.cut(begun_rows)
    assert points > 10


@pytest.mark.parametrize("seed", range(10))
def test_and_so_may_what_the_log_had_not_on_disk_yet(rows: LoggedRows, seed: int) -> None:
    disk = SimDisk()
    state = filled(disk)
    disk.at_point = lambda _point, operation, path: (
        path.name.startswith("home") and setattr(disk, "is_off", True)
    )
    with pytest.raises(PowerLoss):
        StateHome(CONFIG, disk).move_into_log(rows.disk())
    disk = disk.after_power_loss(seed)
    rows.cut(rows.rows * seed // 9)
    home = StateHome(CONFIG, disk)
    assert not home.is_log()
    home.move_into_log(rows.disk())
    assert state_on(rows.disk()) == state


def _off_at(disk: SimDisk, at: int) -> Callable[..., None]:
    def off(point: int, *_: object) -> None:
        if point == at:
            disk.is_off = True

    return off


def test_files_that_a_store_with_records_needs_are_asked_for_before_anything_moves(rows: LoggedRows) -> None:
    disk = SimDisk()
    filled(disk)
    home = StateHome(CONFIG, disk)
    home.refuse_without(NAMES)
    disk.unlink(CONFIG / "shared.json")
    with pytest.raises(StoreFormatError, match=r"shared\.json"):
        home.refuse_without(NAMES)


def test_files_of_a_log_that_is_given_up_do_not_count(rows: LoggedRows) -> None:
    disk = SimDisk()
    filled(disk)
    state = filled(rows.disk(), 5)
    home = StateHome(CONFIG, disk)
    home.give_up()
    assert home.is_log()
    assert json_names(disk) == ["home.json"]
    home.move_into_log(rows.disk())
    assert state_on(rows.disk()) == state
