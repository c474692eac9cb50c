"""``holdmq topic …`` against a real registry and a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from processes import Stack, holdmq_stack

__all__ = ["holdmq_stack"]
Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def stack(holdmq_stack: Callable[..., Stack]) -> Stack:
    return holdmq_stack(services=("registry", "broker"), **{"broker.hide_grace_s": 0})


@pytest.fixture
def cli(stack: Stack) -> Cli:
    def run(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        flags = [f"--set=registry.port={stack.registry_port}"]
        return subprocess.run(
            [sys.executable, "-P", "-m", "holdmq.cli", *arguments, *flags],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **kwargs,
        )

    return run


def test_a_topic_s_life_on_the_command_line(cli: Cli) -> None:
    made = cli("topic", "create", "t", "--queues", "2", "--retention", "12h", "--perm", "rw")
    assert made.stdout == "t is on broker-0 with 2 queues\n"
    changed = cli("topic", "update", "t", "--perm", "r", "--retention", "30m")
    assert changed.stdout == "t on broker-0: 2 queues, perm r, retention 1800 s\n"
    assert cli("topic", "update", "t", "--perm", "rw").returncode == 0
    assert cli("topic", "queues", "t", "--to", "4").stdout.startswith("t on broker-0: 4 queues")
    assert cli("topic", "pause", "t").stdout.endswith(", paused\n")
    (row,) = json.loads(cli("topic", "list", "--json").stdout)
    assert (row["write_queues"], row["is_paused"], row["retention_ms"]) == (4, True, 1_800_000)
    assert "paused" in cli("topic", "list").stdout
    assert "paused" not in cli("topic", "resume", "t").stdout
    assert cli("topic", "queues", "t", "--to", "1").stdout.startswith("t on broker-0: 1 queues")
    shown = json.loads(cli("topic", "queues", "t", "--json").stdout)
    assert [(queue["queue_id"], queue["end_offset"]) for queue in shown] == [(0, 0)]
    assert cli("topic", "delete", "t", "--yes").stdout == "t is deleted\n"
    assert json.loads(cli("topic", "list", "--json").stdout) == []


def test_who_lags_is_named_and_force_does_not_wait(cli: Cli) -> None:
    assert cli("topic", "create", "t", "--queues", "1", "--order").returncode == 0
    assert cli("pub", "t", "-m", "x").returncode == 0
    asked = cli("topic", "delete", "t", "--force", input="n\n")
    assert asked.returncode == 1
    assert len(json.loads(cli("topic", "list", "--json").stdout)) == 1
    assert cli("topic", "delete", "t", "--force", "--yes").returncode == 0


MISTAKES = [
    (["update", "nothing", "--perm", "r"], 1, "'nothing' does not exist"),
    (["queues", "nothing"], 1, "no broker has a topic 'nothing'"),
    (["create", "t", "--perm", "x"], 2, "--perm 'x' is not rw, r, w or none"),
    (["create", "t", "--retention", "soon"], 2, "--retention 'soon'"),
    (["create", "t", "--retention", "999d"], 1, "storage.retention_age_s"),
    (["create", "t", "--kind", "heap"], 1, "kind 'heap'"),
]


def test_what_cannot_be_done_is_one_sentence(cli: Cli) -> None:
    for arguments, code, said in MISTAKES:
        refused = cli("topic", *arguments)
        assert refused.returncode == code
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr
