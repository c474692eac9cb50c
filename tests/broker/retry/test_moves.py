"""Moves over a real store and broker in this process, with the clock as an argument."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from broker_stack import Stack, make_record, produce_body

from broker.retry.copies import DeadLetter, MovedMessage
from broker.retry.moves import MOVES_MAX
from broker.topics.requests import OWN_TABLES
from holdmq.errors import Code, HoldMQError, RemoteError, StoreFullError
from holdmq.record.batch import split_records
from holdmq.record.codec import Record, decode_record, encode_record
from holdmq.record.origin import Origin, origin_of, value_in
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupRequest, GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    ProduceRequest,
    ProduceResponse,
    ProduceRun,
    PulledQueue,
    PullQueue,
    PullRequest,
    PullResponse,
    RunResult,
)
from holdmq.wire.move_headers import (
    DELAY_LEVELS_MS,
    TO_DEAD_LETTERS,
    SendBackRequest,
    SendBackResponse,
    SendBackResult,
    SentBack,
)
from holdmq.wire.offset_headers import TO_EARLIEST, OffsetResetRequest
from storage.api.batches import Batch

Start = Callable[..., Any]


class Clock:
    """Time as the test says it is."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms

    def advance(self, stack: Stack, by_ms: int) -> None:
        """Let time pass, and the store's timer look."""
        self.ms += by_ms
        stack.store.timer.wake()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def begin(start: Start, clock: Callable[[], int], *groups: str, **settings: Any) -> Stack:
    """A broker with topic t and these groups."""
    stack: Stack = await start(clock_ms=clock, **settings)
    await stack.create("t")
    for group in groups:
        await update(stack, group)
    return stack


async def update(stack: Stack, group: str, **settings: Any) -> None:
    await stack.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest(group, **settings))


async def send_back(stack: Stack, group: str, *messages: SentBack) -> list[SendBackResult]:
    reply = await stack.client.call(RequestCode.SEND_BACK, SendBackRequest(group, list(messages)))
    return rows(SendBackResult, reply.header(SendBackResponse).results)


async def read(
    stack: Stack, topic: str, offset: int = 0, group: str = "", hold_ms: int = 0, queue_id: int = 0
) -> tuple[int, list[Record]]:
    """The status of a queue and its records from an offset on."""
    request = PullRequest([PullQueue(topic, queue_id, 0, offset)], 1 << 20, hold_ms, group=group)
    reply = await stack.client.call(RequestCode.PULL, request, 60.0)
    records, at = [], 0
    for size in split_records(reply.body).tolist():
        records.append(decode_record(reply.body, at))
        at += size
    return rows(PulledQueue, reply.header(PullResponse).queues)[0].status, records


async def retry_at(stack: Stack, offset: int, group: str = "g") -> Record:
    """A group's retry, once the timer released it."""
    _, records = await read(stack, f"%RETRY%{group}", offset, group, hold_ms=40_000)
    return records[0]


async def read_all(stack: Stack, topic: str, count: int, group: str = "") -> list[Record]:
    """The first `count` records of a queue, as soon as they are there."""
    found: list[Record] = []
    while len(found) < count:
        found += (await read(stack, topic, len(found), group, hold_ms=40_000))[1]
    return found


def end_of(stack: Stack, topic: str) -> int:
    return stack.store.bounds(topic, 0)[1]


