"""Tables over the SDK, on two real brokers: rows spread, retried, watched, and killed for."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from processes import Stack
from two_brokers import Cluster, two_brokers

from holdmq.client import (
    Admin,
    Message,
    Producer,
    RouteTable,
    SyncTable,
    Table,
    TableChange,
    TableComplete,
    TableReset,
    TableWatch,
    table_watch,
)
from holdmq.client.table_watch import Event
from holdmq.client.tables import owner_of
from holdmq.errors import Code, RemoteError, TransportError, UsageError

NAMES = ["broker-0", "broker-1"]
KILL_S = 200.0
"""How long a call may wait for a broker that starts again."""
SHORT_S = 5.0
"""Enough for who is there, and all of it is waited for who is not."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from two_brokers(tmp_path_factory.mktemp("cluster"))


@pytest.fixture
async def table(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[Table]:
    """A new table on both brokers, named by the test."""
    name = request.node.name.replace("[", "-").replace("]", "")[:100]
    async with Table(name, cluster.registries) as made:
        await made.create(queues=2)
        yield made


def key_at(broker: str, start: int = 0) -> str:
    """A key that belongs to this broker."""
    return next(f"k{i}" for i in range(start, start + 1000) if owner_of(f"k{i}", NAMES) == broker)


async def test_keys_spread_over_the_brokers_and_come_back_in_the_order_asked(table: Table) -> None:
    assert await table.brokers() == NAMES
    keys = [f"sensor/{i}" for i in range(60)]
    versions = await asyncio.gather(*(table.put(key, key.encode()) for key in keys))
    owners = {owner_of(key, NAMES) for key in keys}
    assert owners == set(NAMES)
    found = await table.get_many([*reversed(keys), "none"])
    assert [entry and entry.value for entry in found] == [*(k.encode() for k in reversed(keys)), None]
    assert [entry.version for entry in found if entry] == versions[::-1]
    await table.delete(keys[0])
    assert await table.get(keys[0]) is None


@pytest.mark.parametrize("count", [1, 3, 1000])
async def test_a_scan_is_in_the_order_of_keys_over_all_brokers_whatever_the_page(
    table: Table, count: int
) -> None:
    keys = [f"{letter}/{i}" for letter in "ab" for i in range(12)] + ["a/" + "x" * 400 + c for c in "1234"]
    await asyncio.gather(*(table.put(key, b"v") for key in keys))
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await table.scan_page("a/", after, count)
        assert len(page.entries) <= count
        seen += [entry.key for entry in page.entries]
        after = page.next_after
        if after is None:
            break
    wanted = [key for key in keys if key.startswith("a/")]
    assert sorted(seen) == sorted(wanted)
    assert [key for key in seen if len(key) < 100] == sorted(key for key in wanted if len(key) < 100)
    assert [entry.key async for entry in table.scan("b/")] == sorted(k for k in keys if k.startswith("b/"))


async def test_a_change_with_an_expected_version_is_refused_with_the_one_there_is(table: Table) -> None:
    version = await table.put("k", b"1", if_version=-1)
    with pytest.raises(RemoteError) as refused:
        await table.put("k", b"2", if_version=-1)
    assert (refused.value.code, refused.value.ext_fields["version"]) == (Code.ROW_CHANGED, version)
    assert await table.delete("k", if_version=version) > version


async def test_what_is_no_table_is_said(cluster: Cluster) -> None:
    async with Admin(cluster.registries) as admin:
        await admin.create_topic("log-topic")
    async with Producer(cluster.registries) as producer:
        await producer.send(Message("log-topic", b"x"))
        async with Table("log-topic", routes=producer.routes) as wrong:
            with pytest.raises(RemoteError, match="is of kind log, no table"):
                await wrong.get("k")
        async with Table("missing", routes=producer.routes) as missing:
            with pytest.raises(RemoteError, match="no table 'missing'; create it first"):
                await missing.put("k", b"")
            with pytest.raises(RemoteError, match="no table 'missing'"):
                await missing.watch().poll(1)
    with pytest.raises(UsageError, match="system topic"):
        Table("%SESSION", cluster.registries)


async def test_messages_cannot_be_sent_to_a_table(table: Table, cluster: Cluster) -> None:
    async with Producer(cluster.registries) as producer:
        with pytest.raises(RemoteError, match="KIND_UNFIT"):
            await producer.send(Message(table.name, b"x"))


# Watches


class Copy:
    """A dict that follows a table by a watch."""

    def __init__(self, watch: TableWatch) -> None:
        self.watch = watch
        self.rows: dict[str, tuple[bytes, str]] = {}
        self.versions: dict[str, int] = {}
        self.resets = 0
        self.whole: set[str] = set()

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TableReset):
                self.resets += 1
                self.whole.discard(event.broker)
                self.rows = {k: row for k, row in self.rows.items() if row[1] != event.broker}
                continue
            if isinstance(event, TableComplete):
                self.whole.add(event.broker)
                continue
            assert event.version >= self.versions.get(event.key, -1), "a key's versions never go back"
            self.versions[event.key] = event.version
            if event.value is None:
                self.rows.pop(event.key, None)
            else:
                self.rows[event.key] = (event.value, event.broker)

    async def until(self, wanted: dict[str, bytes]) -> None:
        while {key: value for key, (value, _) in self.rows.items()} != wanted or not self.watch.is_complete:
            self.take(await self.watch.poll())


