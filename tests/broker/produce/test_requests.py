"""PRODUCE: what is stored, what is refused, and what a resend gets."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from broker_stack import Stack, Start, make_record, produce_body

from holdmq.errors import Code, RemoteError, StorageError
from holdmq.record.codec import decode_record, encode_record
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceRequest, ProduceResponse, ProduceRun, PullQueue, RunResult
from storage.api.batches import Batch


async def test_a_batch_gets_dense_offsets_and_its_positions(broker: Stack) -> None:
    await broker.create("t")
    records = [make_record("t", 1, b"%d" % i) for i in range(3)] + [make_record("t", 2, b"x")]
    runs = [ProduceRun("t", 1, 3, 1, 1, 0), ProduceRun("t", 2, 1, 1, 1, 0)]
    response = await broker.produce_raw(produce_body(records), runs)
    results = rows(RunResult, response.results)
    assert [(r.status, r.base_offset) for r in results] == [(Code.OK, 0), (Code.OK, 0)]
    assert response.positions is not None
    (at, *_), _ = response.positions
    batches = await asyncio.to_thread(broker.store.read_log, at, 1 << 20)
    assert bytes(decode_record(batches[0].records).body) == b"0"
    assert (await broker.produce("t", 2, (b"y", None), producer_id=2)).base_offset == 1


@pytest.mark.parametrize(
    ("runs", "status"),
    [
        ([ProduceRun("nowhere", 0, 1, 1, 1, 0)], Code.TOPIC_UNKNOWN),
        ([ProduceRun("%NOWHERE", 0, 1, 1, 1, 0)], Code.TOPIC_UNKNOWN),
        ([ProduceRun("%SESSION", 0, 1, 1, 1, 0)], Code.TOPIC_INVALID),
        ([ProduceRun("t", 4, 1, 1, 1, 0)], Code.QUEUE_UNKNOWN),
    ],
)
async def test_a_run_that_may_not_be_stored_is_refused_alone(
    broker: Stack, runs: list[ProduceRun], status: Code
) -> None:
    await broker.create("t")
    bad = runs[0]
    records = [make_record(bad.topic, bad.queue_id, b"bad"), make_record("t", 0, b"good")]
    response = await broker.produce_raw(produce_body(records), [*runs, ProduceRun("t", 0, 1, 1, 1, 0)])
    results = rows(RunResult, response.results)
    assert results[0].status == status
    assert results[0].base_offset == -1
    assert results[1].status == Code.OK
    _, got = await broker.pull(PullQueue("t", 0, 0, 0))
    assert got == [b"good"]


async def test_a_run_with_a_message_below_the_least_size_is_refused_in_its_turn(start: Start) -> None:
    stack = await start(message_bytes_min=3)
    await stack.create("t")
    assert stack.client.hello is not None
    assert stack.client.hello.message_bytes_min == 3
    records = [make_record("t", 0, b"abc"), make_record("t", 1, b"abcd"), make_record("t", 1, b"ab")]
    runs = [ProduceRun("t", 0, 1, 1, 1, 0), ProduceRun("t", 1, 2, 1, 1, 0)]
    results = rows(RunResult, (await stack.produce_raw(produce_body(records), runs)).results)
    assert [result.status for result in results] == [Code.OK, Code.MESSAGE_TOO_SMALL]
    assert results[1].remark == "a message of 2 bytes, message_bytes_min is 3"
    assert stack.server.numbers()["produce_runs_too_small_total"] == 1
    # Its sequences were used up: what follows is no gap.
    follow = [ProduceRun("t", 1, 1, 1, 1, 2)]
    answer = await stack.produce_raw(produce_body([make_record("t", 1, b"abc")]), follow)
    assert rows(RunResult, answer.results)[0].status == Code.OK


async def test_a_broker_whose_log_another_may_have_judges_no_sequence_and_no_topic(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create("t")
    assert (await broker.produce("t", 0, (b"0", None), producer_id=1)).base_offset == 0
    records = [make_record("t", 0, b"2"), make_record("nowhere", 0, b"x")]
    # Another one has stored sequence 1 meanwhile: out of sequence here, it would be numbered anew there.
    runs = [ProduceRun("t", 0, 1, 1, 1, 2), ProduceRun("nowhere", 0, 1, 1, 1, 0)]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(broker.store, "is_owned", lambda: False)
        response = await broker.produce_raw(produce_body(records), runs)
    assert [(r.status, r.base_offset) for r in rows(RunResult, response.results)] == [(Code.BUSY, -1)] * 2
    assert response.retry_after_ms > 0
    _, got = await broker.pull(PullQueue("t", 0, 0, 0))
    assert got == [b"0"]
    response = await broker.produce_raw(
        produce_body([make_record("t", 0, b"1")]), [ProduceRun("t", 0, 1, 1, 1, 1)]
    )
    assert rows(RunResult, response.results)[0].status == Code.OK


async def test_a_damaged_body_is_refused_before_it_is_looked_at(broker: Stack) -> None:
    await broker.create("t")
    body = produce_body([make_record("t", 0, b"x")])
    with pytest.raises(RemoteError, match="CRC-32") as refused:
        await broker.produce_raw(body, [ProduceRun("t", 0, 1, 1, 1, 0)], crc=1)
    assert refused.value.code == Code.BODY_CRC


def _wrong_size(record: bytes) -> bytes:
    return struct.pack(">I", len(record) + 1) + record[4:]


def _wrong_tail(record: bytes) -> bytes:
    return record[:-4] + struct.pack(">I", len(record) - 1)


def _wrong_magic(record: bytes) -> bytes:
    return record[:4] + b"HMQ9" + record[8:]


def _flipped_body(record: bytes) -> bytes:
    return record.replace(b"payload", b"pAyload")


@pytest.mark.parametrize("spoil", [_wrong_size, _wrong_tail, _wrong_magic, _flipped_body])
async def test_a_malformed_record_refuses_the_batch_and_is_named(
    broker: Stack, spoil: Callable[[bytes], bytes]
) -> None:
    await broker.create("t")
    good, bad = make_record("t", 0, b"payload"), spoil(make_record("t", 0, b"payload"))
    with pytest.raises(RemoteError, match="record 1") as refused:
        await broker.produce_raw(produce_body([good, bad]), [ProduceRun("t", 0, 2, 1, 1, 0)])
    assert refused.value.code == Code.MALFORMED_BATCH
    assert (await broker.produce("t", 0, (b"after", None))).base_offset == 0


async def test_a_record_of_another_topic_than_its_run_is_named(broker: Stack) -> None:
    await broker.create("t")
    await broker.create("u")
    with pytest.raises(RemoteError, match="record 0"):
        await broker.produce_raw(produce_body([make_record("u", 0, b"x")]), [ProduceRun("t", 0, 1, 1, 1, 0)])


@pytest.mark.parametrize(
    "body",
    [b"", b"\0\0", struct.pack(">I", 0), struct.pack(">II", 1, 100), struct.pack(">I", 1 << 30)],
)
async def test_a_body_that_is_no_batch_is_refused(broker: Stack, body: bytes) -> None:
    await broker.create("t")
    with pytest.raises(RemoteError) as refused:
        await broker.produce_raw(body, [ProduceRun("t", 0, 1, 1, 1, 0)])
    assert refused.value.code == Code.MALFORMED_BATCH


async def test_a_record_over_the_limit_says_both_sizes(broker: Stack) -> None:
    await broker.create("t")
    record = make_record("t", 0, bytes((4 << 20) + 1))
    with pytest.raises(RemoteError, match="record_max_bytes is 4194304") as refused:
        await broker.produce_raw(produce_body([record]), [ProduceRun("t", 0, 1, 1, 1, 0)])
    assert refused.value.code == Code.RECORD_TOO_LARGE


async def test_a_resent_batch_is_answered_with_its_first_offsets_and_stored_once(broker: Stack) -> None:
    await broker.create("t")
    body = produce_body([make_record("t", 0, b"a"), make_record("t", 0, b"b")])
    run = ProduceRun("t", 0, 2, 9, 1, 0)
    both = await asyncio.gather(broker.produce_raw(body, [run]), broker.produce_raw(body, [run]))
    later = await broker.produce_raw(body, [run])
    for response in (*both, later):
        assert [tuple(r)[:2] for r in response.results] == [(Code.OK, 0)]
    _, got = await broker.pull(PullQueue("t", 0, 0, 0))
    assert got == [b"a", b"b"]


async def test_a_gap_is_out_of_sequence_until_it_is_filled(broker: Stack) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"0", None))
    late = produce_body([make_record("t", 0, b"2")])
    missing = produce_body([make_record("t", 0, b"1")])
    refused = await broker.produce_raw(late, [ProduceRun("t", 0, 1, 1, 1, 2)])
    assert refused.results[0][0] == Code.OUT_OF_SEQUENCE
    for body, sequence in ((missing, 1), (late, 2)):
        response = await broker.produce_raw(body, [ProduceRun("t", 0, 1, 1, 1, sequence)])
        assert response.results[0][0] == Code.OK
    _, got = await broker.pull(PullQueue("t", 0, 0, 0))
    assert got == [b"0", b"1", b"2"]


async def test_a_writer_that_is_behind_answers_busy_with_a_pause(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create("t")
    monkeypatch.setattr("broker.produce.requests.BACKLOG_MAX_BYTES", -1)
    body = produce_body([make_record("t", 0, b"x")])
    response = await broker.produce_raw(body, [ProduceRun("t", 0, 1, 1, 1, 0)])
    assert response.results[0][0] == Code.BUSY
    assert response.retry_after_ms > 0
    monkeypatch.undo()
    response = await broker.produce_raw(body, [ProduceRun("t", 0, 1, 1, 1, 1)])
    assert response.results[0][0] == Code.OUT_OF_SEQUENCE


async def test_counts_follow_what_is_stored(broker: Stack) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None), (b"b", "x"))
    messages_in, bytes_in = broker.server.statistics.topic_totals(["t"])["t"][:2]
    assert messages_in == 2
    assert bytes_in == len(make_record("t", 0, b"a")) + len(make_record("t", 0, b"b", "x"))


async def test_a_refusal_for_a_missing_topic_consumes_no_sequence(broker: Stack) -> None:
    body = produce_body([make_record("late", 0, b"x")])
    run = ProduceRun("late", 0, 1, 1, 1, 0)
    assert (await broker.produce_raw(body, [run])).results[0][0] == Code.TOPIC_UNKNOWN
    await broker.create("late")
    response = await broker.produce_raw(body, [run])
    assert tuple(response.results[0][:2]) == (Code.OK, 0)


async def test_what_follows_a_batch_that_the_store_refuses_at_once_waits_for_it(broker: Stack) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"0", None))
    connection = broker.client.connection
    assert connection is not None
    answers: list[Any] = []

    def send(sequence: int) -> None:
        body = produce_body([make_record("t", 0, b"%d" % sequence)])
        header = ProduceRequest(zlib.crc32(body), [ProduceRun("t", 0, 1, 1, 1, sequence)])
        connection.request(RequestCode.PRODUCE, header, answers.append, 40.0, [body], len(body))

    append = broker.store.append
    refused: list[Batch] = []

    def refuse_first(batch: Batch, done: Any) -> None:
        if refused:
            append(batch, done)
            return
        refused.append(batch)
        error = StorageError("it would not fit", operation="append")
        asyncio.get_running_loop().call_soon(done, batch, error)

    broker.store.append = refuse_first  # type: ignore[method-assign]
    send(1)
    send(2)
    while len(answers) < 2:
        await asyncio.sleep(0.01)
    codes = [a.header(ProduceResponse).results[0][0] for a in answers]
    assert sorted(codes) == sorted([Code.STORE_FAILED, Code.OUT_OF_SEQUENCE])
    answers.clear()
    send(1)
    send(2)
    while len(answers) < 2:
        await asyncio.sleep(0.01)
    _, got = await broker.pull(PullQueue("t", 0, 0, 0))
    assert got == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "properties", [b"TAGS\x01a/#\x02", b"TAGS\x01\xff\x02", b"CLIENT_ID", b"\x00\x26\x00"]
)
async def test_properties_that_no_reader_could_decode_are_refused(broker: Stack, properties: bytes) -> None:
    await broker.create("t")
    record = encode_record(b"t", 0, b"body", properties, 0, bytes(8))
    with pytest.raises(RemoteError, match="record 0") as refused:
        await broker.produce_raw(produce_body([record]), [ProduceRun("t", 0, 1, 1, 1, 0)])
    assert refused.value.code == Code.MALFORMED_BATCH
