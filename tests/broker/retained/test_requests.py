from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from broker_stack import Stack, refused, until
from retained_peer import RetainedPeer

import broker.retained.requests as retained_part
from broker.retained import expiry as retained_expiry
from holdmq.errors import Code
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.retained_headers import (
    LOG_END,
    NEVER,
    RETAINED_TOPIC,
    RetainedItem,
    RetainedMessage,
    RetainedPut,
    RetainedPutRequest,
)
from storage.api.tables import TableSize

Start = Callable[..., Awaitable[Stack]]


@asynccontextmanager
async def peer_of(stack: Stack) -> AsyncIterator[RetainedPeer]:
    await stack.server.retained.opened.wait()
    peer = RetainedPeer(stack.server.rpc.port)
    try:
        yield peer
    finally:
        await peer.client.close()


@pytest.fixture
async def peer(broker: Stack) -> AsyncIterator[RetainedPeer]:
    async with peer_of(broker) as one:
        yield one


class Clock:
    """A wall clock that tests move."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


async def test_the_newest_message_of_a_topic_is_kept(peer: RetainedPeer) -> None:
    assert await peer.put({"a/1": b"1", "a/2": b"2", "b": b"3"}) == [0, 0, 0]
    assert await peer.put({"a/1": b"new"}) == [0]
    assert await peer.bodies("a/+") == {"a/1": b"new", "a/2": b"2"}
    assert await peer.bodies("#") == {"a/1": b"new", "a/2": b"2", "b": b"3"}
    assert await peer.bodies("b") == {"b": b"3"}
    assert await peer.bodies("nothing") == {}


async def test_while_nothing_is_kept_nothing_is_looked_up(broker: Stack, peer: RetainedPeer) -> None:
    lookups = broker.server.retained.lookups
    assert await peer.bodies("#") == {}
    assert lookups.total == 0
    await peer.put({"a": b"1"})
    assert await peer.bodies("#") == {"a": b"1"}
    await peer.put({"a": None})
    assert await peer.bodies("#") == {}
    total = lookups.total
    assert await peer.bodies("a") == {}
    assert lookups.total == total


async def test_a_message_is_taken_away(peer: RetainedPeer) -> None:
    await peer.put({"a": b"1", "b": b"2"})
    assert await peer.put({"a": None, "never": None}) == [0, 0]
    assert await peer.bodies("#") == {"b": b"2"}


async def test_changes_of_one_request_are_done_in_their_order(broker: Stack, peer: RetainedPeer) -> None:
    value = RetainedMessage(0, "p", b"", b"x").encode()
    puts = [
        RetainedPut("t", NEVER, NEVER),
        RetainedPut("t", NEVER, len(value)),
        RetainedPut("u", 9, len(value)),
    ]
    header = RetainedPutRequest([*puts, RetainedPut("u", NEVER, NEVER)])
    await peer.client.call(RequestCode.RETAINED_PUT, header, 40.0, [value, value], 2 * len(value))
    assert await peer.bodies("#") == {"t": b"x"}
    assert broker.server.numbers()["retained_removals_total"] == 2


async def test_what_is_kept_is_there_after_a_restart_of_the_broker(start: Start) -> None:
    async with peer_of(await start()) as peer:
        await peer.put({f"a/{n}": b"%d" % n for n in range(50)})
    stack = await start()
    async with peer_of(stack) as peer:
        assert await peer.bodies("#") == {f"a/{n}": b"%d" % n for n in range(50)}
        assert stack.server.numbers()["retained_messages"] == 50


async def test_whether_anything_is_kept_is_asked_when_the_table_shows_it(
    broker: Stack, peer: RetainedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.put({"a": b"1"})
    retained = broker.server.retained
    size_of, once_shown = retained.tables.size_of, retained.once_shown
    is_shown = False

    def shown(request: Request, go_on: Callable[[], None]) -> None:
        def now() -> None:
            nonlocal is_shown
            is_shown = True
            go_on()

        once_shown(request, now)

    # As after a start: the log has more than the table.
    monkeypatch.setattr(retained, "once_shown", shown)
    monkeypatch.setattr(
        retained.tables, "size_of", lambda topic: size_of(topic) if is_shown else TableSize(0, 0)
    )
    assert await peer.bodies("#") == {"a": b"1"}


async def test_an_answer_is_a_slice_and_says_where_to_go_on(peer: RetainedPeer) -> None:
    await peer.put({f"a/{n:03}": b"x" * 100 for n in range(25)})
    (first,), rows = await peer.ask(RetainedItem("a/#", "", LOG_END, 10))
    assert [row.topic for row in rows] == [f"a/{n:03}" for n in range(10)]
    assert first.next_after == "a/009"
    (second,), rows = await peer.ask(RetainedItem("a/#", "a/009", first.before, 100), max_bytes=450)
    assert [row.topic for row in rows] == ["a/010", "a/011", "a/012"]
    assert second.next_after == "a/012"
    assert second.before == first.before
    (_,), rows = await peer.ask(RetainedItem("a/#", "a/012", first.before, 100), max_bytes=1)
    assert [row.topic for row in rows] == ["a/013"]
    assert [row.topic for row in await peer.scan("a/#", max_rows=3)] == [f"a/{n:03}" for n in range(25)]


async def test_many_filters_are_asked_for_at_once(peer: RetainedPeer) -> None:
    await peer.put({f"a/{n}": b"%d" % n for n in range(8)})
    items = [RetainedItem(f"a/{n}", "", LOG_END, 5) for n in (1, 99, 3)]
    found, rows = await peer.ask(*items)
    assert [(one.rows, one.next_after) for one in found] == [(1, None), (0, None), (1, None)]
    assert [row.topic for row in rows] == ["a/1", "a/3"]
    found, rows = await peer.ask(*[RetainedItem("a/+", "", LOG_END, 3)] * 4, max_rows=5)
    assert [one.rows for one in found] == [3, 2]
    assert [one.next_after for one in found] == ["a/2", "a/1"]


async def test_a_scan_shows_what_was_confirmed_before_it_and_below_its_end_nothing_newer(
    peer: RetainedPeer,
) -> None:
    await peer.put({"a/1": b"old", "a/2": b"old"})
    (first,), _ = await peer.ask(RetainedItem("a/+", "", LOG_END, 1))
    await peer.put({"a/2": b"new", "a/3": b"new"})
    assert await peer.scan("a/+", before=first.before) == [
        row for row in await peer.scan("a/+") if row.topic == "a/1"
    ]
    for n in range(50):
        await peer.put({"counted": b"%d" % n})
        assert await peer.bodies("counted") == {"counted": b"%d" % n}


async def test_looking_for_what_is_not_there_goes_in_slices_as_well(
    broker: Stack, peer: RetainedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.retained.reads.LOOKED_AT_MAX", 10)
    await peer.put({f"a/{n:03}": b"" for n in range(35)} | {"a/x/x": b"here"})
    (told,), rows = await peer.ask(RetainedItem("a/+/x", "", LOG_END, 100))
    assert (told.next_after, rows) == ("a/009", [])
    assert [row.topic for row in await peer.scan("a/+/x")] == ["a/x/x"]
    long = {f"{'t' * 400}/{n}": b"" for n in range(35)}
    await peer.put(dict(long))
    assert {row.topic for row in await peer.scan(f"{'t' * 400}/+")} == long.keys()


async def test_times_are_the_owners_and_what_has_expired_is_not_shown(start: Start) -> None:
    clock = Clock()
    stack = await start(clock_ms=clock)
    async with peer_of(stack) as peer:
        await peer.put({"a": b"for 10 s"}, expiry_s=10)
        await peer.put({"b": b"for ever"})
        (a, b) = await peer.scan("#")
        assert (a.message.published_ms, a.message.expires_ms) == (clock.now_ms, clock.now_ms + 10_000)
        assert b.message.expires_ms == 0
        clock.now_ms += 9_999
        assert set(await peer.bodies("#")) == {"a", "b"}
        assert set(await peer.bodies("a")) == {"a"}
        clock.now_ms += 1
        assert set(await peer.bodies("#")) == {"b"}
        assert await peer.bodies("a") == {}


async def test_what_has_expired_is_removed_by_a_pass_and_nothing_newer_is(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.retained.expiry.CHECK_INTERVAL_S", 0.01)
    clock = Clock()
    stack = await start(clock_ms=clock)
    expiry = stack.server.retained.expiry
    async with peer_of(stack) as peer:
        await until(lambda: expiry.passes == 1)
        await peer.put({f"a/{n}": b"x" for n in range(2500)}, expiry_s=10)
        await peer.put({"later": b"x"}, expiry_s=1000)
        await peer.put({"stays": b"x"})
        await peer.put({"a/7": b"newer"})
        assert expiry.earliest_ms == clock.now_ms + 10_000
        clock.now_ms += 10_000
        await until(lambda: stack.server.numbers()["retained_messages"] == 3)
        assert set(await peer.bodies("#")) == {"later", "stays", "a/7"}
        assert stack.server.numbers()["retained_expired_total"] == 2499
        await until(lambda: expiry.earliest_ms == clock.now_ms + 990_000)


async def test_a_message_that_comes_while_its_expired_one_is_looked_at_is_not_removed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    stack = await start(clock_ms=clock)
    retained = stack.server.retained
    async with peer_of(stack) as peer:
        await peer.put({"a": b"old", "b": b"old"}, expiry_s=10)
        assert set(await peer.bodies("#")) == {"a", "b"}
        clock.now_ms += 10_000
        read_page = retained_expiry._read_page
        put = threading.Event()

        def read_before_it_was_put(*arguments: Any) -> Any:
            page = read_page(*arguments)
            assert put.wait(40)
            return page

        # The page is read on a thread: what is put before its answer comes is newer than it.
        monkeypatch.setattr(retained_expiry, "_read_page", read_before_it_was_put)
        retained.expiry._begin_pass()
        await peer.put({"a": b"new"})
        put.set()
        await until(lambda: retained.expiry.removed == 1)
        assert await peer.bodies("#") == {"a": b"new"}


async def test_past_the_limit_of_messages_only_topics_that_have_one_get_one(start: Start) -> None:
    stack = await start(retained_max=3)
    async with peer_of(stack) as peer:
        assert await peer.put({"a": b"1", "b": b"2"}) == [0, 0]
        assert await peer.put({"c": b"3", "d": b"4"}) == [0, Code.LIMIT_EXCEEDED]
        assert await peer.put({"a": b"5", "e": b"6", "b": b"7"}) == [0, Code.LIMIT_EXCEEDED, 0]
        assert await peer.put({"c": None}) == [0]
        assert await peer.put({"e": b"8"}) == [0]
        assert await peer.bodies("#") == {"a": b"5", "b": b"7", "e": b"8"}
        numbers = stack.server.numbers()
        assert (numbers["retained_refused_limit_total"], numbers["retained_messages"]) == (2, 3)


async def test_past_the_limit_of_bytes_messages_may_only_shrink(start: Start) -> None:
    stack = await start(retained_max_bytes=10_000)
    async with peer_of(stack) as peer:
        assert await peer.put({"a": bytes(4000), "b": bytes(4000)}) == [0, 0]
        assert await peer.put({"c": bytes(4000)}) == [Code.LIMIT_EXCEEDED]
        assert await peer.put({"a": bytes(6000)}) == [Code.LIMIT_EXCEEDED]
        assert await peer.put({"a": bytes(100)}) == [0]
        assert await peer.put({"c": bytes(4000)}) == [0]


async def test_many_puts_at_once_do_not_go_past_the_limit(start: Start) -> None:
    stack = await start(retained_max=20)
    async with peer_of(stack) as peer:
        answers = await asyncio.gather(*(peer.put({f"a/{n}": b""}) for n in range(60)))
        assert sum(codes == [0] for codes in answers) == 20
        assert len(await peer.bodies("#")) == 20


async def test_a_message_that_is_too_large_is_refused_alone(start: Start) -> None:
    stack = await start(retained_message_max_bytes=2000)
    async with peer_of(stack) as peer:
        codes = await peer.put({"a": bytes(2000), "b": bytes(1000)})
        assert codes == [Code.RECORD_TOO_LARGE, 0]
        assert set(await peer.bodies("#")) == {"b"}
        assert stack.server.numbers()["retained_refused_size_total"] == 1


async def test_messages_are_found_by_their_version_though_the_topic_has_another_one(
    broker: Stack, peer: RetainedPeer
) -> None:
    await peer.put({"a": b"first", "b": b"only"})
    (a, b) = await peer.scan("#")
    await peer.put({"a": b"second"})
    answered, found = await peer.get(("a", a.version), ("b", b.version), ("a", NEVER), ("c", NEVER))
    assert answered == 4
    assert [(row.topic, row.message.payload) for row in found] == [
        ("a", b"first"), ("b", b"only"), ("a", b"second"),
    ]  # fmt: skip
    assert found[0].version == a.version
    await peer.put({"a": None})
    # Neither a place of another topic's record, nor one where none begins, nor one past the end.
    places = [("a", b.version), ("a", a.version + 1), ("a", broker.store.confirmed_position + 10)]
    assert await peer.get(*places) == (3, [])
    assert [row.message.payload for row in (await peer.get(("a", a.version)))[1]] == [b"first"]


async def test_who_asks_for_much_gets_a_part(peer: RetainedPeer) -> None:
    await peer.put({f"{n}": bytes(400_000) for n in range(5)})
    answered, found = await peer.get(*((f"{n}", NEVER) for n in range(5)))
    assert answered == len(found) == 3


@pytest.mark.parametrize(
    "puts",
    [
        [],
        [RetainedPut("", NEVER, NEVER)],
        [RetainedPut("a", NEVER, 100)],
        [RetainedPut("a", NEVER, 3)],
        [RetainedPut("x" * 40_000, NEVER, NEVER)],
    ],
)
async def test_what_is_no_put_is_refused(peer: RetainedPeer, puts: list[Any]) -> None:
    call = peer.client.call(RequestCode.RETAINED_PUT, RetainedPutRequest(puts), 40.0, [b"abc"], 3)
    assert await refused(call) in (Code.LIMIT_EXCEEDED, Code.PROTOCOL_ERROR)


async def test_past_the_bound_of_bytes_in_hand_gateways_are_told_to_come_again(
    peer: RetainedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_part, "IN_HAND_MAX_BYTES", 0)
    assert await refused(peer.put({"a": b""})) == Code.BUSY


async def test_past_the_bound_of_waiting_requests_gateways_are_told_to_come_again(
    broker: Stack, peer: RetainedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.put({"a": b"1"})
    monkeypatch.setattr(retained_part, "WAITING_MAX", 0)
    broker.server.retained._changed_to = 1 << 60
    assert await refused(peer.bodies("a")) == Code.BUSY


async def test_nobody_else_sees_the_table(broker: Stack, peer: RetainedPeer) -> None:
    topic = broker.server.topics.table.get(RETAINED_TOPIC)
    assert topic is not None
    assert (topic.write_queues, topic.is_table, topic.order) == (64, True, True)
