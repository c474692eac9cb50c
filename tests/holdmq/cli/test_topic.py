"""``holdmq topic …`` against a real registry and a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from command_line import Cli, process_runner, runner, small_stack
from processes import Stack

from holdmq.client import SharedConsumer


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from small_stack(tmp_path_factory.mktemp("topic"), **{"broker.hide_grace_s": 0})


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    return runner(stack)


def test_a_topic_s_life_on_the_command_line(stack: Stack, cli: Cli) -> None:
    made = process_runner(stack)(
        "topic", "create", "t", "--queues", "2", "--retention", "12h", "--perm", "rw"
    )
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


def test_how_far_a_topic_is_spread_is_said_and_shown(cli: Cli) -> None:
    assert cli("topic", "create", "spread", "--spread", "fixed").returncode == 0
    assert "fixed" in cli("topic", "list", "--search", "spread").stdout
    (row,) = json.loads(cli("topic", "list", "--search", "spread", "--json").stdout)
    assert row["spread"] == "fixed"
    assert "fixed" not in cli("topic", "update", "spread", "--spread", "all").stdout
    assert cli("topic", "update", "spread", "--spread", "some").stderr.startswith("error: --spread 'some'")
    assert cli("topic", "delete", "spread", "--force", "--yes").returncode == 0


def test_settings_that_never_did_anything_are_refused_with_what_to_do(cli: Cli) -> None:
    for option, value in (("--filter-type", "mqtt"), ("--sysflag", "1")):
        refused = cli("topic", "update", "t", option, value)
        assert refused.returncode == 2
        assert f"{option} never had an effect and is gone" in refused.stderr


def test_a_list_of_topics_is_searched_in_capitals_or_not(cli: Cli) -> None:
    for name in ("Orders-eu", "orders-us", "bills"):
        assert cli("topic", "create", name, "--queues", "1").returncode == 0
    found = json.loads(cli("topic", "list", "--search", "ORDERS", "--json").stdout)
    assert [row["topic"] for row in found] == ["Orders-eu", "orders-us"]
    assert "bills" not in cli("topic", "list", "--search", "orders").stdout
    assert json.loads(cli("topic", "list", "--search", "nothing", "--json").stdout) == []
    for name in ("Orders-eu", "orders-us", "bills"):
        assert cli("topic", "delete", name, "--force", "--yes").returncode == 0


def test_who_lags_is_named_and_force_does_not_wait(cli: Cli) -> None:
    assert cli("topic", "create", "used", "--queues", "1", "--order").returncode == 0
    assert cli("pub", "used", "-m", "x").returncode == 0
    asked = cli("topic", "delete", "used", "--force", stdin="n\n")
    assert asked.returncode == 1
    assert [row["topic"] for row in json.loads(cli("topic", "list", "--json").stdout)] == ["used"]
    assert cli("topic", "delete", "used", "--force", "--yes").returncode == 0
    assert json.loads(cli("topic", "list", "--json").stdout) == []


def test_the_readers_of_a_topic_are_listed(stack: Stack, cli: Cli) -> None:
    assert cli("topic", "create", "read", "--queues", "1").returncode == 0
    assert json.loads(cli("topic", "readers", "read", "--json").stdout) == []

    async def look() -> list[dict[str, object]]:
        async with SharedConsumer([stack.registry], "workers", ["read"], client_id="w-1"):
            listed = await asyncio.to_thread(process_runner(stack), "topic", "readers", "read", "--json")
            shown = await asyncio.to_thread(process_runner(stack), "topic", "readers", "read")
            assert "workers" in shown.stdout
        found: list[dict[str, object]] = json.loads(listed.stdout)
        return found

    (row,) = asyncio.run(look())
    assert (row["kind"], row["group"], row["client_id"]) == ("shared", "workers", "w-1")
    assert (row["role"], row["broker"], row["principal"]) == ("client", "broker-0", "")
    assert json.loads(cli("topic", "readers", "read", "--json").stdout) == []
    assert cli("topic", "delete", "read", "--force", "--yes").returncode == 0


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
