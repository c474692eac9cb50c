"""Drafts: what a crash left is replaced, and a link that somebody laid is not followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import create_anew


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(b"theirs")
    return path


@pytest.mark.parametrize("draft", ["x.json.tmp", "x.json.bak.tmp"])
def test_a_small_file_is_not_written_through_a_link(tmp_path: Path, victim: Path, draft: str) -> None:
    file = AtomicFile(tmp_path / "x.json")
    file.save({"a": 1}, 1)
    (tmp_path / draft).symlink_to(victim)
    file.save({"a": 2}, 2)
    assert victim.read_bytes() == b"theirs"
    loaded = AtomicFile(tmp_path / "x.json").load()
    assert loaded is not None
    assert loaded.content == {"a": 2}
    (tmp_path / draft).write_bytes(b"left by a crash" * 100)
    file.save({"a": 3}, 3)
    assert file.problem() == ""


def test_a_directory_in_the_way_is_an_error_and_stays(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="x"):
        create_anew(tmp_path / "x", 0o600)
    assert (tmp_path / "x").is_dir()
