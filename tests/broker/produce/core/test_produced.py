"""Windows put together from the log, without IO: whatever was sent, refused, captured and cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.produce.core.produced import (
    PRODUCED_QUEUE,
    ProducedReplay,
    binding,
    capture,
    crcs_of,
    record_of,
    snapshot_of,
)
from broker.produce.core.sequences import WINDOW_BATCHES, Key, Sequences
from holdmq.errors import Code, RecordError
from holdmq.names.topics import PRODUCED_TOPIC
from holdmq.record.batch import split_records, starts_of
from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun

NOW_MS = 1_700_000_000_000
MARKS = {1: 0, 2: 0, 3: 77}
"""Two producers without a mark of their own, and one with."""


def bytes_of(producer: int, first: int, count: int) -> list[bytes]:
    return [
        encode_record(b"t", 0, b"%d/%d" % (producer, first + i), b"", NOW_MS, prepared=MARKS[producer])
        for i in range(count)
    ]


class Model:
    """A broker's windows of one queue, and its log: what `broker.produce.requests` does, without a store."""

    def __init__(self) -> None:
        self.sequences = Sequences()
        self.log: list[Batch] = []
        self.messages: list[tuple[int, int]] = []
        self.snapshot: tuple[int, object] = (0, {})
        self.began: int | None = None
        self.end = self.notes = self.known_end = 0

    def offer(self, producer: int, first: int, count: int, is_refused: bool = False) -> Code:
        key: Key = (producer, "t", 0)
        records = bytes_of(producer, first, count)
        verdict = self.sequences.offer(key, 1, first, count, 0.0)
        if verdict.must_compare:
            raw = b"".join(records)
            crcs = crcs_of(memoryview(raw), starts_of(split_records(raw)))
            verdict = self.sequences.compare(key, first, count, crcs)
        if verdict.accepted is None:
            if verdict.repeat is not None and verdict.repeat.base_offset >= 0:
                base = verdict.repeat.base_offset
                assert self.messages[base : base + count] == [(producer, first + i) for i in range(count)]
            return verdict.code
        going = records[verdict.stored :]
        note = verdict.accepted.needs_binding
        if note:
            epoch = self.sequences.bind(key, MARKS[producer])
            rows = [binding(key, epoch, verdict.accepted.first, MARKS[producer])]
            going.insert(0, record_of(rows, 1, len(b"".join(going)), NOW_MS))
        if is_refused:
            self.sequences.refuse(key, 1, verdict.accepted.first, 0.0)
            return Code.BUSY
        if note:
            self.sequences.bound(key, 1, MARKS[producer], self.end)
        verdict.accepted.base_offset = len(self.messages)
        verdict.accepted.is_confirmed = True
        self.append(going, note)
        self.messages += [(producer, first + i) for i in range(verdict.stored, count)]
        return Code.OK

    def append(self, records: list[bytes], has_note: bool = False) -> None:
        runs = [BatchRun(PRODUCED_TOPIC, PRODUCED_QUEUE, 1, 1, self.notes)] if has_note else []
        self.notes += len(runs)
        if len(records) > len(runs):
            runs.append(BatchRun("t", 0, len(records) - len(runs), 1, len(self.messages)))
        raw = b"".join(records)
        self.log.append(Batch(memoryview(raw), split_records(raw), runs, self.end))
        self.end += len(raw)

    def capture(self) -> None:
        """A snapshot of now, whose position may be of before: its slices are captured one after the other."""
        position = self.end if self.began is None else self.began
        self.began, self.known_end = None, self.end
        self.snapshot = (position, snapshot_of(capture(self.sequences, self.sequences.keys())))

    def crash(self, kept: int) -> None:
        """Lose the last batch but for so many of its records, and everything that is in memory."""
        if self.log and self.log[-1].position >= self.known_end:
            last = self.log.pop()
            note = int(last.runs[0].topic == PRODUCED_TOPIC)
            base = len(self.messages) - (len(last.sizes) - note)
            names = self.messages[base:]
            del self.messages[base:]
            self.notes -= note
            self.end = last.position
            places = zip(last.starts[:kept].tolist(), last.sizes[:kept].tolist(), strict=True)
            records = [bytes(last.records[start : start + size]) for start, size in places]
            if records:
                self.append(records, bool(note))
                self.messages += names[: len(records) - note]
        self.began = None
        position, windows = self.snapshot
        replay = ProducedReplay(lambda _: None)
        replay.load(windows, position)
        for batch in self.log:
            if batch.position >= position:
                replay.apply(batch)
        self.sequences = Sequences()
        replay.restore(self.sequences, 0.0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([1, 2, 3]), st.integers(1, 4)),
        st.tuples(st.just("refused"), st.sampled_from([1, 2, 3]), st.integers(1, 4)),
        st.tuples(st.sampled_from(["begin", "capture"]), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_each_sequence_is_in_the_log_once_in_order_and_repeats_get_their_offsets(
    steps: list[tuple[str, int, int]],
) -> None:
    model = Model()
    sent: dict[int, list[tuple[int, int]]] = {1: [], 2: [], 3: []}

    def send(producer: int, first: int, count: int) -> None:
        # As a producer does: what may be unanswered goes again, in its order.
        for again in [*sent[producer][-WINDOW_BATCHES // 2 :], (first, count)]:
            assert model.offer(producer, *again) == Code.OK

    for what, producer, count in steps:
        first = sum(sent[producer][-1]) if producer and sent[producer] else 0
        if what == "send":
            send(producer, first, count)
            sent[producer].append((first, count))
            assert model.offer(producer, first + count + 1, 1) == Code.OUT_OF_SEQUENCE
        elif what == "refused":
            model.offer(producer, first, count, is_refused=True)
        elif what == "begin":
            model.began = model.end
        elif what == "capture":
            model.capture()
        else:
            model.crash(count)
    for producer, runs in sent.items():
        for first, count in runs[-WINDOW_BATCHES // 2 :]:
            assert model.offer(producer, first, count) == Code.OK
        own = [sequence for name, sequence in model.messages if name == producer]
        assert own == list(range(sum(runs[-1]) if runs else 0))


def test_a_snapshot_or_a_note_that_is_none_is_an_error_that_says_so() -> None:
    replay = ProducedReplay(lambda _: None)
    with pytest.raises(RecordError, match="snapshot of producers' windows is malformed"):
        replay.load({"00000000": [1, 2]}, 0)
    raw = encode_record(PRODUCED_TOPIC.encode(), 0, b"\x93\x01\x02\x03", b"", NOW_MS)
    note = Batch(memoryview(raw), split_records(raw), [BatchRun(PRODUCED_TOPIC, 0, 1, 1, 0)], 0)
    with pytest.raises(RecordError, match="%PRODUCED% is malformed"):
        replay.apply(note)


def test_a_window_remembers_so_many_records_that_a_start_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.produce.core.produced.RECOVERED_RECORDS_MAX", 5)
    model = Model()
    for first in range(0, 12, 2):
        assert model.offer(1, first, 2) == Code.OK
    model.crash(2)
    for producer in (2, 1):
        model.offer(producer, 12 if producer == 1 else 0, 1)
    assert model.offer(1, 4, 2) == Code.OUT_OF_SEQUENCE
    assert model.offer(1, 8, 2) == Code.OK
