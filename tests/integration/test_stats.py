"""The whole path on real processes: SDK → broker → Spark → Delta, with kill -9 of each of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import Stack, free_port, wait_until
from pyspark.sql import DataFrame

from holdmq.client.producer import Producer
from holdmq.config import StatsSection
from holdmq.errors import ConfigError
from holdmq.message import Message
from spark_streaming.job.session import Session, start_session
from spark_streaming.source.link import Link
from spark_streaming.tables import TPS_1S, read_tps, table_path

EPOCH = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
PAUSE_S = 0.1
"""Between batches: a machine that starts a JVM again and again has better things to do than to count."""


class Cluster(Stack):
    """Registry and broker, and the job that counts."""

    def wait_counted(self, holds: Callable[[Counter[str]], bool], what: str) -> None:
        """Wait until the messages counted by topic satisfy `holds`, with a job that runs."""

        def check() -> bool:
            assert self.processes["stats"].poll() is None, f"the job ended: {self.log('stats')[-2000:]}"
            return holds(counted(self)[0])

        try:
            wait_until(check, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{counted(self)[0]}\n{self.log('stats')[-2000:]}") from error


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="holdmq-stats-") as directory:
        made = Cluster(Path(directory))
        try:
            made.start("registry")
            made.start("broker")
            yield made
        finally:
            for process in reversed(list(made.processes.values())):
                if process.poll() is None:
                    process.terminate()
                    process.wait(30)


class Load(threading.Thread):
    """Sends messages from a thread until it is told to stop, and counts what was stored."""

    def __init__(self, registry: str) -> None:
        super().__init__(name="load")
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.topics = ["devices", "cmd"]
        self.failure: BaseException | None = None
        self._registry = registry
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            asyncio.run(self._send())
        except BaseException as error:
            self.failure = error
            raise

    def finish(self) -> None:
        self._ended.set()
        self.join()
        assert self.failure is None

    async def _send(self) -> None:
        async with Producer([self._registry]) as producer:
            number = 0
            while not self._ended.is_set():
                for topic in list(self.topics):
                    number += 1
                    bodies = [b"b" * (1 + (number + i) % 200) for i in range(50)]
                    await producer.send_batch(
                        [Message(topic, body, tag=f"{i % 5}/temp") for i, body in enumerate(bodies)],
                        key=f"device-{number % 16}",
                    )
                    self.messages[topic] += len(bodies)
                    self.bytes[topic] += sum(map(len, bodies))
                await asyncio.sleep(PAUSE_S)


def counted(cluster: Cluster) -> tuple[Counter[str], Counter[str]]:
    messages: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for row in read_tps(table_path(cluster.directory / "stats", TPS_1S), EPOCH):
        messages[row.topic] += row.messages
        sizes[row.topic] += row.bytes
    return messages, sizes


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.timeout(300)
def test_every_message_is_counted_once_over_kill_9_of_job_jvm_and_broker(cluster: Cluster) -> None:
    load = Load(cluster.registry)
    load.start()
    try:
        stats = cluster.start("stats")
        cluster.wait_counted(lambda seen: seen["devices"] > 0, "the first rows are there")

        children = family(stats)
        assert any(child.name() == "java" for child in children)
        os.kill(stats.pid, signal.SIGKILL)
        stats.wait()
        wait_until(lambda: not any(child.is_running() for child in children), "nothing outlives the job", 20)

        stats = cluster.start("stats")
        before = counted(cluster)[0]["devices"]
        cluster.wait_counted(lambda seen: seen["devices"] > before, "it goes on after the kill")
        jvm = next(child for child in family(stats) if child.name() == "java")
        jvm.kill()
        assert stats.wait(30) == 1
        assert "the JVM of Spark ended with exit code -9" in cluster.log("stats")

        stats = cluster.start("stats")
        load.topics.append("later")
        cluster.wait_counted(lambda seen: seen["later"] > 0, "a topic made meanwhile is counted")
        broker = cluster.processes["broker"]
        os.kill(broker.pid, signal.SIGKILL)
        broker.wait()
        cluster.start("broker")
        sent = load.messages["devices"]
        wait_until(lambda: load.messages["devices"] > sent, "producing goes on after the broker's restart")
    finally:
        load.finish()
    cluster.wait_counted(lambda seen: seen >= load.messages, "all is counted")
    assert counted(cluster) == (load.messages, load.bytes)

    stats.terminate()
    assert stats.wait(30) == 0
    # As after a crash between the table's commit and Spark's: the last batch is replayed.
    commits = cluster.directory / "stats" / "checkpoints" / TPS_1S / "commits"
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    stats = cluster.start("stats")
    produce(cluster, Message("after", b"x"))
    cluster.wait_counted(lambda seen: seen["after"] > 0, "it goes on after the replay")
    assert cluster.metric("stats", 'holdmq_stats_batches_total{outcome="replayed"}') == 1
    assert counted(cluster) == (load.messages + Counter(after=1), load.bytes + Counter(after=1))
    stats.terminate()
    assert stats.wait(30) == 0


@pytest.fixture(scope="module")
def spark(cluster: Cluster) -> Iterator[Session]:
    said: list[str] = []
    settings = StatsSection(data_dir=str(cluster.directory / "session"))
    session = start_session(settings, said.append)
    yield session
    session.stop()
    assert session.jvm_exit_code() == 0
    assert said == []


def produce(cluster: Cluster, *messages: Message) -> None:
    async def send() -> None:
        async with Producer([cluster.registry]) as producer:
            await producer.send_batch(messages, key="one-device")

    asyncio.run(send())


def test_a_topic_is_a_table(cluster: Cluster, spark: Session) -> None:
    produce(cluster, *[Message("table", b"%d" % i, tag="even" if i % 2 == 0 else None) for i in range(10)])

    def load(**options: str) -> DataFrame:
        return spark.spark.read.format("holdmq").options(registry=cluster.registry, **options).load()

    rows = load(topics="table").orderBy("offset").collect()
    assert [bytes(row.body) for row in rows] == [b"%d" % i for i in range(10)]
    assert [row.tag for row in rows] == ["even", None] * 5
    assert {(row.topic, row.broker, row.body_size) for row in rows} == {("table", "broker-0", 1)}
    assert all(row.store_time >= row.born_time for row in rows)
    tagged = load(topics="tab*", tags="even", columns="offset,tag")
    assert tagged.count() == 5
    assert tagged.columns == ["offset", "tag"]
    key = f"broker-0/table/{rows[0].queue}"
    part = load(topics="table", starting_offsets=f'{{"{key}": 3}}', ending_offsets=f'{{"{key}": 7}}')
    assert sorted(row.offset for row in part.collect()) == [3, 4, 5, 6]
    assert load(topics="absent").count() == 0


def test_a_wrong_option_is_one_sentence(cluster: Cluster, spark: Session) -> None:
    with pytest.raises(Exception, match="option max_partitions = '0' must be a whole number") as caught:
        spark.spark.read.format("holdmq").option("max_partitions", "0").load()
    assert ConfigError.__name__ in str(caught.value)


def test_a_stream_keeps_its_bound_and_goes_on_where_it_stopped(
    cluster: Cluster, spark: Session, tmp_path: Path
) -> None:
    def run() -> list[int]:
        stream = spark.spark.readStream.format("holdmq").options(
            registry=cluster.registry, topics="bounded", columns="offset", max_records_per_batch="40"
        )
        written = stream.load().writeStream.format("parquet").trigger(availableNow=True)
        query = written.options(
            path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "check")
        ).start()
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    produce(cluster, *[Message("bounded", b"x") for _ in range(100)])
    assert run() == [40, 40, 20]
    produce(cluster, *[Message("bounded", b"x") for _ in range(7)])
    assert run() == [7]
    offsets = sorted(row.offset for row in spark.spark.read.parquet(str(tmp_path / "out")).collect())
    assert offsets == list(range(107))


def test_a_link_plans_without_brokers_that_are_away(cluster: Cluster) -> None:
    produce(cluster, Message("linked", b"x"))
    link = Link([f"127.0.0.1:{free_port()}", cluster.registry])
    try:
        held = link.snapshot(lambda topic: topic == "linked")
        assert sum(bounds.end for bounds in held.bounds.values()) == 1
        assert held.silent == ()
        broker = cluster.processes["broker"]
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            gone = link.snapshot(lambda topic: topic == "linked")
            assert (gone.bounds, gone.silent) == ({}, ("broker-0",))
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        wait_until(lambda: link.snapshot(lambda t: t == "linked").bounds == held.bounds, "it is back")
    finally:
        link.close()
