"""PULL and hold: from memory, from disk, with filters, parked and woken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from broker_stack import Stack

from holdmq.errors import Code, RemoteError
from holdmq.record.tags import tag_hash
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import FilterSetRequest, FilterTerm, PullQueue, TermKind


async def test_many_queues_come_in_one_answer_in_the_order_asked(broker: Stack) -> None:
    await broker.create("t")
    for q in range(3):
        await broker.produce("t", q, *((b"%d-%d" % (q, i), None) for i in range(2)))
    pulled, got = await broker.pull(*(PullQueue("t", q, 0, 0) for q in (2, 0, 3)))
    assert got == [b"2-0", b"2-1", b"0-0", b"0-1"]
    assert [(p.queue_id, p.records, p.next_offset, p.end_offset) for p in pulled] == [
        (2, 2, 2, 2),
        (0, 2, 2, 2),
        (3, 0, 0, 0),
    ]


async def test_refusals_are_per_queue(broker: Stack) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    pulled, got = await broker.pull(
        PullQueue("nowhere", 0, 0, 0),
        PullQueue("t", 9, 0, 0),
        PullQueue("t", 0, 0, 5),
        PullQueue("t", 0, 0, 0),
    )
    assert [p.status for p in pulled] == [
        Code.TOPIC_UNKNOWN,
        Code.QUEUE_UNKNOWN,
        Code.OFFSET_AHEAD,
        Code.OK,
    ]
    assert pulled[2].next_offset == 1
    assert got == [b"a"]


async def test_an_answer_is_bounded_but_always_gives_one_record(broker: Stack) -> None:
    await broker.create("t")
    await broker.produce("t", 0, *((bytes(1000), None) for _ in range(10)))
    pulled, _ = await broker.pull(PullQueue("t", 0, 0, 0), max_bytes=1)
    assert pulled[0].records == 1
    pulled, _ = await broker.pull(PullQueue("t", 0, 0, 1), max_bytes=3500)
    assert pulled[0].records == 3


async def test_an_empty_pull_is_held_until_a_message_comes(broker: Stack) -> None:
    await broker.create("t")
    waiting = asyncio.create_task(
        broker.pull(PullQueue("t", 0, 0, 0), PullQueue("t", 1, 0, 0), hold_ms=40_000)
    )
    while not broker.server.pull.hold.size:
        await asyncio.sleep(0.01)
    await broker.produce("t", 1, (b"x", None))
    _, got = await waiting
    assert got == [b"x"]
    assert broker.server.pull.hold.size == 0


async def test_a_hold_ends_with_an_empty_answer(broker: Stack) -> None:
    await broker.create("t")
    pulled, got = await broker.pull(PullQueue("t", 0, 0, 0), hold_ms=30)
    assert got == []
    assert pulled[0].next_offset == 0


async def test_a_held_pull_sleeps_through_rejected_messages_and_then_skips_them(broker: Stack) -> None:
    await broker.create("t")
    term = FilterTerm(TermKind.TAG, "t", tag_hash(b"want"), "")
    await broker.client.call(RequestCode.FILTER_SET, FilterSetRequest(1, [term]))
    waiting = asyncio.create_task(broker.pull(PullQueue("t", 0, 0, 0), hold_ms=40_000, filter_id=1))
    while not broker.server.pull.hold.size:
        await asyncio.sleep(0.01)
    await broker.produce("t", 0, (b"no", "other"), (b"no", None))
    assert broker.server.pull.hold.size == 1
    await broker.produce("t", 0, (b"yes", "want"))
    pulled, got = await waiting
    assert got == [b"yes"]
    assert pulled[0].next_offset == 3


async def test_rejected_messages_advance_the_cursor_of_an_empty_answer(broker: Stack) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"no", "other"))
    term = FilterTerm(TermKind.PREFIX, "t", tag_hash(b"42/x") & ~0xFFFFFFFF, "")
    await broker.client.call(RequestCode.FILTER_SET, FilterSetRequest(1, [term]))
    pulled, got = await broker.pull(PullQueue("t", 0, 0, 0), hold_ms=15_000, filter_id=1)
    assert got == []
    assert pulled[0].next_offset == 1
    await broker.produce("t", 0, (b"yes", "42/y"))
    _, got = await broker.pull(PullQueue("t", 0, 0, 1), filter_id=1)
    assert got == [b"yes"]


async def test_an_unknown_filter_is_named(broker: Stack) -> None:
    await broker.create("t")
    with pytest.raises(RemoteError, match="filter 7") as refused:
        await broker.pull(PullQueue("t", 0, 0, 0), filter_id=7)
    assert refused.value.code == Code.FILTER_UNKNOWN


async def test_a_closed_connection_takes_its_parked_pulls_along(broker: Stack) -> None:
    await broker.create("t")
    waiting = asyncio.create_task(broker.pull(PullQueue("t", 0, 0, 0), hold_ms=40_000))
    while not broker.server.pull.hold.size:
        await asyncio.sleep(0.01)
    connection = broker.client.connection
    assert connection is not None
    connection.close()
    with pytest.raises(Exception, match="closed"):
        await waiting
    while broker.server.pull.hold.size:
        await asyncio.sleep(0.01)
    await broker.produce("t", 0, (b"x", None))


async def test_messages_read_back_from_disk_are_those_that_were_in_memory(
    start: Callable[..., Awaitable[Stack]],
) -> None:
    broker = await start()
    await broker.create("t")
    for i in range(20):
        await broker.produce("t", 0, (b"%d" % i, "a" if i % 2 else None))
    _, warm = await broker.pull(PullQueue("t", 0, 0, 0))
    broker = await start()
    _, cold = await broker.pull(PullQueue("t", 0, 0, 0))
    assert cold == warm == [b"%d" % i for i in range(20)]
    assert broker.server.pull.cold_reads == 1
