from __future__ import annotations

from pathlib import Path

from command_line import run_here

from holdmq.cli.services import backup_sets


def test_the_flag_that_refusals_name_is_the_key_of_who_has_backups() -> None:
    services = ("registry", "broker", "gateway")
    assert backup_sets(True, services) == ["registry.accept_backup=true", "storage.accept_backup=true"]
    assert backup_sets(False, services) == []
    for name in ("up", "registry", "broker"):
        assert "--accept-backup" in run_here(name, "--help").stdout


def test_a_rebuild_asks_first(tmp_path: Path) -> None:
    data = tmp_path / "stats"
    done = run_here("stats", "--rebuild", f"--set=stats.data_dir={data}", stdin="n\n")
    assert done.returncode == 1
    assert "Put the tables aside and count anew?" in done.stderr
    assert not data.exists()
