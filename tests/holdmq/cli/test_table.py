"""``holdmq table`` against a real registry and a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command, process_runner, runner, small_stack
from processes import Stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from small_stack(tmp_path_factory.mktemp("stack"))


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    run = runner(stack)
    assert run("table", "create", "t").stdout == "t is on broker-0\n"
    return run


def test_a_row_is_put_got_and_deleted(stack: Stack, cli: Cli, tmp_path: Path) -> None:
    first = process_runner(stack)("table", "put", "t", "row/1", "größer")
    assert (first.returncode, first.stderr) == (0, "")
    assert cli("table", "get", "t", "row/1").stdout == "größer\n"
    version = int(first.stdout)
    got = json.loads(cli("table", "get", "t", "row/1", "--json").stdout)
    assert got == {"key": "row/1", "value": "größer", "version": version}
    assert int(cli("table", "delete", "t", "row/1").stdout) > version
    gone = cli("table", "get", "t", "row/1")
    assert (gone.returncode, gone.stdout, gone.stderr) == (1, "", "row/1 has no value\n")
    binary = tmp_path / "value"
    binary.write_bytes(b"\xff\x00")
    assert cli("table", "put", "t", "row/2", "-f", str(binary)).returncode == 0
    assert json.loads(cli("table", "get", "t", "row/2", "--json").stdout)["value_base64"] == "/wA="
    assert cli("table", "put", "t", "row/3", "-f", "-", stdin="from stdin").returncode == 0
    assert cli("table", "get", "t", "row/3").stdout == "from stdin\n"


def test_a_change_with_another_version_than_the_row_s_is_refused(cli: Cli) -> None:
    version = cli("table", "put", "t", "once", "1", "--if-version=-1").stdout.strip()
    refused = cli("table", "put", "t", "once", "2", "--if-version=-1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"error: ROW_CHANGED: the row has version {version}, -1 was expected; ")
    assert cli("table", "delete", "t", "once", f"--if-version={version}").returncode == 0


def test_rows_are_scanned_in_the_order_of_their_keys(cli: Cli) -> None:
    for key in ("scan/b", "scan/a", "scan/c"):
        cli("table", "put", "t", key, key.upper())
    assert cli("table", "scan", "t", "--prefix", "scan/").stdout == (
        "scan/a SCAN/A\nscan/b SCAN/B\nscan/c SCAN/C\n"
    )
    shown = cli(
        "table", "scan", "t", "--prefix", "scan/", "--after", "scan/a", "--count", "1", "--json"
    ).stdout
    assert [json.loads(line)["key"] for line in shown.splitlines()] == ["scan/b"]


def test_a_watch_prints_rows_then_changes_until_ctrl_c(cli: Cli, stack: Stack) -> None:
    cli("table", "put", "t", "watch/1", "before")
    with subprocess.Popen(
        command(stack, "table", "watch", "t", "--prefix", "watch/"), stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "watch/1 before\n"
        cli("table", "put", "t", "watch/2", "after")
        assert watching.stdout.readline() == "watch/2 after\n"
        cli("table", "delete", "t", "watch/1")
        assert watching.stdout.readline() == "watch/1\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(40) == 0


def test_rows_are_no_messages_to_a_subscription_of_everything(cli: Cli) -> None:
    cli("table", "put", "t", "row", "value")
    assert cli("pub", "messages/x", "-m", "message").returncode == 0
    got = cli("sub", "#", "--from", "earliest", "--count", "1")
    assert (got.returncode, got.stdout) == (0, "messages/x message\n")


def test_a_watch_ends_after_so_many_changes(cli: Cli) -> None:
    cli("table", "put", "t", "count/1", "1")
    shown = cli("table", "watch", "t", "--prefix", "count/", "--count", "1", "--json").stdout.splitlines()
    assert json.loads(shown[0]) == {"reset": "broker-0"}
    change = json.loads(shown[1])
    assert (change["key"], change["value"], change["broker"]) == ("count/1", "1", "broker-0")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["get", "missing", "k"], 1, "error: TOPIC_UNKNOWN: there is no table 'missing'; create it first"),
        (["put", "t", "k"], 2, "error: give the value by exactly one of VALUE and -f FILE\n"),
        (["put", "t", "k", "v", "-f", "x"], 2, "error: give the value by exactly one of VALUE and -f FILE\n"),
        (["put", "t", "k", "-f", "/no/such"], 2, "error: the file /no/such cannot be read: No such file or"),
        (["put", "t", "", "v"], 1, "error: LIMIT_EXCEEDED: a key of 0 bytes: 1 to 32768 are allowed\n"),
        (["get", "%SESSION", "k"], 2, "error: topic '%SESSION' is a system topic"),
    ],
)
def test_what_is_wrong_is_one_sentence(cli: Cli, arguments: list[str], code: int, sentence: str) -> None:
    done = cli("table", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 1
