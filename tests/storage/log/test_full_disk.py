"""A disk without a byte left: old segments go all the same, a store opens, refuses, and goes on by itself."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sim_disk import SimDisk
from stepped_store import Stepped

from holdmq.errors import BehindError, StorageError, StoreFullError
from holdmq.files.disk import RealDisk
from storage.log.retention.spare import SPARE
from storage.log.segments import RESERVE

MakeDriver = Callable[..., Any]
MIB = 1 << 20
HOME = Path("/store")


def filled(disk: SimDisk) -> tuple[Stepped, list[bytes]]:
    """A store with its spare room and reserve, and segments behind them that no checkpoint has passed."""
    stepped = Stepped(disk, keeps_hooks=True)
    records = [stepped.append(i % 3, 8) for i in range(6)]
    stepped.retain()
    assert SPARE in disk.list(HOME)
    assert RESERVE in disk.list(HOME / "commitlog")
    assert stepped.store.first_position == 0
    records += [stepped.append(i % 3, 8) for i in range(12)]
    assert stepped.store._checkpoint.position < stepped.store.confirmed_position - 4096
    return stepped, records


def log_of(stepped: Stepped) -> bytes:
    store, log = stepped.store, b""
    position = store.first_position
    while position < store.confirmed_position:
        for batch in store.read_log(position, MIB):
            log += bytes(batch.records)
            position = batch.end
    return log


def test_segments_go_that_no_checkpoint_had_passed_when_the_disk_became_full() -> None:
    disk = SimDisk(1 << 20)
    stepped, records = filled(disk)
    checkpointed = stepped.store._checkpoint.position
    disk.capacity_bytes = disk.used_bytes
    stepped.retain()
    stepped.retain()
    store = stepped.store
    assert store.first_position > checkpointed
    assert store.state().ok, "there is room again"
    records.append(stepped.append(0, 1))
    assert SPARE not in disk.list(HOME)
    disk.capacity_bytes = 1 << 20
    stepped.retain()
    assert SPARE in disk.list(HOME), "made again for the next time"
    again = Stepped(disk.after_power_loss(1))
    whole = b"".join(records)
    assert whole.endswith(log_of(again))
    assert again.store.confirmed_position == store.confirmed_position


@pytest.mark.parametrize("kept", [SPARE, RESERVE])
def test_a_store_opens_on_a_full_disk_says_so_makes_room_and_goes_on(kept: str) -> None:
    disk = SimDisk(1 << 20)
    _, records = filled(disk)
    if kept != SPARE:
        disk.unlink(HOME / SPARE)
    disk = disk.after_kill()
    disk.capacity_bytes = disk.used_bytes
    stepped = Stepped(disk, keeps_hooks=True)
    stepped.deliver()
    state = stepped.store.state()
    assert not state.ok
    assert "the file system is filled to" in state.reason
    assert isinstance(stepped.refused(), StoreFullError)
    assert log_of(stepped) == b"".join(records)
    stepped.retain()
    stepped.retain()
    assert stepped.store.state().ok
    assert stepped.store.first_position > 0
    records.append(stepped.append(0, 1))
    assert b"".join(records).endswith(log_of(stepped))
    stepped.store.close()
    again = Stepped(disk)
    assert b"".join(records).endswith(log_of(again))


def test_a_start_that_finds_no_room_behind_the_log_s_end_makes_it_before_the_next_write() -> None:
    disk = SimDisk()
    stepped = Stepped(disk)
    records = [stepped.append(0, 8) for _ in range(3)]
    stepped.retain()
    disk = disk.after_kill()
    disk.failing = lambda operation, path: (
        28 if operation == "preallocate" and path.parent.name == "commitlog" else None
    )
    stepped = Stepped(disk)
    assert isinstance(stepped.refused(), StoreFullError)
    assert log_of(stepped) == b"".join(records)
    disk.failing = lambda _operation, _path: None
    records += [stepped.append(0, 8) for _ in range(6)]
    assert log_of(stepped) == b"".join(records)
    assert log_of(Stepped(disk.after_kill())) == b"".join(records)


# A real file system


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    """24 MiB of tmpfs; tests run as root in CI."""
    directory = tmp_path / "small"
    directory.mkdir()
    assert os.geteuid() == 0, "mounting a tmpfs needs root: run the tests as root, as CI does"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def write_for_ever(descriptor: int) -> None:
    while True:
        os.write(descriptor, bytes(65_536))


def fill_up(directory: Path) -> None:
    """Others take what is left."""
    descriptor = os.open(directory / "filler", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        with pytest.raises(OSError, match="No space left"):
            write_for_ever(descriptor)
    finally:
        os.close(descriptor)


def wait_for_room(d: Any) -> None:
    until = time.monotonic() + 40
    while d.store.first_position == 0 or not d.store.state().ok:
        assert time.monotonic() < until, d.store.state()
        while not d.posted.empty():
            d.posted.get()()
        time.sleep(0.003)


def held_by(d: Any) -> bytes:
    """The log, read while retention may take its oldest part."""
    while True:
        try:
            return bytes(d.log_bytes())
        except BehindError:
            continue


def answered(d: Any, count: int) -> StorageError | None:
    d.append(count, body=bytes(3000))
    (error,) = d.wait(1)
    return error  # type: ignore[no-any-return]


def test_a_store_opens_on_a_full_filesystem_and_makes_room_for_itself(
    driver: MakeDriver, small_filesystem: Path
) -> None:
    d = driver(small_filesystem / "store", disk=RealDisk(), retention_interval_ms=3_600_000).open()
    confirmed = [bytes(d.append_and_wait(300, body=bytes(3000)).records) for _ in range(8)]
    d.wait_indexed()
    until = time.monotonic() + 40
    while not d.store.numbers()["spare_bytes"]:
        assert time.monotonic() < until
        time.sleep(0.003)
    assert (small_filesystem / "store" / SPARE).exists()
    fill_up(small_filesystem)
    d.store.close()
    # Long enough to look at what nothing was removed from.
    d.settings["flush_interval_ms"] = 30_000
    d.open()
    while not d.posted.empty():
        d.posted.get()()
    assert "the file system is filled to" in d.store.state().reason
    assert isinstance(answered(d, 1), StoreFullError)
    assert d.store.first_position == 0
    d.store.close()
    d.settings.update(flush_interval_ms=5, retention_interval_ms=1)
    d.open()
    wait_for_room(d)
    confirmed.append(bytes(d.append_and_wait(50, body=bytes(3000)).records))
    held = held_by(d)
    assert b"".join(confirmed).endswith(held)
    d.store.close()
    d.open()
    assert held.endswith(held_by(d))
