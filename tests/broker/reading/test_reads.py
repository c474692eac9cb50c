"""Readers: log order, filters that change, credit, holds, from memory and from disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from broker_stack import Stack, bodies, until

from broker.reading.reads import Reads
from holdmq.errors import Code, RemoteError
from holdmq.names.topics import filter_terms
from holdmq.record.tags import tag_hash
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import (
    FilterTerm,
    ReadCloseRequest,
    ReadFilterRequest,
    ReadOpenRequest,
    ReadPosition,
    ReadRequest,
    ReadResponse,
    TermKind,
    TopicCreateRequest,
)
from holdmq.wire.table_headers import TableChangeRequest


def readers_of(broker: Stack) -> Reads:
    reads = broker.server.reads
    assert reads is not None
    return reads


async def open_reader(
    broker: Stack, terms: Sequence[FilterTerm], position: int | None = None, reader_id: int = 1
) -> int:
    request = ReadOpenRequest(reader_id, 0, position, list(terms))
    reply = await broker.client.call(RequestCode.READ_OPEN, request)
    return reply.header(ReadPosition).position


async def read(broker: Stack, hold_ms: int = 15_000, credit_bytes: int = 1 << 20) -> list[bytes]:
    reply = await broker.client.call(RequestCode.READ, ReadRequest(1, credit_bytes, hold_ms), 90.0)
    got = bodies(reply)
    assert len(got) == reply.header(ReadResponse).records
    return got


async def read_until(broker: Stack, count: int, credit_bytes: int = 1 << 20) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        got += await read(broker, credit_bytes=credit_bytes)
    return got


async def test_a_live_reader_gets_what_comes_after_it_opened_in_log_order(broker: Stack) -> None:
    await broker.create("t")
    await broker.create("u")
    await broker.produce("t", 0, (b"before", None))
    await open_reader(broker, filter_terms("#"))
    for i in range(5):
        await broker.produce("tu"[i % 2], i % 3, (b"%d" % i, None))
    assert await read_until(broker, 5) == [b"%d" % i for i in range(5)]


async def test_only_what_may_match_is_sent(broker: Stack) -> None:
    await broker.create("t")
    await open_reader(broker, [FilterTerm(TermKind.TAG, "t", tag_hash(b"a"), "")])
    await broker.produce("t", 0, (b"1", "a"), (b"2", "b"), (b"3", None), (b"4", "a"))
    assert await read_until(broker, 2) == [b"1", b"4"]


async def test_a_filter_change_holds_from_the_position_that_was_answered(broker: Stack) -> None:
    await broker.create("t")
    await open_reader(broker, filter_terms("t/a"))
    await broker.produce("t", 0, (b"no", "b"))
    request = ReadFilterRequest(1, filter_terms("t/b"), filter_terms("t/a"))
    reply = await broker.client.call(RequestCode.READ_FILTER, request)
    assert reply.header(ReadPosition).position == broker.store.confirmed_position
    await broker.produce("t", 0, (b"no", "a"), (b"yes", "b"))
    got = await read_until(broker, 1)
    assert got[-1] == b"yes"
    assert b"no" not in got[1:]


async def test_a_hold_ends_with_an_empty_answer_that_moves_the_position(broker: Stack) -> None:
    await broker.create("t")
    start = await open_reader(broker, filter_terms("t/a"))
    await broker.produce("t", 0, (b"no", "b"))
    reply = await broker.client.call(RequestCode.READ, ReadRequest(1, 1 << 20, 20), 20.0)
    assert reply.header(ReadResponse).records == 0
    assert reply.header(ReadResponse).position > start


async def test_credit_cuts_answers_and_loses_nothing(broker: Stack) -> None:
    await broker.create("t")
    await open_reader(broker, filter_terms("t/#"))
    sent = [b"%03d" % i for i in range(100)]
    for i in range(0, 100, 10):
        await broker.produce("t", 0, *((b, "x") for b in sent[i : i + 10]))
    assert await read_until(broker, 100, credit_bytes=500) == sent


async def test_a_reader_from_the_beginning_reads_the_disk_and_joins_the_tail(
    start: Callable[..., Awaitable[Stack]],
) -> None:
    broker = await start()
    await broker.create("t")
    for i in range(50):
        await broker.produce("t", i % 4, (b"%d" % i, "x"))
    broker = await start()
    broker.sequences.clear()
    await open_reader(broker, filter_terms("t/#"), position=0)
    assert await read_until(broker, 50) == [b"%d" % i for i in range(50)]
    assert readers_of(broker).cold_reads >= 1
    await broker.produce("t", 0, (b"live", "x"), producer_id=5)
    assert await read_until(broker, 1) == [b"live"]


async def test_positions_past_the_end_and_unknown_readers_are_refused(broker: Stack) -> None:
    with pytest.raises(RemoteError) as refused:
        await open_reader(broker, [], position=1 << 40)
    assert refused.value.code == Code.OFFSET_AHEAD
    with pytest.raises(RemoteError) as refused:
        await broker.client.call(RequestCode.READ, ReadRequest(9, 1, 1))
    assert refused.value.code == Code.READER_UNKNOWN


async def test_outstanding_reads_are_bounded(broker: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.reading.reads.READS_MAX", 2)
    await open_reader(broker, [])
    waiting = [asyncio.create_task(read(broker, hold_ms=60_000)) for _ in range(2)]
    (opened,) = (readers[1] for readers in readers_of(broker)._open.values())
    await until(lambda: len(opened.reads) == 2)
    with pytest.raises(RemoteError) as refused:
        await read(broker)
    assert refused.value.code == Code.LIMIT_EXCEEDED
    await broker.client.call(RequestCode.READ_CLOSE, ReadCloseRequest(1))
    assert await asyncio.gather(*waiting) == [[], []]
    assert readers_of(broker).readers == 0


async def test_a_match_far_behind_foreign_messages_does_not_wait_for_a_hold(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.reading.reads.TAIL_SCAN_BYTES", 2_000)
    await broker.create("t")
    start = await open_reader(broker, filter_terms("t/a"))
    for _ in range(20):
        await broker.produce("t", 0, (bytes(1000), "b"))
    await broker.produce("t", 0, (b"found", "a"))
    await open_reader(broker, filter_terms("t/a"), position=start)
    assert await asyncio.wait_for(read(broker, hold_ms=60_000), 40) == [b"found"]


async def test_a_position_that_a_cut_took_back_is_answered_with_where_to_continue(
    start: Callable[..., Awaitable[Stack]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    monkeypatch.setattr(type(broker.store), "epoch_limit", lambda _store, epoch: 100 if epoch == 1 else None)
    request = ReadOpenRequest(1, 1, 200, [])
    with pytest.raises(RemoteError) as refused:
        await broker.client.call(RequestCode.READ_OPEN, request)
    assert refused.value.code == Code.OFFSET_AHEAD
    assert refused.value.ext_fields["position"] == 100
    assert refused.value.ext_fields["log_epoch"] == broker.store.epoch
    await broker.client.call(RequestCode.READ_OPEN, ReadOpenRequest(1, 1, 100, []))


@pytest.mark.parametrize("mqtt_filter", ["#", "table/#", "+/x"])
async def test_rows_of_tables_are_no_messages_to_a_reader_live_or_from_disk(
    start: Callable[..., Awaitable[Stack]], mqtt_filter: str
) -> None:
    broker = await start()
    await broker.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("table", 1, kind="table"))
    await broker.create("t")
    await open_reader(broker, [*filter_terms(mqtt_filter), *filter_terms("t/end")])
    change = TableChangeRequest("table", 0, "key", "request-1")
    await broker.client.call(RequestCode.TABLE_PUT, change, 40.0, [b"row"], 3)
    await broker.produce("t", 0, (b"message", "end"))
    assert await read_until(broker, 1) == [b"message"]
    broker = await start()
    await open_reader(broker, [*filter_terms(mqtt_filter), *filter_terms("t/end")], position=0)
    assert await read_until(broker, 1) == [b"message"]


@pytest.mark.parametrize("is_cold", [False, True])
async def test_filters_that_need_the_tag_look_at_some_messages_at_a_time_and_miss_none(
    start: Callable[..., Awaitable[Stack]], monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    monkeypatch.setattr("broker.reading.reads.TAG_TESTS_MAX", 3)
    broker = await start()
    await broker.create("t")
    for i in range(5):
        await broker.produce("t", 0, *((b"%d" % n, f"x/{n % 10}") for n in range(10 * i, 10 * i + 10)))
    if is_cold:
        broker = await start()
        broker.sequences.clear()
    await open_reader(broker, filter_terms("t/+/7"), position=0)
    assert await read_until(broker, 5) == [b"7", b"17", b"27", b"37", b"47"]
    assert bool(readers_of(broker).cold_reads) is is_cold
