"""``holdmq group …`` against a real registry and a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from command_line import Cli, process_runner, runner, small_stack
from group_peer import GroupPeer
from processes import Stack, wait_until
from shared_peer import SharedPeer

from holdmq.client import Message, Producer, SharedConsumer, SharedMessage


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from small_stack(tmp_path_factory.mktemp("group"))


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    run = runner(stack)
    assert run("topic", "create", "orders", "--queues", "2").returncode == 0
    assert run("pub", "orders", "--lines", stdin="a\nb\nc\nd\ne\nf\n").returncode == 0
    return run


@pytest.fixture(scope="module")
def cli_process(stack: Stack) -> Cli:
    """For what runs beside an event loop of this process."""
    return process_runner(stack)


@asynccontextmanager
async def consuming(stack: Stack, group: str, offset: int = -1) -> AsyncIterator[GroupPeer]:
    """A member that has the topic's queues, and reports this offset of both, as far as they go."""
    one = GroupPeer(stack.broker_port, "one", group)
    await one.join("orders")
    await one.lease(0, 1, topic="orders")
    for row in await one.offsets("orders"):
        if offset >= 0:
            at = min(offset, row.end_offset)
            assert await one.report(row.queue_id, at, topic="orders", wait_for_disk=True) == []
    # As long as the commands take that run meanwhile.
    keeping = asyncio.create_task(_keep(one))
    yield one
    keeping.cancel()
    await one.client.close()


async def _keep(one: GroupPeer) -> None:
    while True:
        await one.renew(0, 1, topic="orders")
        await asyncio.sleep(1)


def consume(stack: Stack, group: str, offset: int) -> None:
    async def run() -> None:
        async with consuming(stack, group, offset):
            pass

    asyncio.run(run())


