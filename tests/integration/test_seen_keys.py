"""What is handled once for good, is so however often its message comes and its handler is killed."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import counting_member
import psycopg
import pytest
from postgresql import running_postgresql
from processes import Stack, running_stack, wait_until

from holdmq.client import Message, Producer, SeenInSql, SeenInTable, SyncProducer, Table, key_of
from holdmq.errors import UsageError

KILLS = 5
MESSAGES = 800


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("seen"), "registry", "broker") as stack:
        yield stack


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_sum_is_exact_over_kill_9_of_its_consumers(stack: Stack, topic: str, tmp_path: Path) -> None:
    path, calls = tmp_path / "sums.db", tmp_path / "calls"
    group = f"g-{topic}"
    counting_member.make(path, SeenInSql(group))
    chance = random.Random(11)
    with SyncProducer([stack.registry]) as producer:
        producer.send_batch([Message(topic, b"%d" % number) for number in range(MESSAGES)])

    def messages() -> tuple[int, int]:
        database = counting_member.connect(path)
        try:
            return database.execute("SELECT total, messages FROM sums").fetchone()  # type: ignore[no-any-return]
        finally:
            database.close()

    for kill in range(KILLS + 1):
        with subprocess.Popen(
            [sys.executable, counting_member.__file__, path, calls, stack.registry, group, topic],
            stdout=subprocess.PIPE,
        ) as member:
            try:
                assert member.stdout is not None
                assert b"started\n" in iter(member.stdout.readline, b""), "it ended before it had started"
                wanted = MESSAGES if kill == KILLS else min(MESSAGES, messages()[1] + chance.randint(20, 150))
                wait_until(lambda wanted=wanted: messages()[1] >= wanted, f"{wanted} messages")  # type: ignore[misc]
                time.sleep(chance.random() * 0.05)
            finally:
                member.send_signal(signal.SIGKILL)
    assert messages() == (sum(range(MESSAGES)), MESSAGES)
    assert len(calls.read_bytes()) > MESSAGES, "some came again, or this shows nothing"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any, SeenInSql]]:
    """Two connections to one database, and keys in it."""
    if request.param == "sqlite":
        pair = [sqlite3.connect(tmp_path / "a.db", timeout=60, check_same_thread=False) for _ in range(2)]
        yield pair[0], pair[1], SeenInSql("g", window_s=100, clock=Clock())
        for one in pair:
            one.close()
        return
    with running_postgresql() as server, psycopg.connect(server.url()) as first:
        with psycopg.connect(server.url()) as second:
            yield first, second, SeenInSql("g", paramstyle="format", window_s=100, clock=Clock())
            second.rollback()
        first.rollback()


def test_a_key_is_new_once_and_again_when_its_transaction_came_to_nothing(
    database: tuple[Any, Any, SeenInSql],
) -> None:
    one, other, seen = database
    seen.create(one)
    seen.create(one)
    one.commit()
    assert seen.first(one, "a")
    assert not seen.first(one, "a")
    one.rollback()
    assert seen.first(one, "a")
    result: list[bool] = []

    def second() -> None:
        result.append(seen.first(other, "a"))
        other.commit()

    thread = threading.Thread(target=second)
    thread.start()
    thread.join(0.2)
    assert result == [], "it waits for the first one's transaction"
    one.commit()
    thread.join(60)
    assert result == [False]
    elsewhere = SeenInSql("another group", paramstyle=seen_style(seen))
    assert elsewhere.first(one, "a")
    one.commit()


def seen_style(seen: SeenInSql) -> Any:
    return "qmark" if "?" in seen._insert else "format"


def test_keys_are_forgotten_after_their_window(database: tuple[Any, Any, SeenInSql]) -> None:
    one, _, seen = database
    seen.create(one)
    clock = seen._clock
    assert isinstance(clock, Clock)
    assert seen.first(one, "old")
    clock.now += 90
    assert seen.first(one, "new")
    assert seen.prune(one) == 0
    clock.now += 20
    assert seen.prune(one) == 1
    assert seen.first(one, "old")
    assert not seen.first(one, "new")
    one.commit()


async def test_one_caller_alone_claims_a_key_of_a_table(stack: Stack, topic: str) -> None:
    clock = Clock()
    async with Table(f"seen-{topic}", [stack.registry]) as table:
        await table.create()
        seen = SeenInTable(table, window_s=100, clock=clock)
        assert not await seen.seen("a")
        assert sorted(await asyncio.gather(*(seen.claim("a") for _ in range(10)))) == [False] * 9 + [True]
        assert await seen.seen("a")
        await seen.forget("a")
        assert await seen.claim("a")
        clock.now += 60
        assert await seen.claim("b")
        assert await seen.prune() == 0
        clock.now += 50
        assert not await seen.seen("a")
        assert sorted(await asyncio.gather(*(seen.claim("a") for _ in range(5)))) == [False] * 4 + [True]
        clock.now += 60
        assert await seen.prune() == 1
        assert [entry.key async for entry in table.scan()] == ["a"]


async def test_a_message_is_known_by_its_producers_id_or_by_its_place(stack: Stack, topic: str) -> None:
    async with Producer([stack.registry]) as producer:
        result = await producer.send(Message(topic, b"x"))
    assert result.queue.topic == topic
    assert key_of(Message(topic, b"", unique_id="id")) == "id"
    assert key_of(Message(topic, b"", broker="b", queue_id=3, queue_offset=7)) == f"b/{topic}/3/7"


def test_settings_that_cannot_be_are_refused() -> None:
    for settings in ({"table": "a; DROP TABLE b"}, {"paramstyle": "named"}, {"window_s": 0}):
        with pytest.raises(UsageError):
            SeenInSql("g", **settings)  # type: ignore[arg-type]
