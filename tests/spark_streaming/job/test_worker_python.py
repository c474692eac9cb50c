from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdmq.errors import StartupError
from spark_streaming.job.worker_python import workers_run, write_launcher

ASK = "import json, os, sys; print(json.dumps([sys.prefix, os.environ.get('PYTHONPATH'), sys.argv[1:]]))"


@pytest.mark.parametrize("own", [None, "/some where/it's:/other"])
def test_a_worker_is_this_python_with_our_import_path_and_not_spark_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    if own is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", own)
    launcher = write_launcher(tmp_path / "data dir")
    monkeypatch.setenv("PYTHONPATH", "/spark/pyspark.zip")
    done = subprocess.run([launcher, "-c", ASK, "a b", "$c"], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == [sys.prefix, own, ["a b", "$c"]]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "tmp").write_text("in the way")
    with pytest.raises(StartupError, match=rf"the directory {tmp_path} .* cannot be used: File exists"):
        write_launcher(tmp_path)


def test_a_session_s_python_is_no_other_session_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/theirs")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    before = dict(os.environ)
    with workers_run("/ours"):
        assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == "/ours"
    assert dict(os.environ) == before
