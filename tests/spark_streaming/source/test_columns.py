from __future__ import annotations

import datetime as dt
import zlib

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from holdmq.message import Message, TopicQueue
from holdmq.record import SYS_COMPRESSED, encode_message, encode_record
from holdmq.record_batch import stamp, starts_of
from spark_streaming.source.columns import COLUMNS, Answer, Part, arrow_schema, build_batch, spark_schema

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


def answer(*parts: tuple[str, int, list[bytes], int]) -> Answer:
    body = b"".join(stamped(records, base) for _, base, records, _ in parts)
    rows = [Part(TopicQueue(topic, "b", 1), len(records), end) for topic, _, records, end in parts]
    return Answer(memoryview(body), rows)


@pytest.mark.parametrize("columns", [tuple(COLUMNS), ("topic", "store_time"), ("body",)])
def test_the_arrow_schema_is_exactly_what_spark_derives(columns: tuple[str, ...]) -> None:
    assert arrow_schema(columns).equals(to_arrow_schema(spark_schema(columns), timezone="UTC"))


def test_a_batch_has_every_column_of_every_queue() -> None:
    schema = arrow_schema(tuple(COLUMNS))
    devices = [message(1, "1/temp"), message(2, None), message(3, "")]
    found = build_batch(
        answer(("devices", 40, devices, 99), ("cmd", 7, [message(4, "x", "cmd")], 99)), schema, None
    )
    found.validate(full=True)
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


def test_records_from_the_range_s_end_on_are_left_out() -> None:
    records = [message(n, None) for n in (1, 2, 3, 4)]
    found = build_batch(
        answer(("devices", 0, records, 2), ("devices", 8, records, 11)), arrow_schema(("offset",)), None
    )
    assert found.column("offset").to_pylist() == [0, 1, 8, 9, 10]


def test_only_wanted_tags_are_kept() -> None:
    records = [message(n, tag) for n, tag in enumerate(["a", "b", None, "a"])]
    found = build_batch(answer(("devices", 0, records, 9)), arrow_schema(("offset", "tag")), frozenset({"a"}))
    assert found.to_pydict() == {"offset": [0, 3], "tag": ["a", "a"]}


def test_a_compressed_body_is_unpacked_and_its_size_is_the_log_s() -> None:
    packed = zlib.compress(b"y" * 1000)
    records = [encode_record(b"t", 1, packed, b"", STORE_MS, sys_flag=SYS_COMPRESSED), message(1, None)]
    found = build_batch(answer(("t", 0, records, 9)), arrow_schema(("body", "body_size")), None)
    assert found.to_pydict() == {"body": [b"y" * 1000, b"x"], "body_size": [len(packed), 1]}


def test_a_device_s_absurd_clock_is_a_time_all_the_same() -> None:
    records = [encode_record(b"t", 1, b"", b"", 2**64 - 1), encode_record(b"t", 1, b"", b"", 0)]
    found = build_batch(answer(("t", 0, records, 9)), arrow_schema(("born_time",)), None)
    assert found.column("born_time").cast(pa.int64()).to_pylist() == [253_402_300_799_999_000, 0]