async def test_a_failing_consumer_sees_all_sixteen_levels_and_then_the_dead_letters(
    start: Start, clock: Clock
) -> None:
    stack = await begin(start, clock, "g", "other")
    letters: list[DeadLetter] = []
    stack.server.moves.copies.letters_written.subscribe(letters.extend)
    await stack.produce("t", 2, (b"before", None), (b"bad", "a/b"))
    place = SentBack("t", 2, 1, 0, 0)
    for attempt in range(1, 17):
        (result,) = await send_back(stack, "g", place)
        due_ms = clock.ms + DELAY_LEVELS_MS[attempt + 1]
        assert result == (Code.OK, attempt, due_ms, "")
        # One ms early is too early.
        clock.advance(stack, DELAY_LEVELS_MS[attempt + 1] - 1)
        clock.advance(stack, 1)
        record = await retry_at(stack, attempt - 1)
        assert record.store_ms == due_ms
        assert (record.body, record.tag, record.reconsume_times) == (b"bad", b"a/b", attempt)
        assert origin_of(record.properties) == Origin("t", 2, 1, attempt)
        assert value_in(record.properties, "REAL_TOPIC") == "t"
        place = SentBack("%RETRY%g", 0, attempt - 1, record.reconsume_times, 0)
    (result,) = await send_back(stack, "g", place)
    assert result == (Code.OK, 17, -1, "")
    _, dead = await read(stack, "%DLQ%g")
    assert [(r.body, r.reconsume_times) for r in dead] == [(b"bad", 16)]
    assert letters == [DeadLetter("g", "t", 2, 1, 16)]
    # Nobody else has seen any of it.
    assert end_of(stack, "%RETRY%g") == 16
    assert stack.store.bounds("t", 2) == (0, 2)
    assert (await read(stack, "%RETRY%g", 0, "other"))[0] == Code.TOPIC_PERM
    assert (await read(stack, "%RETRY%g"))[0] == Code.TOPIC_PERM
    topics = {row.topic for row in stack.server.topics.table.rows()} - {*OWN_TABLES}
    assert topics == {"t", "%RETRY%g", "%DLQ%g"}
    numbers = stack.server.numbers()
    assert (numbers["moves_retried_total"], numbers["moves_dead_letters_total"]) == (16, 1)
    assert (numbers["moves_in_hand"], numbers["moves_copies_bytes"]) == (0, 0)


async def test_a_group_s_own_table_queues_and_limit_are_used(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock)
    await update(stack, "g", retry_queue_nums=3, retry_max_times=1, delay_levels_ms=[250])
    await stack.produce("t", 1, (b"bad", None))
    (result,) = await send_back(stack, "g", SentBack("t", 1, 0, 0, 0))
    assert result.due_ms == clock.ms + 250
    clock.advance(stack, 250)
    _, (record,) = await read(stack, "%RETRY%g", 0, "g", 40_000, queue_id=1)
    (result,) = await send_back(stack, "g", SentBack("%RETRY%g", 1, 0, 0, 0))
    assert (result.attempt, result.due_ms, end_of(stack, "%DLQ%g")) == (2, -1, 1)
    assert record.queue_id == 1


async def test_a_repeat_makes_no_second_copy(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock, "g", "h")
    await stack.produce("t", 0, (b"bad", None))
    place = SentBack("t", 0, 0, 0, 0)
    together = await asyncio.gather(*(send_back(stack, "g", place, place) for _ in range(3)))
    assert {result.status for results in together for result in results} == {Code.OK}
    # Whatever the caller says of the attempts.
    (later,) = await send_back(stack, "g", SentBack("t", 0, 0, 9, 0))
    assert later == (Code.OK, 1, -1, "")
    assert end_of(stack, "%TIMER") == 1
    # Another group's failure is its own.
    (other,) = await send_back(stack, "h", place)
    assert other.due_ms > 0
    assert end_of(stack, "%TIMER") == 2
    assert stack.server.numbers()["moves_repeats_total"] == 6


async def test_a_repeat_after_a_restart_makes_no_second_copy(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock, "g")
    await stack.produce("t", 0, *((b"%d" % i, None) for i in range(1_500)))
    await send_back(stack, "g", *(SentBack("t", 0, i, 0, 0) for i in range(1_000)))
    await send_back(stack, "g", *(SentBack("t", 0, i, 16, 0) for i in range(1_000, 1_500)))
    clock.advance(stack, 10_000)
    await read_all(stack, "%RETRY%g", 1_000, "g")
    stack = await begin(start, clock)
    results = await send_back(stack, "g", *(SentBack("t", 0, i, 0, 0) for i in range(1_000)))
    assert {(r.status, r.attempt, r.due_ms) for r in results} == {(Code.OK, 1, -1)}
    results = await send_back(stack, "g", *(SentBack("t", 0, i, 16, 0) for i in range(1_000, 1_500)))
    assert {(r.status, r.attempt, r.due_ms) for r in results} == {(Code.OK, 17, -1)}
    assert [end_of(stack, topic) for topic in ("%TIMER", "%RETRY%g", "%DLQ%g")] == [1_000, 1_000, 500]


