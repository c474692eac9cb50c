"""The commands as they are typed, over child processes, against Mosquitto."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def holdmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdmq.cli", "loadtest", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_publish_reports_as_json_file_and_picture(peer: tuple[str, int], tmp_path: Path) -> None:
    report, picture = tmp_path / "run.json", tmp_path / "run.png"
    done = holdmq(
        "publish",
        *("--target", f"{peer[0]}:{peer[1]}", "--devices", "6", "--ramp-s", "0", "--count", "500"),
        *("--processes", "2", "--report", str(report), "--picture", str(picture), "--json"),
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert json.loads(report.read_text()) == shown
    assert shown["connections"]["connected"] == 6
    assert shown["messages"]["acknowledged"] == 500
    assert shown["messages"]["latency_us"]["count"] == 500
    assert shown["machine"]["processes"] == 2
    assert shown["parameters"]["window"] == 10
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_connect_reports_and_draws_as_svg(peer: tuple[str, int], tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    done = holdmq(
        "connect",
        *("--target", f"{peer[0]}:{peer[1]}", "--devices", "50", "--ramp-s", "0.2", "--hold-s", "0.2"),
        *("--picture", str(picture)),
    )
    assert done.returncode == 0, done.stderr
    assert "50 of 50" in done.stdout
    assert "devices=50" in done.stdout
    assert "connections per second" in picture.read_text()


def test_a_remote_target_is_one_sentence() -> None:
    done = holdmq("publish", "--target", "192.0.2.1:1883")
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_away_fails_with_the_reason() -> None:
    done = holdmq("connect", "--target", "127.0.0.1:1", "--devices", "2", "--ramp-s", "0", "--hold-s", "0")
    assert done.returncode == 1
    assert "2 × Connection refused" in done.stdout


def test_a_picture_of_an_unknown_kind_is_refused_before_anything_runs() -> None:
    done = holdmq("publish", "--picture", "run.gif")
    assert done.returncode == 2
    assert ".png" in done.stderr


def test_deliver_tells_what_arrived_and_how_fast(peer: tuple[str, int], tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    done = holdmq(
        "deliver",
        *("--target", f"{peer[0]}:{peer[1]}", "--publishers", "3", "--subscribers", "3", "--pairs"),
        *("--seconds", "0.5", "--json", "--report", str(report)),
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert json.loads(report.read_text()) == shown
    assert shown["tool"] == "holdmq loadtest deliver"
    assert shown["deliveries"]["came"] == shown["deliveries"]["expected"] == 30
    assert 0 < shown["deliveries"]["p50_ms"] <= shown["deliveries"]["max_ms"]
    uneven = holdmq("deliver", "--target", f"{peer[0]}:{peer[1]}", "--publishers", "3", "--pairs")
    assert (uneven.returncode, "not 3 and 100" in uneven.stderr) == (2, True)


@pytest.mark.parametrize("work", ["publish", "deliver"])
def test_compare_tells_each_server_beside_the_first(peer: tuple[str, int], work: str) -> None:
    host, port = peer
    done = holdmq(
        "compare",
        *(f"{host}:{port}", f"localhost:{port}", "--work", work, "--rounds", "1", "--devices", "2"),
        *("--seconds", "0.3", "--json"),
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["servers"]
    assert [first["target"], second["target"]] == [f"{host}:{port}", f"localhost:{port}"]
    assert first["times"] == 1
    # The rates that are shown are rounded, too.
    assert second["times"] == pytest.approx(second["rate"] / first["rate"], abs=0.01)
    assert first["failed"] == second["failed"] == 0
    assert holdmq("compare", f"{host}:{port}").returncode == 2
