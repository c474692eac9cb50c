"""Rows to messages: the batch and the stream writer of ``format("holdmq")``.

A task sends its rows and ends when the log has all of them. A task that fails, or is run twice, has sent some
of its rows twice: at least once. What is sent again within a task (a broker that restarts) is stored once,
by the producer's sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from holdmq.client.sync import SyncProducer
from holdmq.errors import UsageError
from holdmq.message import Message
from holdmq.rpc.security import Security
from spark_streaming.source.kept import Kept
from spark_streaming.source.options import WriteOptions

_TEXT: Final = (StringType,)
COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "topic": _TEXT,
    "tag": _TEXT,
    "key": _TEXT,
    "properties": (MapType,),
}
"""Columns that a writer takes, and their types; all but `body` may be left out."""
MESSAGES_PER_SEND: Final = 10_000
"""Rows that are objects at a time: Spark's own Arrow batches are as long."""


class TaskWritten(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, messages: int) -> None:
        self.messages = messages


class _Producing:
    """What both writers are: picklable, connected on first use in the process that writes."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Store every row; returns when the log has them. Raises BatchError, UsageError, TransportError."""
        options = self._options
        producer = _producers.get(
            _Cluster(
                options.registries, options.send_timeout_s, options.security, options.cluster, options.tenant
            )
        )
        messages = 0
        for batch in iterator:
            for begin in range(0, batch.num_rows, MESSAGES_PER_SEND):
                _send(producer, batch.slice(begin, MESSAGES_PER_SEND), options.topic)
            messages += batch.num_rows
        return TaskWritten(messages)


class BatchWriter(_Producing, DataSourceArrowWriter):
    """The writer of a ``df.write``."""


class StreamWriter(_Producing, DataSourceStreamArrowWriter):
    """The writer of a ``df.writeStream``."""


def check_schema(schema: StructType, default_topic: str) -> None:
    """Raise UsageError for columns that no message can be made of."""
    for field in schema.fields:
        kinds = COLUMNS.get(field.name)
        if kinds is None:
            raise UsageError(
                f"format holdmq: {field.name!r} is no column of a message; there are {', '.join(COLUMNS)}"
            )
        kind = field.dataType
        parts = [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
        if not isinstance(kind, kinds) or not all(isinstance(part, StringType) for part in parts):
            wanted = "map<string,string>" if MapType in kinds else " or ".join(k.typeName() for k in kinds)
            found = kind.simpleString()
            raise UsageError(f"format holdmq: column {field.name} must be {wanted}, not {found}")
    names = schema.fieldNames()
    if "body" not in names:
        raise UsageError("format holdmq: a message needs the column body")
    if "topic" not in names and not default_topic:
        raise UsageError(
            "format holdmq: a message needs the column topic, or the option topic for all of them"
        )


class _Kind(NamedTuple):
    """What messages that travel together have in common."""

    topic: str
    tag: str | None


def _send(producer: SyncProducer, rows: pa.RecordBatch, default_topic: str) -> None:
    columns = {name: rows.column(name).to_pylist() for name in rows.schema.names if name != "body"}
    bodies: list[bytes | None] = rows.column("body").cast(pa.binary()).to_pylist()
    count = len(bodies)
    if None in bodies:
        raise UsageError("format holdmq: a row's body is null; a message without content has an empty one")
    topics: Sequence[str | None] = columns.get("topic") or [None] * count
    if not default_topic and None in topics:
        raise UsageError("format holdmq: a row's topic is null, and the option topic names none for it")
    tags: Sequence[str | None] = columns.get("tag") or [None] * count
    if "key" not in columns and "properties" not in columns:
        alike: dict[_Kind, list[bytes]] = {}
        for topic, tag, body in zip(topics, tags, bodies, strict=True):
            alike.setdefault(_Kind(topic or default_topic, tag), []).append(body or b"")
        for kind, some in alike.items():
            producer.send_bodies(kind.topic, some, tag=kind.tag)
        return
    keys: Sequence[str | None] = columns.get("key") or [None] * count
    properties = columns.get("properties") or [None] * count
    messages = [
        Message(
            topic or default_topic,
            body or b"",
            tag=tag,
            keys=() if key is None else (key,),
            properties={name: value for name, value in own or () if value is not None},
        )
        for topic, tag, body, key, own in zip(topics, tags, bodies, keys, properties, strict=True)
    ]
    producer.send_batch(messages)


class _Cluster(NamedTuple):
    """What writers that share a producer have in common."""

    registries: tuple[str, ...]
    send_timeout_s: float
    security: Security | None
    name: str
    tenant: str


def _connect(cluster: _Cluster) -> SyncProducer:
    return SyncProducer(
        cluster.registries,
        send_timeout_s=cluster.send_timeout_s,
        security=cluster.security,
        cluster=cluster.name,
        tenant=cluster.tenant,
    )


_producers: Final = Kept(_connect)


def close_producers() -> None:
    """Close every producer of this process, whose use is over; who writes again gets a new one."""
    _producers.close()
