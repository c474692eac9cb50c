from __future__ import annotations

from pathlib import Path

from command_line import run_here


def test_a_rebuild_asks_first(tmp_path: Path) -> None:
    data = tmp_path / "stats"
    done = run_here("stats", "--rebuild", f"--set=stats.data_dir={data}", stdin="n\n")
    assert done.returncode == 1
    assert "Put the tables aside and count anew?" in done.stderr
    assert not data.exists()
