from __future__ import annotations

import struct
import zlib

import pytest

from broker.produce.core.sequences import Sequences
from gateway.brokers.core.producer import (
    IN_FLIGHT_GROUP,
    IN_FLIGHT_MAX,
    LARGE_RECORDS,
    PENDING_MAX_BYTES,
    BrokerProducer,
    ProduceBatch,
    QueueRecords,
)
from gateway.ground.receipts import CLOSE, PublishReceipt, ReceiptOwner
from gateway.ground.targets import HeldSocket
from holdmq.errors import Code, WireError
from holdmq.mqtt import PUBACK
from holdmq.produce import PRODUCE_MAX_BYTES
from holdmq.wire.headers import RunResult


class Owed(ReceiptOwner):
    def __init__(self) -> None:
        self.outcomes: list[tuple[int, int]] = []

    def receipt_settled(self, receipt: PublishReceipt) -> None:
        assert receipt.outcome is not None
        self.outcomes += [(packet_id, receipt.outcome) for packet_id in receipt.packet_ids]


OWNER = Owed()


def add(
    producer: BrokerProducer,
    packet_id: int,
    queue_id: int = 0,
    size: int = 100,
    owner: Owed | None = None,
    now: float = 0.0,
) -> None:
    run = producer.open_run(producer.target("t", queue_id), now)
    receipt = PublishReceipt(owner or OWNER, PUBACK, packet_id)
    run.receipts.append(receipt)
    run.records.append(b"r" * size)
    producer.added(size)


class Link:
    """The way to a broker that nothing is sent to by itself."""

    name = "b"

    def added(self, size_bytes: int) -> None:
        """Nothing is sent."""

    def hold(self, socket: HeldSocket) -> None:
        """Nobody is held."""


def answer(producer: BrokerProducer, batch: ProduceBatch, *codes: int, now: float = 0.0) -> None:
    results = [RunResult(code, 0, "") for code in codes or [0] * len(batch.runs)]
    producer.answered(batch, results, 0, now)


def connected() -> BrokerProducer:
    producer = BrokerProducer(1, Link(), new_id=iter(range(2, 99)).__next__)
    producer.connected()
    return producer


def told(producer: BrokerProducer, owner: Owed) -> list[tuple[int, int]]:
    """What the owner was told, once all that was settled is."""
    for run in producer.take_settled():
        assert run.outcome is not None
        for receipt in run.receipts:
            receipt.settle(run.outcome)
    return owner.outcomes


def send(producer: BrokerProducer, now: float = 0.0) -> ProduceBatch:
    batch = producer.next_batch(now)
    assert batch is not None
    return batch


def sequences(batch: ProduceBatch) -> list[tuple[int, int, int]]:
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
    (sizes, records), length_bytes, crc = send(producer).encode()
    assert sizes == struct.pack(">III", 2, 10, 20)
    assert crc == zlib.crc32(sizes + records)
    assert length_bytes == len(sizes + records)


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


