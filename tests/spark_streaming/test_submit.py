from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_streaming import submit

MODULE = Path(submit.__file__)


def run(*arguments: str, isolated: bool = False, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the file as spark-submit does: by its path."""
    flags = ("-S", "-E") if isolated else ()
    return subprocess.run(
        [sys.executable, *flags, MODULE, *arguments],
        capture_output=True, text=True, timeout=150, check=False, cwd=cwd,
    )  # fmt: skip


def test_it_takes_what_holdmq_stats_takes(tmp_path: Path) -> None:
    done = run("--once", "--set", "stats.core=2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith('error: unknown key "stats.core" in --set')


def test_a_python_without_holdmq_is_named(tmp_path: Path) -> None:
    done = run(isolated=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: HoldMQ is not installed in {sys.executable}")
    assert "PYSPARK_PYTHON" in done.stderr
