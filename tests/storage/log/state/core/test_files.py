"""State files as rows: whatever a crash leaves of the rows, each file is as one of its versions was."""

from __future__ import annotations

from random import Random

import pytest

from holdmq.errors import RecordError
from storage.api.tables import KeyChange
from storage.log.state.core import files as logged_files
from storage.log.state.core.files import LoggedFiles


def content(chance: Random) -> bytes:
    size = chance.choice((0, 1, 3_000, 40_000, 300_000))
    return chance.randbytes(size // 2) + bytes(size // 2)


def taken(files: LoggedFiles, rows: list[KeyChange]) -> list[str]:
    changed = [files.apply(row.key.encode(), row.value) for row in rows]
    return [name for name in changed if name is not None]


def contents(files: LoggedFiles) -> dict[str, bytes | None]:
    return {name: files.content(name) for name in files.names()}


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_row_leaves_every_file_as_it_was_or_as_it_is(seed: int) -> None:
    chance = Random(seed)
    rows: list[KeyChange] = []
    files = LoggedFiles()
    model: dict[str, bytes] = {}
    after: list[tuple[int, dict[str, bytes]]] = [(0, {})]
    for _ in range(12):
        name = chance.choice("abc")
        what = chance.choice(("put", "put", "edit", "remove"))
        if what == "put" or name not in model:
            model[name] = content(chance)
            change = files.replaced(name, model[name])
        elif what == "edit":
            model[name] = model[name][: len(model[name]) // 2] + b"!" + model[name][len(model[name]) // 2 :]
            change = files.replaced(name, model[name])
        else:
            del model[name]
            change = files.removed(name)
        rows += change
        taken(files, change)
        assert contents(files) == model
        after.append((len(rows), dict(model)))
    for cut in range(len(rows) + 1):
        found = LoggedFiles()
        taken(found, rows[:cut])
        before = [state for end, state in after if end <= cut][-1]
        behind = next(state for end, state in after if end >= cut)
        assert contents(found) in (before, behind)
        # What a crash left of a version that was never whole goes with the next change.
        taken(found, found.replaced("d", b"new"))
        assert contents(found) == {**contents(found), "d": b"new"}
        used = {id_ for name in found.names() for id_ in found.listing(name).ids}  # type: ignore[union-attr]
        assert set(found._chunks) == used


def test_a_version_that_changes_nothing_appends_nothing() -> None:
    files = LoggedFiles()
    taken(files, files.replaced("a", b"1" * 100_000))
    assert files.replaced("a", b"1" * 100_000) == []
    assert files.removed("b") == []


def test_a_copy_of_a_file_appends_one_row() -> None:
    files = LoggedFiles()
    raw = Random(3).randbytes(200_000)
    taken(files, files.replaced("a", raw))
    assert len(files.replaced("a.bak", raw)) == 1


def test_a_file_without_one_of_its_chunks_is_refused_by_name() -> None:
    files = LoggedFiles()
    rows = files.replaced("a", Random(4).randbytes(100_000))
    taken(files, rows[1:])
    with pytest.raises(RecordError, match="of a is missing"):
        files.content("a")


def test_a_file_of_another_size_is_refused() -> None:
    files = LoggedFiles()
    taken(files, files.replaced("a", b"four"))
    row = files.replaced("b", b"four")[-1]
    assert row.value is not None
    files.apply(row.key.encode(), row.value[:8] + b"\5" + row.value[9:])
    with pytest.raises(RecordError, match="5 were written"):
        files.content("b")


def test_too_large_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged_files, "FILE_BYTES_MAX", 10)
    with pytest.raises(RecordError, match="at most 10"):
        LoggedFiles().replaced("a", bytes(11))


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", b""), (b"x", b""), (b"fa", b"\1"), (b"fa", b"\1" + bytes(9)), (b"fa", b"\2" + bytes(8))],
)
def test_rows_of_no_known_form_are_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(RecordError):
        LoggedFiles().apply(key, value)


def test_rows_that_take_nothing_away_change_no_file() -> None:
    files = LoggedFiles()
    assert files.apply(b"fa", None) is None
    assert files.apply(b"c" + b"00" * 16, None) is None


def test_what_is_read_anew_begins_with_nothing() -> None:
    files = LoggedFiles()
    taken(files, files.replaced("a", b"1"))
    files.position = 7
    files.clear()
    assert (files.names(), files.position, files.size_bytes) == ([], 0, 0)
