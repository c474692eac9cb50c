"""A closed log is cut, or begins anew; killed anywhere it is one or the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_disk import PowerLoss, SimDisk
from stepped_store import Stepped

from holdmq.errors import StorageError
from storage.api.replication import Epoch, LogStart
from storage.log.replicated.closed import ClosedLogDirectory

SEGMENT = 4096
START = LogStart(b"otherone", 9 * SEGMENT, [Epoch(1, 0), Epoch(4, 100)], {("devices", 0): 70, ("t", 3): 5})


def filled(disk: SimDisk, batches: int = 12) -> tuple[list[int], list[bytes]]:
    """Ends and bytes of batches in a store that was closed."""
    stepped = Stepped(disk, SEGMENT)
    ends, raw = [], []
    for number in range(batches):
        raw.append(stepped.append(number % 3, 4, body=b"x" * 100))
        ends.append(stepped.store.confirmed_position)
        stepped.store.flusher.step()
    stepped.store.close()
    return ends, raw


def directory(disk: SimDisk) -> ClosedLogDirectory:
    return ClosedLogDirectory(disk, Path("/store"), "b1", SEGMENT)


def test_a_log_is_cut_at_a_boundary_and_goes_on_there() -> None:
    disk = SimDisk()
    stepped = Stepped(disk, SEGMENT)
    ends = []
    for number in range(12):
        stepped.append(number % 3, 4, body=b"x" * 100)
        ends.append(stepped.store.confirmed_position)
    # As a kill leaves it: the checkpoint is the first one.
    crashed = disk.after_kill()
    directory(crashed).cut(ends[5], 1)
    again = Stepped(crashed, SEGMENT)
    assert again.store.confirmed_position == ends[5]
    assert again.store.bounds("devices", 0) == (0, 8)
    assert again.store.bounds("devices", 2) == (0, 8)
    again.append(0, 1)
    assert again.store.bounds("devices", 0) == (0, 9)
    assert crashed.list(Path("/store/cut")), "what was cut off is kept"


def test_nothing_below_the_checkpoint_is_cut() -> None:
    disk = SimDisk()
    ends, _ = filled(disk)
    with pytest.raises(StorageError, match="confirmed up to"):
        directory(disk).cut(ends[3], 1)


def test_a_log_begins_anew_where_the_leaders_does() -> None:
    disk = SimDisk()
    filled(disk)
    directory(disk).start_over(START)
    directory(disk).finish()
    again = Stepped(disk, SEGMENT)
    store = again.store
    assert store.store_id == START.store_id
    assert (store.first_position, store.confirmed_position) == (START.position, START.position)
    assert store.bounds("devices", 0) == (70, 70)
    assert store.bounds("devices", 1) == (0, 0)
    again.append(0, 2)
    assert store.bounds("devices", 0) == (70, 72)
    read = store.read_queue("devices", 0, 0, 70, 1 << 20, 10)
    assert read is not None
    assert read.next_offset == 72


def test_a_power_loss_at_any_step_of_a_new_beginning_leaves_it_to_be_finished() -> None:
    whole = SimDisk()
    filled(whole)
    steps = _points_of(whole)
    assert steps > 20
    for step in range(steps):
        disk = SimDisk()
        filled(disk)
        _cut_short(disk, step)
        left = disk.after_power_loss(step)
        directory(left).finish()
        store = Stepped(left, SEGMENT).store
        if store.store_id == START.store_id:
            assert store.first_position == store.confirmed_position == START.position
        else:
            assert store.bounds("devices", 0) == (0, 16), "nothing was given up yet"
        store.close()


def _points_of(disk: SimDisk) -> int:
    before = disk.points
    directory(disk).start_over(START)
    return disk.points - before


def _cut_short(disk: SimDisk, step: int) -> None:
    last = disk.points + step

    def at_point(number: int, _operation: str, _path: Path) -> None:
        disk.is_off = number > last

    disk.at_point = at_point
    with pytest.raises(PowerLoss):
        directory(disk).start_over(START)
