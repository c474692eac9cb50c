"""The real disk and the simulated one do the same; the simulated one also loses power, fills up and fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from sim_disk import SECTOR, PowerLoss, SimDisk

from holdmq.files.disk import Disk, RealDisk

ROOT = Path("/")


@pytest.fixture(params=["real", "simulated"])
def disk_and_home(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Path]:
    if request.param == "real":
        return RealDisk(), tmp_path
    return SimDisk(), ROOT / "sim"


def test_files_keep_what_is_written_where_it_is_written(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.make_directory(home)
    file = disk.open(home / "file", create=True)
    file.write([b"abc", bytearray(b"def"), memoryview(b"ghi")], 0)
    file.write([b"X"], 4)
    assert bytes(file.read(0, 100)) == b"abcdXfghi"
    assert bytes(file.read(7, 1)) == b"h"
    assert bytes(file.read(9, 5)) == b""
    assert bytes(file.read(50, 5)) == b""
    file.write([b"far"], 2000)
    assert file.size() == 2003
    assert bytes(file.read(9, 1994)) == bytes(1991) + b"far"
    file.write([], 0)
    file.close()
    again = disk.open_to_read(home / "file")
    assert bytes(again.read(1998, 10)) == bytes(2) + b"far"
    with pytest.raises(OSError, match="Bad file descriptor"):
        again.write([b"no"], 0)
    again.close()


def test_many_buffers_are_one_write(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.make_directory(home)
    file = disk.open(home / "file", create=True)
    file.write([b"%04d" % i for i in range(3000)], 10)
    assert bytes(file.read(10 + 4 * 2999, 4)) == b"2999"
    assert file.size() == 10 + 12_000
    file.close()


def test_sizes_change_by_truncating_and_preallocating(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.make_directory(home)
    file = disk.open(home / "file", create=True)
    file.preallocate(8192)
    assert file.size() == 8192
    assert not file.read(0, 8192).strip(b"\0")
    file.write([b"x" * 100], 50)
    file.preallocate(4096)
    assert file.size() == 8192
    file.truncate(100)
    assert bytes(file.read(0, 8192)) == bytes(50) + b"x" * 50
    file.truncate(200)
    assert bytes(file.read(90, 8192)) == b"x" * 10 + bytes(100)
    file.preallocate(300)
    assert bytes(file.read(90, 8192)) == b"x" * 10 + bytes(200)
    file.sync()
    file.close()


def test_data_ranges_cover_everything_that_is_not_zero(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.make_directory(home)
    file = disk.open(home / "file", create=True)
    file.preallocate(1 << 20)
    assert all(not file.read(begin, end - begin).strip(b"\0") for begin, end in file.data_ranges(0))
    file.write([b"one"], 5000)
    file.write([b"two"], 300_000)
    for offset in (0, 5001, 200_000):
        ranges = file.data_ranges(offset)
        for written in (5000, 5002, 300_000, 300_002):
            covered = any(begin <= written < end for begin, end in ranges)
            assert covered or written < offset
    assert file.data_ranges(1 << 20) == []
    file.close()


def test_names_appear_move_and_go(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.make_directory(home / "a" / "b")
    disk.make_directory(home / "a" / "b", durable=False)
    for name in ("one", "two"):
        file = disk.open(home / "a" / name, create=True)
        file.write([name.encode()], 0)
        file.close()
    assert sorted(disk.list(home / "a")) == ["b", "one", "two"]
    held = disk.open(home / "a" / "two")
    disk.rename(home / "a" / "one", home / "a" / "two")
    assert sorted(disk.list(home / "a")) == ["b", "two"]
    assert bytes(held.read(0, 9)) == b"two", "an open file outlives its name"
    held.close()
    file = disk.open_to_read(home / "a" / "two")
    assert bytes(file.read(0, 9)) == b"one"
    file.close()
    disk.unlink(home / "a" / "two")
    disk.unlink(home / "a" / "two")
    assert disk.list(home / "a") == ["b"]
    assert disk.list(home / "nowhere") == []
    disk.sync_directory(home / "a")
    disk.sync_all(home)


def test_what_is_missing_is_said_in_the_same_words(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.make_directory(home)
    attempts: list[Callable[[], object]] = [
        lambda: disk.open(home / "none"),
        lambda: disk.open_to_read(home / "none"),
        lambda: disk.open(home / "no" / "where", create=True),
        lambda: disk.rename(home / "none", home / "some"),
        lambda: disk.sync_directory(home / "none"),
        lambda: disk.sync_all(home / "none"),
    ]
    for attempt in attempts:
        with pytest.raises(FileNotFoundError) as missing:
            attempt()
        assert missing.value.errno == errno.ENOENT
        assert str(missing.value.filename).startswith(str(home))


def test_a_lock_is_held_by_one_opener_until_it_closes(disk_and_home: tuple[Disk, Path]) -> None:
    disk, home = disk_and_home
    disk.make_directory(home)
    first, second = disk.open(home / "lock", create=True), disk.open(home / "lock")
    assert first.try_lock()
    assert first.try_lock()
    assert not second.try_lock()
    first.close()
    assert second.try_lock()
    second.close()


# What only the simulation does


def written(disk: SimDisk, name: str, data: bytes, at: int = 0) -> None:
    file = disk.open(ROOT / name, create=True)
    file.write([data], at)
    file.close()


def found(disk: SimDisk, name: str) -> bytes | None:
    return bytes(disk.content(ROOT / name)) if name in disk.list(ROOT) else None


def test_power_loss_keeps_what_was_synced_and_any_sectors_of_the_rest() -> None:
    disk = SimDisk()
    old = Random(1).randbytes(4 * SECTOR)
    new = Random(2).randbytes(4 * SECTOR)
    written(disk, "file", old)
    disk.sync_all(ROOT)
    written(disk, "file", new)
    contents = {found(disk.after_power_loss(seed), "file") for seed in range(300)}
    assert {old, new} <= contents
    states = set()
    for content in contents:
        assert content is not None
        sectors = [
            (
                content[at : at + SECTOR] == new[at : at + SECTOR],
                content[at : at + SECTOR] == old[at : at + SECTOR],
            )
            for at in range(0, len(old), SECTOR)
        ]
        states.add(tuple(sectors))
        for at, byte in enumerate(content):
            assert byte in (old[at], new[at])
    assert ((False, True), (True, False), (False, True), (True, False)) in states, "reordered"
    assert any((False, False) in state for state in states), "torn within a sector"
    assert found(disk, "file") == new


def test_power_loss_takes_names_and_sizes_that_nobody_synced() -> None:
    disk = SimDisk()
    written(disk, "kept", b"1")
    disk.sync_all(ROOT)
    file = disk.open(ROOT / "kept")
    file.preallocate(4096)
    written(disk, "made", b"2")
    disk.rename(ROOT / "made", ROOT / "renamed")
    disk.unlink(ROOT / "kept")
    seen = set()
    for seed in range(200):
        after = disk.after_power_loss(seed)
        seen.add((frozenset(after.list(ROOT)), len(found(after, "kept") or b"")))
    assert (frozenset({"kept"}), 1) in seen
    assert (frozenset({"kept"}), 4096) in seen
    assert (frozenset({"renamed"}), 0) in seen
    assert (frozenset({"kept", "renamed"}), 1) in seen
    disk.sync_directory(ROOT)
    assert all(disk.after_power_loss(seed).list(ROOT) == ["renamed"] for seed in range(20))
    contents = {found(disk.after_power_loss(seed), "renamed") for seed in range(20)}
    assert contents == {b"", b"\0", b"2"}, "a name that is durable says nothing about the content"


def test_the_same_seed_loses_the_same() -> None:
    def lost(seed: int) -> bytes | None:
        disk = SimDisk()
        for i in range(20):
            written(disk, "file", Random(i).randbytes(700), i * 300)
        return found(disk.after_power_loss(seed), "file")

    assert [lost(seed) for seed in range(30)] == [lost(seed) for seed in range(30)]
    assert len({lost(seed) for seed in range(30)}) > 5


def test_pages_of_a_failed_fsync_are_read_but_never_written() -> None:
    disk = SimDisk()
    written(disk, "file", b"before")
    disk.sync_all(ROOT)
    file = disk.open(ROOT / "file")
    file.write([b"after "], 0)
    disk.failing = lambda operation, _path: errno.EIO if operation == "sync" else None
    with pytest.raises(OSError, match="injected into sync"):
        file.sync()
    disk.failing = lambda _operation, _path: None
    file.sync()
    assert found(disk, "file") == b"after "
    assert {found(disk.after_power_loss(seed), "file") for seed in range(30)} == {b"before"}


def test_a_full_disk_takes_what_fits_and_gives_space_back() -> None:
    disk = SimDisk(capacity_bytes=1000)
    written(disk, "file", bytes(600))
    other = disk.open(ROOT / "other", create=True)
    with pytest.raises(OSError, match="No space left") as full:
        other.write([b"x" * 300, b"y" * 300], 0)
    assert full.value.errno == errno.ENOSPC
    assert bytes(other.read(0, 600)) == b"x" * 300 + b"y" * 100
    written(disk, "file", b"overwritten")
    other.truncate(100)
    other.preallocate(400)
    with pytest.raises(OSError, match="No space left"):
        other.preallocate(401)
    disk.unlink(ROOT / "file")
    other.preallocate(1000)
    assert disk.used_bytes == 1000


def test_points_count_changes_and_a_disk_that_is_off_does_nothing() -> None:
    disk = SimDisk()
    seen: list[tuple[int, str, str]] = []
    disk.at_point = lambda number, operation, path: seen.append((number, operation, path.name))
    written(disk, "file", b"1")
    disk.open_to_read(ROOT / "file").read(0, 1)
    disk.sync_directory(ROOT)
    assert seen == [(1, "create", "file"), (2, "write", "file"), (3, "sync_directory", "")]
    disk.at_point = lambda *_: setattr(disk, "is_off", True)
    file = disk.open(ROOT / "file")
    with pytest.raises(PowerLoss):
        file.write([b"2"], 0)
    with pytest.raises(PowerLoss):
        disk.list(ROOT)
    assert disk.content(ROOT / "file") == b"1"


def test_a_killed_process_loses_its_locks_and_nothing_else() -> None:
    disk = SimDisk()
    lock = disk.open(ROOT / "lock", create=True)
    assert lock.try_lock()
    written(disk, "file", b"1")
    after = disk.after_kill()
    assert found(after, "file") == b"1"
    assert after.open(ROOT / "lock").try_lock()
    assert None in {found(after.after_power_loss(seed), "file") for seed in range(20)}, "still not durable"
    with pytest.raises(PowerLoss):
        disk.list(ROOT)