async def test_a_group_whose_offsets_were_reset_may_fail_again_over_a_restart(
    start: Start, clock: Clock
) -> None:
    stack = await begin(start, clock, "g", "h")
    await stack.create("u")
    for topic in ("t", "u"):
        await stack.produce(topic, 0, (b"bad", None), (b"worse", None))
    places = [SentBack("t", 0, 0, 0, 0), SentBack("t", 0, 1, 0, TO_DEAD_LETTERS)]
    others = [SentBack("u", 0, 0, 0, 0), SentBack("u", 0, 1, 0, TO_DEAD_LETTERS)]
    for group in ("g", "h"):
        await send_back(stack, group, *places, *others)
    await stack.client.call(RequestCode.OFFSET_RESET, OffsetResetRequest("g", "t", TO_EARLIEST))
    stack = await begin(start, clock)
    again = await send_back(stack, "g", *places, *others)
    assert [r.due_ms > 0 for r in again] == [True, False, False, False]
    assert [end_of(stack, f"%DLQ%{group}") for group in ("g", "h")] == [3, 2]
    assert {r.due_ms for r in await send_back(stack, "h", *places)} == {-1}
    # What was moved since the reset is a repeat, before a restart and after it.
    stack = await begin(start, clock)
    assert {r.due_ms for r in await send_back(stack, "g", *places, *others)} == {-1}
    assert (end_of(stack, "%TIMER"), end_of(stack, "%DLQ%g")) == (5, 3)


async def test_retries_of_a_deleted_group_are_for_no_later_one_of_its_name(
    start: Start, clock: Clock
) -> None:
    stack = await begin(start, clock, "g", "h")
    await stack.produce("t", 0, (b"old", None), (b"dead", None), (b"new", None))
    for group in ("g", "h"):
        await send_back(stack, group, SentBack("t", 0, 0, 0, 0), SentBack("t", 0, 1, 16, 0))
    clock.advance(stack, 10_000)
    for group in ("g", "h"):
        assert (await retry_at(stack, 0, group)).body == b"old"
    await stack.client.call(RequestCode.GROUP_DELETE, GroupRequest("g"), 20.0)
    assert stack.server.topics.table.get("%RETRY%g") is None
    # What it gave up stays, until it is purged.
    assert (end_of(stack, "%DLQ%g"), end_of(stack, "%RETRY%h")) == (1, 1)
    await update(stack, "g")
    for _ in range(2):
        await send_back(stack, "g", SentBack("t", 0, 2, 0, 0))
        clock.advance(stack, 10_000)
        assert (await retry_at(stack, 1)).body == b"new"
        assert stack.store.bounds("%RETRY%g", 0) == (1, 2)
        stack = await begin(start, clock)


async def test_what_is_no_longer_in_memory_is_read_on_the_pool(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock, "g")
    await stack.produce("t", 0, *((b"%d" % i, None) for i in range(300)))
    stack = await begin(start, clock)
    assert stack.store.read_queue("t", 0, 0, 5, 1, 1) is None
    results = await send_back(stack, "g", *(SentBack("t", 0, i, 0, 0) for i in range(300)))
    assert {result.status for result in results} == {Code.OK}
    assert stack.server.numbers()["moves_cold_reads_total"] == 300
    clock.advance(stack, 10_000)
    bodies = [record.body for record in await read_all(stack, "%RETRY%g", 300, "g")]
    assert bodies == [b"%d" % i for i in range(300)]


@pytest.mark.parametrize(
    ("group", "place", "code"),
    [
        ("g", SentBack("t", 0, 1, 0, 0), Code.MESSAGE_UNKNOWN),
        ("g", SentBack("t", 0, -1, 0, 0), Code.MESSAGE_UNKNOWN),
        ("g", SentBack("t", 0, 1 << 60, 0, 0), Code.MESSAGE_UNKNOWN),
        ("g", SentBack("t", 4, 0, 0, 0), Code.QUEUE_UNKNOWN),
        ("g", SentBack("nowhere", 0, 0, 0, 0), Code.TOPIC_UNKNOWN),
        ("g", SentBack("%RETRY%h", 0, 0, 0, 0), Code.TOPIC_INVALID),
        ("g", SentBack("%DLQ%g", 0, 0, 0, 0), Code.TOPIC_INVALID),
        ("g", SentBack("%TIMER", 0, 0, 0, 0), Code.TOPIC_INVALID),
        ("g", SentBack("t#tmp", 0, 0, 0, 0), Code.KIND_UNFIT),
        ("g#tmp", SentBack("t", 0, 0, 0, 0), Code.GROUP_UNKNOWN),
        ("nobody", SentBack("t", 0, 0, 0, 0), Code.GROUP_UNKNOWN),
        ("g/x", SentBack("t", 0, 0, 0, 0), Code.GROUP_INVALID),
    ],
)
async def test_what_cannot_be_sent_back_is_refused_alone(
    start: Start, clock: Clock, group: str, place: SentBack, code: Code
) -> None:
    stack = await begin(start, clock, "g")
    await stack.produce("t", 0, (b"bad", None))
    results = await send_back(stack, group, place, SentBack("t", 0, 0, 0, 0))
    assert results[0].status == code
    assert results[1].status == (Code.OK if group == "g" else code)
    assert end_of(stack, "%TIMER") == (group == "g")