async def content(table: Table) -> dict[str, bytes]:
    return {entry.key: entry.value async for entry in table.scan()}


async def change_at_random(table: Table, count: int, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(count):
        key = f"{dice.choice('abc')}/{dice.randrange(20)}"
        if dice.random() < 0.3:
            await table.delete(key)
        else:
            await table.put(key, dice.randbytes(dice.randrange(100)))


async def test_a_watch_tells_the_rows_there_are_and_then_what_changes(table: Table) -> None:
    await change_at_random(table, 30, 1)
    async with table.watch() as watch:
        copy = Copy(watch)
        await copy.until(await content(table))
        assert copy.resets == len(copy.whole) == 2, "one for each broker"
        await change_at_random(table, 30, 2)
        await copy.until(await content(table))
        assert copy.resets == 2


async def test_a_watch_of_an_empty_table_says_that_there_are_no_rows(table: Table) -> None:
    async with table.watch() as watch:
        events = [event async for event in until_complete(watch)]
    assert sorted(type(event).__name__ for event in events) == ["TableComplete"] * 2 + ["TableReset"] * 2


async def until_complete(watch: TableWatch) -> AsyncIterator[Event]:
    whole: set[str] = set()
    async for event in watch:
        yield event
        if isinstance(event, TableComplete):
            whole.add(event.broker)
            if len(whole) == 2:
                assert watch.is_complete
                return


async def test_a_watch_of_a_prefix_without_rows_tells_changes_only(table: Table) -> None:
    await table.put("a/1", b"before")
    assert await table.get("a/1") is not None  # what is not applied yet may be told
    async with table.watch("a/", with_rows=False) as watch:
        await table.put("b/1", b"other")
        await table.put("a/2", b"after")
        event = await anext(watch)
        assert isinstance(event, TableChange)
        assert (event.key, event.value) == ("a/2", b"after")
        assert await watch.poll(0.05) == []
    with pytest.raises(UsageError, match="closed"):
        await watch.poll()


async def test_a_page_that_was_overtaken_by_pushes_does_not_bring_old_versions_back(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(
        table.put("changed", b"old"), table.put("deleted", b"old"), table.put("kept", b"old")
    )
    scan, is_late = table.scan_broker, asyncio.Event()
    pages: asyncio.Queue[str] = asyncio.Queue()

    async def scan_and_wait(broker: str, *arguments: Any) -> Any:
        found = await scan(broker, *arguments)
        pages.put_nowait(broker)
        await is_late.wait()
        return found

    monkeypatch.setattr(table, "scan_broker", scan_and_wait)
    async with table.watch() as watch:
        copy = Copy(watch)
        assert {await pages.get(), await pages.get()} == set(NAMES)
        await table.put("changed", b"new")
        deleted = await table.delete("deleted")
        while "changed" not in copy.rows or copy.versions.get("deleted") != deleted:
            copy.take(await watch.poll())
        is_late.set()
        await copy.until({"changed": b"new", "kept": b"old"})


async def test_copies_follow_many_writers_at_once(table: Table) -> None:
    async with table.watch() as all_, table.watch("a/") as some:
        copies = [Copy(all_), Copy(some)]
        writing = asyncio.gather(*(change_at_random(table, 60, seed) for seed in range(8)))
        while not writing.done():
            for copy in copies:
                copy.take(await copy.watch.poll(0.02))
        await writing
        wanted = await content(table)
        await copies[0].until(wanted)
        await copies[1].until({k: v for k, v in wanted.items() if k.startswith("a/")})


async def test_what_waits_for_a_slow_taker_is_bounded_and_its_copy_comes_right(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_watch, "PENDING_ROWS_MAX", 10)
    async with table.watch() as watch:
        copy = Copy(watch)
        await copy.until({})
        for i in range(60):
            await table.put(f"k{i}", b"%d" % i)
            assert watch.waiting <= 10 + 2 * 5 + 2, "pushed, read, and two resets"
        await copy.until(await content(table))
        assert copy.resets > 2


async def test_the_blocking_facade_does_the_same(cluster: Cluster) -> None:
    def work() -> None:
        with SyncTable("blocking", cluster.registries) as table:
            table.create()
            version = table.put("k", b"1")
            entry = table.get("k")
            assert entry is not None
            assert (entry.value, entry.version) == (b"1", version)
            with table.watch("k") as watch:
                table.put("k2", b"2")
                seen: dict[str, bytes | None] = {}
                complete: set[str] = set()
                while len(seen) < 2 or len(complete) < 2:
                    events = watch.poll()
                    seen |= {e.key: e.value for e in events if isinstance(e, TableChange)}
                    complete |= {e.broker for e in events if isinstance(e, TableComplete)}
                assert seen == {"k": b"1", "k2": b"2"}
                assert watch.poll(0.01) == []
            assert [entry.key for entry in table.scan()] == ["k", "k2"]
            assert [row and row.value for row in table.get_many(["k2", "x"])] == [b"2", None]
            table.delete("k", if_version=version)
            assert [entry.key for entry in table.scan_page("", None, 10).entries] == ["k2"]

    await asyncio.get_running_loop().run_in_executor(None, work)


# Brokers that are killed, and away


@pytest.fixture
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from two_brokers(tmp_path_factory.mktemp("killed"))


def kill(stack: Stack) -> None:
    assert stack.stop("broker", signal.SIGKILL) == -signal.SIGKILL


async def off_loop(work: Any, *arguments: Any) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


async def test_a_row_that_was_acknowledged_is_there_after_kill_9(killed: Cluster) -> None:
    async with Table("t", killed.registries, timeout_s=KILL_S) as table:
        await table.create()
        keys = [f"k{i}" for i in range(50)]
        versions = await asyncio.gather(*(table.put(key, key.encode()) for key in keys))
        for name in NAMES:
            await off_loop(kill, killed.stack_of(name))
            await off_loop(killed.stack_of(name).start, "broker")
        found = await table.get_many(keys)
        assert [entry and (entry.key, entry.value, entry.version) for entry in found] == [
            (key, key.encode(), version) for key, version in zip(keys, versions, strict=True)
        ]


async def test_counters_are_exact_over_kill_9_and_a_watch_follows(killed: Cluster) -> None:
    """Each increment expects the version it read: a retry that made its change twice would show."""
    key = key_at("broker-1")
    done = 0
    async with (
        Table("t", killed.registries, timeout_s=KILL_S) as table,
        Table("t", killed.registries, timeout_s=KILL_S) as other,
    ):
        await table.create()
        await table.put(key, b"0")
        watch = other.watch()
        await watch.start()
        stop = asyncio.Event()

        async def count(own: Table) -> int:
            made = 0
            while not stop.is_set():
                entry = await own.get(key)
                assert entry is not None
                try:
                    await own.put(key, b"%d" % (int(entry.value) + 1), if_version=entry.version)
                    made += 1
                except RemoteError as error:
                    if error.code != Code.ROW_CHANGED:
                        raise
            return made

        counting = [asyncio.ensure_future(count(table)) for _ in range(4)]
        for _ in range(3):
            before = await table.get(key)
            while (await table.get(key)) == before:
                pass
            await off_loop(kill, killed.second)
            await off_loop(killed.second.start, "broker")
        stop.set()
        done = sum(await asyncio.gather(*counting))
        entry = await table.get(key)
        assert entry is not None
        assert int(entry.value) == done
        assert done > 3
        copy = Copy(watch)
        await copy.until({key: b"%d" % done})
        await watch.close()


async def test_keys_of_a_broker_that_is_away_wait_for_it_and_the_others_do_not(killed: Cluster) -> None:
    routes = RouteTable(killed.registries, "test", reroute_s=0.2)
    routes.start()
    there, away = key_at("broker-0"), key_at("broker-1")
    async with Table("t", routes=routes, timeout_s=KILL_S) as table:
        await table.create()
        await table.put(away, b"1")
        await off_loop(kill, killed.second)
        with contextlib.suppress(TransportError):
            await table.put(away, b"2", timeout_s=SHORT_S)
            raise AssertionError("nobody can have stored it")
        assert await table.put(there, b"1") >= 0
        # A second object, made while the broker is away, learns of it from the registries.
        async with Table("t", killed.registries, timeout_s=SHORT_S) as fresh:
            assert await fresh.brokers() == NAMES
            with pytest.raises(TransportError):
                await fresh.get(away)
        await off_loop(killed.second.start, "broker")
        await table.put(away, b"3")
        entry = await table.get(away)
        assert entry is not None
        assert entry.value == b"3"
    await routes.close()
    async with Admin(killed.registries) as admin:
        assert {view.topic for view in await admin.topics()} == {"t"}
