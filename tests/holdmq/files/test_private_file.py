"""Files of secrets: who may read them, and that no writer loses another's word or lays a secret open."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from holdmq.errors import ConfigError
from holdmq.files.private_file import (
    locked,
    open_to_others,
    read_private,
    refuse_if_open_to_others,
    write_private,
)

OTHER = 1234
"""A user and group that nobody is."""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
@pytest.mark.parametrize("owner", [0, OTHER])
def test_what_the_owner_alone_can_read_is_private(mode: int, owner: int) -> None:
    assert not open_to_others(mode, owner)


@pytest.mark.parametrize("mode", [0o640, 0o440])
def test_a_group_may_read_what_is_roots(mode: int) -> None:  # Kubernetes: root, fsGroup, 0440
    assert not open_to_others(mode, 0)
    assert open_to_others(mode, OTHER)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601, 0o660, 0o620, 0o610])
@pytest.mark.parametrize("owner", [0, OTHER])
def test_others_may_nothing_and_a_group_not_write(mode: int, owner: int) -> None:
    assert open_to_others(mode, owner)


def test_a_refusal_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("x")
    path.chmod(0o644)
    said = f"a.key: {path} has mode 0644, so that others can read or change it; chmod 600 {path}"
    with pytest.raises(ConfigError) as raised:
        refuse_if_open_to_others(path, "a.key")
    assert str(raised.value) == said
    with pytest.raises(ConfigError, match="chmod 600"):
        read_private(path, "a.key", 10)
    path.chmod(0o600)
    refuse_if_open_to_others(path, "a.key")
    assert read_private(path, "a.key", 1) == b"x"
    path.write_text("xy")
    with pytest.raises(ConfigError, match="has more than 1 bytes"):
        read_private(path, "a.key", 1)


def test_a_file_of_another_users_group_is_told_that_root_may_give_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch()
    if os.geteuid() == 0:
        os.chown(path, OTHER, -1)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}, or chown root {path}"):
        refuse_if_open_to_others(path, "a.key")


def test_a_link_that_was_laid_out_beside_does_not_get_the_secret(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    path = tmp_path / "users"
    path.with_name(f".users.{os.getpid()}").symlink_to(victim)
    write_private(path, b"secret")
    assert path.read_bytes() == b"secret"
    assert victim.read_text() == "kept"
    assert mode_of(path) == 0o600


def test_what_a_link_points_to_is_replaced_and_keeps_its_owner(tmp_path: Path) -> None:
    real, path = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o644)
    owner = OTHER if os.geteuid() == 0 else os.geteuid()
    os.chown(real, owner, -1)
    path.symlink_to(real)
    write_private(path, b"new")
    assert path.is_symlink()
    assert real.read_text() == "new"
    assert (mode_of(real), real.stat().st_uid) == (0o600, owner)


def test_who_could_read_roots_file_still_can(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("old")
    path.chmod(0o640)
    private = 0o640 if os.geteuid() == 0 else 0o600
    write_private(path, b"new")
    assert mode_of(path) == private


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_private(path, b"x")
    assert [left.name for left in tmp_path.iterdir()] == ["users"]


def test_one_writer_at_a_time_and_each_sees_what_the_one_before_wrote(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_text("0")

    def count() -> None:
        for _ in range(20):
            with locked(path):
                write_private(path, str(int(path.read_text()) + 1).encode())

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "80"


def test_a_lock_that_is_not_given_back_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "users"
    busy = pytest.raises(TimeoutError, match="another process has been writing it for 0 s")
    with locked(path), busy, locked(path, wait_s=0):
        raise AssertionError("two have the lock")
    with locked(path, wait_s=0):
        pass
    assert mode_of(path) == 0o600
