"""Tables as records: how a key and its value lie in the log.

A table is a topic of kind `table`. A record of it says that its first KEYS value has the record's body
as its value from now on, or, with the property DELETED (empty), that the key has none. The newest
record in the log counts, whatever its queue. Records without a key mean nothing to the table.
Source: storage.md, Tables.
"""

from __future__ import annotations

from holdmq.errors import Code, RecordError
from holdmq.record.batch import decode_columns
from holdmq.record.codec import encode_properties, encode_record
from holdmq.record.properties import unescape_tag
from storage.api.batches import Batch
from storage.api.tables import KEY_BYTES_MAX, RowChanged


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
