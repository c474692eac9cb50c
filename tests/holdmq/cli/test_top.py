"""``holdmq top`` against a real registry and a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Cli, command, process_runner, runner, small_stack
from group_peer import GroupPeer
from processes import Stack, wait_until
from receivers import HookServer
from rich.console import Console

from holdmq.cli.top import ROWS_MIN, render, rows_for, size
from holdmq.client.statistics import AlarmsView, BacklogView, StatisticsView
from holdmq.client.sync import SyncAdmin

WAIT_S = 90.0


@pytest.fixture(scope="module")
def hook() -> Iterator[HookServer]:
    server = HookServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, hook: HookServer) -> Iterator[Stack]:
    overrides = {
        "alarms.interval_s": 0.1,
        "alarms.backlog": '["laggards messages=2"]',
        "alarms.webhook_url": hook.url,
    }
    yield from small_stack(tmp_path_factory.mktemp("top"), **overrides)


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    """Six messages, of which a group consumed one."""
    run = runner(stack)
    assert run("topic", "create", "orders", "--queues", "1").returncode == 0
    assert run("pub", "orders", "--lines", stdin="a\nb\nc\nd\ne\nf\n").returncode == 0

    async def consume() -> None:
        peer = GroupPeer(stack.broker_port, "one", "laggards")
        await peer.join("orders")
        await peer.lease(0, topic="orders")
        assert await peer.report(0, 1, topic="orders", wait_for_disk=True) == []
        await peer.client.close()

    asyncio.run(consume())
    return run


def picture(cli: Cli) -> Any:
    done = cli("top", "--once", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def test_once_as_json_has_rates_backlog_connections_and_alarms(stack: Stack, cli: Cli) -> None:
    shown: list[Any] = []

    def is_complete() -> bool:
        # The counts of a second are there when it is over, alarms after a round.
        shown.append(picture(cli))
        topics = {one["name"]: one for one in shown[-1]["topics"]}
        return bool(topics.get("orders", {}).get("day", {}).get("messages_in")) and bool(shown[-1]["alarms"])

    wait_until(is_complete, "the messages are counted", WAIT_S)
    view = shown[-1]
    (topic,) = [one for one in view["topics"] if one["name"] == "orders"]
    for window in ("minute", "hour", "day"):
        assert topic[window]["messages_in"] > 0
        assert topic[window]["bytes_in"] > topic[window]["messages_in"]
    assert topic["put_ms"] > 0
    (broker,) = view["brokers"]
    assert (broker["broker"], broker["error"], broker["writable"]) == ("broker-0", "", True)
    assert broker["day"]["messages_in"] > 0
    (group,) = view["groups"]
    assert (group["group"], group["mode"], group["messages"]) == ("laggards", "clustering", 5)
    assert group["topics"] == ["orders"]
    assert group["age_ms"] > 0
    assert any(one["client_id"].startswith("holdmq-top-") for one in view["connections"])
    (alarm,) = view["alarms"]
    assert (alarm["kind"], alarm["name"], alarm["value"]) == ("backlog_messages", "laggards", 5)


def test_an_alarm_of_a_real_broker_arrives_at_its_webhook(cli: Cli, hook: HookServer) -> None:
    posted = hook.next()
    assert posted["broker"] == "broker-0"
    assert [(one["state"], one["name"]) for one in posted["alarms"]] == [("raised", "laggards")]


def test_a_segment_that_is_written_is_shown(stack: Stack, cli: Cli) -> None:
    watching = subprocess.Popen(
        command(stack, "top", "--json", "--interval", "0.3"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    writing = subprocess.Popen(
        command(stack, "pub", "orders", "--lines"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert watching.stdout is not None
    assert writing.stdin is not None
    segments: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    try:
        # A rate is that of the last second: it is written in all of them. Reads may be seen before writes.
        while not any(one["written_bytes"] for one in segments):
            assert time.monotonic() < deadline, "the segment at the log's end is busy"
            writing.stdin.write(b"x" * 1000 + b"\n")
            writing.stdin.flush()
            segments = json.loads(watching.stdout.readline())["segments"]
    finally:
        watching.stdout.close()
        writing.stdin.close()
        assert watching.wait(WAIT_S) == 1
        assert writing.wait(WAIT_S) == 0
    assert (segments[0]["broker"], segments[0]["start"]) == ("broker-0", 0)


def test_connections_say_what_groups_know_of_them(stack: Stack, cli: Cli) -> None:
    async def look() -> Any:
        peer = GroupPeer(stack.broker_port, "subscriber", "readers")
        await peer.join("orders")
        try:
            return await asyncio.to_thread(picture, process_runner(stack))
        finally:
            await peer.client.close()

    view = asyncio.run(look())
    (row,) = [one for one in view["connections"] if one["client_id"] == "subscriber"]
    assert (row["groups"], row["topics"], row["role"]) == (["readers"], ["orders"], "client")
    assert row["address"].startswith("127.0.0.1:")


def test_the_blocking_sdk_answers_by_broker(stack: Stack, cli: Cli) -> None:
    with SyncAdmin([stack.registry]) as admin:
        counted = admin.statistics(["orders"], [], queues=True)["broker-0"]
        backlog = admin.backlog(["laggards"])["broker-0"]
        alarms = admin.alarms()["broker-0"]
    assert isinstance(counted, StatisticsView)
    assert [(row.name, row.queue_id) for row in counted.queues] == [("orders", 0)]
    assert counted.groups == []
    assert isinstance(backlog, BacklogView)
    assert backlog.rows[0].messages >= 5
    assert isinstance(alarms, AlarmsView)
    assert [channel.channel for channel in alarms.channels] == ["webhook"]


def test_once_for_people_is_a_page_of_tables(cli: Cli) -> None:
    done = cli("top", "--once")
    assert done.returncode == 0, done.stderr
    for wanted in (
        "broker-0: in ",
        "orders",
        "laggards",
        "segment",
        "client",
        "ALARM broker-0: group laggards",
    ):
        assert wanted in done.stdout
    assert "\x1b" not in done.stdout


def test_on_a_pipe_a_picture_follows_the_other_and_its_end_is_quiet(stack: Stack, cli: Cli) -> None:
    process = subprocess.Popen(
        command(stack, "top", "--json", "--interval", "0.1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    views = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert views[0]["at_ms"] < views[1]["at_ms"] < views[2]["at_ms"]
    process.stdout.close()
    assert process.wait(WAIT_S) == 1
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


def test_on_a_terminal_it_draws_over_the_whole_screen_until_ctrl_c(stack: Stack, cli: Cli) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen(
        command(stack, "top", "--interval", "0.1"), stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + WAIT_S
    while shown.count(b"holdmq top") < 3:
        assert time.monotonic() < deadline, shown
        if select.select([ours], [], [], 1.0)[0]:
            shown += os.read(ours, 65_536)
    assert b"\x1b[?1049h" in shown
    process.send_signal(signal.SIGINT)
    while True:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait(WAIT_S) == 0
    os.close(ours)
    assert b"\x1b[?1049l" in shown
    assert b"Traceback" not in shown
    assert b"orders" in shown


def test_without_a_registry_it_fails_in_a_sentence(cli: Cli) -> None:
    done = cli("top", "--once", "--set", "client.registries=127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_broker_that_does_not_answer_is_a_line_and_long_tables_say_what_they_left_out() -> None:
    rates = {"messages_in": 1.5, "bytes_in": 2048.0, "messages_out": 1234.0, "bytes_out": 0.0}
    rates |= {"messages_replayed": 7000.0, "bytes_replayed": 0.0}
    topic = {"put_ms": 0.5, "get_ms": None, **dict.fromkeys(("second", "minute", "hour", "day"), rates)}
    view = {
        "at_ms": 0,
        "brokers": [{"broker": "b-1", "error": "no answer"}],
        "topics": [{"name": f"t{i}", **topic} for i in range(5)],
        "groups": [],
        "segments": [
            {"start": 7, "broker": "b-0", "written_bytes": 1 << 20, "read_bytes": 0, "hits": 3},
        ],
        "connections": [],
        "alarms": [],
    }
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render(view, 2))
    console.file.close()
    text = console.export_text()
    assert "b-1: no answer" in text
    assert "… 3 more" in text
    assert re.search(r"t0 +1\.5 +1\.5 +1\.5 +1\.5 +2\.0 KiB +1,234 +7,000 +0\.50 ms", text)
    assert re.search(r"0{19}7 +b-0 +1\.0 MiB +0 B +3", text)
    assert rows_for(100, view) == (100 - 1 - 1 - 12) // 4
    assert rows_for(10, view) == ROWS_MIN


@pytest.mark.parametrize(("value", "text"), [(1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_sizes_are_shown_with_their_unit(value: int, text: str) -> None:
    assert size(value) == text
