"""Files that are replaced as a whole: old or new after any failure, never half."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_disk import WatchedDisk

from holdmq.errors import StorageError, StoreFormatError, StoreFullError
from holdmq.files import atomic_file
from holdmq.files.atomic_file import AtomicFile


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


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_save_leaves_the_old_file(tmp_path: Path, operation: str) -> None:
    watched_disk = WatchedDisk()
    file = AtomicFile(tmp_path / "x.json", watched_disk)
    file.save({"a": 1}, 1)
    for code, kind in ((errno.ENOSPC, StoreFullError), (errno.EIO, StorageError)):
        watched_disk.failing = lambda asked, _path, code=code: code if asked == operation else None
        with pytest.raises(kind, match=r"x\.json"):
            file.save({"a": 2}, 2)
        watched_disk.failing = lambda *_: None
        assert file.load() == ({"a": 1}, 1, False)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)


@given(
    st.recursive(
        st.dictionaries(st.text(max_size=3), SCALARS, max_size=9),
        lambda inner: st.dictionaries(st.text(max_size=3), inner | SCALARS, max_size=9),
        max_leaves=60,
    )
)
def test_slices_give_the_bytes_that_one_call_of_the_encoder_gives(content: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_file, "SLICE_ENTRIES", 2)
        sliced = atomic_file._canonical(content)
    assert sliced == json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def test_no_call_of_the_encoder_or_parser_has_a_large_file_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 0

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(value: Any, **options: Any) -> Any:
            nonlocal longest
            answer = call(value, **options)
            longest = max(longest, *(len(each) for each in (value, answer) if isinstance(each, str | bytes)))
            return answer

        return made

    file = AtomicFile(tmp_path / "checkpoint.json")
    topics = {f"topic-{i}": {str(queue): [0, i] for queue in range(8)} for i in range(2_000)}
    monkeypatch.setattr(atomic_file.json, "dumps", watched(json.dumps))
    monkeypatch.setattr(atomic_file.json, "loads", watched(json.loads))
    for version in range(3):
        file.save({"queues": topics, "one": {"wide": {str(queue): queue for queue in range(5_000)}}}, version)
    assert (tmp_path / "checkpoint.json").stat().st_size > 200_000
    assert longest < 10_000
