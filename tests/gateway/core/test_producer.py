from __future__ import annotations

import struct
import zlib

from gateway.core.producer import (
    BATCH_MAX_BYTES,
    IN_FLIGHT_GROUP,
    IN_FLIGHT_MAX,
    PENDING_MAX_BYTES,
    Batch,
    Producer,
)
from gateway.core.receipts import CLOSE, Receipt
from holdmq.errors import Code
from holdmq.mqtt import PUBACK
from holdmq.wire.headers import RunResult


class Owner:
    def __init__(self) -> None:
        self.outcomes: list[tuple[int, int]] = []

    def receipt_settled(self, receipt: Receipt) -> None:
        assert receipt.outcome is not None
        self.outcomes += [(packet_id, receipt.outcome) for packet_id in receipt.packet_ids]


OWNER = Owner()


def add(
    producer: Producer, packet_id: int, queue_id: int = 0, size: int = 100, owner: Owner | None = None
) -> None:
    run = producer.open_run(producer.target("t", queue_id), 0.0)
    receipt = Receipt(owner or OWNER, PUBACK)
    receipt.packet_ids.append(packet_id)
    run.receipts.append(receipt)
    run.records.append(b"r" * size)
    producer.added(size)


def answer(producer: Producer, batch: Batch, *codes: int, now: float = 0.0) -> None:
    results = [RunResult(code, 0, "") for code in codes or [0] * len(batch.runs)]
    producer.answered(batch, results, 0, now)


def connected() -> Producer:
    producer = Producer(1, 0.0)
    producer.connected()
    return producer


def send(producer: Producer, now: float = 0.0) -> Batch:
    batch = producer.next_batch(now)
    assert batch is not None
    return batch


def sequences(batch: Batch) -> list[tuple[int, int, int]]:
    return [(run.target.queue_id, run.first_sequence, len(run.records)) for run in batch.runs]


def test_a_turn_becomes_one_batch_with_one_run_per_queue() -> None:
    producer = connected()
    for n in range(10):
        add(producer, n + 1, queue_id=n % 2)
    batch = send(producer)
    assert sequences(batch) == [(0, 0, 5), (1, 0, 5)]
    assert producer.next_batch(0.0) is None


def test_a_batch_is_the_wires_body_with_its_crc() -> None:
    producer = connected()
    add(producer, 1, size=10)
    add(producer, 2, size=20)
    sizes, records, crc = send(producer).encode()
    assert sizes == struct.pack(">III", 2, 10, 20)
    assert crc == zlib.crc32(sizes + records)


def test_while_batches_are_in_flight_the_open_one_grows() -> None:
    producer = connected()
    batches = []
    for n in range(IN_FLIGHT_GROUP):
        add(producer, n + 1)
        batches.append(send(producer))
    add(producer, 8)
    add(producer, 9)
    assert producer.next_batch(0.0) is None
    answer(producer, batches[0])
    assert sequences(send(producer)) == [(0, IN_FLIGHT_GROUP, 2)]


def test_a_full_batch_leaves_at_once_until_the_bound_of_those_in_flight() -> None:
    producer = connected()
    sent = 0
    for n in range(IN_FLIGHT_MAX + 3):
        add(producer, n + 1, size=BATCH_MAX_BYTES)
        sent += producer.next_batch(0.0) is not None
    assert sent == IN_FLIGHT_MAX


def test_past_the_pending_bytes_the_producer_is_full_until_answers_come() -> None:
    producer = connected()
    batches = []
    while not producer.is_full:
        add(producer, 1, size=BATCH_MAX_BYTES)
        batch = producer.next_batch(0.0)
        if batch is not None:
            batches.append(batch)
    assert producer.pending_bytes > PENDING_MAX_BYTES
    answer(producer, batches[0])
    assert not producer.is_full


def test_a_busy_run_and_all_behind_it_are_sent_again_in_order_with_their_sequences() -> None:
    owner = Owner()
    producer = connected()
    add(producer, 1, owner=owner)
    first = send(producer)
    add(producer, 2, owner=owner)
    second = send(producer)
    add(producer, 3, owner=owner)
    answer(producer, first, Code.BUSY)
    assert producer.next_batch(10.0) is None, "nothing may overtake while answers are missing"
    answer(producer, second, Code.OUT_OF_SEQUENCE)
    assert producer.next_batch(0.0) is None, "the pause is not over"
    again = [send(producer, 10.0), send(producer, 10.0)]
    assert [sequences(batch) for batch in again] == [[(0, 0, 1)], [(0, 1, 1)]]
    for batch in again:
        answer(producer, batch)
    answer(producer, send(producer, 10.0))
    assert owner.outcomes == [(1, 0), (2, 0), (3, 0)]
    assert producer.is_idle


