"""TABLE_*: rows over RPC, against the real store."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest
from broker_stack import Stack, make_record, produce_body

from broker.kernel import lookups
from broker.tables import requests as tables
from broker.tables import watches as table_watches
from holdmq.errors import BusyError, Code, HoldMQError, RemoteError, StoreReadOnlyError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceRun, RunResult, TopicCreateRequest
from holdmq.wire.table_headers import (
    TableChanged,
    TableChangeRequest,
    TableChangesPush,
    TableGetRequest,
    TableGetResponse,
    TableRow,
    TableScanRequest,
    TableScanResponse,
    TableUnwatchRequest,
    TableWatchRequest,
)
from holdmq.wire.topic_headers import TopicDeleteRequest
from storage.log.index.key_index import KeyIndex
from storage.log.tables.files import TableFiles


class T:
    """A table `t` at a broker, and a client of it."""

    def __init__(self, broker: Stack) -> None:
        self.broker = broker
        self.requests = 0

    async def put(self, key: str, value: bytes | None, request_id: str = "", **fields: Any) -> int:
        """Put a value, or delete (None); the version."""
        self.requests += 1
        header = TableChangeRequest("t", 0, key, request_id or f"r{self.requests}", **fields)
        code = RequestCode.TABLE_DELETE if value is None else RequestCode.TABLE_PUT
        body = value or b""
        reply = await self.broker.client.call(code, header, 20.0, [body] if body else [], len(body))
        return reply.header(TableChanged).version

    async def get(self, *keys: str) -> list[tuple[int, bytes | None]]:
        """Versions and values."""
        reply = await self.broker.client.call(RequestCode.TABLE_GET, TableGetRequest("t", list(keys)), 20.0)
        found = rows(TableRow, reply.header(TableGetResponse).rows)
        assert [row.key for row in found] == list(keys)[: len(found)]
        values, at = [], 0
        for row in found:
            values.append(None if row.length_bytes < 0 else bytes(reply.body[at : at + row.length_bytes]))
            at += max(0, row.length_bytes)
        assert at == len(reply.body)
        return [(row.version, value) for row, value in zip(found, values, strict=True)]

    async def scan(self, prefix: str = "", page: int = 1000, max_bytes: int = 1 << 20) -> list[list[str]]:
        """The keys of each page."""
        pages: list[list[str]] = []
        after: str | None = None
        while True:
            request = TableScanRequest("t", prefix, after, page, max_bytes)
            reply = await self.broker.client.call(RequestCode.TABLE_SCAN, request)
            answer = reply.header(TableScanResponse)
            pages.append([row.key for row in rows(TableRow, answer.rows)])
            after = answer.next_after
            if after is None:
                return pages


@pytest.fixture
async def t(broker: Stack) -> T:
    await broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("t", 2, kind="table"))
    return T(broker)


@pytest.fixture
def stall(t: T, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stop the tables from applying, until the event that this returns is set."""
    assert t.broker.store.tables is not None
    files = t.broker.store.tables._files
    apply, going = files.apply, threading.Event()

    def slow(*arguments: Any) -> None:
        assert going.wait(40)
        apply(*arguments)

    monkeypatch.setattr(files, "apply", slow)
    return going


async def test_a_row_is_put_read_changed_and_deleted(t: T) -> None:
    first = await t.put("k", b"1")
    assert await t.get("k", "none") == [(first, b"1"), (-1, None)]
    second = await t.put("k", b"")
    assert second > first
    assert await t.get("k") == [(second, b"")]
    assert await t.put("k", None) > second
    assert await t.get("k") == [(-1, None)]
    assert t.broker.server.statistics.topic_totals(["t"])["t"][0] == 3


