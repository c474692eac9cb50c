"""Dead letters: listed, sent again once, purged; over restarts and crashes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_stack import Stack, bodies, until

from broker.retry.copies import find_moves
from broker.state.state_file import StateFile
from holdmq.errors import Code, RemoteError, StorageError, StoreFormatError
from holdmq.record.codec import decode_record
from holdmq.record.origin import Origin, origin_of
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.headers import PulledQueue, PullQueue, PullRequest, PullResponse
from holdmq.wire.move_headers import (
    TO_DEAD_LETTERS,
    DeadLetterRow,
    DlqListRequest,
    DlqListResponse,
    DlqPurgeRequest,
    DlqPurgeResponse,
    DlqResendRequest,
    DlqResendResponse,
    ResendFailure,
    ResentLetters,
    SendBackRequest,
    SentBack,
)

Start = Callable[..., Any]


async def with_letters(start: Start, count: int, topic: str = "t", group: str = "g") -> Stack:
    """A broker on which a group gave up so many messages: queue i % 4 has message i."""
    stack: Stack = await start()
    await stack.create(topic)
    await stack.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest(group))
    places = []
    for i in range(count):
        await stack.produce(topic, i % 4, (b"%d" % i, "a/b"))
        places.append(SentBack(topic, i % 4, i // 4, 0, TO_DEAD_LETTERS))
    await stack.client.call(RequestCode.SEND_BACK, SendBackRequest(group, places))
    return stack


async def listed(stack: Stack, group: str | None = None) -> list[DeadLetterRow]:
    reply = await stack.client.call(RequestCode.DLQ_LIST, DlqListRequest(group))
    return rows(DeadLetterRow, reply.header(DlqListResponse).groups)


async def resend(stack: Stack, group: str = "g", **settings: Any) -> DlqResendResponse:
    reply = await stack.client.call(RequestCode.DLQ_RESEND, DlqResendRequest(group, **settings), 20.0)
    return reply.header(DlqResendResponse)


async def purge(stack: Stack, end_offset: int = -1, group: str = "g") -> DlqPurgeResponse:
    reply = await stack.client.call(RequestCode.DLQ_PURGE, DlqPurgeRequest(group, end_offset), 20.0)
    return reply.header(DlqPurgeResponse)


async def read(stack: Stack, topic: str, queue_id: int, offset: int, count: int) -> list[bytes]:
    """The next `count` bodies of a queue, as soon as they are there."""
    found: list[bytes] = []
    while len(found) < count:
        request = PullRequest([PullQueue(topic, queue_id, 0, offset + len(found))], 1 << 20, 20_000)
        reply = await stack.client.call(RequestCode.PULL, request, 30.0)
        assert rows(PulledQueue, reply.header(PullResponse).queues)[0].status == Code.OK
        found += bodies(reply)
    return found


async def test_groups_are_listed_with_exact_counts(start: Start) -> None:
    stack = await with_letters(start, 5)
    await with_more(stack, "h", 2)
    assert await listed(stack) == [("g", 0, 5, 0), ("h", 0, 2, 0)]
    assert await listed(stack, "h") == [("h", 0, 2, 0)]
    assert await listed(stack, "nobody") == []


async def with_more(stack: Stack, group: str, count: int) -> None:
    await stack.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest(group))
    places = [SentBack("t", i % 4, i // 4, 0, TO_DEAD_LETTERS) for i in range(count)]
    await stack.client.call(RequestCode.SEND_BACK, SendBackRequest(group, places))


async def test_all_are_sent_again_to_their_own_queues_and_never_twice(start: Start) -> None:
    stack = await with_letters(start, 10)
    assert await resend(stack) == DlqResendResponse(10, 0, [], -1)
    assert await resend(stack) == DlqResendResponse(0, 10, [], -1)
    assert await read(stack, "t", 2, 2, 2) == [b"2", b"6"]
    assert await listed(stack) == [("g", 0, 10, 10)]
    stack = await start()
    assert await resend(stack) == DlqResendResponse(0, 10, [], -1)
    assert [stack.store.bounds("t", q)[1] for q in range(4)] == [6, 6, 4, 4]


async def test_a_crash_before_the_marks_are_saved_sends_nothing_twice(start: Start, tmp_path: Path) -> None:
    stack = await with_letters(start, 10)
    path = tmp_path / "store" / "config" / "deadLetters.json"
    await resend(stack, offsets=[0])
    saved = path.read_bytes()
    await resend(stack)
    stack = await start()
    await asyncio.to_thread(path.write_bytes, saved)
    stack = await start()
    assert await listed(stack) == [("g", 0, 10, 10)]
    assert await resend(stack) == DlqResendResponse(0, 10, [], -1)
    known, unknown = await resends(stack, 0)
    assert (known.end_offset, known.at_ms > 0) == (1, True)
    assert unknown == (1, 10, -1, "")


async def test_nothing_is_done_before_it_is_known_what_was_sent_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = await with_letters(start, 10)
    path = tmp_path / "store" / "config" / "deadLetters.json"
    await resend(stack, offsets=[0])
    saved = path.read_bytes()
    await resend(stack)
    known = threading.Event()

    def find_slowly(*arguments: Any) -> Any:
        assert known.wait(40)
        return find_moves(*arguments)

    monkeypatch.setattr("broker.retry.copies.find_moves", find_slowly)
    known.set()
    stack = await start()
    await until(lambda: stack.server.moves.copies.is_recovered)
    await asyncio.to_thread(path.write_bytes, saved)
    known.clear()
    stack = await start()
    asking = asyncio.gather(
        resend(stack), listed(stack), resend(stack, group="nobody"), return_exceptions=True
    )
    while stack.server.numbers()["dead_letters_requests"] < 3:
        await asyncio.sleep(0)
    known.set()
    done, rows_, refused = await asking
    assert (done, rows_) == (DlqResendResponse(0, 10, [], -1), [("g", 0, 10, 10)])
    assert isinstance(refused, RemoteError)


async def test_single_ones_are_sent_to_another_topic(start: Start) -> None:
    stack = await with_letters(start, 4)
    await stack.create("other", 1)
    answer = await resend(stack, offsets=[1, 3, 1, 9, -1], topic="other")
    assert (answer.resent, answer.repeated, answer.next_offset) == (2, 1, -1)
    failures = rows(ResendFailure, answer.failures)
    assert [(f.offset, f.status) for f in failures] == [(9, Code.MESSAGE_UNKNOWN), (-1, Code.MESSAGE_UNKNOWN)]
    assert await read(stack, "other", 0, 0, 2) == [b"1", b"3"]
    assert await listed(stack) == [("g", 0, 4, 2)]
    assert (await resend(stack)).resent == 2


async def resends(stack: Stack, first: int) -> list[ResentLetters]:
    reply = await stack.client.call(RequestCode.DLQ_LIST, DlqListRequest("g", first))
    return rows(ResentLetters, reply.header(DlqListResponse).resends)


async def test_when_and_for_whom_letters_were_sent_again_is_known_over_a_restart(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = await with_letters(start, 8)
    await resend(stack, offsets=[2], by="ada")
    await resend(stack, first_offset=4, by="bob")
    await resend(stack, by="ada, who is too late")
    found = await resends(stack, 0)
    assert [(row.first_offset, row.end_offset, row.by) for row in found] == [
        (0, 2, "ada, who is too late"),
        (2, 3, "ada"),
        (3, 4, "ada, who is too late"),
        (4, 8, "bob"),
    ]
    assert found[1].at_ms <= found[3].at_ms <= found[0].at_ms == found[2].at_ms
    stack = await start()
    assert await resends(stack, 0) == found
    assert await resends(stack, 7) == [found[3]._replace(first_offset=7)]
    await purge(stack, 5)
    assert await resends(stack, 0) == [found[3]._replace(first_offset=5)]
    assert await resends(stack, 8) == await resends(stack, -1) == []
    # One request tells of so many letters and no more.
    monkeypatch.setattr("broker.retry.dead_letters.RESEND_MAX", 2)
    assert await resends(stack, 5) == [found[3]._replace(first_offset=5, end_offset=7)]


async def test_a_resent_letter_says_where_it_was(start: Start) -> None:
    stack = await with_letters(start, 1)
    await resend(stack)
    await read(stack, "t", 0, 1, 1)
    found = stack.store.read_queue("t", 0, 0, 1, 1, 1)
    assert found is not None
    record = decode_record(found.parts[0])
    assert origin_of(record.properties) == Origin("%DLQ%g", 0, 0, 1)
    assert (record.reconsume_times, record.tag) == (0, b"a/b")


async def test_a_range_is_sent_in_pieces_that_say_where_to_go_on(start: Start) -> None:
    stack = await with_letters(start, 10)
    first = await resend(stack, first_offset=2, end_offset=9, limit=4)
    assert first == DlqResendResponse(4, 0, [], 6)
    second = await resend(stack, first_offset=first.next_offset, end_offset=9, limit=4)
    assert second == DlqResendResponse(3, 0, [], -1)
    assert await listed(stack) == [("g", 0, 10, 7)]


async def test_letters_that_are_only_on_disk_are_sent_too(start: Start) -> None:
    stack = await with_letters(start, 600)
    stack = await start()
    assert stack.store.read_queue("%DLQ%g", 0, 0, 5, 1, 1) is None
    assert await resend(stack) == DlqResendResponse(600, 0, [], -1)
    assert await read(stack, "t", 1, 150, 150) == [b"%d" % i for i in range(1, 600, 4)]


async def test_a_letter_whose_topic_is_gone_is_told_and_stays(start: Start) -> None:
    stack = await with_letters(start, 2)
    table = stack.server.topics.table
    found = table.get
    try:
        table.get = lambda name: None if name == "t" else found(name)  # type: ignore[method-assign]
        answer = await resend(stack)
    finally:
        table.get = found  # type: ignore[method-assign]
    assert [(f[0], f[1]) for f in answer.failures] == [(0, Code.TOPIC_UNKNOWN), (1, Code.TOPIC_UNKNOWN)]
    assert (answer.resent, answer.next_offset) == (0, -1)
    assert (await resend(stack)).resent == 2


async def test_purged_letters_are_gone_over_a_restart(start: Start) -> None:
    stack = await with_letters(start, 10)
    await resend(stack, offsets=[1, 7])
    assert await purge(stack, 4) == DlqPurgeResponse(4, 4)
    assert await listed(stack) == [("g", 4, 10, 1)]
    stack = await start()
    assert await listed(stack) == [("g", 4, 10, 1)]
    assert await purge(stack, 2) == DlqPurgeResponse(0, 4)
    assert (await resend(stack, offsets=[3])).failures[0][1] == Code.MESSAGE_UNKNOWN
    assert await purge(stack, 99) == DlqPurgeResponse(6, 10)
    assert await listed(stack) == [("g", 10, 10, 0)]
    await with_more(stack, "g", 1)
    assert await listed(stack) == [("g", 10, 10, 0)]
    assert stack.server.numbers()["dead_letters_purged_total"] == 6


async def test_a_file_that_cannot_be_written_refuses_and_purges_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = await with_letters(start, 3)

    def fail(*_: object) -> None:
        raise StorageError("no room", operation="write")

    with monkeypatch.context() as patched:
        patched.setattr("holdmq.files.atomic_file.AtomicFile.save", fail)
        with pytest.raises(RemoteError, match="no room"):
            await purge(stack)
        with pytest.raises(RemoteError, match="no room"):
            await resend(stack, offsets=[0])
    assert await listed(stack) == [("g", 0, 3, 1)]
    assert (await purge(stack)).purged == 3
    assert stack.server.numbers()["dead_letters_save_failures_total"] == 2


async def test_a_damaged_file_is_named(start: Start, tmp_path: Path) -> None:
    stack = await with_letters(start, 1)
    await purge(stack)
    path = tmp_path / "store" / "config" / "deadLetters.json"
    path.write_bytes(path.read_bytes().replace(b'"purged":1', b'"purged":2'))
    with pytest.raises(StoreFormatError, match=r"deadLetters\.json"):
        stack.server.dead_letters.load(StateFile(path))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (DlqResendRequest("nobody"), Code.GROUP_UNKNOWN),
        (DlqResendRequest("g/x"), Code.GROUP_INVALID),
        (DlqResendRequest("g", topic="%RETRY%g"), Code.TOPIC_INVALID),
        (DlqResendRequest("g", topic="nowhere"), Code.TOPIC_UNKNOWN),
        (DlqResendRequest("g", limit=0), Code.LIMIT_EXCEEDED),
        (DlqResendRequest("g", offsets=list(range(1_001))), Code.LIMIT_EXCEEDED),
        (DlqResendRequest("g", by="x" * 129), Code.LIMIT_EXCEEDED),
        (DlqResendRequest("g", by="ada\x1b[2J"), Code.LIMIT_EXCEEDED),
        (DlqResendRequest("g", offsets=["1"]), Code.MISSING_FIELD),  # type: ignore[list-item]
    ],
)
async def test_a_request_that_means_nothing_is_refused(
    start: Start, request_: DlqResendRequest, code: Code
) -> None:
    stack = await with_letters(start, 1)
    with pytest.raises(RemoteError) as refused:
        await stack.client.call(RequestCode.DLQ_RESEND, request_)
    assert refused.value.code == code


async def test_requests_in_hand_and_ranges_are_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = await with_letters(start, 8)
    monkeypatch.setattr("broker.retry.dead_letters.REQUESTS_MAX", 2)
    answers = await asyncio.gather(*(resend(stack) for _ in range(4)), return_exceptions=True)
    refused = [a for a in answers if isinstance(a, RemoteError)]
    assert {a.code for a in refused} == {Code.BUSY}
    assert sum(a.resent for a in answers if isinstance(a, DlqResendResponse)) == 8
    monkeypatch.setattr("broker.retry.dead_letters.RANGES_MAX", 1)
    with pytest.raises(RemoteError, match="purge"):
        await resend(stack, offsets=[1])
