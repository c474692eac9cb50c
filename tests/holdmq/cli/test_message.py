"""``holdmq message`` against a real registry and a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Cli, process_runner, runner, small_stack
from processes import Stack

from holdmq.client import Message, SyncProducer


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from small_stack(tmp_path_factory.mktemp("stack"), **{"storage.flush_interval_ms": 20})


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    return runner(stack)


def send(stack: Stack, *messages: Message) -> list[str]:
    """Store messages, one after the other; their ids."""
    with SyncProducer([stack.registry]) as producer:
        return [str(producer.send(message).message_id) for message in messages]


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_message_is_printed_with_all_that_is_known_of_it(cli: Cli, stack: Stack) -> None:
    (message_id,) = send(stack, Message("got", "größer".encode(), "a/b", ("k1", "k2"), {"unit": "°C"}))
    shown = process_runner(stack)("message", "get", message_id)
    assert (shown.returncode, shown.stderr) == (0, "")
    head, _, body = shown.stdout.partition("\n\n")
    assert body == "größer\n"
    fields = dict(line.split(None, 1) for line in head.splitlines())
    assert (fields["topic"], fields["tag"], fields["message_id"]) == ("got", "a/b", message_id)
    assert (fields["keys"], fields["properties"]) == ("['k1', 'k2']", "{'unit': '°C'}")
    (known,) = lines(cli("message", "get", message_id, "--json").stdout)
    assert (known["body"], known["keys"], known["broker"]) == ("größer", ["k1", "k2"], "broker-0")


def test_messages_are_found_by_key_and_by_unique_id(cli: Cli, stack: Stack) -> None:
    send(stack, *(Message("found", b"%d" % i, keys=("k" if i % 2 else "o",)) for i in range(6)))
    while True:
        shown = cli("message", "find", "found", "--key", "k", "--json")
        if len(shown.stdout.splitlines()) == 3:
            break
        assert shown.stderr == ""
    found = lines(shown.stdout)
    assert [row["body"] for row in found] == ["5", "3", "1"]
    one = cli("message", "find", "found", "--unique-id", found[1]["unique_id"]).stdout
    assert one.endswith(" found 3\n")
    assert len(cli("message", "find", "found", "--key", "k", "--count", "2").stdout.splitlines()) == 2
    nothing = cli("message", "find", "found", "--key", "k", "--until", "1d")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, "", "")


def test_the_newest_messages_are_shown_the_newest_last(cli: Cli, stack: Stack) -> None:
    send(stack, *(Message("tailed", b"%d" % i, f"{i % 2}/x") for i in range(20)))
    shown = cli("message", "tail", "tailed", "-n", "3").stdout.splitlines()
    assert [line.split()[1:] for line in shown] == [
        ["tailed/1/x", "17"],
        ["tailed/0/x", "18"],
        ["tailed/1/x", "19"],
    ]
    tagged = lines(cli("message", "tail", "tailed", "--tag", "0/#", "--json").stdout)
    assert [row["body"] for row in tagged] == [str(i) for i in range(0, 20, 2)]


def test_a_topic_is_replayed_from_a_time_and_sent_again(cli: Cli, stack: Stack) -> None:
    send(stack, *(Message("replayed", b"old", "0/x") for _ in range(3)))
    (mark,) = lines(cli("message", "tail", "replayed", "-n", "1", "--json").stdout)
    boundary = mark["store_ms"] + 1
    sent = [Message("replayed", b"%d" % i, f"{i % 2}/x", ("k",), {"n": str(i)}) for i in range(40)]
    send(stack, *sent)
    since = f"--from={boundary}"
    shown = cli("message", "replay", "replayed", since).stdout.splitlines()
    assert [int(line.split()[2]) for line in shown] == list(range(40)), "one key, one queue, in order"
    assert len(cli("message", "replay", "replayed", "--from", "1h").stdout.splitlines()) == 43
    (row,) = json.loads(cli("topic", "list", "--search", "replayed", "--json").stdout)
    assert (row["messages_out"], row["messages_replayed"] >= 83) == (0, True)
    assert cli("message", "replay", "replayed", "--from", "1h", "--until", "30m").stdout == ""
    done = cli("message", "replay", "replayed", since, "--tag", "1/#", "--to", "again")
    assert done.stdout == "20 messages of replayed were sent to again\n"
    again = lines(cli("message", "replay", "again", "--from", "1h", "--json").stdout)
    assert [row["body"] for row in again] == [str(i) for i in range(1, 40, 2)]
    assert (again[0]["keys"], again[0]["properties"], again[0]["tag"]) == (["k"], {"n": "1"}, "1/x")
    assert len({row["unique_id"] for row in again} | {m.unique_id for m in sent}) == 60


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["get", "abc"], 2, "error: 'abc' is not a message id: 32 hex digits are"),
        (["get", "00" * 16], 1, "error: MESSAGE_UNKNOWN: message 000000"),
        (["find", "t"], 2, "error: give --key or --unique-id, and not both"),
        (["find", "missing", "--key", "k"], 1, "error: TOPIC_UNKNOWN: there is no topic 'missing'"),
        (["tail", "missing"], 1, "error: TOPIC_UNKNOWN: there is no topic 'missing'"),
        (["replay", "t", "--from", "noon"], 2, "error: 'noon' is no time; give it as 2026-03-01T12:00"),
        (["replay", "t", "--from", "1h", "--to", "t"], 2, "error: --to must name another topic"),
    ],
)
def test_what_is_wrong_is_one_sentence(cli: Cli, arguments: list[str], code: int, sentence: str) -> None:
    done = cli("message", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 1
