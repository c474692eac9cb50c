"""The columns of the source: their Spark schema, and Arrow batches built from a columnar answer.

Spark takes an Arrow batch only when its schema is exactly the one that it derives from the Spark schema:
times are ``timestamp[us, tz=UTC]``, and nullability must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

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

from holdmq.errors import WireError
from holdmq.message import TopicQueue
from holdmq.record.compression import decompress
from holdmq.record.properties import value_of
from holdmq.wire.column_headers import COLUMNS as WIRE_COLUMNS

_UTC: Final = pa.timestamp("us", tz="UTC")
_TEXTS: Final = ("tag", "client_id")
"""Columns that are made of the properties."""


class QueueRows(NamedTuple):
    """`records` consecutive rows of one queue in an Answer."""

    queue: TopicQueue
    records: int


class ColumnAnswer(NamedTuple):
    """Rows of several queues, part after part, as `columns` in their buffers (wire.column_headers)."""

    parts: Sequence[QueueRows]
    columns: Sequence[str]
    buffers: Sequence[memoryview]


class _Rows:
    """The rows of an answer: `part` is each row's index into `parts`."""

    def __init__(self, answer: ColumnAnswer) -> None:
        self.parts = answer.parts
        counts = [part.records for part in answer.parts]
        self.part: npt.NDArray[np.int32] = np.repeat(
            np.arange(len(counts), dtype=np.int32), np.array(counts, np.int64)
        )
        left = iter(answer.buffers)
        self._ints = {
            name: [self._decode(name, next(left), dtype) for dtype in WIRE_COLUMNS[name]]
            for name in answer.columns
        }
        self._views = next(left, memoryview(b""))
        self._properties: pa.DictionaryArray | None = None

    def _decode(self, name: str, data: memoryview, dtype: str) -> npt.NDArray[Any]:
        if len(data) != len(self.part) * np.dtype(dtype).itemsize:
            raise WireError(f"column {name}: {len(self.part)} rows came in a buffer of {len(data)} bytes")
        # A copy lies where Arrow wants it, which a place in a frame does not.
        return np.frombuffer(data, dtype).copy()

    def ints(self, name: str, buffer: int = 0) -> npt.NDArray[Any]:
        """A buffer's integers, one for each row."""
        return self._ints[name][buffer]

    def view(self, name: str) -> pa.Array:
        """What a view shows, as a binary array; WireError when that lies nowhere."""
        begins, sizes = self._ints[name][:2]
        count = len(begins)
        # What is shown and what lies between, by turns, are one array; every other element is wanted.
        places = np.zeros(2 * count + 1, np.int64)
        places[0:-1:2] = begins
        places[1::2] = places[0:-1:2] + sizes
        if count:
            places[-1] = places[-2]
            # Arrow believes what it is told, and would read anywhere.
            if (np.diff(places) < 0).any() or places[0] < 0 or places[-1] > len(self._views):
                raise WireError(f"column {name}: a row lies outside of the buffer")
        places = places.astype(np.int32)
        buffers = [None, pa.py_buffer(places), pa.py_buffer(self._views)]
        both = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
        return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))

    def properties(self) -> pa.DictionaryArray:
        """Every row's encoded properties; those of a device are mostly the same."""
        if self._properties is None:
            self._properties = self.view("properties").dictionary_encode()
        return self._properties


class _Column(NamedTuple):
    type: DataType
    arrow: pa.DataType
    nullable: bool
    build: Callable[[_Rows], pa.Array]


def _named(rows: _Rows, names: Sequence[str]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(rows.part))


def _time(rows: _Rows, name: str) -> pa.Array:
    microseconds = rows.ints(name) * 1000
    return pa.Array.from_buffers(_UTC, len(microseconds), [None, pa.py_buffer(microseconds)])


def _text(rows: _Rows, key: bytes) -> pa.Array:
    found = rows.properties()
    values = [value_of(properties, key) for properties in found.dictionary.to_pylist()]
    # Bytes that are no UTF-8 are not for Spark.
    texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
    return pa.array(texts, pa.string()).take(found.indices)


def _body(rows: _Rows) -> pa.Array:
    bodies = rows.view("body")
    packed = np.flatnonzero(rows.ints("body", 2))
    if len(packed):
        unpacked = bodies.to_pylist()
        for index in packed.tolist():
            unpacked[index] = decompress(unpacked[index])
        bodies = pa.array(unpacked, pa.binary())
    return bodies


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
    "offset": _Column(LongType(), pa.int64(), False, lambda rows: pa.array(rows.ints("offset"))),
    "store_time": _Column(TimestampType(), _UTC, False, lambda rows: _time(rows, "store_time")),
    "born_time": _Column(TimestampType(), _UTC, False, lambda rows: _time(rows, "born_time")),
    "tag": _Column(StringType(), pa.string(), True, lambda rows: _text(rows, b"TAGS")),
    "client_id": _Column(StringType(), pa.string(), True, lambda rows: _text(rows, b"CLIENT_ID")),
    "body_size": _Column(IntegerType(), pa.int32(), False, lambda rows: pa.array(rows.ints("body_size"))),
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


def asked_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Return what a broker has to send for these columns: a queue's own are known without it."""
    wanted = {"properties" if name in _TEXTS else name for name in columns}
    return tuple(name for name in WIRE_COLUMNS if name in wanted)


def build_batch(answer: ColumnAnswer, schema: pa.Schema) -> pa.RecordBatch:
    """Return one Arrow batch of an answer's rows, in its order.

    `schema` comes from `arrow_schema`, and the answer has the columns `asked_of` it. Raises WireError for
    buffers that do not fit each other.
    """
    rows = _Rows(answer)
    return pa.RecordBatch.from_arrays([COLUMNS[name].build(rows) for name in schema.names], schema=schema)
