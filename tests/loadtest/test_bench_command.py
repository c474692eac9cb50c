"""A benchmark measures what was compiled of the sources as they are, or says why it cannot."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.harness import command


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiled = tmp_path / "build" / "compiled"
    (compiled / "holdmq").mkdir(parents=True)
    (tmp_path / "holdmq").mkdir()
    (tmp_path / "holdmq" / "codec.py").write_text("")
    monkeypatch.setattr(command, "_ROOT", tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def begun_again(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, str]]:
    begun: list[Any] = []

    def execve(_path: str, arguments: list[str], environment: dict[str, str]) -> None:
        begun.append((arguments, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(SystemExit) as ended:
        command.run_compiled()
    assert ended.value.code == 0
    found: tuple[list[str], dict[str, str]] = begun[0]
    return found


def test_it_begins_again_where_the_compiled_modules_are(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(tree / "holdmq" / "codec.py", (1, 1))
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "loadtest.bench.hold", "--pulls", "10"])
    arguments, environment = begun_again(monkeypatch)
    assert arguments == [sys.executable, "-m", "loadtest.bench.hold", "--pulls", "10"]
    assert environment["PYTHONPATH"] == str(tree / "build" / "compiled")
    assert environment["PYTHONSAFEPATH"] == "1"


def test_what_is_older_than_a_source_is_not_measured(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.utime(tree / "build" / "compiled", (1, 1))
    with pytest.raises(SystemExit) as ended:
        command.run_compiled()
    assert ended.value.code == 2
    assert "holdmq/codec.py is newer than what was compiled: make compile" in capsys.readouterr().err


def test_without_anything_compiled_it_says_what_to_do(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_ROOT", tree / "none")
    with pytest.raises(SystemExit) as ended:
        command.run_compiled()
    assert ended.value.code == 2
    assert "nothing is compiled: make compile" in capsys.readouterr().err
