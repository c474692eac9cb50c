"""A query of Spark's counts each message once while its broker changes leaders in the middle of batches."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from processes import wait_until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from replica_processes import replica_stack

from holdmq.client.sync import SyncProducer
from holdmq.config.analytics import StatsSection
from holdmq.message import Message
from spark_streaming.job.session import start_session

# Started beside other tests, a JVM and the replicas take their time.
pytestmark = pytest.mark.timeout(400)

TOPICS = ("floor", "roof")
SEND_S = 100.0
PAUSE_S = 0.02
TOGETHER_S = 90.0


class Row(NamedTuple):
    """A message as the query got it."""

    topic: str
    queue: int
    offset: int
    body: bytes


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    stats = StatsSection(data_dir=str(tmp_path_factory.mktemp("spark")), cores=2)
    session = start_session(stats, lambda _: None)
    yield session.spark
    session.stop()


class Devices:
    """Sends to all topics until `stop`, and knows what was acknowledged."""

    def __init__(self, registries: list[str]) -> None:
        self.acknowledged: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self._registries = registries
        self._stopping = threading.Event()
        pool = ThreadPoolExecutor(1)
        self._sending = pool.submit(self._send)
        pool.shutdown(wait=False)

    def stop(self) -> None:
        """Send no more; raises what sending raised."""
        self._stopping.set()
        self._sending.result()

    @property
    def sent(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def _send(self) -> None:
        with SyncProducer(self._registries, send_timeout_s=SEND_S) as producer:
            number = 0
            while not self._stopping.is_set():
                for topic in TOPICS:
                    bodies = [b"%d" % (number + more) for more in range(5)]
                    producer.send_batch([Message(topic, body) for body in bodies])
                    self.acknowledged[topic] += bodies
                number += 5
                time.sleep(PAUSE_S)


class Counting:
    """The query's batches, by their ids."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {}
        self._in_next: Callable[[], None] | None = None

    @property
    def counted(self) -> int:
        return sum(map(len, self.rows.values()))

    def in_next_batch(self, work: Callable[[], None]) -> None:
        """Do something once a batch is planned and before it is read; back when that batch was read."""
        self._in_next = work
        wait_until(lambda: self._in_next is None, "a batch is read", TOGETHER_S)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Read a batch: Spark runs the tasks here."""
        work = self._in_next
        if work is not None:
            work()
        rows = [Row(*row) for row in batch.select("topic", "queue", "offset", "body").collect()]
        assert batch_id not in self.rows
        self.rows[batch_id] = [row._replace(body=bytes(row.body)) for row in rows]
        if work is not None:
            self._in_next = None


def start_query(spark: SparkSession, counting: Counting, options: dict[str, Any]) -> StreamingQuery:
    return (
        spark.readStream.format("holdmq")
        .options(columns="topic,queue,offset,body", **options)
        .load()
        .writeStream.foreachBatch(counting.write)
        .start()
    )


def test_every_offset_is_counted_once_though_leaders_are_killed_and_switched_in_the_middle_of_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    with replica_stack(tmp_path, **{"broker.topic_queues_default": 3}) as shard:
        devices = Devices(shard.registries)
        counting = Counting()
        query = start_query(spark, counting, {"registry": shard.registries[0], "topics": ",".join(TOPICS)})
        try:
            wait_until(lambda: len(counting.rows) > 1, "the query counts", TOGETHER_S)
            first = shard.leader()
            counting.in_next_batch(lambda: shard.kill(first))
            second = shard.leader()
            assert second not in ("", first)
            shard.start_again(first)
            shard.wait_in_sync()
            counting.in_next_batch(lambda: shard.switch(second, first))
            # On a busy machine another one than was asked may be quicker.
            assert shard.wait_leader(second) != second
            sent = devices.sent
            wait_until(lambda: devices.sent > sent + 100, "devices go on", TOGETHER_S)
            devices.stop()
            wait_until(
                lambda: counting.counted >= devices.sent or not query.isActive, "all is counted", TOGETHER_S
            )
            assert query.isActive, query.exception()
        finally:
            query.stop()
            devices.stop()
    rows = [row for batch in counting.rows.values() for row in batch]
    for topic in TOPICS:
        found = [row for row in rows if row.topic == topic]
        bodies = Counter(row.body for row in found)
        assert bodies == Counter(devices.acknowledged[topic])
        for queue in {row.queue for row in found}:
            offsets = [row.offset for row in found if row.queue == queue]
            assert sorted(offsets) == list(range(len(offsets)))
