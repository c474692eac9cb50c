"""Files that are read again when they have changed, and not while they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdmq.files.file_signature import LOOKS_MAX, changed, signature_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("before")
    return path


def meanwhile(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> list[float]:
    """What others do while `changed` waits; its waits."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) <= len(steps):
            steps[len(waits) - 1]()

    monkeypatch.setattr("holdmq.files.file_signature.time.sleep", sleep)
    return waits


def test_who_is_as_known_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = meanwhile(monkeypatch)
    assert changed([path], (), signature_of([path])) is None
    assert waits == []


def test_a_file_that_has_changed_is_told_once_it_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = signature_of([path])
    path.write_text("")
    waits = meanwhile(monkeypatch, lambda: path.write_text("after all"))
    signature = changed([path], known)
    assert signature == signature_of([path])
    assert len(waits) == 2
    assert changed([path], known, signature or ()) is None


def test_a_file_that_is_gone_for_a_moment_is_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = signature_of([path])
    aside = path.rename(path.with_name("aside"))
    meanwhile(monkeypatch, lambda: aside.rename(path))
    assert changed([path], known) is None
    path.unlink()
    assert changed([path], known) == ((),)


def test_a_file_that_goes_on_changing_is_told_in_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(10, 10 + LOOKS_MAX))
    grow = [lambda: path.write_bytes(bytes(next(sizes)))] * LOOKS_MAX
    waits = meanwhile(monkeypatch, *grow)
    assert changed([path], ()) == signature_of([path])
    assert len(waits) == LOOKS_MAX


def test_who_may_read_a_file_is_a_part_of_what_it_is(path: Path) -> None:
    path.chmod(0o644)
    known = signature_of([path])
    path.chmod(0o600)
    assert changed([path], known) == signature_of([path]) != known
