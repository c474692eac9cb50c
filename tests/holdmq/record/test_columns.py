"""Records as columns: what a broker sends of them (tests/spark_streaming reads it back)."""

from __future__ import annotations

import numpy as np
import pytest

from holdmq.record.batch import stamp, starts_of
from holdmq.record.codec import encode_record
from holdmq.record.columns import PIECE_BYTES_MIN, QueueRecordsTaken, encode_columns
from holdmq.record.properties import encode_properties, value_of


def records_of(first: int, *properties: bytes, body: bytes = b"body") -> list[memoryview]:
    """A view of each of some records of one queue, from an offset on."""
    views = []
    for offset, one in enumerate(properties, first):
        record = bytearray(encode_record(b"t", 0, body, one, 1_700_000_000_000))
        size = np.array([len(record)], np.int64)
        stamp(record, starts_of(size), size, np.array([offset], np.int64), 0, 1_700_000_000_001, b"storeid1")
        views.append(memoryview(bytes(record)))
    return views


CASES = [
    (encode_properties([("TAGS", "a")]), "a"),
    (encode_properties([("KEYS", "k"), ("TAGS", "b")]), "b"),
    (encode_properties([("TAGS", "with\x01\x02\x03 in it")]), "with\x01\x02\x03 in it"),
    (encode_properties([("TAGS", "")]), ""),
    (encode_properties([("u.TAGS", "mine")]), None),
    (encode_properties([("k", "v")], b"\x02TAGS\x01mqtt\x02"), None),
    (b"", None),
]


def shown(begins: bytes, sizes: bytes, data: bytes) -> list[bytes]:
    spans = zip(np.frombuffer(begins, "<i4").tolist(), np.frombuffer(sizes, "<i4").tolist(), strict=True)
    return [data[a : a + n] for a, n in spans]


def test_a_value_is_found_wherever_it_stands_and_nowhere_else() -> None:
    assert [value_of(raw, b"TAGS") for raw, _ in CASES] == [
        None if tag is None else tag.encode() for _, tag in CASES
    ]
    assert value_of(b"TAGS\x01cut", b"TAGS") is None


@pytest.mark.parametrize("beside", [[], ["body"]])
def test_properties_are_shown_with_the_records_or_without(beside: list[str]) -> None:
    taken = [QueueRecordsTaken(records_of(0, *(raw for raw, _ in CASES), body=bytes(1000)), 99)] * 2
    encoded = encode_columns(taken, ["properties", *beside])
    assert encoded.counts == [len(CASES)] * 2
    joined = [b"".join(buffer) for buffer in encoded.buffers]
    assert shown(joined[0], joined[1], joined[-1]) == [raw for raw, _ in CASES] * 2
    assert (len(joined[-1]) > len(CASES) * 1000) == bool(beside)


@pytest.mark.parametrize("sizes", [(10, 10, 10), (PIECE_BYTES_MIN, 10, PIECE_BYTES_MIN)])
def test_parts_of_any_size_are_one_column_and_bodies_lie_where_they_are_told(sizes: tuple[int, ...]) -> None:
    taken = [
        QueueRecordsTaken(
            [view for at, size in enumerate(sizes) for view in records_of(at, b"", body=bytes(size))], 2
        ),
        QueueRecordsTaken([], 9),
        QueueRecordsTaken(records_of(5, b"", b"", body=b"other"), 9),
    ]
    encoded = encode_columns(taken, ["offset", "body", "body_size"])
    assert encoded.counts == [2, 0, 2]
    offsets, begins, lengths, flags, sizes_too, records = (b"".join(buffer) for buffer in encoded.buffers)
    assert np.frombuffer(offsets, "<i8").tolist() == [0, 1, 5, 6]
    assert lengths == sizes_too
    assert flags == bytes(4)
    assert shown(begins, lengths, records) == [bytes(sizes[0]), bytes(sizes[1]), b"other", b"other"]


def test_only_records_with_wanted_tags_are_rows() -> None:
    parts = records_of(0, *(raw for raw, _ in CASES))
    encoded = encode_columns([QueueRecordsTaken(parts, 99)], ["offset"], frozenset({b"b", b""}))
    assert encoded.counts == [2]
    (offsets,) = (b"".join(buffer) for buffer in encoded.buffers)
    assert np.frombuffer(offsets, "<i8").tolist() == [1, 3]