async def test_a_read_waits_until_the_table_shows_what_was_acknowledged_before(t: T, stall: Any) -> None:
    version = await t.put("k", b"new")
    reading = asyncio.create_task(t.get("k"))
    scanning = asyncio.create_task(t.scan())
    while t.broker.server.tables.waiting < 2:
        await asyncio.sleep(0.005)
    assert not reading.done()
    stall.set()
    assert await reading == [(version, b"new")]
    assert await scanning == [["k"]]
    assert t.broker.server.tables.numbers()["table_requests_waiting"] == 0


async def test_reads_after_a_restart_show_all_that_was_acknowledged_before_it(
    start: Callable[..., Awaitable[Stack]],
) -> None:
    t = T(await start())
    await t.broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("t", 2, kind="table"))
    versions = [await t.put(f"k{i}", b"%d" % i) for i in range(20)]
    t.broker = await start()
    assert await t.get(*(f"k{i}" for i in range(20))) == [(v, b"%d" % i) for i, v in enumerate(versions)]


async def test_reads_wait_for_tables_that_are_built_again_at_start(
    start: Callable[..., Awaitable[Stack]], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = T(await start())
    await t.broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("t", 2, kind="table"))
    version = await t.put("k", b"1")
    going = threading.Event()
    open_, apply = TableFiles.open, TableFiles.apply

    def open_without(files: TableFiles) -> None:
        (files.directory / "current.mdb").unlink()
        open_(files)
        # Not before: the store that is closed first applies what it has.
        monkeypatch.setattr(TableFiles, "apply", slow)

    def slow(files: TableFiles, *arguments: Any) -> None:
        assert going.wait(40)
        apply(files, *arguments)

    monkeypatch.setattr(TableFiles, "open", open_without)
    t.broker = await start()
    reading = asyncio.create_task(t.get("k"))
    while not t.broker.server.tables.waiting:
        await asyncio.sleep(0.005)
    going.set()
    assert await reading == [(version, b"1")]


async def test_a_scan_is_paged_by_rows_and_by_bytes_and_begins_behind_any_key(t: T) -> None:
    for key in ("b/1", "a", "b/3", "b/2", "c"):
        await t.put(key, bytes(1000))
    assert await t.scan("b/") == [["b/1", "b/2", "b/3"]]
    assert await t.scan(page=2) == [["a", "b/1"], ["b/2", "b/3"], ["c"]]
    assert await t.scan(max_bytes=2500) == [["a", "b/1"], ["b/2", "b/3"], ["c"]]
    assert await t.scan(max_bytes=1) == [["a"], ["b/1"], ["b/2"], ["b/3"], ["c"]]
    reply = await t.broker.client.call(RequestCode.TABLE_SCAN, TableScanRequest("t", "b/", "b/15"))
    assert [row[0] for row in reply.header(TableScanResponse).rows] == ["b/2", "b/3"]
    assert await t.scan("x") == [[]]


async def test_an_answer_covers_the_first_keys_when_their_values_are_large(
    t: T, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ANSWER_MAX_BYTES", 3000)
    for key in "abc":
        await t.put(key, bytes(1400))
    assert [len(value or b"") for _, value in await t.get("a", "none", "b", "c")] == [1400, 0, 1400]


# Changes are made once


async def until_indexed(t: T, request_id: str, **fields: Any) -> int:
    """Repeat a put of k until the index of ids is complete again; the version."""
    while True:
        try:
            return await t.put("k", b"1", request_id, is_repeat=True, **fields)
        except BusyError:
            await asyncio.sleep(0.01)


async def test_a_request_that_comes_again_is_answered_as_before_and_changes_nothing(t: T) -> None:
    version = await t.put("k", b"1", "once")
    other = await t.put("k", b"2")
    assert await t.put("k", b"1", "once", is_repeat=True) == version
    assert await t.put("k", b"1", "once") == version, "told by its id alone"
    assert await t.get("k") == [(other, b"2")]
    assert t.broker.server.tables.repeats == 2


async def test_a_repeat_that_meets_its_first_still_unconfirmed_waits_with_it(t: T) -> None:
    answers = await asyncio.gather(
        *(t.put("k", b"1", "once", is_repeat=repeat) for repeat in (False, True, True))
    )
    assert len(set(answers)) == 1
    assert t.broker.store.bounds("t", 0) == (0, 1)


async def test_a_repeat_after_a_restart_finds_its_first_in_the_log(
    start: Callable[..., Awaitable[Stack]],
) -> None:
    t = T(await start())
    await t.broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("t", 2, kind="table"))
    version = await t.put("k", b"1", "once", if_version=-1)
    other = await t.put("k", b"2", if_version=version)
    t.broker = await start()
    assert await until_indexed(t, "once", if_version=-1) == version
    assert await t.get("k") == [(other, b"2")]
    assert await t.put("k2", b"", "never seen", is_repeat=True) > other


