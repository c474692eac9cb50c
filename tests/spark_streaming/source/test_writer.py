"""The writers as Spark calls them, but without a JVM: over a real registry and broker."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from processes import Stack, running_stack, wait_until
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType

from holdmq.errors import BatchError, ConfigError, UsageError
from spark_streaming.source import HoldMQDataSource
from spark_streaming.source.link import link_to
from spark_streaming.source.writer import MESSAGES_PER_SEND, TaskWritten, close_producers


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("writer"), "registry", "broker") as made:
        yield made


BINARY, TEXT = BinaryType(), StringType()
TEXTS = MapType(TEXT, TEXT)


def schema_of(**columns: DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


def rows_of(stack: Stack, topics: str) -> list[dict[str, Any]]:
    """Messages of topics, once the registry lists as many as are named."""
    names = topics.split(",")
    link = link_to((stack.registry,))
    wait_until(
        lambda: {q.topic for q in link.snapshot(names.__contains__).bounds} == set(names),
        "the topics are listed",
    )
    source = HoldMQDataSource({"registry": stack.registry, "topics": topics})
    reader = source.reader(source.schema())
    return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]


def write(stack: Stack, schema: StructType, *batches: dict[str, list[Any]], **options: str) -> TaskWritten:
    """Write batches of columns through a writer that travelled to a worker."""
    source = HoldMQDataSource({"registry": stack.registry, **options})
    writer = pickle.loads(pickle.dumps(source.writer(schema, False)))
    assert isinstance(writer, DataSourceArrowWriter)
    assert isinstance(source.streamWriter(schema, False), DataSourceStreamArrowWriter)
    types = {"properties": pa.map_(pa.string(), pa.string())}
    written = writer.write(
        iter([pa.record_batch({k: pa.array(v, types.get(k)) for k, v in one.items()}) for one in batches])
    )
    assert isinstance(written, TaskWritten)
    return written


def test_rows_are_messages_of_their_topics_and_tags(stack: Stack) -> None:
    written = write(
        stack,
        schema_of(body=BINARY, topic=TEXT, tag=TEXT),
        {"body": [b"a", b"b", b""], "topic": ["w1", None, "w1"], "tag": ["x", None, "x"]},
        {"body": [b"c"], "topic": ["w1"], "tag": ["y"]},
        topic="w2",
    )
    assert written.messages == 4
    found = {(row["topic"], row["tag"], row["body"]) for row in rows_of(stack, "w1,w2")}
    assert found == {("w1", "x", b"a"), ("w2", None, b"b"), ("w1", "x", b""), ("w1", "y", b"c")}


def test_rows_of_one_key_keep_their_order_in_one_queue(stack: Stack) -> None:
    count = MESSAGES_PER_SEND + 10
    batch = {
        "body": [str(i) for i in range(count)],
        "key": [f"k{i % 16}" for i in range(count)],
        "properties": [[("number", str(i))] if i % 2 else None for i in range(count)],
    }
    schema = schema_of(body=TEXT, key=TEXT, properties=TEXTS)
    assert write(stack, schema, batch, topic="keyed").messages == count
    queues: dict[int, list[int]] = {}
    for row in rows_of(stack, "keyed"):
        queues.setdefault(int(row["body"]) % 16, []).append(row["queue"])
    assert all(len(set(seen)) == 1 and len(seen) >= count // 16 for seen in queues.values())
    assert len({seen[0] for seen in queues.values()}) > 1
    for key in (0, 5):
        own = [int(r["body"]) for r in rows_of(stack, "keyed") if int(r["body"]) % 16 == key]
        assert own == sorted(own)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (schema_of(topic=TEXT), "needs the column body"),
        (schema_of(body=BINARY), "needs the column topic, or the option topic"),
        (schema_of(body=IntegerType(), topic=TEXT), "column body must be binary or string, not int"),
        (schema_of(body=BINARY, topic=TEXT, colour=TEXT), "'colour' is no column of a message"),
        (schema_of(body=BINARY, topic=TEXT, properties=MapType(TEXT, BINARY)), "must be map<string,string>"),
    ],
)
def test_a_schema_that_no_message_can_be_made_of_is_refused(
    stack: Stack, schema: StructType, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        HoldMQDataSource({"registry": stack.registry}).writer(schema, False)


def test_null_is_no_body_and_no_topic(stack: Stack) -> None:
    with pytest.raises(UsageError, match="a row's body is null"):
        write(stack, schema_of(body=BINARY), {"body": [b"a", None]}, topic="null")
    with pytest.raises(UsageError, match="a row's topic is null"):
        write(stack, schema_of(body=BINARY, topic=TEXT), {"body": [b"a"], "topic": pa.nulls(1, pa.string())})


def test_a_topic_cannot_be_overwritten_and_options_are_checked(stack: Stack) -> None:
    schema = schema_of(body=BINARY)
    source = HoldMQDataSource({"registry": stack.registry, "topic": "w", "checkpointLocation": "x"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(UsageError, match="only ever appended to"):
            make(schema, True)
    with pytest.raises(
        ConfigError,
        match=r"unknown option 'topics'; there are registry, cluster, tenant, topic, s",
    ):
        HoldMQDataSource({"topics": "w"}).writer(schema, False)
    with pytest.raises(ConfigError, match="option topic = '%RETRY' is no topic"):
        HoldMQDataSource({"topic": "%RETRY"}).writer(schema, False)


def test_a_message_that_no_broker_takes_fails_the_task(stack: Stack) -> None:
    with pytest.raises(BatchError):
        write(stack, schema_of(body=BINARY), {"body": [bytes(13 << 20)]}, topic="large")


def test_producers_that_are_closed_are_made_anew(stack: Stack) -> None:
    schema = schema_of(topic=StringType(), body=BinaryType())
    for body in (b"before", b"after"):
        write(stack, schema, {"topic": ["again"], "body": [body]})
        close_producers()
    assert {row["body"] for row in rows_of(stack, "again")} == {b"before", b"after"}