def parsed(cli: Cli, *arguments: str) -> Any:
    done = cli(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_command_says_how_it_is_used(cli: Cli) -> None:
    commands = ("list", "create", "update", "delete", "reset", "clone", "lag", "clients", "pause", "resume")
    for name in commands:
        shown = cli("group", name, "--help")
        assert shown.returncode == 0
        assert f"Example: holdmq group {name}" in shown.stdout


def test_a_groups_life_on_the_command_line(cli: Cli) -> None:
    made = parsed(cli, "group", "create", "life", "--retry-max-times", "5", "--delay-levels", "500ms,1m")
    assert (made[0]["retry_max_times"], made[0]["delay_levels_ms"]) == (5, [500, 60_000])
    changed = parsed(cli, "group", "update", "life", "--no-consume", "--delay-levels", "")
    assert (changed[0]["consume_enable"], changed[0]["retry_max_times"]) == (False, 5)
    changed = parsed(cli, "group", "update", "life", "--slow-reads-at", "0")
    assert (changed[0]["which_broker_when_consume_slowly"], changed[0]["consume_enable"]) == (0, False)
    assert changed[0]["delay_levels_ms"] == []
    assert parsed(cli, "group", "pause", "life")[0]["is_paused"]
    shown = cli("group", "list").stdout
    assert "life" in shown
    assert "paused" in shown
    assert not parsed(cli, "group", "resume", "life")[0]["is_paused"]
    assert [row["group"] for row in parsed(cli, "group", "list")].count("life") == 1
    assert cli("group", "delete", "life", stdin="n\n").returncode == 1
    assert cli("group", "delete", "life", "--yes").stdout == "life is deleted\n"
    assert "life" not in [row["group"] for row in parsed(cli, "group", "list")]


def test_a_list_of_groups_is_searched_in_capitals_or_not(cli: Cli) -> None:
    for name in ("Sought-a", "sought-b", "other"):
        assert cli("group", "create", name).returncode == 0
    found = parsed(cli, "group", "list", "--search", "SOUGHT")
    assert sorted(row["group"] for row in found) == ["Sought-a", "sought-b"]
    assert "other" not in cli("group", "list", "--search", "sought").stdout
    assert parsed(cli, "group", "list", "--search", "nothing") == []


def test_lag_is_shown_by_count_and_age(cli: Cli, stack: Stack) -> None:
    consume(stack, "lagging", 1)
    rows = parsed(cli, "group", "lag", "lagging", "--topic", "orders")
    ends = [row["end_offset"] for row in rows]
    assert sum(ends) == 6
    for row in rows:
        assert row["offset"] == min(1, row["end_offset"])
        assert row["lag"] == row["end_offset"] - row["offset"]
        assert (row["lag_ms"] > 0) == (row["lag"] > 0)
    shown = cli("group", "lag", "lagging")
    assert f"{sum(row['lag'] for row in rows)} messages wait, the oldest for " in shown.stdout


def test_members_are_shown_and_keep_a_group_from_being_deleted(cli_process: Cli, stack: Stack) -> None:
    async def run() -> None:
        async with consuming(stack, "busy"):
            (row,) = await asyncio.to_thread(parsed, cli_process, "group", "clients", "busy")
            assert (row["client_id"], row["mode"], row["queues"]) == ("one", "clustering", 2)
            assert "one" in (await asyncio.to_thread(cli_process, "group", "clients", "busy")).stdout
            refused = await asyncio.to_thread(cli_process, "group", "delete", "busy", "--yes")
            assert refused.returncode == 1
            assert "has members: one; stop them first" in refused.stderr

    asyncio.run(run())
    assert parsed(cli_process, "group", "clients", "busy") == []


def test_a_reset_is_shown_before_it_is_done(cli: Cli, stack: Stack) -> None:
    consume(stack, "moved", 1)
    planned = parsed(cli, "group", "reset", "moved", "orders", "--to", "latest", "--dry-run")
    assert all(row["after"] >= row["before"] for row in planned)
    no = cli("group", "reset", "moved", "orders", "--to", "latest", stdin="n\n")
    assert no.returncode == 1
    assert "before" in no.stdout
    assert {row["offset"] for row in parsed(cli, "group", "lag", "moved")} <= {0, 1}
    yes = cli("group", "reset", "moved", "orders", "--to", "latest", stdin="y\n")
    assert yes.returncode == 0
    assert "2 queues were moved" in yes.stdout
    assert all(row["lag"] == 0 for row in parsed(cli, "group", "lag", "moved"))
    only = parsed(
        cli, "group", "reset", "moved", "orders", "--to", "offset:1", "--queue", "broker-0/0", "--yes"
    )
    assert [row["queue_id"] for row in only] == [0]
    back = parsed(cli, "group", "reset", "moved", "orders", "--to", "1d", "--yes")
    assert [row["after"] for row in back] == [0, 0]


def test_what_a_group_takes_and_gives_back_is_shown_by_topic(stack: Stack, cli_process: Cli) -> None:
    assert cli_process("topic", "create", "given-back", "--queues", "1").returncode == 0

    async def consume() -> None:
        handled = asyncio.Event()

        async def refuse_once(message: SharedMessage) -> bool:
            if message.reconsume_times:
                handled.set()
            return bool(message.reconsume_times)

        async with (
            Producer([stack.registry]) as producer,
            SharedConsumer([stack.registry], "returning", ["given-back"], refuse_once),
        ):
            await producer.send(Message("given-back", b"x"))
            await asyncio.wait_for(handled.wait(), 60)

    asyncio.run(consume())

    def counted() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(cli_process("group", "topics", "returning", "--json").stdout)
        return found

    wait_until(lambda: bool(counted()), "a tick of the broker's counts")
    (row,) = counted()
    assert (row["topic"], row["back"]) == ("given-back", {"requeued": 1, "timed_out": 0, "given_back": 1})
    assert row["minute"]["messages_out"] > 0
    assert "given-back" in cli_process("group", "topics", "returning").stdout


def test_a_clone_begins_where_its_source_is(cli: Cli, stack: Stack) -> None:
    consume(stack, "source", 1)
    wanted = [row["offset"] for row in parsed(cli, "group", "lag", "source")]
    done = parsed(cli, "group", "clone", "source", "target", "--yes")
    assert [row["after"] for row in done] == wanted
    assert [row["offset"] for row in parsed(cli, "group", "lag", "target")] == wanted


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "%RETRY%x"),
        ("create", "x", "--delay-levels", "soon"),
        ("update", "nobody", "--no-consume"),
        ("update", "nobody"),
        ("reset", "moved", "orders", "--to", "someday", "--yes"),
        ("reset", "moved", "orders", "--to", "offset:x", "--yes"),
        ("reset", "moved", "orders", "--to", "latest", "--queue", "zero", "--yes"),
        ("reset", "moved", "orders", "--to", "latest", "--queue", "elsewhere/0", "--yes"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli("group", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("lag", "nobody"),
        ("clients", "nobody"),
        ("pause", "nobody"),
        ("delete", "nobody", "--yes"),
        ("clone", "nobody", "target", "--yes"),
        ("reset", "nobody", "orders", "--to", "latest", "--yes"),
        ("create", "x", "--retry-max-times", "-1"),
    ],
)
def test_what_a_broker_refuses_is_one_sentence_and_exit_code_1(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli("group", *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_shared_group_is_shown_as_any_other(stack: Stack, cli_process: Cli) -> None:
    async def run() -> None:
        peer = SharedPeer(f"127.0.0.1:{stack.broker_port}", "worker")
        await peer.open("crowd", "orders")
        got = await peer.pull()
        assert len(got) == 6
        # All of a queue but its first message: what is done out of turn is no backlog.
        await peer.ack(*(message for message in got if message.offset > 0))
        waiting = sum(message.offset == 0 for message in got)
        (listed,) = (row for row in await parsed_later("list") if row["group"] == "crowd")
        assert (listed["mode"], listed["members"]) == ("shared", 1)
        (member,) = await parsed_later("clients", "crowd")
        assert (member["client_id"], member["mode"]) == ("worker", "shared")
        lag = [row for row in await parsed_later("lag", "crowd") if row["topic"] == "orders"]
        assert sum(row["lag"] for row in lag) == waiting
        assert {row["offset"] for row in lag if row["end_offset"]} == {0}
        assert all(row["lag_ms"] > 0 for row in lag if row["lag"])
        refused = await asyncio.to_thread(cli_process, "group", "delete", "crowd", "--yes")
        assert "worker" in refused.stderr
        await peer.close()

    async def parsed_later(*arguments: str) -> Any:
        return await asyncio.to_thread(parsed, cli_process, "group", *arguments)

    asyncio.run(run())
