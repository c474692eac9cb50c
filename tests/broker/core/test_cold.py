"""Records read back from disk become the runs that they were."""

from __future__ import annotations

from broker.core.cold import batches_of
from holdmq.record import encode_record
from holdmq.record_properties import encode_properties
from holdmq.record_tags import tag_hash


def record(topic: str, tag: str | None) -> bytes:
    properties = encode_properties([("TAGS", tag)] if tag is not None else [])
    return encode_record(topic.encode(), 0, b"body", properties, 0, bytes(8))


def test_neighbours_of_one_topic_are_one_run_with_their_hashes() -> None:
    part = b"".join([record("a", "x"), record("a", "y"), record("b", None), record("a", "x/1")])
    (batch,) = batches_of([memoryview(part)], [4096], lambda topic: 2 if topic == "a" else 1)
    assert [(r.topic, r.count) for r in batch.runs] == [("a", 2), ("b", 1), ("a", 1)]
    assert batch.position == 4096
    assert batch.runs[1].hashes is None
    hashes = batch.runs[2].hashes
    assert hashes is not None
    assert hashes.tolist() == [tag_hash(b"x/1", 2)]


def test_every_part_keeps_its_own_position() -> None:
    one = record("a", "x")
    batches = batches_of([memoryview(one), memoryview(one)], [0, 8192], lambda _: 1)
    assert [b.position for b in batches] == [0, 8192]


def test_an_empty_part_is_no_batch() -> None:
    assert batches_of([memoryview(b"")], [0], lambda _: 1) == []
