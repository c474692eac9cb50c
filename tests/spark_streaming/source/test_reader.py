"""The readers as Spark calls them, but without a JVM: over a real registry and broker."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from processes import Stack, running_stack, wait_until
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from holdmq.client.admin import Admin
from holdmq.client.sync import SyncProducer
from holdmq.errors import TransportError, UsageError
from holdmq.message import Message, TopicQueue
from spark_streaming.source import HoldMQDataSource
from spark_streaming.source import link as link_module
from spark_streaming.source.link import ClusterLink, link_to
from spark_streaming.source.offsets import LOST, Offsets
from spark_streaming.source.ranges import DataLossError
from spark_streaming.source.reader import StreamReader

Row = dict[str, Any]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {
        "broker.topic_queues_default": 1,
        "storage.segment_size_bytes": 1 << 20,
        "storage.retention_bytes": 2 << 20,
        "storage.retention_interval_ms": 50,
    }
    with running_stack(tmp_path_factory.mktemp("source"), "registry", "broker", **settings) as made:
        yield made


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers late, as the machine is busy with other tests, is not away."""
    monkeypatch.setattr(link_module, "ASK_TIMEOUT_S", 30.0)


@pytest.fixture(scope="module")
def producer(stack: Stack) -> Iterator[SyncProducer]:
    with SyncProducer([stack.registry]) as made:
        yield made


def send(producer: SyncProducer, topic: str, *bodies: str, queue_id: int = 0) -> None:
    queue = TopicQueue(topic, "broker-0", queue_id)
    producer.send_batch([Message(topic, body.encode()) for body in bodies], queue=queue)


def begin(stack: Stack, producer: SyncProducer, topic: str, *bodies: str) -> None:
    """Store the first messages of a topic, and wait until the registry lists it."""
    send(producer, topic, *bodies)
    link = link_to((stack.registry,))
    wait_until(lambda: bool(link.snapshot(lambda name: name == topic).bounds), "the topic is listed")


def grow(stack: Stack, topic: str, queues: int) -> None:
    async def order() -> None:
        async with Admin([stack.registry]) as admin:
            await admin.grow_topic(topic, queues)

    asyncio.run(order())


def source_of(stack: Stack, **options: str) -> HoldMQDataSource:
    return HoldMQDataSource({"registry": stack.registry, **options})


def rows_of(
    reader: DataSourceReader | DataSourceStreamReader, partitions: Sequence[InputPartition]
) -> list[Row]:
    return [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]


def read(stack: Stack, **options: str) -> list[Row]:
    """What a batch read gives."""
    source = source_of(stack, **options)
    reader = source.reader(source.schema())
    return rows_of(reader, reader.partitions())


class Query:
    """A streaming query, driven as Spark drives it: `offsets` is what its checkpoint has."""

    def __init__(self, stack: Stack, offsets: Offsets | None = None, **options: str) -> None:
        source = source_of(stack, **options)
        self.reader = source.streamReader(source.schema())
        assert isinstance(self.reader, StreamReader)
        self.offsets: Offsets = self.reader.initialOffset() if offsets is None else offsets

    def plan(self) -> Offsets:
        end = self.reader.latestOffset(self.offsets, self.reader.getDefaultReadLimit())
        found: Offsets = json.loads(json.dumps(end))
        return found

    def run(self, end: Offsets) -> list[Row]:
        rows = rows_of(self.reader, self.reader.partitions(self.offsets, end))
        self.offsets = end
        return rows

    def batch(self) -> list[str]:
        """Bodies of the next batch, in the order of their queues."""
        return [row["body"].decode() for row in self.run(self.plan())]


