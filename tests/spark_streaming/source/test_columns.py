from __future__ import annotations

import datetime as dt
import zlib

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from holdmq.errors import WireError
from holdmq.message import Message, TopicQueue
from holdmq.record.batch import stamp, starts_of
from holdmq.record.codec import SYS_COMPRESSED, encode_message, encode_record
from holdmq.record.columns import QueueRecordsTaken, encode_columns
from holdmq.wire.column_headers import split_buffers
from spark_streaming.source.columns import (
    COLUMNS,
    ColumnAnswer,
    QueueRows,
    arrow_schema,
    asked_of,
    build_batch,
    spark_schema,
)

STORE_MS = 1_700_000_000_123


def stamped(records: list[bytes], base_offset: int) -> bytes:
    body = bytearray(b"".join(records))
    sizes = np.array([len(r) for r in records], np.int64)
    offsets = np.arange(base_offset, base_offset + len(records), dtype=np.int64)
    stamp(body, starts_of(sizes), sizes, offsets, 0, STORE_MS, b"storeid1")
    return bytes(body)


def message(index: int, tag: str | None, topic: str = "devices") -> bytes:
    found = Message(topic, b"x" * index, tag=tag, client_id=f"c{index}", properties={"k": "v"})
    return encode_message(found, 1, STORE_MS - 10)


def built(
    columns: tuple[str, ...],
    *parts: tuple[str, int, list[bytes], int],
    tags: frozenset[bytes] | None = None,
) -> pa.RecordBatch:
    """The batch of records as a broker encodes them: topic, first offset, records, end of each part."""
    taken = [QueueRecordsTaken([memoryview(stamped(records, base))], end) for _, base, records, end in parts]
    asked = asked_of(columns)
    encoded = encode_columns(taken, asked, tags)
    body = b"".join(piece for buffer in encoded.buffers for piece in buffer)
    buffers = split_buffers(memoryview(body), asked, [sum(map(len, buffer)) for buffer in encoded.buffers])
    rows = [
        QueueRows(TopicQueue(topic, "b", 1), count)
        for (topic, *_), count in zip(parts, encoded.counts, strict=True)
    ]
    found = build_batch(ColumnAnswer(rows, asked, buffers), arrow_schema(columns))
    found.validate(full=True)
    return found


@pytest.mark.parametrize("columns", [tuple(COLUMNS), ("topic", "store_time"), ("body",)])
def test_the_arrow_schema_is_exactly_what_spark_derives(columns: tuple[str, ...]) -> None:
    assert arrow_schema(columns).equals(to_arrow_schema(spark_schema(columns), timezone="UTC"))


def test_a_batch_has_every_column_of_every_queue() -> None:
    devices = [message(1, "1/temp"), message(2, None), message(3, "")]
    found = built(tuple(COLUMNS), ("devices", 40, devices, 99), ("cmd", 7, [message(4, "x", "cmd")], 99))
    assert found.column("topic").to_pylist() == ["devices"] * 3 + ["cmd"]
    assert found.column("broker").to_pylist() == ["b"] * 4
    assert found.column("queue").to_pylist() == [1] * 4
    assert found.column("offset").to_pylist() == [40, 41, 42, 7]
    assert found.column("tag").to_pylist() == ["1/temp", None, "", "x"]
    assert found.column("client_id").to_pylist() == ["c1", "c2", "c3", "c4"]
    assert found.column("body_size").to_pylist() == [1, 2, 3, 4]
    assert found.column("body").to_pylist() == [b"x" * n for n in (1, 2, 3, 4)]
    store = dt.datetime.fromtimestamp(STORE_MS / 1000, dt.UTC)
    assert [t.astimezone(dt.UTC) for t in found.column("store_time").to_pylist()] == [store] * 4
    assert found.column("born_time").to_pylist()[0] == store - dt.timedelta(milliseconds=10)