def test_behind_a_large_batch_the_open_one_waits_for_its_answer() -> None:
    producer = connected()
    for n in range(LARGE_RECORDS):
        add(producer, n + 1, queue_id=n % 2)
    large = send(producer)
    add(producer, 100)
    assert producer.next_batch(0.0) is None
    answer(producer, large)
    assert sequences(send(producer)) == [(0, LARGE_RECORDS // 2, 1)]
    add(producer, 101)
    assert sequences(send(producer)) == [(0, LARGE_RECORDS // 2 + 1, 1)], "behind a small one it does not"


def test_a_full_batch_leaves_at_once_until_the_bound_of_those_in_flight() -> None:
    producer = connected()
    sent = 0
    for n in range(IN_FLIGHT_MAX + 3):
        add(producer, n + 1, size=PRODUCE_MAX_BYTES)
        sent += producer.next_batch(0.0) is not None
    assert sent == IN_FLIGHT_MAX


def test_past_the_pending_bytes_the_producer_is_full_until_answers_come() -> None:
    producer = connected()
    batches = []
    while not producer.is_full:
        add(producer, 1, size=PRODUCE_MAX_BYTES)
        batch = producer.next_batch(0.0)
        if batch is not None:
            batches.append(batch)
    assert producer.pending_bytes > PENDING_MAX_BYTES
    answer(producer, batches[0])
    assert not producer.is_full


def test_a_busy_run_and_all_behind_it_are_sent_again_in_order_with_their_sequences() -> None:
    owner = Owed()
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
    assert told(producer, owner) == [(1, 0), (2, 0), (3, 0)]
    assert producer.is_idle


def test_pauses_between_refusals_grow_and_are_bounded() -> None:
    producer = connected()
    add(producer, 1)
    now, pauses = 0.0, []
    for _ in range(12):
        batch = send(producer, now)
        answer(producer, batch, Code.BUSY, now=now)
        pauses.append(round(producer.retry_at - now, 6))
        now = producer.retry_at
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] <= 1.0


def test_workers_that_are_refused_together_come_again_at_different_times() -> None:
    pauses = set()
    for producer_id in range(1, 21):
        producer = BrokerProducer(producer_id, Link())
        producer.connected()
        add(producer, 1)
        batch = send(producer)
        producer.answered(batch, [RunResult(Code.BUSY, -1, "")], 500, 0.0)
        pauses.add(producer.retry_at)
    assert len(pauses) == 20
    assert min(pauses) >= 0.5, "no earlier than the broker asked for"


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
    owner = Owed()
    producer = connected()
    add(producer, 1, owner=owner)
    answer(producer, send(producer), Code.TOPIC_PERM)
    add(producer, 2, owner=owner)
    batch = send(producer)
    assert sequences(batch) == [(0, 1, 1)]
    answer(producer, batch)
    assert told(producer, owner) == [(1, 0x87), (2, 0)]
    assert producer.refused_records == 1


def test_a_broker_that_cannot_write_never_gets_its_messages_acknowledged() -> None:
    owner = Owed()
    producer = connected()
    add(producer, 1, owner=owner)
    answer(producer, send(producer), Code.STORE_READ_ONLY)
    assert told(producer, owner)[0][1] & CLOSE


def test_a_batch_that_is_refused_whole_begins_an_epoch_before_anything_new_leaves() -> None:
    owner = Owed()
    producer = connected()
    add(producer, 1, owner=owner)
    producer.refused(send(producer), Code.MALFORMED_BATCH, 0, 0.0)
    assert told(producer, owner)[0][1] & CLOSE
    assert producer.is_idle
    assert producer.pending_bytes == 0
    add(producer, 2, owner=owner)
    assert sequences(send(producer)) == [(0, 0, 1)]
    assert producer.epoch == 2


class Broker:
    """The broker's own windows behind a producer: what it would store, and what it would answer."""

    def __init__(self) -> None:
        self.windows = Sequences()
        self.log: list[bytes] = []
        self.consumes = True

    def results(self, producer: BrokerProducer, batch: ProduceBatch, *codes: Code) -> list[RunResult]:
        """Take a batch as it is on the wire now. `codes` refuse runs before their sequences are looked at."""
        given = list(codes) or [Code.OK] * len(batch.runs)
        return [self._run(producer, run, code) for run, code in zip(batch.runs, given, strict=True)]

    def _run(self, producer: BrokerProducer, run: QueueRecords, code: Code) -> RunResult:
        key = (producer.producer_id, run.target.topic, run.target.queue_id)
        place = (key, producer.epoch, run.first_sequence)
        if code == Code.BUSY:
            self.windows.postpone(*place, 0.0)
            return RunResult(code, -1, "")
        if code != Code.OK:
            if self.consumes:
                self.windows.consume(*place, len(run.records), 0.0)
            return RunResult(code, -1, "")
        verdict = self.windows.offer(*place, len(run.records), 0.0)
        if verdict.accepted is not None:
            verdict.accepted.is_confirmed = True
            self.log += run.records
        return RunResult(int(verdict.code), 0, "")

    def run(self, producer: BrokerProducer, now: float = 0.0) -> float:
        """Answer all there is to answer; the time at which nothing was left to send."""
        for _ in range(50):
            while (batch := producer.next_batch(now)) is not None:
                producer.answered(batch, self.results(producer, batch), 0, now)
            if producer.is_idle:
                return now
            now = max(now, producer.retry_at)
        raise AssertionError("the producer never gets rid of what it has")


def body(packet_id: int) -> bytes:
    return b"%d" % packet_id


def put(producer: BrokerProducer, packet_id: int, owner: Owed, queue_id: int = 0) -> None:
    run = producer.open_run(producer.target("t", queue_id), 0.0)
    receipt = PublishReceipt(owner, PUBACK, packet_id)
    run.receipts.append(receipt)
    run.records.append(body(packet_id))
    producer.added(1)


def acknowledged(producer: BrokerProducer, owner: Owed) -> list[bytes]:
    return [body(packet_id) for packet_id, outcome in told(producer, owner) if outcome == 0]


def test_what_was_in_flight_behind_a_refused_batch_is_stored_before_it_is_acknowledged() -> None:
    owner, broker, producer = Owed(), Broker(), connected()
    put(producer, 1, owner)
    broker.run(producer)
    put(producer, 2, owner)
    refused = send(producer)
    put(producer, 3, owner)
    behind = send(producer)
    answers = broker.results(producer, behind)  # the broker has not counted the refused batch
    producer.refused(refused, Code.RECORD_TOO_LARGE, 0, 0.0)
    put(producer, 4, owner)
    assert producer.next_batch(0.0) is None, "new sequences would make old ones look like repeats"
    producer.answered(behind, answers, 0, 0.0)
    broker.run(producer, 10.0)
    assert broker.log == acknowledged(producer, owner) == [b"1", b"3", b"4"]


def test_order_holds_when_the_first_batch_of_an_epoch_is_refused_unseen() -> None:
    owner, broker, producer = Owed(), Broker(), connected()
    put(producer, 1, owner)
    broker.run(producer)
    put(producer, 2, owner)
    producer.refused(send(producer), Code.RECORD_TOO_LARGE, 0, 0.0)
    put(producer, 3, owner)
    damaged = send(producer)
    put(producer, 4, owner)
    behind = send(producer)
    assert producer.epoch == 2
    producer.refused(damaged, Code.BODY_CRC, 0, 0.0)
    producer.answered(behind, broker.results(producer, behind), 0, 0.0)
    broker.run(producer, 10.0)
    assert broker.log == acknowledged(producer, owner) == [b"1", b"3", b"4"]


def test_what_may_be_stored_is_settled_in_its_own_epoch_before_the_next_one_begins() -> None:
    owner, broker, producer = Owed(), Broker(), connected()
    put(producer, 1, owner)
    stored = send(producer)
    broker.results(producer, stored)  # the answer is lost with the connection
    put(producer, 2, owner, queue_id=1)
    broker.results(producer, send(producer))
    producer.disconnected()
    producer.connected()
    producer.refused(send(producer), Code.MALFORMED_BATCH, 0, 0.0)
    put(producer, 3, owner, queue_id=1)
    broker.run(producer, 10.0)
    assert broker.log == [b"1", b"2", b"3"], "nothing is stored twice"
    assert acknowledged(producer, owner) == [b"2", b"3"]
    assert producer.epoch == 2


def test_without_enough_replicas_what_was_unanswered_is_surely_not_stored_and_goes_again_in_order() -> None:
    owner, broker, producer = Owed(), Broker(), connected()
    put(producer, 1, owner)
    send(producer)
    producer.disconnected()
    producer.connected()
    again = send(producer)
    assert again.may_be_stored
    put(producer, 2, owner)
    answer(producer, again, Code.NOT_ENOUGH_REPLICAS)
    assert not again.may_be_stored
    assert told(producer, owner) == []
    broker.run(producer, 10.0)
    assert broker.log == acknowledged(producer, owner) == [b"1", b"2"]


def test_a_queue_that_comes_to_be_takes_messages_after_refusals_that_the_broker_did_not_count() -> None:
    owner, broker, producer = Owed(), Broker(), connected()
    put(producer, 1, owner)
    broker.run(producer)
    broker.consumes = False
    put(producer, 2, owner)
    batch = send(producer)
    producer.answered(batch, broker.results(producer, batch, Code.TOPIC_UNKNOWN), 0, 0.0)
    put(producer, 3, owner)
    broker.run(producer, 10.0)
    assert broker.log == acknowledged(producer, owner) == [b"1", b"3"]


def test_a_refusal_for_good_behind_a_postponed_run_leaves_no_gap() -> None:
    owner, broker, producer = Owed(), Broker(), connected()
    put(producer, 1, owner)
    first = send(producer)
    put(producer, 2, owner)
    second = send(producer)
    producer.answered(first, broker.results(producer, first, Code.BUSY), 0, 0.0)
    producer.answered(second, broker.results(producer, second, Code.TOPIC_PERM), 0, 0.0)
    put(producer, 3, owner)
    broker.run(producer, 10.0)
    assert broker.log == acknowledged(producer, owner) == [b"1", b"3"]


def test_a_broker_that_waits_for_what_was_never_owed_gets_a_new_epoch() -> None:
    owner, broker, producer = Owed(), Broker(), connected()
    put(producer, 1, owner)
    broker.run(producer)
    producer.target("t", 0).next_sequence += 5
    put(producer, 2, owner)
    broker.run(producer)
    assert broker.log == acknowledged(producer, owner) == [b"1", b"2"]
    assert producer.epochs == 1


def test_a_fenced_producer_goes_on_under_another_id() -> None:
    owner, producer = Owed(), connected()
    add(producer, 1, owner=owner)
    answer(producer, send(producer), Code.PRODUCER_FENCED)
    assert told(producer, owner)[0][1] & CLOSE
    add(producer, 2, owner=owner)
    batch = send(producer)
    assert (producer.producer_id, producer.epoch) == (2, 1)
    assert sequences(batch) == [(0, 0, 1)]


def test_epochs_end_with_a_new_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.brokers.core.producer.EPOCH_MAX", 1)
    producer = connected()
    add(producer, 1)
    producer.refused(send(producer), Code.MALFORMED_BATCH, 0, 0.0)
    add(producer, 2)
    send(producer)
    assert (producer.producer_id, producer.epoch) == (2, 1)


def test_an_answer_with_the_wrong_number_of_results_changes_nothing() -> None:
    owner, producer = Owed(), connected()
    add(producer, 1, owner=owner)
    add(producer, 2, queue_id=1, owner=owner)
    batch = send(producer)
    with pytest.raises(WireError):
        answer(producer, batch, Code.OK)
    assert not told(producer, owner)
    producer.disconnected()
    producer.connected()
    answer(producer, send(producer))
    assert told(producer, owner) == [(1, 0), (2, 0)]
    assert producer.is_idle


def test_a_target_that_gets_nothing_through_is_stuck_while_others_go_on() -> None:
    owner, producer = Owed(), connected()
    for now in (0.0, 20.0):
        add(producer, 1, owner=owner, now=now)
        add(producer, 2, queue_id=1, owner=owner, now=now)
        while (batch := producer.next_batch(now)) is not None:
            codes = [Code.OK if run.target.queue_id else Code.BUSY for run in batch.runs]
            answer(producer, batch, *codes, now=now)
    add(producer, 3, queue_id=1, owner=owner, now=20.0)
    assert producer.stuck(10.0) == [producer.target("t", 0)]
    producer.abandon(producer.stuck(10.0), 20.0)
    assert [packet_id for packet_id, outcome in told(producer, owner) if outcome & CLOSE] == [1, 1]
    assert producer.stuck(99.0) == [producer.target("t", 1)]
    while (batch := producer.next_batch(30.0)) is not None:
        answer(producer, batch, now=30.0)
    assert {packet_id for packet_id, outcome in told(producer, owner) if outcome == 0} == {2, 3}
    assert producer.is_idle
    assert producer.pending_bytes == 0


def test_abandoning_closes_every_owner_and_begins_an_epoch() -> None:
    owner = Owed()
    producer = connected()
    for n in range(4):
        add(producer, n + 1, owner=owner)
        producer.next_batch(0.0)
    stuck = producer.stuck(11.0)
    producer.abandon(stuck, 11.0)
    assert sorted(packet_id for packet_id, outcome in told(producer, owner) if outcome & CLOSE) == [
        1,
        2,
        3,
        4,
    ]
    assert producer.is_idle
    assert producer.pending_bytes == 0
    assert producer.stuck(99.0) == []
    add(producer, 5)
    assert sequences(send(producer, 11.0)) == [(0, 0, 1)]
    assert producer.epoch == 2


def test_a_stale_route_closes_the_owners_and_asks_for_routes() -> None:
    owner = Owed()
    producer = connected()
    add(producer, 1, owner=owner)
    answer(producer, send(producer), Code.QUEUE_UNKNOWN)
    assert producer.must_reroute
    assert told(producer, owner)[0][1] & CLOSE


def test_sequences_count_records_per_queue() -> None:
    producer = connected()
    for n in range(3):
        add(producer, n + 1)
    add(producer, 9, queue_id=1)
    answer(producer, send(producer))
    add(producer, 4)
    add(producer, 10, queue_id=1)
    assert sequences(send(producer)) == [(0, 3, 1), (1, 1, 1)]


def test_a_retired_target_tells_once_that_all_that_was_sent_to_it_is_answered() -> None:
    producer = connected()
    told: list[int] = []
    add(producer, 1)
    first = send(producer)
    add(producer, 2)
    second = send(producer)
    target = producer.target("t", 0)
    target.is_retired = True
    target.on_idle = lambda: told.append(len(producer.target("t", 0).runs))
    answer(producer, first)
    assert told == []
    answer(producer, second)
    assert told == [0]
    add(producer, 3)
    answer(producer, send(producer))
    assert told == [0]


def test_messages_of_both_kinds_that_take_turns_make_one_run_each() -> None:
    producer = connected()
    target = producer.target("t", 0)
    for at in range(6):
        is_delayed = at % 2 == 1
        producer.open_run(target, 0.0, is_delayed).records.append(b"%d" % at)
        producer.added(1)
    batch = producer.next_batch(0.0)
    assert batch is not None
    assert [(run.is_delayed, run.records) for run in batch.runs] == [
        (False, [b"0", b"2", b"4"]),
        (True, [b"1", b"3", b"5"]),
    ]
    assert batch.delayed() == [1]
    assert [row.first_sequence for row in batch.produce_runs(1, 1)] == [0, 3]
    producer.open_run(target, 0.0, True).records.append(b"6")
    producer.added(1)
    answer(producer, batch)
    assert (producer.records, producer.delayed_records) == (6, 3)
    later = producer.next_batch(0.0)
    assert later is not None
    assert (later.delayed(), later.runs[0].first_sequence) == ([0], 6)


def test_what_was_unanswered_is_delayed_when_it_is_sent_again() -> None:
    producer = connected()
    producer.open_run(producer.target("t", 0), 0.0, True).records.append(b"x")
    producer.added(1)
    assert producer.next_batch(0.0) is not None
    producer.disconnected()
    producer.connected()
    again = producer.next_batch(0.0)
    assert again is not None
    assert (again.delayed(), again.runs[0].first_sequence) == ([0], 0)


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_copies_may_have_is_settled_in_its_own_epoch(is_whole: bool) -> None:
    code = Code.NOT_LEADER
    owner, broker, producer = Owed(), Broker(), connected()
    put(producer, 1, owner)
    unsure = send(producer)
    broker.results(producer, unsure)  # whoever leads next has it
    if is_whole:
        producer.refused(unsure, code, 0, 0.0)
    else:
        answer(producer, unsure, code)
    assert bool(producer.lead_lost) == (not is_whole)
    put(producer, 2, owner, queue_id=1)
    again = send(producer, 10.0)
    assert [run.may_be_stored for run in again.runs] == [True]
    producer.answered(again, broker.results(producer, again), 0, 10.0)
    broker.run(producer, 10.0)
    assert broker.log == acknowledged(producer, owner) == [b"1", b"2"]
    assert producer.epoch == 1
