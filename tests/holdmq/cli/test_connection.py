"""``holdmq connection …`` against a real registry and a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Cli, process_runner, small_stack
from processes import Stack

from holdmq.client import Message, Producer, SharedConsumer, SharedMessage


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from small_stack(tmp_path_factory.mktemp("connection"))


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Cli:
    return process_runner(stack)


def parsed(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    done = cli("connection", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


async def take(message: SharedMessage) -> None:
    assert message.body == b"x"


def test_producers_and_consumers_are_told_apart_with_their_topics_and_groups(stack: Stack, cli: Cli) -> None:
    async def look() -> tuple[list[list[dict[str, Any]]], list[dict[str, Any]], str]:
        async with (
            Producer([stack.registry], client_id="sender") as producer,
            SharedConsumer([stack.registry], "workers", ["orders"], take, client_id="worker"),
        ):
            for _ in range(3):
                await producer.send(Message("orders", b"x"))
            chosen = [
                await asyncio.to_thread(parsed, cli, "list", *options)
                for options in (
                    ("--kind", "producer"),
                    ("--group", "workers"),
                    ("--topic", "orders"),
                    ("--kind", "spark"),
                )
            ]
            busiest: list[dict[str, Any]] = []
            async with asyncio.timeout(60):
                while not any(row["name"] == "worker" for row in busiest):
                    busiest = await asyncio.to_thread(parsed, cli, "busiest")
            return chosen, busiest, (await asyncio.to_thread(cli, "connection", "list")).stdout

    (producers, members, both, none), busiest, shown = asyncio.run(look())
    (sender,), (worker,) = producers, members
    assert (sender["client_id"], sender["kinds"], sender["produces"]) == ("sender", ["producer"], ["orders"])
    assert (worker["client_id"], worker["kinds"], worker["reads"]) == ("worker", ["consumer"], ["orders"])
    assert (worker["groups"], worker["principal"], worker["broker"]) == (["workers"], "", "broker-0")
    assert ([row["client_id"] for row in both], none) == (["sender", "worker"], [])
    rates = {row["name"]: row["day"] for row in busiest if row["kind"] == "client"}
    assert rates["sender"]["messages_in"] > 0 == rates["sender"]["messages_out"]
    assert rates["worker"]["messages_out"] > 0 == rates["worker"]["messages_in"]
    assert "sender" in shown
    assert "workers" in shown


def test_a_kind_that_is_none_is_one_sentence(cli: Cli) -> None:
    done = cli("connection", "list", "--kind", "robot")
    assert done.returncode == 2
    assert "--kind 'robot': one of producer, consumer, gateway, spark, console" in done.stderr
    assert "Traceback" not in done.stderr
