"""Files that are replaced as a whole: old or new after any failure, never half."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from holdmq.atomic_file import AtomicFile
from holdmq.errors import StorageError, StoreFormatError, StoreFullError


def test_what_is_saved_is_loaded_and_the_one_before_is_kept(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "config" / "topic.json")
    assert file.load() is None
    file.save({"a": [1, "ü"]}, 1)
    file.save({"a": 2}, 2)
    assert file.load() == ({"a": 2}, 2, False)
    assert AtomicFile(file.backup_path).load() == ({"a": [1, "ü"]}, 1, False)
    assert sorted(p.name for p in file.path.parent.iterdir()) == ["topic.json", "topic.json.bak"]


def test_every_damaged_byte_is_refused_and_only_an_accepted_backup_helps(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "topic.json")
    file.save({"a": 1}, 1)
    file.save({"b": 22}, 7)
    whole = file.path.read_bytes()
    for at in range(len(whole) - 1):
        raw = bytearray(whole)
        raw[at] ^= 1
        file.path.write_bytes(raw)
        with pytest.raises(StoreFormatError, match=r"topic\.json.*--accept-backup"):
            file.load()
        assert file.load(accept_backup=True) == ({"a": 1}, 1, True)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"format":1}', b"\xff\xfe", b'{"format":1,"content":{}}']
)
def test_files_that_are_no_such_file_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.json").write_bytes(raw)
    with pytest.raises(StoreFormatError, match="damaged"):
        AtomicFile(tmp_path / "x.json").load()


def test_a_missing_file_with_a_backup_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "x.json")
    file.save({"a": 1}, 1)
    file.save({"a": 2}, 2)
    file.path.unlink()
    with pytest.raises(StoreFormatError, match="missing, but its backup is there"):
        file.load()
    assert file.load(accept_backup=True) == ({"a": 1}, 1, True)


def test_a_newer_format_is_refused_even_with_a_backup(tmp_path: Path) -> None:
    AtomicFile(tmp_path / "x.json", file_format=3).save({"a": 1}, 1)
    AtomicFile(tmp_path / "x.json", file_format=3).save({"a": 1}, 2)
    with pytest.raises(StoreFormatError, match="format is 3, this HoldMQ knows formats up to 2"):
        AtomicFile(tmp_path / "x.json", file_format=2).load(accept_backup=True)


@pytest.mark.parametrize("operation", ["write", "sync", "truncate"])
def test_a_failed_save_leaves_the_old_file(tmp_path: Path, watched_disk: Any, operation: str) -> None:
    file = AtomicFile(tmp_path / "x.json", watched_disk)
    file.save({"a": 1}, 1)
    for code, kind in ((errno.ENOSPC, StoreFullError), (errno.EIO, StorageError)):
        watched_disk.failing = lambda asked, _path, code=code: code if asked == operation else None
        with pytest.raises(kind, match=r"x\.json"):
            file.save({"a": 2}, 2)
        watched_disk.failing = lambda *_: None
        assert file.load() == ({"a": 1}, 1, False)