async def test_moves_in_hand_are_bounded(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock, "g")
    assert stack.server.moves.moves_max == MOVES_MAX
    stack.server.moves.moves_max = 3
    await stack.produce("t", 0, *((b"%d" % i, None) for i in range(5)))
    results = await send_back(stack, "g", *(SentBack("t", 0, i, 0, 0) for i in range(5)))
    assert [r.status for r in results] == [Code.OK] * 3 + [Code.BUSY] * 2
    (again, *_) = await send_back(stack, "g", SentBack("t", 0, 4, 0, 0))
    assert again.status == Code.OK
    with pytest.raises(RemoteError, match="1 to 1000"):
        await send_back(stack, "g", *(SentBack("t", 0, i, 0, 0) for i in range(1_001)))
    with pytest.raises(RemoteError, match="1 to 1000"):
        await send_back(stack, "g")


async def test_the_copies_of_large_messages_are_bounded_and_all_arrive(
    start: Start, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.retry.copies.COPIES_MAX_BYTES", 1 << 20)
    stack = await begin(start, clock, "g")
    for i in range(12):
        await stack.produce("t", 0, (b"%d" % i + bytes(600 << 10), None))
    highest = 0

    def measure(_: Sequence[Batch]) -> None:
        nonlocal highest
        highest = max(highest, stack.server.moves.copies.size_bytes)

    stack.store.subscribe(measure)
    results = await send_back(stack, "g", *(SentBack("t", 0, i, 0, 0) for i in range(12)))
    assert {r.status for r in results} == {Code.OK}
    assert 600 << 10 < highest < 2 << 20


async def test_a_refused_append_is_told_and_the_next_try_is_no_repeat(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock, "g")
    await stack.produce("t", 0, (b"bad", None))
    stack.store._watermark_passed(_full())
    (result,) = await send_back(stack, "g", SentBack("t", 0, 0, 0, 0))
    assert result.status == Code.STORE_FULL
    (result,) = await send_back(stack, "g", SentBack("t", 0, 0, 0, TO_DEAD_LETTERS))
    assert result.status == Code.STORE_FULL
    stack.store._watermark_passed(None)
    (result,) = await send_back(stack, "g", SentBack("t", 0, 0, 0, 0))
    assert (result.status, result.due_ms > 0) == (Code.OK, True)
    assert stack.server.numbers()["moves_in_hand"] == 0


def _full() -> Any:
    return StoreFullError("no room", operation="append")


async def test_other_parts_move_messages_with_a_delay_of_their_own(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock, "g")
    await stack.produce("t", 0, (b"one", None), (b"two", None))
    told: asyncio.Queue[MovedMessage | HoldMQError] = asyncio.Queue()
    moves = stack.server.moves
    moves.move("g", "t", 0, 0, 4, 90_000, told.put_nowait)
    assert await told.get() == MovedMessage(5, clock.ms + 90_000, False, False)
    moves.move("g", "t", 0, 1, 16, 90_000, told.put_nowait)
    assert await told.get() == MovedMessage(17, -1, True, False)
    moves.move("g", "t", 0, 0, 1, None, told.put_nowait)
    assert await told.get() == MovedMessage(5, -1, False, True)
    moves.move("g", "nowhere", 0, 0, 1, None, told.put_nowait)
    refused = told.get_nowait()
    assert isinstance(refused, RemoteError)
    assert refused.code == Code.TOPIC_UNKNOWN


async def test_a_dead_letter_is_said_once_however_many_come_together(
    start: Start, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    stack = await begin(start, clock, "g")
    await stack.produce("t", 0, *((b"%d" % i, None) for i in range(50)))
    told: list[int] = []
    stack.server.moves.copies.letters_written.subscribe(lambda letters: told.append(len(letters)))
    with caplog.at_level("WARNING"):
        await send_back(stack, "g", *(SentBack("t", 0, i, 0, TO_DEAD_LETTERS) for i in range(50)))
        stack.server.moves.copies.close()
    assert sum(told) == 50
    assert end_of(stack, "%DLQ%g") == 50


# Delayed messages of producers


async def produce_delayed(
    stack: Stack, first: int, *dues: str | None, topic: str = "t", epoch: int = 1
) -> list[RunResult]:
    """One run for each stretch of delayed, or of other, messages of producer 9 on queue 0."""
    records: list[bytes] = []
    runs: list[ProduceRun] = []
    delayed: list[int] = []
    for i, due in enumerate(dues):
        raw = make_record(topic, 0, b"m%d" % (first + i))
        if due is not None:
            raw = make_delayed(topic, b"m%d" % (first + i), due)
        records.append(raw)
        if i and (due is None) == (dues[i - 1] is None):
            runs[-1] = runs[-1]._replace(records=runs[-1].records + 1)
            continue
        if due is not None:
            delayed.append(len(runs))
        runs.append(ProduceRun(topic, 0, 1, 9, epoch, first + i))
    body = produce_body(records)
    header = ProduceRequest(zlib.crc32(body), runs, want_positions=True, delayed=delayed)
    reply = await stack.client.call(RequestCode.PRODUCE, header, 40.0, [body], len(body))
    answer = reply.header(ProduceResponse)
    positions = answer.positions or []
    assert all(bool(at) == (i not in delayed) for i, at in enumerate(positions) if answer.results[i][0] == 0)
    return rows(RunResult, answer.results)


def make_delayed(topic: str, body: bytes, due: str) -> bytes:
    return encode_record(topic.encode(), 0, body, f"TAGS\x01x\x02DUE\x01{due}\x02".encode(), 5)


async def test_delayed_runs_wait_and_the_others_of_the_batch_do_not(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock)
    results = await produce_delayed(stack, 0, None, "+5000", str(clock.ms + 3000), None)
    assert [(r.status, r.base_offset) for r in results] == [(Code.OK, 0), (Code.OK, -1), (Code.OK, 1)]
    clock.advance(stack, 3000)
    _, records = await read(stack, "t", 2, hold_ms=40_000)
    assert [r.body for r in records] == [b"m2"]
    clock.advance(stack, 1999)
    clock.advance(stack, 1)
    _, records = await read(stack, "t", 3, hold_ms=40_000)
    assert [(r.body, r.store_ms) for r in records] == [(b"m1", clock.ms)]
    assert stack.server.numbers()["produce_delayed_total"] == 2


async def test_a_resent_delayed_run_is_a_repeat_and_order_of_sequences_holds(
    start: Start, clock: Clock
) -> None:
    stack = await begin(start, clock)
    first = await produce_delayed(stack, 0, "+5000", "+5000")
    again = await produce_delayed(stack, 0, "+5000", "+5000")
    assert first == again == [(Code.OK, -1, "")]
    (gap,) = await produce_delayed(stack, 3, "+5000")
    assert gap.status == Code.OUT_OF_SEQUENCE
    assert [r.status for r in await produce_delayed(stack, 2, None, "+5000")] == [Code.OK, Code.OK]
    assert (end_of(stack, "%TIMER"), end_of(stack, "t")) == (3, 1)


async def test_a_delay_that_cannot_be_refuses_its_run_and_consumes_its_sequences(
    start: Start, clock: Clock
) -> None:
    stack = await begin(start, clock)
    results = await produce_delayed(stack, 0, None, "tomorrow", None)
    assert [r.status for r in results] == [Code.OK, Code.DELAY_INVALID, Code.OK]
    assert "DUE" in results[1].remark
    assert (end_of(stack, "%TIMER"), end_of(stack, "t")) == (0, 2)


async def test_delayed_messages_are_released_once_over_a_restart(start: Start, clock: Clock) -> None:
    stack = await begin(start, clock)
    await produce_delayed(stack, 0, *["+5000"] * 20)
    stack = await begin(start, clock)
    clock.advance(stack, 5000)
    stack = await begin(start, clock)
    bodies = [record.body for record in await read_all(stack, "t", 20)]
    assert bodies == [b"m%d" % i for i in range(20)]
