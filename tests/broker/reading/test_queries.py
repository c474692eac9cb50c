"""MESSAGE_GET, MESSAGE_FIND, MESSAGE_BACKWARDS, OFFSET_AT, READ_AT: over RPC, against the real store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_stack import Stack, bodies, produce_body

from broker.kernel import lookups
from broker.reading import queries
from holdmq.errors import BusyError, Code, RemoteError
from holdmq.message import MessageId
from holdmq.record.codec import encode_properties, encode_record
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceRun, ReadAtRequest, ReadPosition, RunResult, TopicCreateRequest
from holdmq.wire.query_headers import (
    MessageBackwardsRequest,
    MessageBackwardsResponse,
    MessageFindRequest,
    MessageFindResponse,
    MessageGetRequest,
    OffsetAtRequest,
    OffsetAtResponse,
    QueueOffset,
)


async def send(
    broker: Stack, *messages: bytes, key: str = "", unique: str = "", topic: str = "t", queue_id: int = 0
) -> list[str]:
    """Store messages with a key; their ids."""
    pairs = ([("KEYS", key)] if key else []) + ([("UNIQ_KEY", unique)] if unique else [])
    properties = encode_properties(pairs)
    records = [encode_record(topic.encode(), queue_id, body, properties, 1) for body in messages]
    first = broker.next_sequence(topic, queue_id, len(records))
    run = ProduceRun(topic, queue_id, len(records), 1, 1, first)
    response = await broker.produce_raw(produce_body(records), [run])
    assert rows(RunResult, response.results)[0].status == Code.OK
    assert response.positions is not None
    return [str(MessageId(broker.store.store_id, position)) for position in response.positions[0]]


async def indexed(broker: Stack) -> None:
    """Wait until every confirmed message is found by its keys."""
    while broker.store.index.indexed_position < broker.store.confirmed_position:
        await asyncio.sleep(0.01)


async def get(broker: Stack, message_id: str) -> Reply:
    return await broker.client.call(RequestCode.MESSAGE_GET, MessageGetRequest(message_id))


@pytest.fixture
async def b(broker: Stack) -> Stack:
    await broker.create("t")
    return broker


async def test_a_message_is_found_by_its_id(b: Stack) -> None:
    first, second = await send(b, b"one", b"two")
    assert bodies(await get(b, first)) == [b"one"]
    assert bodies(await get(b, second.upper())) == [b"two"]


async def test_what_an_id_does_not_name_is_said_in_a_sentence(b: Stack) -> None:
    (known,) = await send(b, b"one")
    other = "00" * 8 + known[16:]
    beyond = str(MessageId(b.store.store_id, 1 << 40))
    between = str(MessageId(b.store.store_id, 3))
    for wrong, sentence in (
        (other, "is in store 0000000000000000, this is"),
        (beyond, "the log has not come so far"),
        (between, "no record begins there; offset 3"),
    ):
        with pytest.raises(RemoteError, match=sentence) as refused:
            await get(b, wrong)
        assert refused.value.code == Code.MESSAGE_UNKNOWN
    with pytest.raises(RemoteError, match="not a message id"):
        await get(b, "xyz")


async def test_a_damaged_message_is_told_as_corrupt(start: Callable[..., Any], tmp_path: Path) -> None:
    b = await start()
    await b.create("t")
    damaged, whole = await send(b, b"A" * 100, b"B" * 100)
    b = await start()
    (segment,) = [p for p in (tmp_path / "store" / "commitlog").iterdir() if p.stat().st_blocks]
    with segment.open("r+b") as file:
        at = file.read(4096).index(b"A" * 100)
        file.seek(at + 50)
        file.write(b"x")
    b = await start()  # nothing of it is in memory
    with pytest.raises(RemoteError, match="the record is damaged") as refused:
        await get(b, damaged)
    assert refused.value.code == Code.CORRUPT
    assert bodies(await get(b, whole)) == [b"B" * 100]
    reply = await b.client.call(RequestCode.MESSAGE_BACKWARDS, MessageBackwardsRequest("t", 0))
    assert bodies(reply) == [b"B" * 100]
    assert reply.header(MessageBackwardsResponse).next_offset is None


async def test_a_message_that_its_topic_does_not_keep_any_more_is_unknown(
    b: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expired, kept) = await send(b, b"old", b"new", key="k")
    await indexed(b)
    queue = b.store._queues["t", 0]
    queue.first_offset = 1
    with pytest.raises(RemoteError, match="does not keep it any more") as refused:
        await get(b, expired)
    assert refused.value.code == Code.MESSAGE_UNKNOWN
    assert bodies(await get(b, kept)) == [b"new"]
    assert bodies(await b.client.call(RequestCode.MESSAGE_FIND, MessageFindRequest("t", "k"))) == [b"new"]


async def test_a_key_s_messages_come_newest_first_page_by_page(b: Stack) -> None:
    for i in range(10):
        await send(b, b"%d" % i, key="k" if i % 2 else "other", unique=f"u{i}", queue_id=i % 4)
    await indexed(b)
    found: list[list[bytes]] = []
    before = None
    while True:
        request = MessageFindRequest("t", "k", before=before, max_count=2)
        reply = await b.client.call(RequestCode.MESSAGE_FIND, request)
        found.append(bodies(reply))
        answer = reply.header(MessageFindResponse)
        assert answer.records == len(found[-1])
        before = answer.next_before
        if before is None:
            break
    assert answer.is_complete
    assert [body for page in found for body in page] == [b"9", b"7", b"5", b"3", b"1"]
    assert max(map(len, found)) == 2
    reply = await b.client.call(RequestCode.MESSAGE_FIND, MessageFindRequest("t", "u4", by_unique_id=True))
    assert bodies(reply) == [b"4"]
    reply = await b.client.call(RequestCode.MESSAGE_FIND, MessageFindRequest("t", "k", end_ms=5))
    assert bodies(reply) == []


async def test_a_queue_is_read_backwards_page_by_page(b: Stack) -> None:
    await b.produce("t", 1, *((b"%d" % i, f"{i % 3}/x") for i in range(20)))
    found: list[bytes] = []
    offset = None
    pages = 0
    while True:
        request = MessageBackwardsRequest("t", 1, offset, max_count=7)
        reply = await b.client.call(RequestCode.MESSAGE_BACKWARDS, request)
        found += bodies(reply)
        pages += 1
        offset = reply.header(MessageBackwardsResponse).next_offset
        if offset is None:
            break
    assert (found, pages) == ([b"%d" % i for i in range(19, -1, -1)], 3)
    for tag_filter in ("2/x", "2/#", "2/+"):
        request = MessageBackwardsRequest("t", 1, max_count=7, tag_filter=tag_filter)
        reply = await b.client.call(RequestCode.MESSAGE_BACKWARDS, request)
        assert bodies(reply) == [b"17", b"14"], "of the seven that were looked at"
        assert reply.header(MessageBackwardsResponse).next_offset == 13
    reply = await b.client.call(RequestCode.MESSAGE_BACKWARDS, MessageBackwardsRequest("t", 1, max_bytes=1))
    assert (bodies(reply), reply.header(MessageBackwardsResponse).next_offset) == ([b"19"], 19)
    reply = await b.client.call(RequestCode.MESSAGE_BACKWARDS, MessageBackwardsRequest("t", 3))
    assert (bodies(reply), reply.header(MessageBackwardsResponse).next_offset) == ([], None)


async def test_the_empty_tag_and_no_tag_are_told_apart(b: Stack) -> None:
    await b.produce("t", 0, (b"none", None), (b"empty", ""), (b"some", "x"))
    reply = await b.client.call(RequestCode.MESSAGE_BACKWARDS, MessageBackwardsRequest("t", 0, tag_filter=""))
    assert bodies(reply) == [b"empty"]


async def test_each_queue_says_where_it_stood_at_a_time(b: Stack) -> None:
    await b.produce("t", 0, (b"1", None), (b"2", None))
    boundary = b.store._appends.store_ms + 1
    while b.store._clock_ms() < boundary:
        await asyncio.sleep(0.001)
    await b.produce("t", 0, (b"3", None))
    reply = await b.client.call(RequestCode.OFFSET_AT, OffsetAtRequest("t", boundary))
    answer = reply.header(OffsetAtResponse)
    offsets = rows(QueueOffset, answer.offsets)
    assert offsets == [QueueOffset(0, 2, 0, 3), *(QueueOffset(q, 0, 0, 0) for q in (1, 2, 3))]
    assert answer.log_epoch == b.store.epoch
    reply = await b.client.call(RequestCode.OFFSET_AT, OffsetAtRequest("t", 0))
    assert rows(QueueOffset, reply.header(OffsetAtResponse).offsets)[0].offset == 0
    reply = await b.client.call(RequestCode.OFFSET_AT, OffsetAtRequest("t", 1 << 60))
    assert rows(QueueOffset, reply.header(OffsetAtResponse).offsets)[0].offset == 3


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [("nowhere", Code.TOPIC_UNKNOWN), ("%TIMER", Code.TOPIC_INVALID), ("secret", Code.TOPIC_PERM)],
)
@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.MESSAGE_FIND, lambda topic: MessageFindRequest(topic, "k")),
        (RequestCode.MESSAGE_BACKWARDS, lambda topic: MessageBackwardsRequest(topic, 0)),
        (RequestCode.OFFSET_AT, lambda topic: OffsetAtRequest(topic, 0)),
    ],
)
async def test_topics_that_may_not_be_read_are_refused(
    b: Stack, code: RequestCode, header: Any, topic: str, wanted: Code
) -> None:
    await b.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("secret", 4, perm=2))
    with pytest.raises(RemoteError) as refused:
        await b.client.call(code, header(topic))
    assert refused.value.code == wanted


async def test_a_message_of_a_topic_that_may_not_be_read_is_not_given_by_its_id_either(b: Stack) -> None:
    await b.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("secret", 4, perm=2))
    (hidden,) = await send(b, b"x", topic="secret")
    with pytest.raises(RemoteError, match="TOPIC_PERM"):
        await get(b, hidden)


async def test_a_queue_that_is_not_there_and_a_filter_that_is_none_are_refused(b: Stack) -> None:
    with pytest.raises(RemoteError, match="QUEUE_UNKNOWN"):
        await b.client.call(RequestCode.MESSAGE_BACKWARDS, MessageBackwardsRequest("t", 4))
    with pytest.raises(RemoteError, match="TAG_INVALID"):
        await b.client.call(
            RequestCode.MESSAGE_BACKWARDS, MessageBackwardsRequest("t", 0, tag_filter="a/#/b")
        )


async def test_temporary_topics_are_not_looked_into(b: Stack) -> None:
    await b.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("t#tmp", 4, kind="temporary"))
    with pytest.raises(RemoteError, match="KIND_UNFIT"):
        await b.client.call(RequestCode.MESSAGE_FIND, MessageFindRequest("t#tmp", "k"))


async def test_answers_are_bounded_and_so_are_look_ups(b: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(b, *[bytes(1000)] * 10, key="k")
    await indexed(b)
    monkeypatch.setattr(queries, "ANSWER_MAX_BYTES", 3000)
    reply = await b.client.call(RequestCode.MESSAGE_FIND, MessageFindRequest("t", "k", max_count=1_000_000))
    assert len(bodies(reply)) == 3
    reply = await b.client.call(
        RequestCode.MESSAGE_BACKWARDS, MessageBackwardsRequest("t", 0, max_count=1 << 40, max_bytes=1 << 40)
    )
    assert len(bodies(reply)) == 3
    monkeypatch.setattr(queries, "MESSAGES_MAX", 2)
    reply = await b.client.call(RequestCode.MESSAGE_FIND, MessageFindRequest("t", "k", max_count=1_000_000))
    assert len(bodies(reply)) == 2
    monkeypatch.setattr(lookups, "LOOKUPS_MAX", 0)
    with pytest.raises(BusyError):
        await b.client.call(RequestCode.OFFSET_AT, OffsetAtRequest("t", 0))
    assert b.server.numbers()["message_lookups_refused_total"] == 1


async def test_a_moment_has_its_place_in_the_whole_log(b: Stack) -> None:
    async def place(store_ms: int) -> int:
        reply = await b.client.call(RequestCode.READ_AT, ReadAtRequest(store_ms))
        answer = reply.header(ReadPosition)
        assert answer.log_epoch == b.store.epoch
        return answer.position

    assert await place(1) == b.store.confirmed_position
    first = MessageId.parse((await send(b, b"one", b"two"))[0]).physical_offset
    now_ms = b.store.tail(first)[-1].store_ms  # type: ignore[index]
    assert await place(now_ms + 60_000) == b.store.confirmed_position
    assert await place(0) == b.store.first_position
    assert await place(1) == b.store.first_position
