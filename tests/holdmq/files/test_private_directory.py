"""Data directories: whoever made them, only their owner gets in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdmq.files.disk import RealDisk
from holdmq.files.private_directory import close_to_others, make_private


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_one_and_its_parents_are_the_owners_only(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b", "mark")
    RealDisk().make_directory(tmp_path / "c" / "d")
    assert {mode_of(tmp_path / name) for name in ("a", "a/b", "c", "c/d")} == {0o700}


@pytest.mark.parametrize(
    ("before", "after"), [(0o755, 0o750), (0o777, 0o750), (0o770, 0o750), (0o750, 0o750), (0o700, 0o700)]
)
def test_one_of_ours_that_is_open_is_closed_and_a_group_goes_on_reading(
    tmp_path: Path, before: int, after: int
) -> None:
    (tmp_path / "mark").touch()
    tmp_path.chmod(before)
    with capture_logs() as logs:
        close_to_others(tmp_path, "mark")
        close_to_others(tmp_path, "mark")
    assert mode_of(tmp_path) == after
    assert [entry["mode"] for entry in logs] == ([f"{before:04o}"] if before != after else [])


@pytest.mark.parametrize(("mode", "names"), [(0o755, ["photos"]), (0o1777, ["mark"]), (0o1777, [])])
def test_one_that_may_be_anybodys_is_left_alone_and_said(tmp_path: Path, mode: int, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    tmp_path.chmod(mode)
    with capture_logs() as logs:
        close_to_others(tmp_path, "mark")
    assert mode_of(tmp_path) == mode
    assert "chmod" in logs[0]["event"]
    assert logs[0]["path"] == str(tmp_path)


def test_one_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    close_to_others(tmp_path / "none", "mark")
    assert os.listdir(tmp_path) == []
