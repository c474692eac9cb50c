from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdmq.errors import StartupError
from spark_streaming import java


def fake_java(directory: Path, version_line: str, code: int = 0) -> Path:
    executable = directory / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {code}\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_401"', 8),
        ("what?", 0),
    ],
)
def test_the_major_version_is_read_from_what_java_says(tmp_path: Path, line: str, major: int) -> None:
    assert java.java_version(fake_java(tmp_path, line)) == major


def test_a_java_that_fails_or_is_absent_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(fake_java(tmp_path, 'openjdk version "17"', code=1)) == 0
    assert java.java_version(tmp_path / "absent") == 0


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.find_java_home() == tmp_path


def test_an_old_java_is_passed_over_for_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", 'java version "1.8.0_401"')
    packaged = fake_java(tmp_path / "packaged", 'openjdk version "25"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_packaged_java", lambda: packaged)
    home = java.find_java_home()
    assert home.is_relative_to(tmp_path / "cache")
    assert os.access(home / "bin" / "java", os.X_OK)


def test_no_java_at_all_is_refused_with_what_was_seen_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, 'java version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(StartupError, match=r"version 11\); install openjdk-17"):
        java.find_java_home()


def test_the_launcher_drops_only_the_missing_module(tmp_path: Path) -> None:
    real = tmp_path / "real java"
    real.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    real.chmod(0o755)
    home = java.write_launcher(real, tmp_path / "home")
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dx=a b", "", "--add-modules=other"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["[-Dx=a b]", "[]", "[--add-modules=other]"]


def test_an_unwritable_cache_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="cannot be written"):
        java.write_launcher(tmp_path / "java", tmp_path / "file" / "home")
