"""PULL_COLUMNS over real RPC: from memory, from disk, with tags, refusals and bounds."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from broker_stack import Stack, Start, refused

from holdmq.errors import Code, RemoteError
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import (
    COLUMNS_QUEUES_MAX,
    COLUMNS_TAGS_MAX,
    ColumnQueue,
    PullColumnsRequest,
    PullColumnsResponse,
    split_buffers,
)
from holdmq.wire.header import rows
from holdmq.wire.headers import PulledQueue
from holdmq.wire.topic_headers import TopicPauseRequest


async def ask(
    stack: Stack,
    queues: list[ColumnQueue],
    columns: tuple[str, ...] = ("offset",),
    tags: list[str] | None = None,
    max_bytes: int = 1 << 20,
) -> Reply:
    header = PullColumnsRequest(queues, list(columns), max_bytes, tags)
    return await stack.client.call(RequestCode.PULL_COLUMNS, header, 20.0)


async def pull(
    stack: Stack, *queues: ColumnQueue, tags: list[str] | None = None, max_bytes: int = 1 << 20
) -> tuple[list[PulledQueue], list[int], list[bytes]]:
    """The rows of the answer, and the offsets and bodies that it has."""
    reply = await ask(stack, list(queues), ("offset", "body"), tags, max_bytes)
    answer = reply.header(PullColumnsResponse)
    offsets, begins, sizes, _, records = split_buffers(reply.body, ("offset", "body"), answer.buffers)
    spans = zip(np.frombuffer(begins, "<i4").tolist(), np.frombuffer(sizes, "<i4").tolist(), strict=True)
    bodies = [bytes(records[a : a + n]) for a, n in spans]
    return rows(PulledQueue, answer.queues), np.frombuffer(offsets, "<i8").tolist(), bodies


async def fill(stack: Stack) -> None:
    await stack.create("t")
    for q in range(3):
        await stack.produce("t", q, *((b"%d-%d" % (q, i), "even" if i % 2 == 0 else None) for i in range(4)))


async def check(stack: Stack) -> None:
    """What `fill` stored is read, whole, in part, and by tags."""
    queues = [ColumnQueue("t", q, 0, 0, 4) for q in (2, 0, 3)]
    pulled, offsets, bodies = await pull(stack, *queues)
    assert offsets == [0, 1, 2, 3] * 2
    assert bodies == [b"%d-%d" % (q, i) for q in (2, 0) for i in range(4)]
    assert [(p.queue_id, p.records, p.next_offset, p.end_offset) for p in pulled] == [
        (2, 4, 4, 4),
        (0, 4, 4, 4),
        (3, 0, 0, 0),
    ]
    pulled, offsets, _ = await pull(stack, ColumnQueue("t", 1, 0, 1, 3))
    assert (offsets, pulled[0].next_offset) == ([1, 2], 3)
    pulled, offsets, bodies = await pull(stack, ColumnQueue("t", 1, 0, 1, 4), tags=["even", "odd"])
    assert (offsets, bodies, pulled[0].records) == ([2], [b"1-2"], 1)
    assert pulled[0].next_offset == 4
    pulled, offsets, _ = await pull(stack, ColumnQueue("t", 1, 0, 0, 4), tags=["none"])
    assert (offsets, pulled[0].records, pulled[0].next_offset) == ([], 0, 4)


async def test_columns_are_read_from_memory(broker: Stack) -> None:
    await fill(broker)
    await check(broker)


async def test_columns_are_read_from_disk(start: Start) -> None:
    await fill(await start())
    await check(await start())


async def test_refusals_are_per_queue(broker: Stack) -> None:
    await fill(broker)
    pulled, offsets, _ = await pull(
        broker,
        ColumnQueue("nowhere", 0, 0, 0, 9),
        ColumnQueue("t", 9, 0, 0, 9),
        ColumnQueue("t", 0, 0, 5, 9),
        ColumnQueue("t", 0, 0, 3, 9),
    )
    assert [p.status for p in pulled] == [
        Code.TOPIC_UNKNOWN,
        Code.QUEUE_UNKNOWN,
        Code.OFFSET_AHEAD,
        Code.OK,
    ]
    assert pulled[2].next_offset == 4
    assert offsets == [3]


async def test_an_answer_is_bounded_but_always_gives_one_record(broker: Stack) -> None:
    await broker.create("t")
    for q in range(2):
        await broker.produce("t", q, *((bytes(1000), None) for _ in range(10)))
    both = ColumnQueue("t", 0, 0, 0, 10), ColumnQueue("t", 1, 0, 0, 10)
    pulled, offsets, _ = await pull(broker, *both, max_bytes=1)
    assert [(p.queue_id, p.records) for p in pulled] == [(0, 1)]
    assert offsets == [0]
    # A record is larger than what the first queue leaves.
    pulled, _, _ = await pull(broker, *both, max_bytes=11_500)
    assert [p.records for p in pulled] == [10]
    pulled, _, _ = await pull(broker, *both, max_bytes=14_000)
    assert [p.records for p in pulled] == [10, 2]


async def test_what_a_paused_topic_keeps_is_read(broker: Stack) -> None:
    await fill(broker)
    await broker.client.call(RequestCode.TOPIC_PAUSE, TopicPauseRequest("t", True))
    _, offsets, _ = await pull(broker, ColumnQueue("t", 0, 0, 0, 4))
    assert offsets == [0, 1, 2, 3]


@pytest.mark.parametrize("columns", [("offset", "colour"), ("topic",), ("offset", "offset")])
async def test_columns_that_are_none_are_refused(broker: Stack, columns: tuple[str, ...]) -> None:
    with pytest.raises(RemoteError, match="columns are some of offset, store_time"):
        await ask(broker, [ColumnQueue("t", 0, 0, 0, 4)], columns)


async def test_a_request_is_bounded(broker: Stack) -> None:
    queues = [ColumnQueue("t", 0, 0, 0, 4)] * (COLUMNS_QUEUES_MAX + 1)
    for asked in ([], queues):
        assert await refused(ask(broker, asked)) == Code.LIMIT_EXCEEDED
    tags = [str(i) for i in range(COLUMNS_TAGS_MAX + 1)]
    assert await refused(ask(broker, queues[:1], tags=tags)) == Code.LIMIT_EXCEEDED


async def test_answers_that_are_being_made_are_bounded(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker)
    monkeypatch.setattr("broker.reading.column_pulls.COLUMN_PULLS_MAX", 2)
    wanted = [ColumnQueue("t", 0, 0, 0, 4)]
    asked = await asyncio.gather(*(ask(broker, wanted) for _ in range(8)), return_exceptions=True)
    busy = [a for a in asked if isinstance(a, RemoteError)]
    assert {error.code for error in busy} == {Code.BUSY}
    assert 1 <= len(busy) <= 6
    assert broker.server.numbers()["column_pulls_refused_total"] == len(busy)
    assert broker.server.numbers()["column_pulls"] == 0


async def test_what_is_read_counts_as_delivered(broker: Stack) -> None:
    await fill(broker)
    await pull(broker, ColumnQueue("t", 0, 0, 0, 4))
    counts = broker.server.statistics.of("t", 0)
    assert (counts.messages_replayed, counts.messages_out, counts.gets) == (4, 0, 1)
    assert counts.bytes_replayed > 4 * 100