def test_topics_and_queues_that_appear_while_a_query_runs_are_read_from_their_first_message(
    stack: Stack, producer: SyncProducer
) -> None:
    begin(stack, producer, "grown", "a")
    query = Query(stack, topics="grown*", starting_offsets="latest")
    assert query.batch() == []
    send(producer, "grown", "b")
    send(producer, "grown-later", "c", "d")
    grow(stack, "grown", 3)
    send(producer, "grown", "e", queue_id=2)
    wait_until(lambda: len(query.plan()) == 5, "the registry lists the topic and the queues")
    assert sorted(query.batch()) == ["b", "c", "d", "e"]
    assert query.batch() == []


def test_a_tenant_reads_and_writes_its_own_topics_in_its_own_words(
    stack: Stack, producer: SyncProducer
) -> None:
    begin(stack, producer, "acme%sparks", "of acme")
    begin(stack, producer, "beta%sparks", "of beta")
    begin(stack, producer, "sparks", "of nobody")
    found = read(stack, topics="*", tenant="acme")
    assert {(row["topic"], row["body"]) for row in found} == {("sparks", b"of acme")}
    source = source_of(stack, tenant="beta", topic="sparks")
    body = pa.record_batch({"body": pa.array([b"written"], pa.binary())})
    schema = StructType([StructField("body", BinaryType(), False)])
    source.writer(schema, False).write(iter([body]))
    whole = read(stack, topics="beta%sparks")
    assert [row["body"] for row in whole] == [b"of beta", b"written"]


def test_a_batch_of_a_stream_is_bounded_and_one_without_a_bound_takes_all(
    stack: Stack, producer: SyncProducer
) -> None:
    begin(stack, producer, "bounded", *map(str, range(10)))
    query = Query(stack, topics="bounded", max_records_per_batch="4")
    assert query.batch() == ["0", "1", "2", "3"]
    assert query.reader.reportLatestOffset() == {"broker-0": 1, "broker-0/bounded/0": 10}
    assert query.reader.latestOffset(query.offsets, ReadAllAvailable())["broker-0/bounded/0"] == 10


def test_reading_starts_and_ends_at_times(stack: Stack, producer: SyncProducer) -> None:
    def times() -> list[dt.datetime]:
        return [row["store_time"] for row in read(stack, topics="timed", columns="store_time")]

    begin(stack, producer, "timed", "before", "it")
    stored = times()[-1]
    wait_until(lambda: dt.datetime.now(dt.UTC) > stored + dt.timedelta(milliseconds=2), "a later millisecond")
    send(producer, "timed", "at", "it")
    moment = times()[2].isoformat()
    assert moment > stored.isoformat()

    def bodies(**options: str) -> list[bytes]:
        return [row["body"] for row in read(stack, topics="timed", **options)]

    assert bodies(starting_offsets=moment) == [b"at", b"it"]
    assert bodies(ending_offsets=moment) == [b"before", b"it"]
    assert bodies(starting_offsets=moment, ending_offsets=moment) == []
    assert bodies(starting_offsets=moment, ending_offsets=stored.isoformat()) == []
    assert bodies(starting_offsets="2999-01-01T00:00:00Z") == []
    assert len(bodies(starting_offsets="2000-01-01T00:00:00+01:00")) == 4
    query = Query(stack, topics="timed*", starting_offsets=moment)
    send(producer, "timed-later", "new")
    wait_until(lambda: "broker-0/timed-later/0" in query.plan(), "the registry lists the topic")
    assert sorted(query.batch()) == ["at", "it", "new"]


def test_a_stream_has_no_end_that_an_option_could_name(stack: Stack) -> None:
    for ending in ("2026-01-31T12:00:00Z", '{"broker-0/t/0": 4}'):
        with pytest.raises(UsageError, match="a stream has no end"):
            Query(stack, ending_offsets=ending)


def test_min_partitions_makes_tasks_of_few_records(stack: Stack, producer: SyncProducer) -> None:
    begin(stack, producer, "few", *map(str, range(5)))
    source = source_of(stack, topics="few", min_partitions="3", max_partitions="4")
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    assert len(partitions) == 3
    assert [row["body"] for row in rows_of(reader, partitions)] == [b"0", b"1", b"2", b"3", b"4"]