async def test_a_repeat_waits_for_the_index_of_ids_to_be_complete_after_a_start(
    start: Callable[..., Awaitable[Stack]], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = T(await start())
    await t.broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("t", 2, kind="table"))
    version = await t.put("k", b"1", "once")
    going = threading.Event()
    open_, step = KeyIndex.open, KeyIndex.step

    def open_without(index: KeyIndex, *arguments: Any) -> None:
        shutil.rmtree(index._directory)
        open_(index, *arguments)
        monkeypatch.setattr(KeyIndex, "step", lambda index: step(index) if going.is_set() else False)

    monkeypatch.setattr(KeyIndex, "open", open_without)
    t.broker = await start()
    with pytest.raises(BusyError, match="index of ids"):
        await t.put("k", b"1", "once", is_repeat=True)
    going.set()
    assert await until_indexed(t, "once") == version
    assert t.broker.store.bounds("t", 0) == (0, 1)


async def test_a_change_that_expects_a_version_is_made_only_if_the_row_has_it(t: T) -> None:
    first = await t.put("k", b"1", if_version=-1)
    for wrong in (-1, first + 1):
        with pytest.raises(RemoteError, match=f"version {first}") as refused:
            await t.put("k", b"x", if_version=wrong)
        assert (refused.value.code, refused.value.ext_fields) == (Code.ROW_CHANGED, {"version": first})
    second = await t.put("k", b"2", if_version=first)
    assert await t.put("k", None, if_version=second) > second
    with pytest.raises(RemoteError, match="no value"):
        await t.put("k", b"3", if_version=second)
    await t.put("k", b"3", if_version=-1)
    assert t.broker.server.tables.numbers()["table_conflicts_total"] == 3


async def test_of_many_who_expect_the_same_version_one_wins(t: T) -> None:
    version = await t.put("n", b"0")
    for round_ in range(5):
        answers = await asyncio.gather(
            *(t.put("n", b"%d" % i, if_version=version) for i in range(20)), return_exceptions=True
        )
        won = [a for a in answers if isinstance(a, int)]
        lost = [a for a in answers if isinstance(a, RemoteError) and a.code == Code.ROW_CHANGED]
        assert (len(won), len(lost)) == (1, 19), round_
        version = won[0]
        assert (await t.get("n"))[0][0] == version


async def test_an_expected_version_is_compared_with_changes_that_the_table_does_not_show_yet(
    t: T, stall: Any
) -> None:
    first = await t.put("k", b"1")
    second = await t.put("k", b"2", if_version=first)
    with pytest.raises(RemoteError, match=f"version {second}"):
        await t.put("k", b"3", if_version=first)
    stall.set()
    assert await t.get("k") == [(second, b"2")]


