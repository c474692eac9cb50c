"""Files that stay open: how many, and that nobody reads one that is gone."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

from holdmq.files.disk import OpenFile, RealDisk
from storage.log.open_files import OpenFiles

FILES = 40


class Counting(RealDisk):
    """A disk that knows how many of its files are open."""

    def __init__(self) -> None:
        self.open_now = self.most = 0
        self._counting = Lock()

    def open_to_read(self, path: Path) -> OpenFile:
        file: Any = super().open_to_read(path)
        with self._counting:
            self.open_now += 1
            self.most = max(self.most, self.open_now)
        close = file.close
        disk = self

        class Closing:
            read = staticmethod(file.read)

            def close(self) -> None:
                with disk._counting:
                    disk.open_now -= 1
                close()

        return Closing()  # type: ignore[return-value]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    made = [tmp_path / str(i) for i in range(FILES)]
    for index, path in enumerate(made):
        path.write_bytes(bytes([index]) * 10)
    return made


def test_a_file_is_opened_once_for_many_reads(paths: list[Path]) -> None:
    files = OpenFiles(RealDisk())
    assert [files.read(paths[1], 8, 5) for _ in range(5)] == [b"\x01\x01"] * 5
    assert (files.opened, len(files)) == (1, 1)
    files.close()
    assert len(files) == 0


def test_the_least_recently_used_is_closed(paths: list[Path]) -> None:
    disk = Counting()
    files = OpenFiles(disk, files_max=3)
    for index in (0, 1, 2, 0, 3, 0):
        assert files.read(paths[index], 0, 1) == bytes([index])
    assert files.opened == 4
    files.read(paths[1], 0, 1)
    assert (files.opened, len(files), disk.open_now, disk.most) == (5, 3, 3, 4)
    files.close()
    assert disk.open_now == 0


def test_none_stay_open_without_room(paths: list[Path]) -> None:
    disk = Counting()
    files = OpenFiles.of(disk)
    assert files.read(paths[2], 0, 1) == b"\x02"
    assert (disk.open_now, len(files)) == (0, 0)
    assert OpenFiles.of(files) is files


def test_a_file_that_was_removed_or_replaced_is_not_read_again(paths: list[Path]) -> None:
    files = OpenFiles(RealDisk())
    files.read(paths[1], 0, 1)
    files.rename(paths[2], paths[1])
    assert files.read(paths[1], 0, 1) == b"\x02"
    files.unlink(paths[1])
    with pytest.raises(FileNotFoundError):
        files.read(paths[1], 0, 1)
    paths[1].write_bytes(b"new")
    assert files.read(paths[1], 0, 3) == b"new"
    files.close()


def test_threads_that_read_at_once_never_meet_a_closed_file(paths: list[Path]) -> None:
    disk = Counting()
    files = OpenFiles(disk, files_max=2)
    failures: list[Exception] = []

    def read(seed: int) -> None:
        try:
            for step in range(2_000):
                index = (seed * 7 + step * 3) % FILES
                assert files.read(paths[index], step % 10, 1) == bytes([index])
                if step % 50 == 0:
                    files.forget(paths[index])
        except (AssertionError, OSError) as error:
            failures.append(error)

    threads = [Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    # Each thread may have one that it reads, and one that it made place for and has yet to close.
    assert disk.most <= 2 + 4 * 2
    files.close()
    assert disk.open_now == 0


def descriptors(paths: list[Path]) -> int:
    """How many of these files this process has open, whatever other threads of it do."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since they were listed
            found += Path(f"/proc/self/fd/{number}").readlink() in paths
    return found


def test_descriptors_are_given_back(paths: list[Path]) -> None:
    files = OpenFiles(RealDisk(), files_max=4)
    for path in paths:
        files.read(path, 0, 1)
    assert descriptors(paths) == 4
    files.close()
    assert descriptors(paths) == 0
