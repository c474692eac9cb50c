"""``holdmq topic``, ``pub`` and ``sub`` against a real registry and a real broker."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "holdmq.cli", *arguments]


def wait_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until ``/readyz`` answers 200; the test's own timeout is the limit."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise AssertionError(f"the process ended with exit code {process.returncode}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Start a registry and a broker; yield the flags that lead there."""
    keys = ("registry.port", "registry.admin_port", "broker.port", "broker.admin_port")
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in keys]
    ports = {key: holder.getsockname()[1] for key, holder in zip(keys, holders, strict=True)}
    for holder in holders:
        holder.close()
    data = tmp_path_factory.mktemp("data")
    flags = [f"--set={key}={port}" for key, port in ports.items()]
    flags.append(f"--set=storage.data_dir={data / 'store'}")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDMQ_")}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("registry", "broker"):
            with (data / f"{name}.log").open("wb") as log:
                running.append(subprocess.Popen(command(name, *flags), stderr=log, env=environ))
            wait_ready(ports[f"{name}.admin_port"], running[-1])
        yield flags
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, "a service did not drain"


@pytest.fixture
def cli(cluster: list[str]) -> Cli:
    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments, *cluster),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    return run


def test_a_topic_that_is_created_is_listed_with_its_queues(cli: Cli) -> None:
    assert (
        cli("topic", "create", "created", "--queues", "3").stdout == "created is on broker-0 with 3 queues\n"
    )
    (row,) = [row for row in json.loads(cli("topic", "list", "--json").stdout) if row["topic"] == "created"]
    assert (row["broker"], row["write_queues"], row["messages_stored"]) == ("broker-0", 3, 0)
    assert "created" in cli("topic", "list").stdout


def test_creating_a_topic_again_with_other_settings_is_refused(cli: Cli) -> None:
    assert cli("topic", "create", "twice", "--queues", "2").returncode == 0
    assert cli("topic", "create", "twice", "--queues", "2").returncode == 0
    refused = cli("topic", "create", "twice", "--queues", "5")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: TOPIC_EXISTS")


def test_a_message_that_is_published_is_read_by_every_filter_that_matches(cli: Cli) -> None:
    sent = cli("pub", "pubsub/1/temp", "-m", "21.5", "--json")
    place = json.loads(sent.stdout)
    assert (place["topic"], place["queue_offset"]) == ("pubsub", 0)
    for mqtt_filter in ("pubsub/1/temp", "pubsub/#", "pubsub/+/temp"):
        got = cli("sub", mqtt_filter, "--from", "earliest", "--count", "1")
        assert (got.returncode, got.stdout) == (0, "pubsub/1/temp 21.5\n")


def test_a_filter_over_all_topics_reads_them_all(cli: Cli) -> None:
    cli("pub", "wide-a/x", "-m", "1")
    cli("pub", "wide-b/x", "-m", "2")
    got = cli("sub", "+/x", "--from", "earliest", "--count", "2", "--json")
    assert {json.loads(line)["mqtt_topic"] for line in got.stdout.splitlines()} == {"wide-a/x", "wide-b/x"}


def test_a_filter_of_one_level_takes_only_messages_without_a_tag(cli: Cli) -> None:
    cli("pub", "flat/below", "-m", "no")
    cli("pub", "flat", "-m", "yes")
    assert cli("sub", "flat", "--from", "earliest", "--count", "1").stdout == "flat yes\n"


def test_lines_become_messages_in_order_for_one_key(cli: Cli) -> None:
    lines = [f"line {number}" for number in range(3000)]
    sent = cli("pub", "lines/x", "--lines", "--key", "k", stdin="\r\n".join(lines))
    assert sent.stdout.startswith("3000 messages are stored, the last in broker-0/lines/")
    got = cli("sub", "lines/x", "--from", "earliest", "--count", "3000").stdout.splitlines()
    assert got == [f"lines/x {line}" for line in lines]


def test_a_line_is_sent_when_it_comes_not_when_input_ends(cli: Cli, cluster: list[str]) -> None:
    with subprocess.Popen(command("pub", "slow/x", "--lines", *cluster), stdin=subprocess.PIPE) as sending:
        assert sending.stdin is not None
        sending.stdin.write(b"early\n")
        sending.stdin.flush()
        got = cli("sub", "slow/x", "--from", "earliest", "--count", "1")
        assert (got.stdout, sending.poll()) == ("slow/x early\n", None)
        sending.stdin.close()
        assert sending.wait(30) == 0


def test_a_body_that_is_no_text_is_base64_in_json(cli: Cli, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"\xff\x00")
    assert cli("pub", "binary/x", "-f", str(body)).returncode == 0
    got = json.loads(cli("sub", "binary/x", "--from", "earliest", "--count", "1", "--json").stdout)
    assert got["body_base64"] == "/wA="


def test_a_subscription_whose_reader_has_seen_enough_ends_without_a_word(
    cli: Cli, cluster: list[str]
) -> None:
    cli("pub", "pipe/x", "--lines", stdin="1\n2\n3\n")
    with subprocess.Popen(
        command("sub", "pipe/x", "--from", "earliest", *cluster),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == b"pipe/x 1\n"
        reading.stdout.close()
        cli("pub", "pipe/x", "--lines", stdin="4\n" * 100)
        assert reading.stderr.read() == b""
        assert reading.wait(30) == 1


def test_ctrl_c_ends_a_subscription_with_success(cli: Cli, cluster: list[str]) -> None:
    cli("pub", "ending/x", "-m", "1")
    with subprocess.Popen(
        command("sub", "ending/x", "--from", "earliest", *cluster), stdout=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == b"ending/x 1\n"
        reading.send_signal(signal.SIGINT)
        assert reading.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pub", "a/#", "-m", "x"], 'error: "a/#" is no MQTT topic name'),
        (["pub", "a"], "error: give the message by exactly one of"),
        (["pub", "a", "-m", "x", "--lines"], "error: give the message by exactly one of"),
        (["pub", "a", "-f", "/no/such"], "error: the file /no/such cannot be read: No such file"),
        (["sub", "a/#/b"], "error: the topic filter 'a/#/b' has # before its last level"),
    ],
)
def test_wrong_use_is_one_sentence_and_exits_2(cli: Cli, arguments: list[str], sentence: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 1


def test_no_registry_is_one_sentence_and_exits_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    done = subprocess.run(
        command("topic", "list", f"--set=registry.port={port}"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no registry answers")
    assert len(done.stderr.splitlines()) == 1
