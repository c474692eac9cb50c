"""Keys, rows and changes of tables, as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import RecordError
from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun
from storage.api.tables import KEY_BYTES_MAX, RowChanged, VersionedRow
from storage.core.table_records import changes_in, table_record
from storage.log.tables.core.tables import (
    PLAIN_KEY_MAX,
    decode_row,
    encode_row,
    row_key,
    scan_prefix,
)

LONG = "k" * PLAIN_KEY_MAX


def batch_of(*records: bytes, topic: str = "t") -> Batch:
    sizes = np.array([len(record) for record in records], np.int64)
    return Batch(
        memoryview(bytearray(b"".join(records))), sizes, [BatchRun(topic, 0, len(records))], position=0
    )


@given(
    st.text(min_size=1, max_size=30).map(lambda s: s * 20), st.binary(max_size=50), st.integers(0, 1 << 60)
)
def test_a_row_comes_back_whatever_the_length_of_its_key(key: str, value: bytes, version: int) -> None:
    raw = key.encode("utf-8", "replace")
    name = row_key("t" * 127, raw)
    assert len(name) <= 511
    assert name.startswith(scan_prefix("t" * 127, raw[:100]))
    assert decode_row("t" * 127, name, encode_row(raw, value, version)) == VersionedRow(
        raw.decode(), value, version
    )


def test_keys_that_differ_have_different_rows() -> None:
    keys = ["a", "b", "a\0", LONG, LONG + "x", LONG + "y", LONG + "x" * 16]
    assert len({row_key("t", key.encode()) for key in keys}) == len(keys)
    assert row_key("t", b"x") != row_key("t2", b"x")


def test_records_say_what_changes() -> None:
    records = [
        table_record("t", 0, "a", b"1", 5),
        table_record("t", 0, "a\x01\x02\x03\0b", b"", 5),
        table_record("t", 0, "a", None, 5),
        encode_record(b"t", 0, b"no key", b"TAGS\x01KEYS\x02", 5),
        encode_record(b"t", 0, b"two", b"TAGS\x01x\x02KEYS\x01first\x02KEYS\x01second\x02", 5),
        encode_record(b"t", 0, b"empty", b"KEYS\x01\x02", 5),
        encode_record(b"t", 0, b"bad", b"KEYS\x01\xff\x02", 5),
        encode_record(b"t", 0, b"plain", b"KEYS\x01k\x02\0\x26\0\x07DELETED\0\0", 5),
    ]
    found, keyless = changes_in(batch_of(*records), {"t"})
    assert [(change.key, change.value) for change in found] == [
        (b"a", b"1"),
        (b"a\x01\x02\x03\0b", b""),
        (b"a", None),
        (b"first", b"two"),
        (b"k", b"plain"),
    ]
    assert keyless == 3
    assert changes_in(batch_of(*records), {"other"}) == ([], 0)
    assert found[0] == RowChanged("t", b"a", b"1", 0)


@pytest.mark.parametrize("key", ["", "k" * (KEY_BYTES_MAX + 1)])
def test_keys_that_are_none_are_refused(key: str) -> None:
    with pytest.raises(RecordError, match="a key of"):
        table_record("t", 0, key, b"", 1)
