"""``holdmq topic``, ``pub`` and ``sub`` against a real registry and a real broker."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command, run_process, runner, small_stack
from processes import Stack, free_port


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from small_stack(tmp_path_factory.mktemp("messages"))


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    return runner(stack)


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


def test_reading_begins_at_a_time(cli: Cli) -> None:
    stored = [
        json.loads(cli("pub", "clock/y", "-m", f"m{n}", "--key", "k", "--json").stdout) for n in range(3)
    ]
    times = {
        json.loads(line)["queue_offset"]: json.loads(line)["store_ms"]
        for line in cli("sub", "clock/#", "--from", "1h", "--count", "3", "--json").stdout.splitlines()
    }
    last = stored[2]["queue_offset"]
    expected = sum(time_ms >= times[last] for time_ms in times.values())
    got = cli("sub", "clock/#", "--from", str(times[last]), "--count", str(expected)).stdout.splitlines()
    assert got == [f"clock/y m{n}" for n in range(3)][-expected:]
    wrong = cli("sub", "clock/#", "--from", "noon")
    assert (wrong.returncode, wrong.stderr.startswith("error: --from noon: earliest, latest")) == (2, True)


def test_a_payload_does_nothing_to_a_terminal_and_is_as_it_is_for_a_program(cli: Cli, stack: Stack) -> None:
    body = "\x1b]0;owned\x07two\tcolumns\n\x1b[2J\u202egpj"
    assert cli("pub", "seen/\u202ex", "-m", body).returncode == 0
    arguments = ("sub", "seen/#", "--from", "earliest", "--count", "1")
    assert cli(*arguments).stdout == f"seen/\\u202ex {body}\n"
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(stack, *arguments), stdout=theirs, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the last who wrote is gone
            while more := os.read(ours, 65_536):
                shown += more
    os.close(ours)
    assert process.returncode == 0
    assert shown.decode().replace("\r\n", "\n") == (
        "seen/\\u202ex \\x1b]0;owned\\x07two\tcolumns\n\\x1b[2J\\u202egpj\n"
    )


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


def test_a_line_is_sent_when_it_comes_not_when_input_ends(cli: Cli, stack: Stack) -> None:
    with subprocess.Popen(command(stack, "pub", "slow/x", "--lines"), stdin=subprocess.PIPE) as sending:
        assert sending.stdin is not None
        sending.stdin.write(b"early\n")
        sending.stdin.flush()
        got = cli("sub", "slow/x", "--from", "earliest", "--count", "1")
        assert (got.stdout, sending.poll()) == ("slow/x early\n", None)
        sending.stdin.close()
        assert sending.wait(40) == 0


def test_a_body_that_is_no_text_is_base64_in_json(cli: Cli, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"\xff\x00")
    assert cli("pub", "binary/x", "-f", str(body)).returncode == 0
    got = json.loads(cli("sub", "binary/x", "--from", "earliest", "--count", "1", "--json").stdout)
    assert got["body_base64"] == "/wA="


def test_a_subscription_whose_reader_has_seen_enough_ends_without_a_word(cli: Cli, stack: Stack) -> None:
    cli("pub", "pipe/x", "--lines", stdin="1\n2\n3\n")
    with subprocess.Popen(
        command(stack, "sub", "pipe/x", "--from", "earliest"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == b"pipe/x 1\n"
        reading.stdout.close()
        cli("pub", "pipe/x", "--lines", stdin="4\n" * 100)
        assert reading.stderr.read() == b""
        assert reading.wait(40) == 1


def test_ctrl_c_ends_a_subscription_with_success(cli: Cli, stack: Stack) -> None:
    cli("pub", "ending/x", "-m", "1")
    with subprocess.Popen(
        command(stack, "sub", "ending/x", "--from", "earliest"), stdout=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == b"ending/x 1\n"
        reading.send_signal(signal.SIGINT)
        assert reading.wait(40) == 0


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
    done = run_process("topic", "list", f"--set=registry.port={free_port()}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no registry answers")
    assert len(done.stderr.splitlines()) == 1
