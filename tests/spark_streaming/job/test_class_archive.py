from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from spark_streaming.job import class_archive


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java and a Spark of one file each, in an environment of Python that has no archive yet."""
    for name in ("java/bin/java", "spark/jars/core.jar"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return tmp_path / "java"


def make(java_home: Path) -> Path:
    path = class_archive.archive_path(java_home)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    return path


def test_an_archive_is_used_once_it_is_there(java_home: Path) -> None:
    assert class_archive.options(java_home) == []
    path = make(java_home)
    assert class_archive.options(java_home)[0] == f"-XX:SharedArchiveFile={path}"
    assert path.is_relative_to(sys.prefix)


@pytest.mark.parametrize("changed", ["java/bin/java", "spark/jars/core.jar"])
def test_an_archive_of_another_java_or_other_jars_is_not_used(java_home: Path, changed: str) -> None:
    make(java_home)
    os.utime(java_home.parent / changed, (1, 1))
    assert class_archive.options(java_home) == []


def test_a_jar_that_was_added_or_removed_is_noticed(java_home: Path) -> None:
    first = class_archive.archive_path(java_home)
    added = java_home.parent / "spark" / "jars" / "added.jar"
    added.write_bytes(b"")
    assert class_archive.archive_path(java_home) != first
    added.unlink()
    assert class_archive.archive_path(java_home) == first


def test_without_java_or_jars_nothing_is_used(java_home: Path) -> None:
    assert class_archive.options(java_home / "absent") == []
    (java_home.parent / "spark" / "jars" / "core.jar").unlink()
    (java_home.parent / "spark" / "jars").rmdir()
    assert class_archive.options(java_home) == []