def test_pauses_between_refusals_grow_and_are_bounded() -> None:
    producer = connected()
    add(producer, 1)
    now, pauses = 0.0, []
    for _ in range(12):
        batch = send(producer, now)
        answer(producer, batch, Code.BUSY, now=now)
        pauses.append(producer.retry_at - now)
        now = producer.retry_at
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] <= 2.0


def test_a_lost_connection_sends_the_unanswered_again_as_it_was() -> None:
    producer = connected()
    add(producer, 1)
    first = send(producer)
    add(producer, 2)
    add(producer, 3, queue_id=1)
    second = send(producer)
    before = [sequences(first), sequences(second)]
    producer.disconnected()
    add(producer, 4)
    assert producer.next_batch(0.0) is None
    producer.connected()
    assert [sequences(send(producer)), sequences(send(producer))] == before
    answer(producer, first)
    assert sequences(send(producer)) == [(0, 2, 1)]


def test_a_final_refusal_settles_with_the_reason_and_uses_up_its_sequences() -> None:
    owner = Owner()
    producer = connected()
    add(producer, 1, owner=owner)
    answer(producer, send(producer), Code.TOPIC_PERM)
    add(producer, 2, owner=owner)
    batch = send(producer)
    assert sequences(batch) == [(0, 1, 1)]
    answer(producer, batch)
    assert owner.outcomes == [(1, 0x87), (2, 0)]
    assert producer.refused_records == 1


def test_a_broker_that_cannot_write_never_gets_its_messages_acknowledged() -> None:
    owner = Owner()
    producer = connected()
    add(producer, 1, owner=owner)
    answer(producer, send(producer), Code.STORE_READ_ONLY)
    assert owner.outcomes[0][1] & CLOSE


def test_a_batch_that_is_refused_whole_raises_the_epoch() -> None:
    owner = Owner()
    producer = connected()
    add(producer, 1, owner=owner)
    epoch = producer.epoch
    producer.refused(send(producer), Code.MALFORMED_BATCH, 0, 0.0)
    assert owner.outcomes[0][1] & CLOSE
    assert producer.epoch == epoch + 1
    assert producer.is_idle
    assert producer.pending_bytes == 0


def test_abandoning_closes_every_owner_and_raises_the_epoch() -> None:
    owner = Owner()
    producer = connected()
    for n in range(4):
        add(producer, n + 1, owner=owner)
        producer.next_batch(0.0)
    assert producer.stuck_s(11.0) == 11.0
    producer.abandon()
    assert sorted(packet_id for packet_id, outcome in owner.outcomes if outcome & CLOSE) == [1, 2, 3, 4]
    assert producer.is_idle
    assert producer.stuck_s(99.0) == 0.0
    assert producer.epoch == 2


def test_a_stale_route_closes_the_owners_and_asks_for_routes() -> None:
    owner = Owner()
    producer = connected()
    add(producer, 1, owner=owner)
    answer(producer, send(producer), Code.QUEUE_UNKNOWN)
    assert producer.must_reroute
    assert owner.outcomes[0][1] & CLOSE


def test_a_run_whose_only_record_was_refused_is_not_sent() -> None:
    owner = Owner()
    producer = connected()
    run = producer.open_run(producer.target("t", 3), 0.0)
    run.receipts.append(Receipt(owner, PUBACK))
    assert producer.next_batch(0.0) is None
    add(producer, 2)
    assert sequences(send(producer)) == [(0, 0, 1)]
    assert run.receipts[0].outcome == 0


def test_sequences_count_records_per_queue() -> None:
    producer = connected()
    for n in range(3):
        add(producer, n + 1)
    add(producer, 9, queue_id=1)
    answer(producer, send(producer))
    add(producer, 4)
    add(producer, 10, queue_id=1)
    assert sequences(send(producer)) == [(0, 3, 1), (1, 1, 1)]
