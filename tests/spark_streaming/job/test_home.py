from __future__ import annotations

from pathlib import Path

import pytest

from holdmq.errors import StartupError
from spark_streaming.job.home import JobDirectory


def test_what_a_killed_job_left_in_the_scratch_space_goes(tmp_path: Path) -> None:
    home = JobDirectory(tmp_path / "stats")
    (home.scratch / "blockmgr-1").mkdir()
    home.close()
    again = JobDirectory(tmp_path / "stats")
    assert list(again.scratch.iterdir()) == []
    again.close()


def test_two_jobs_in_one_directory_are_one_too_many(tmp_path: Path) -> None:
    first = JobDirectory(tmp_path)
    with pytest.raises(StartupError, match="another stats job runs in"):
        JobDirectory(tmp_path)
    first.close()
    JobDirectory(tmp_path).close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=r"file/stats \(stats.data_dir\) cannot be used: Not a directory"):
        JobDirectory(tmp_path / "file" / "stats")