async def test_a_refused_write_is_told_and_its_request_may_come_again(
    t: T, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev
    failing = [True]

    def full(fd: int, *arguments: Any) -> int:
        if failing[0] and "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, *arguments)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(RemoteError) as refused:
        await t.put("k", b"1", "r", if_version=-1)
    assert refused.value.code == Code.STORE_FULL
    assert refused.value.retriable
    assert t.broker.server.tables.changes.in_hand == 0
    failing[0] = False
    version = await t.put("k", b"1", "r", is_repeat=True, if_version=-1)
    assert await t.get("k") == [(version, b"1")]


# What is refused


@pytest.mark.parametrize(
    ("code", "header", "wanted"),
    [
        (RequestCode.TABLE_GET, TableGetRequest("log", ["k"]), Code.KIND_UNFIT),
        (RequestCode.TABLE_GET, TableGetRequest("nowhere", ["k"]), Code.TOPIC_UNKNOWN),
        (RequestCode.TABLE_GET, TableGetRequest("%SESSION", ["k"]), Code.TOPIC_INVALID),
        (RequestCode.TABLE_GET, TableGetRequest("t", []), Code.LIMIT_EXCEEDED),
        (RequestCode.TABLE_GET, TableGetRequest("t", ["k"] * 1001), Code.LIMIT_EXCEEDED),
        (RequestCode.TABLE_SCAN, TableScanRequest("log"), Code.KIND_UNFIT),
        (RequestCode.TABLE_WATCH, TableWatchRequest("log", "", 1), Code.KIND_UNFIT),
        (RequestCode.TABLE_PUT, TableChangeRequest("log", 0, "k", "r"), Code.KIND_UNFIT),
        (RequestCode.TABLE_PUT, TableChangeRequest("t", 2, "k", "r"), Code.QUEUE_UNKNOWN),
        (RequestCode.TABLE_PUT, TableChangeRequest("t", 0, "", "r"), Code.LIMIT_EXCEEDED),
        (RequestCode.TABLE_PUT, TableChangeRequest("t", 0, "k" * 32769, "r"), Code.LIMIT_EXCEEDED),
        (RequestCode.TABLE_PUT, TableChangeRequest("t", 0, "k", ""), Code.LIMIT_EXCEEDED),
        (RequestCode.TABLE_DELETE, TableChangeRequest("t", 0, "k", "r" * 65), Code.LIMIT_EXCEEDED),
    ],
)
async def test_what_cannot_be_is_refused_by_its_code(
    t: T, code: RequestCode, header: Any, wanted: Code
) -> None:
    await t.broker.create("log")
    with pytest.raises(RemoteError) as refused:
        await t.broker.client.call(code, header)
    assert refused.value.code == wanted
    assert t.broker.server.tables.changes.in_hand == 0


async def test_a_row_that_is_no_record_s_size_is_refused(t: T) -> None:
    limit = t.broker.server.tables._record_max_bytes
    with pytest.raises(RemoteError, match="record_max_bytes") as refused:
        await t.put("k", bytes(limit))
    assert refused.value.code == Code.RECORD_TOO_LARGE


@pytest.mark.parametrize(("perm", "may_read", "may_write"), [(4, True, False), (2, False, True)])
async def test_the_table_s_perm_decides(broker: Stack, perm: int, may_read: bool, may_write: bool) -> None:
    await broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("t", 2, kind="table", perm=perm))
    t = T(broker)
    for call, may in ((t.put("k", b"1"), may_write), (t.get("k"), may_read), (t.scan(), may_read)):
        with nullcontext() if may else pytest.raises(RemoteError, match="TOPIC_PERM"):
            await call


async def test_messages_are_not_sent_to_a_table(t: T) -> None:
    run = ProduceRun("t", 0, 1, 1, 1, 0)
    response = await t.broker.produce_raw(produce_body([make_record("t", 0, b"x")]), [run])
    assert rows(RunResult, response.results)[0].status == Code.KIND_UNFIT


# Bounds


