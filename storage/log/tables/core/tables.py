"""Tables as records and rows: how a key and its value lie in the log, and in the table's database.

A table is a topic of kind `table`. A record of it says that its first KEYS value has the record's body
as its value from now on, or, with the property DELETED (empty), that the key has none. The newest
record in the log counts, whatever its queue. Records without a key mean nothing to the table. Rows::

    key    | topic | 0x00 | key, UTF-8 |                                       up to 367 bytes of key
           | topic | 0x00 | first 367 bytes of it | xxh3-128 of the key 16 |   longer ones
    value  | version 8 | length of the key 2 | key | value |                   big-endian

The key is repeated only when it is longer than 367 bytes (else its length is 0): LMDB's keys end at
511. `version` is the log position of the record: what a reader compares, never where it reads.
Source: storage.md, Tables.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import xxhash

from holdmq.errors import Code, RecordError
from holdmq.record.batch import decode_columns
from holdmq.record.codec import encode_properties, encode_record
from holdmq.record.properties import unescape_tag
from storage.api.batches import Batch
from storage.api.tables import KEY_BYTES_MAX, ORDERED_KEY_BYTES, RowChanged, VersionedRow, WalkedRow

PLAIN_KEY_MAX: Final = ORDERED_KEY_BYTES
"""LMDB's 511 bytes less a topic (127), the zero behind it, and a hash (16)."""

_HEAD: Final = Struct(">QH")


def row_key(topic: str, key: bytes) -> bytes:
    """The key of a row in the database."""
    if len(key) <= PLAIN_KEY_MAX:
        return b"%b\0%b" % (topic.encode(), key)
    return b"%b\0%b%b" % (topic.encode(), key[:PLAIN_KEY_MAX], xxhash.xxh3_128_digest(key))


def scan_prefix(topic: str, prefix: bytes) -> bytes:
    """What the database's keys of all keys with this prefix begin with."""
    return b"%b\0%b" % (topic.encode(), prefix[:PLAIN_KEY_MAX])


def encode_row(key: bytes, value: bytes, version: int) -> bytes:
    """The value of a row in the database."""
    if len(key) <= PLAIN_KEY_MAX:
        return _HEAD.pack(version, 0) + value
    return _HEAD.pack(version, len(key)) + key + value


def decode_row(topic: str, row_key_: bytes, raw: bytes) -> VersionedRow:
    """The row of a database's key and value."""
    version, length = _HEAD.unpack_from(raw)
    end = _HEAD.size + length
    key = raw[_HEAD.size : end] if length else row_key_[len(topic) + 1 :]
    return VersionedRow(key.decode(), raw[end:], version)


def split_row(topic: str, row_key_: bytes, raw: memoryview) -> WalkedRow:
    """The row of a database's key and value, its value as a view of it."""
    version, length = _HEAD.unpack_from(raw)
    end = _HEAD.size + length
    key = bytes(raw[_HEAD.size : end]) if length else row_key_[len(topic) + 1 :]
    return WalkedRow(key, raw[end:], version)


def table_record(
    topic: str, queue_id: int, key: str, value: bytes | None, born_ms: int, unique_id: str = ""
) -> bytes:
    """The record that puts a value, or deletes the key (None). RecordError for a key that is none."""
    raw = key.encode()
    if not 0 < len(raw) <= KEY_BYTES_MAX:
        raise RecordError(f"a key of {len(raw)} bytes: 1 to {KEY_BYTES_MAX} are allowed", Code.LIMIT_EXCEEDED)
    pairs = [("KEYS", key)] if value is not None else [("KEYS", key), ("DELETED", "")]
    if unique_id:
        pairs.append(("UNIQ_KEY", unique_id))
    return encode_record(topic.encode(), queue_id, value or b"", encode_properties(pairs), born_ms)


def changes_in(batch: Batch, tables: set[str]) -> tuple[list[RowChanged], int]:
    """What a stamped batch changes in these tables, in its order; how many records had no key."""
    found: list[RowChanged] = []
    keyless = first = 0
    data = bytes(batch.records)
    for run in batch.runs:
        last = first + run.count
        if run.topic in tables:
            columns = decode_columns(data, batch.starts[first:last], batch.sizes[first:last])
            for begin, size, body, length, position in zip(
                columns.properties_start.tolist(),
                columns.properties_size.tolist(),
                columns.body_start.tolist(),
                columns.body_size.tolist(),
                columns.physical_offset.tolist(),
                strict=True,
            ):
                pairs = data[begin : begin + size].partition(b"\0")[0]
                key = _key_of(pairs)
                if key is None:
                    keyless += 1
                    continue
                is_deleted = pairs.startswith(b"DELETED\x01") or b"\x02DELETED\x01" in pairs
                value = None if is_deleted else data[body : body + length]
                found.append(RowChanged(run.topic, key, value, position))
        first = last
    return found, keyless


def _key_of(pairs: bytes) -> bytes | None:
    """The first KEYS value; None = there is none that can be a key."""
    at = 0 if pairs.startswith(b"KEYS\x01") else pairs.find(b"\x02KEYS\x01") + 1
    if not at and not pairs.startswith(b"KEYS\x01"):
        return None
    key = unescape_tag(pairs[at + 5 : pairs.find(b"\x02", at + 5)])
    if not 0 < len(key) <= KEY_BYTES_MAX:
        return None
    try:
        key.decode()
    except UnicodeDecodeError:
        return None
    return key
