from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from holdmq.config.analytics import StatsSection
from holdmq.errors import StartupError
from spark_streaming.java import find_java_home
from spark_streaming.job import write_class_archive
from spark_streaming.job.class_archive import archive_path
from spark_streaming.job.parts import QueryPart
from spark_streaming.job.session import start_session


def little(spark: SparkSession, _parts: Iterable[QueryPart]) -> None:
    """Load some classes, not all that the job's plans take."""
    assert spark.range(3).count() == 3


@pytest.mark.timeout(1800)
def test_an_archive_is_written_once_and_mapped_by_the_next_jvm_which_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(write_class_archive, "warm_up", little)
    # Two minutes were seen beside other tests.
    monkeypatch.setattr(write_class_archive, "WRITE_TIMEOUT_S", 900.0)
    archive = archive_path(find_java_home())
    archive.parent.mkdir(parents=True)
    outdated = archive.with_name("spark-0123456789abcdef.jsa")
    outdated.write_bytes(b"")
    assert write_class_archive.main() == 0
    assert str(archive) in capsys.readouterr().out
    assert list(archive.parent.iterdir()) == [archive]

    said: list[str] = []
    session = start_session(StatsSection(data_dir=str(tmp_path)), said.append)
    try:
        jvm = session.spark.sparkContext._jvm
        assert jvm is not None
        pid = jvm.java.lang.ProcessHandle.current().pid()
        assert str(archive) in {mapping.path for mapping in psutil.Process(pid).memory_maps()}
    finally:
        session.stop()
    assert said == []

    assert write_class_archive.write() == ""


def test_what_cannot_be_written_is_a_sentence_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "share").write_bytes(b"")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert write_class_archive.main() == 0
    assert "none written, Spark starts slower: [Errno" in capsys.readouterr().out

    def refuse() -> Path:
        raise StartupError("Spark needs a Java")

    monkeypatch.setattr(write_class_archive, "find_java_home", refuse)
    assert write_class_archive.main() == 0
    assert "Spark needs a Java" in capsys.readouterr().out

    def die() -> Path:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(write_class_archive, "find_java_home", die)
    assert write_class_archive.main() == 0
    assert "Answer from Java side is empty" in capsys.readouterr().out


def test_a_jvm_that_writes_none_is_named_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Silent:
        spark = None

        def stop(self, _wait_s: float) -> None:
            """End without an archive."""

    def start(_stats: object, say: object, _options: object) -> Silent:
        assert callable(say)
        say("no base archive")
        return Silent()

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(write_class_archive, "start_session", start)
    monkeypatch.setattr(write_class_archive, "warm_up", lambda *_: None)
    monkeypatch.setattr(write_class_archive, "_run_a_stream", lambda *_: None)
    assert write_class_archive.main() == 0
    assert "no base archive" in capsys.readouterr().out
    assert not list((tmp_path / "share" / "holdmq").iterdir())