async def test_too_many_changes_in_hand_are_busy(t: T, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHANGES_MAX", 2)
    answers = await asyncio.gather(*(t.put(f"k{i}", b"1") for i in range(10)), return_exceptions=True)
    assert any(isinstance(a, BusyError) and a.retry_after_ms == 50 for a in answers)
    monkeypatch.setattr(tables, "CHANGES_MAX", 4096)
    monkeypatch.setattr(tables, "CHANGES_MAX_BYTES", 0)
    with pytest.raises(BusyError):
        await t.put("k", b"1")


async def test_too_many_reads_that_wait_are_busy(t: T, stall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "WAITING_MAX", 1)
    await t.put("k", b"1")
    waiting = asyncio.create_task(t.get("k"))
    while not t.broker.server.tables.waiting:
        await asyncio.sleep(0.005)
    with pytest.raises(BusyError, match="wait for the tables"):
        await t.get("k")
    stall.set()
    await waiting


async def test_too_many_look_ups_are_busy(t: T, monkeypatch: pytest.MonkeyPatch) -> None:
    await t.put("k", b"1")
    monkeypatch.setattr(lookups, "LOOKUPS_MAX", 0)
    with pytest.raises(BusyError, match="look-ups"):
        await t.get("k")
    with pytest.raises(BusyError, match="look-ups"):
        await t.put("k", b"1", if_version=-1)
    assert t.broker.server.tables.numbers()["table_lookups_refused_total"] == 2
    monkeypatch.undo()
    with pytest.raises(RemoteError, match="ROW_CHANGED"):
        await t.put("k", b"1", if_version=-1)


def broken(*_: object) -> None:
    raise StoreReadOnlyError("injected", operation="write")


async def test_a_database_that_fails_is_told_to_who_reads_and_to_who_waits(
    t: T, stall: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert t.broker.store.tables is not None
    await t.put("k", b"1")
    waiting = asyncio.create_task(t.get("k"))
    while not t.broker.server.tables.waiting:
        await asyncio.sleep(0.005)
    monkeypatch.setattr(t.broker.store.tables._files, "_apply", broken)
    stall.set()
    with pytest.raises(RemoteError, match="injected"):
        await waiting
    with pytest.raises(RemoteError, match="STORE_READ_ONLY"):
        await t.put("k", b"2")


# Watches


class Watcher:
    """A second client that watches."""

    def __init__(self, port: int) -> None:
        self.pushes: asyncio.Queue[tuple[int, list[tuple[str, bytes | None]], bool]] = asyncio.Queue()
        self.client = Client(f"127.0.0.1:{port}", "client", "watcher", on_request=self._pushed)

    def _pushed(self, request: Request) -> None:
        assert request.command.is_one_way
        push = request.header(TableChangesPush)
        changes: list[tuple[str, bytes | None]] = []
        at = 0
        for row in rows(TableRow, push.rows):
            length = max(0, row.length_bytes)
            changes.append((row.key, None if row.length_bytes < 0 else bytes(request.body[at : at + length])))
            at += length
        self.pushes.put_nowait((push.watch_id, changes, push.rescan))

    async def watch(self, watch_id: int, prefix: str = "", topic: str = "t") -> None:
        await self.client.call(RequestCode.TABLE_WATCH, TableWatchRequest(topic, prefix, watch_id))

    async def changes(self, count: int) -> list[tuple[int, str, bytes | None]]:
        found: list[tuple[int, str, bytes | None]] = []
        while len(found) < count:
            watch_id, changes, _ = await self.pushes.get()
            found += [(watch_id, *change) for change in changes]
        return found


@pytest.fixture
async def watcher(t: T) -> AsyncIterator[Watcher]:
    made = Watcher(t.broker.server.rpc.port)
    yield made
    await made.client.close()


async def test_a_watch_tells_changes_of_its_prefix_and_nothing_after_its_end(t: T, watcher: Watcher) -> None:
    await t.put("a/0", b"before")
    await t.get("a/0")
    await watcher.watch(7, "a/")
    await watcher.watch(8)
    await t.put("a/1", b"1")
    assert sorted(await watcher.changes(2)) == [(7, "a/1", b"1"), (8, "a/1", b"1")]
    await t.put("b", b"2")
    await t.put("a/1", None)
    assert sorted(await watcher.changes(3), key=str) == [(7, "a/1", None), (8, "a/1", None), (8, "b", b"2")]
    await watcher.client.call(RequestCode.TABLE_UNWATCH, TableUnwatchRequest(8))
    await watcher.watch(7, "c")
    await t.put("a/1", b"3")
    await t.put("c", b"4")
    assert await watcher.changes(1) == [(7, "c", b"4")]
    assert watcher.pushes.empty()
    assert t.broker.server.tables.numbers()["table_watches"] == 1


async def test_changes_that_are_applied_together_are_told_once_per_key(
    t: T, watcher: Watcher, stall: Any
) -> None:
    await watcher.watch(1)
    await t.put("first", b"")
    await asyncio.gather(*(t.put("k", b"%d" % i) for i in range(50)))
    stall.set()
    found = []
    while ("k", b"49") not in found:
        found += (await watcher.pushes.get())[1]
    assert len(found) < 10


async def test_large_changes_are_told_in_several_pushes(
    t: T, watcher: Watcher, stall: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_watches, "PUSH_MAX_BYTES", 2500)
    await watcher.watch(1)
    await t.put("first", b"")
    await asyncio.gather(*(t.put(f"k{i}", bytes(1000)) for i in range(6)))
    stall.set()
    found = await watcher.changes(7)
    assert {key for _, key, _ in found} == {"first", *(f"k{i}" for i in range(6))}
    # The first change is told alone or with others: whichever came before the table stalled.
    assert t.broker.server.tables.watches.pushes >= 3


async def test_who_does_not_take_pushes_is_told_once_to_scan_again(t: T, watcher: Watcher) -> None:
    await watcher.watch(1)
    (theirs,) = [
        c for c, hello in t.broker.server.rpc.connections.items() if hello and hello.client_id == "watcher"
    ]
    theirs.pause_writing()
    for i in range(5):
        await t.put(f"k{i}", b"lost")
    await t.get("k0")
    assert watcher.pushes.empty()
    theirs.resume_writing()
    assert await watcher.pushes.get() == (1, [], True)
    await t.put("k", b"told")
    assert await watcher.changes(1) == [(1, "k", b"told")]
    assert t.broker.server.tables.numbers()["table_rescans_total"] == 1


async def test_a_closed_connection_ends_its_watches(t: T, watcher: Watcher) -> None:
    for i in range(3):
        await watcher.watch(i, f"p{i % 2}")
    assert t.broker.server.tables.watches.count == 3
    await watcher.client.close()
    while t.broker.server.tables.watches.count:
        await asyncio.sleep(0.005)
    assert t.broker.store.numbers()["tables_watches"] == 0
    await t.put("p0", b"nobody is told")


async def test_watches_are_bounded(t: T, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_watches, "WATCHES_PER_CONNECTION_MAX", 2)
    await watcher.watch(1)
    await watcher.watch(2)
    await watcher.watch(2, "moved")
    with pytest.raises(HoldMQError, match="2 watches on one connection"):
        await watcher.watch(3)
    monkeypatch.setattr(table_watches, "WATCHES_MAX", 2)
    with pytest.raises(RemoteError, match="2 watches at this broker"):
        await t.broker.client.call(RequestCode.TABLE_WATCH, TableWatchRequest("t", "", 1))


async def test_a_table_that_is_deleted_and_made_again_has_no_rows(t: T, watcher: Watcher) -> None:
    await t.put("k", b"old")
    await watcher.watch(1)
    await t.broker.client.call(RequestCode.TOPIC_DELETE, TopicDeleteRequest("t", force=True), 20.0)
    with pytest.raises(RemoteError, match="TOPIC_UNKNOWN"):
        await t.get("k")
    await t.broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("t", 2, kind="table"))
    assert await t.get("k") == [(-1, None)]
    assert await t.scan() == [[]]
    await t.put("k", b"new", if_version=-1)
    while (1, "k", b"new") not in await watcher.changes(1):
        pass