def test_an_available_now_query_stops_at_what_there_was(stack: Stack, producer: SyncProducer) -> None:
    begin(stack, producer, "now", "a", "b", "c")
    query = Query(stack, topics="now*", max_records_per_batch="2")
    query.reader.prepareForTriggerAvailableNow()
    send(producer, "now", "d")
    begin(stack, producer, "now-later", "e")
    assert query.batch() == ["a", "b"]
    assert query.batch() == ["c"]
    end = query.plan()
    assert query.run(end) == []
    assert query.plan() == end, "Spark ends the query when nothing changes"


def lose(stack: Stack, producer: SyncProducer, *topics: str) -> None:
    """Have retention take all that topics of one queue hold."""
    link = ClusterLink([stack.registry])

    # Bytes that no producer's compression makes less of.
    producer.send_bodies("filler", [os.urandom(1 << 16)] * (6 << 4))

    def is_gone() -> bool:
        held = link.snapshot(lambda name: name in topics).bounds
        return len(held) == len(topics) and all(bounds.first == bounds.end for bounds in held.values())

    try:
        wait_until(is_gone, "retention took the messages")
    finally:
        link.close()


def test_retention_that_overtakes_the_checkpoint_fails_the_query_or_is_counted(
    stack: Stack, producer: SyncProducer
) -> None:
    begin(stack, producer, "gone", *map(str, range(10)))
    failing = Query(stack, topics="gone", max_records_per_batch="4")
    assert failing.batch() == ["0", "1", "2", "3"]
    going_on = Query(stack, {LOST: 2, **failing.offsets}, topics="gone", fail_on_data_loss="false")
    planned = failing.plan()
    begin(stack, producer, "old", "a", "b")
    lose(stack, producer, "gone", "old")

    sentence = r"topic gone, queue 0 at broker broker-0: records 4 to {} are gone, retention removed them"
    with pytest.raises(DataLossError, match=sentence.format(9)):
        failing.plan()
    # A batch that was planned before, as one that is run again after a crash, says it when it is read.
    with pytest.raises(DataLossError, match=sentence.format(7)):
        failing.run(planned)
    with pytest.raises(DataLossError, match=sentence.format(9)):
        read(stack, topics="gone", starting_offsets='{"broker-0/gone/0": 4}')

    assert going_on.batch() == []
    assert going_on.offsets == {LOST: 8, "broker-0": 1, "broker-0/gone/0": 10}
    send(producer, "gone", "next")
    assert going_on.batch() == ["next"]
    assert going_on.offsets[LOST] == 8
    assert [row["body"] for row in read(stack, topics="gone")] == [b"next"]

    # A queue that is new to the query is read from the first record that there is.
    send(producer, "old", "c")
    fresh = Query(stack, topics="old")
    assert fresh.batch() == ["c"]
    assert LOST not in fresh.offsets


@pytest.fixture
def stopped(stack: Stack) -> Iterator[Callable[[], None]]:
    pid = stack.processes["broker"].pid
    yield lambda: os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)


def test_a_broker_that_is_away_delays_a_stream_and_fails_an_available_now_query(
    stack: Stack, producer: SyncProducer, stopped: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(stack, producer, "away", "a", "b")
    stream = Query(stack, topics="away")
    once = Query(stack, topics="away", read_timeout_ms="100")
    once.reader.prepareForTriggerAvailableNow()
    stopped()
    monkeypatch.setattr(link_module, "ASK_TIMEOUT_S", 2.0)
    assert stream.plan() == stream.offsets
    # It would end as if there were nothing left.
    with pytest.raises(TransportError, match="records to read at broker-0, and got no answer for"):
        once.plan()


def test_readers_travel_to_workers(stack: Stack) -> None:
    source = source_of(stack, topics="travel")
    for reader in (source.reader(source.schema()), source.streamReader(source.schema())):
        assert type(pickle.loads(pickle.dumps(reader))) is type(reader)