def test_columns_that_no_broker_has_to_send_are_built_without_one() -> None:
    assert asked_of(("topic", "queue", "broker")) == ()
    assert asked_of(("client_id", "tag", "offset")) == ("offset", "properties")
    found = built(("topic", "queue"), ("devices", 0, [message(1, None), message(2, None)], 9))
    assert found.to_pydict() == {"topic": ["devices"] * 2, "queue": [1, 1]}


def test_records_from_the_range_s_end_on_are_left_out() -> None:
    records = [message(n, None) for n in (1, 2, 3, 4)]
    found = built(("offset", "body"), ("devices", 0, records, 2), ("devices", 8, records, 11))
    assert found.column("offset").to_pylist() == [0, 1, 8, 9, 10]
    assert [len(body) for body in found.column("body").to_pylist()] == [1, 2, 1, 2, 3]


def test_an_answer_without_rows_is_an_empty_batch() -> None:
    for columns in (tuple(COLUMNS), ("topic",)):
        assert built(columns, ("devices", 0, [message(1, None)], 0)).num_rows == 0
        assert built(columns).num_rows == 0


def test_only_wanted_tags_are_kept() -> None:
    records = [message(n, tag) for n, tag in enumerate(["a", "b", None, "a"])]
    part = ("devices", 0, records, 9)
    found = built(("offset", "tag"), part, tags=frozenset({b"a"}))
    assert found.to_pydict() == {"offset": [0, 3], "tag": ["a", "a"]}
    assert built(("body",), part, tags=frozenset({b"b"})).to_pydict() == {"body": [b"x"]}


def test_a_compressed_body_is_unpacked_and_its_size_is_the_log_s() -> None:
    packed = zlib.compress(b"y" * 1000)
    records = [encode_record(b"t", 1, packed, b"", STORE_MS, sys_flag=SYS_COMPRESSED), message(1, None)]
    found = built(("body", "body_size"), ("t", 0, records, 9))
    assert found.to_pydict() == {"body": [b"y" * 1000, b"x"], "body_size": [len(packed), 1]}


def test_a_device_s_absurd_clock_is_a_time_all_the_same() -> None:
    records = [encode_record(b"t", 1, b"", b"", 2**64 - 1), encode_record(b"t", 1, b"", b"", 0)]
    found = built(("born_time",), ("t", 0, records, 9))
    assert found.column("born_time").cast(pa.int64()).to_pylist() == [253_402_300_799_999_000, 0]


def test_text_that_is_no_utf_8_is_readable_all_the_same() -> None:
    records = [encode_record(b"t", 1, b"", b"TAGS\x01a\xff\x02", STORE_MS)]
    assert built(("tag",), ("t", 0, records, 9)).to_pydict() == {"tag": ["a\ufffd"]}


def ints(*values: int) -> memoryview:
    return memoryview(np.array(values, np.int32).tobytes())


@pytest.mark.parametrize(
    ("column", "buffers", "reason"),
    [
        ("offset", [ints(1)], "1 rows came in a buffer of 4 bytes"),
        ("body", [ints(0), ints(4), memoryview(b"\0"), memoryview(b"abc")], "outside of the buffer"),
        ("body", [ints(-1), ints(2), memoryview(b"\0"), memoryview(b"abc")], "outside of the buffer"),
        ("body", [ints(2), ints(-1), memoryview(b"\0"), memoryview(b"abc")], "outside of the buffer"),
        ("body", [ints(2**31 - 1), ints(9), memoryview(b"\0"), memoryview(b"abc")], "outside of the buffer"),
        ("body", [ints(0), ints(1), memoryview(b""), memoryview(b"abc")], "1 rows came in a buffer"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(column: str, buffers: list[memoryview], reason: str) -> None:
    answer = ColumnAnswer([QueueRows(TopicQueue("t", "b", 1), 1)], (column,), buffers)
    with pytest.raises(WireError, match=reason):
        build_batch(answer, arrow_schema((column,)))
