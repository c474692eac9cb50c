"""The columns of the source: their Spark schema, and Arrow batches built from records at once.

Spark takes an Arrow batch only when its schema is exactly the one that it derives from the Spark schema:
times are ``timestamp[us, tz=UTC]``, and nullability must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdmq.compression import decompress
from holdmq.message import TopicQueue
from holdmq.record import SYS_COMPRESSED, SYS_FLAG_AT, decode_properties
from holdmq.record_batch import Columns, Ints, decode_columns, split_records, starts_of, tags

_UTC: Final = pa.timestamp("us", tz="UTC")


class Part(NamedTuple):
    """`records` consecutive records of one queue in an Answer; those from offset `end` on are not wanted."""

    queue: TopicQueue
    records: int
    end: int


class Answer(NamedTuple):
    """Records of several queues as they lie in the log, part after part."""

    body: memoryview
    parts: Sequence[Part]


class _Rows(NamedTuple):
    """The wanted records of an answer: `part` is each row's index into `parts`."""

    raw: memoryview
    parts: Sequence[Part]
    part: npt.NDArray[np.int32]
    starts: Ints
    sizes: Ints
    fields: Columns


class _Column(NamedTuple):
    type: DataType
    arrow: pa.DataType
    nullable: bool
    build: Callable[[_Rows], pa.Array]


def _named(rows: _Rows, names: Sequence[str]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(rows.part))


def _time(milliseconds: Ints) -> pa.Array:
    # A born time is a device's word; what no timestamp can hold becomes the nearest that it can.
    bounded = np.minimum(milliseconds.view(np.uint64), np.uint64(253_402_300_799_999)).view(np.int64)
    return pa.Array.from_buffers(_UTC, len(bounded), [None, pa.py_buffer(bounded * 1000)])


def _tag(rows: _Rows) -> pa.Array:
    return pa.array([None if t is None else t.decode("utf-8", "replace") for t in _tags(rows)], pa.string())


def _tags(rows: _Rows) -> list[bytes | None]:
    return tags(rows.raw, rows.starts, rows.sizes)


def _client_id(rows: _Rows) -> pa.Array:
    begins = rows.fields.properties_start
    ends = begins + rows.fields.properties_size
    return pa.array(
        [
            decode_properties(bytes(rows.raw[begin:end])).first("CLIENT_ID")
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ],
        pa.string(),
    )


def _body(rows: _Rows) -> pa.Array:
    begins = rows.fields.body_start
    ends = begins + rows.fields.body_size
    raw = bytes(rows.raw)
    bodies = [raw[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    flags = np.frombuffer(rows.raw, np.uint8)[rows.starts + (SYS_FLAG_AT + 3)]
    for index in np.flatnonzero(flags & SYS_COMPRESSED).tolist():
        bodies[index] = decompress(bodies[index])
    return pa.array(bodies, pa.binary())


COLUMNS: Final[dict[str, _Column]] = {
    "topic": _Column(
        StringType(), pa.string(), False, lambda rows: _named(rows, [p.queue.topic for p in rows.parts])
    ),
    "broker": _Column(
        StringType(), pa.string(), False, lambda rows: _named(rows, [p.queue.broker for p in rows.parts])
    ),
    "queue": _Column(
        IntegerType(),
        pa.int32(),
        False,
        lambda rows: pa.array(np.array([p.queue.queue_id for p in rows.parts], np.int32)[rows.part]),
    ),
    "offset": _Column(LongType(), pa.int64(), False, lambda rows: pa.array(rows.fields.queue_offset)),
    "store_time": _Column(TimestampType(), _UTC, False, lambda rows: _time(rows.fields.store_ms)),
    "born_time": _Column(TimestampType(), _UTC, False, lambda rows: _time(rows.fields.born_ms)),
    "tag": _Column(StringType(), pa.string(), True, _tag),
    "client_id": _Column(StringType(), pa.string(), True, _client_id),
    "body_size": _Column(
        IntegerType(), pa.int32(), False, lambda rows: pa.array(rows.fields.body_size.astype(np.int32))
    ),
    "body": _Column(BinaryType(), pa.binary(), False, _body),
}
"""Every column, in the order of ``columns=*``: Spark type, Arrow type, nullability, how it is built.

`offset` is the queue offset; `body_size` the bytes of the body in the log (compressed, if it is).
"""


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the Spark schema of these columns."""
    return StructType([StructField(name, COLUMNS[name].type, COLUMNS[name].nullable) for name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema that Spark expects for `spark_schema(columns)`."""
    return pa.schema([pa.field(name, COLUMNS[name].arrow, COLUMNS[name].nullable) for name in columns])


def build_batch(answer: Answer, schema: pa.Schema, wanted_tags: frozenset[str] | None) -> pa.RecordBatch:
    """Return one Arrow batch of the wanted records of an answer, in its order.

    `wanted_tags` None = all. `schema` comes from `arrow_schema`.
    """
    rows = _wanted(answer, wanted_tags)
    return pa.RecordBatch.from_arrays([COLUMNS[name].build(rows) for name in schema.names], schema=schema)


def _wanted(answer: Answer, wanted_tags: frozenset[str] | None) -> _Rows:
    sizes = split_records(answer.body)
    starts = starts_of(sizes)
    counts = [part.records for part in answer.parts]
    part = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    fields = decode_columns(answer.body, starts, sizes)
    ends = np.array([p.end for p in answer.parts], np.int64)
    keep = fields.queue_offset < ends[part]
    if wanted_tags is not None:
        texts = frozenset(tag.encode() for tag in wanted_tags)
        keep &= np.fromiter((t in texts for t in tags(answer.body, starts, sizes)), np.bool_, len(sizes))
    if not keep.all():
        part, starts, sizes = part[keep], starts[keep], sizes[keep]
        fields = Columns(*(field[keep] for field in fields))
    return _Rows(answer.body, answer.parts, part, starts, sizes, fields)
