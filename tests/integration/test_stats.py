"""The source, and the job's queries over it, in one Spark session against a real broker."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import deltalake
import pytest
import structlog
from counted import stored_records
from processes import Stack, free_port, running_stack, wait_until
from pyspark.sql import DataFrame
from tps_rows import read_tps

from holdmq.analytics.reading import read_devices, read_latency, read_talkers
from holdmq.analytics.schemas import LATENCY
from holdmq.client.producer import Producer
from holdmq.config.analytics import StatsSection
from holdmq.config.model import Config
from holdmq.errors import ConfigError, HoldMQError
from holdmq.message import Message
from holdmq.service.process import Service
from holdmq.service.telemetry import METRICS
from spark_streaming import main
from spark_streaming.job.checkpoint import QueryCheckpoint
from spark_streaming.job.delta_sink import DeltaSink
from spark_streaming.job.home import JobDirectory
from spark_streaming.job.opening import open_query
from spark_streaming.job.parts import DEVICES, Rows, parts_of
from spark_streaming.job.session import SparkJobSession, start_session
from spark_streaming.job.sink import MAINTENANCE_BATCHES, retention_of
from spark_streaming.source import HoldMQDataSource
from spark_streaming.source.link import ClusterLink, link_to
from spark_streaming.tables import TPS_1H_TABLE, TPS_1M_TABLE, TPS_1S_TABLE, TableSpec, table_path

# The first of them waits for a JVM, and each for jobs of Spark's, beside all the other tests.
pytestmark = pytest.mark.timeout(900)

EPOCH = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
ALWAYS = (EPOCH, dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
SPECS = (TPS_1S_TABLE, TPS_1M_TABLE, TPS_1H_TABLE)
STEP_S = {"tps_1s": 1, "tps_1m": 60, "tps_1h": 3600}

# Messages and bytes of a table's rows, by start and topic.
Sums = dict[tuple[dt.datetime, str], tuple[int, int]]


def read_sums(data_dir: Path, spec: TableSpec) -> Sums:
    rows = read_tps(table_path(data_dir, spec.name), EPOCH, spec)
    return {(row.second, row.topic): (row.messages, row.bytes) for row in rows}


def summed(records: list[tuple[float, str, int]], spec: TableSpec) -> Sums:
    """What the table must say of records: (store time in s, topic, bytes of the body)."""
    messages: Counter[tuple[dt.datetime, str]] = Counter()
    sizes: Counter[tuple[dt.datetime, str]] = Counter()
    step_s = STEP_S[spec.name]
    for store_s, topic, size in records:
        key = (dt.datetime.fromtimestamp(int(store_s) // step_s * step_s, dt.UTC), topic)
        messages[key] += 1
        sizes[key] += size
    return {key: (messages[key], sizes[key]) for key in messages}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Stack]:
    with (
        tempfile.TemporaryDirectory(prefix="holdmq-stats-") as directory,
        running_stack(Path(directory), "registry", "broker") as made,
    ):
        yield made


@pytest.fixture(scope="module")
def spark(cluster: Stack) -> Iterator[SparkJobSession]:
    said: list[str] = []
    settings = StatsSection(data_dir=str(cluster.directory / "session"))
    session = start_session(settings, said.append)
    yield session
    session.stop(jvm_wait_s=100)
    assert session.jvm_end() == "ended with exit code 0"
    # Workers say that a broker which a test stopped is away, and nobody says anything else.
    assert [line for line in said if '"event": "not connected"' not in line] == []


def produce(cluster: Stack, *messages: Message) -> None:
    async def send() -> None:
        async with Producer([cluster.registry]) as producer:
            await producer.send_batch(messages, key="one-device")

    asyncio.run(send())


def test_a_topic_is_a_table(cluster: Stack, spark: SparkJobSession) -> None:
    produce(cluster, *[Message("table", b"%d" % i, tag="even" if i % 2 == 0 else None) for i in range(10)])
    wait_listed(cluster, "table")

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


def test_a_wrong_option_is_one_sentence(cluster: Stack, spark: SparkJobSession) -> None:
    with pytest.raises(Exception, match="option max_partitions = '0' must be a whole number") as caught:
        spark.spark.read.format("holdmq").option("max_partitions", "0").load()
    assert ConfigError.__name__ in str(caught.value)


def test_a_plan_that_spark_does_not_run_is_one_sentence(spark: SparkJobSession) -> None:
    def rows(batch: DataFrame, _batch_id: int) -> Rows:
        return {"tps_1s": batch.select("no_such_column").toArrow()}

    part = parts_of(StatsSection())[0]._replace(rows=rows)

    async def warm() -> None:
        service = Service("stats", Config(), structlog.get_logger(), asyncio.Event())
        await main._warmed_up(spark, [part], service)

    with pytest.raises(
        HoldMQError, match=r"^Spark does not run the job's plans: .*PYSPARK_PYTHON\) needs HoldMQ"
    ):
        asyncio.run(warm())


def wait_listed(cluster: Stack, topic: str) -> None:
    link = link_to((cluster.registry,))
    wait_until(lambda: bool(link.snapshot(lambda name: name == topic).bounds), f"{topic} is listed")


def test_filters_of_a_batch_read_are_the_source_s(cluster: Stack, spark: SparkJobSession) -> None:
    produce(cluster, *[Message("filtered", b"%d" % i, tag=str(i % 3)) for i in range(30)])
    produce(cluster, Message("filtered-not", b"x", tag="1"))
    wait_listed(cluster, "filtered-not")
    rows = spark.spark.read.format("holdmq").options(registry=cluster.registry, topics="filtered*").load()
    spark.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = rows.where("topic = 'filtered' AND tag IN ('1', '2') AND offset >= 9")
        plan = pushed._jdf.queryExecution().executedPlan().toString()
        (left,) = [line for line in plan.splitlines() if "Filter (" in line]
        assert "offset" in left, plan
        assert "tag" not in left, plan
        assert "topic" not in left, plan
        assert sorted(int(row.body) for row in pushed.collect()) == [i for i in range(9, 30) if i % 3]
    finally:
        spark.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_rows_are_written_to_topics_by_batches_and_streams(
    cluster: Stack, spark: SparkJobSession, tmp_path: Path
) -> None:
    rows = spark.spark.range(0, 100, 2).selectExpr("cast(id as string) body", "'even' tag")
    rows.write.format("holdmq").options(registry=cluster.registry, topic="written").mode("append").save()
    wait_listed(cluster, "written")
    stream = spark.spark.readStream.format("holdmq").options(
        registry=cluster.registry, topics="written", columns="tag,body"
    )
    written = stream.load().writeStream.format("holdmq").trigger(availableNow=True)
    query = written.options(
        registry=cluster.registry, topic="written-again", checkpointLocation=str(tmp_path / "check")
    ).start()
    query.awaitTermination()
    wait_listed(cluster, "written-again")
    source = HoldMQDataSource({"registry": cluster.registry, "topics": "written*"})
    reader = source.reader(source.schema())
    batches = [batch for one in reader.partitions() for batch in reader.read(one)]
    found = [(row["topic"], row["tag"], int(row["body"])) for b in batches for row in b.to_pylist()]
    wanted = [(topic, "even", i) for topic in ("written", "written-again") for i in range(0, 100, 2)]
    assert sorted(found) == wanted


def test_a_stream_keeps_its_bound_and_goes_on_where_it_stopped(
    cluster: Stack, spark: SparkJobSession, tmp_path: Path
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
    wait_listed(cluster, "bounded")
    assert run() == [40, 40, 20]
    produce(cluster, *[Message("bounded", b"x") for _ in range(7)])
    assert run() == [7]
    offsets = sorted(row.offset for row in spark.spark.read.parquet(str(tmp_path / "out")).collect())
    assert offsets == list(range(107))


def test_a_link_plans_without_brokers_that_are_away(cluster: Stack) -> None:
    produce(cluster, Message("linked", b"x"))
    wait_listed(cluster, "linked")
    link = ClusterLink([f"127.0.0.1:{free_port()}", cluster.registry])
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


def test_a_topic_with_an_hour_of_backlog_beside_a_live_one_is_counted_to_the_row(
    spark: SparkJobSession, tmp_path: Path
) -> None:
    (part,) = [part for part in parts_of(StatsSection()) if TPS_1S_TABLE in part.tables]
    sink = DeltaSink(tmp_path, part.tables, partial(retention_of, StatsSection()))
    sink.create()
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    records: list[tuple[float, str, int]] = []
    for batch_id in range(4):
        live = [(now.timestamp() + batch_id + i / 50, "live", 10 + i) for i in range(50)]
        # The late topic's seconds are up to an hour older than those that were counted before.
        late = [(now.timestamp() - 3600 + 900 * batch_id + i + 0.5, "late", i % 7) for i in range(900)]
        rows = [
            (topic, stored, stored - dt.timedelta(milliseconds=7), size)
            for at, topic, size in live + late
            for stored in [dt.datetime.fromtimestamp(at, dt.UTC)]
        ]
        batch = spark.spark.createDataFrame(
            rows, "topic string, store_time timestamp, born_time timestamp, body_size int"
        )
        assert sink.write("app", batch_id, part.rows(batch, batch_id))
        records += live + late
    for spec in SPECS:
        assert read_sums(tmp_path, spec) == summed(records, spec)
    latest = {row.latency_max_ms for row in read_tps(table_path(tmp_path, "tps_1h"), EPOCH, TPS_1H_TABLE)}
    assert latest == {7}
    for batch_id in range(4, MAINTENANCE_BATCHES):
        assert sink.write("app", batch_id, {})
    # Nothing is late for the housekeeping either.
    while sink.maintain(now):
        pass
    for spec in SPECS:
        assert read_sums(tmp_path, spec) == summed(records, spec)


def replayed() -> float:
    labels = {"query": "tps_1s", "outcome": "replayed"}
    return METRICS.get_sample_value("holdmq_stats_batches_total", labels) or 0.0


def test_a_backlog_made_before_is_counted_in_steps_beside_a_live_topic_and_once(
    cluster: Stack, spark: SparkJobSession, tmp_path: Path
) -> None:
    produce(cluster, *[Message("behind", b"x" * (i % 50)) for i in range(900)])
    stats = StatsSection(data_dir=str(tmp_path), trigger_interval_ms=100)
    home = JobDirectory(tmp_path)
    (part,) = [part for part in parts_of(stats) if TPS_1S_TABLE in part.tables]
    options = {
        "registry": cluster.registry,
        "topics": "behind,beside",
        "starting_offsets": "earliest",
        "max_records_per_batch": "120",
    }

    def counted() -> int:
        return sum(messages for messages, _ in read_sums(tmp_path, TPS_1H_TABLE).values())

    query = open_query(stats, home, part)
    query.start(spark.spark, options, is_once=False)
    for number in range(10):
        produce(cluster, *[Message("beside", b"y" * number) for _ in range(10)])
    wait_until(lambda: counted() >= 1000, "all is counted", 300)
    query.stop(100)
    query.close()
    # As after a crash between the tables' commits and Spark's: the last batch is replayed.
    checkpoint = QueryCheckpoint(home.checkpoint(part.name))
    last = deltalake.DeltaTable(table_path(tmp_path, "tps_1h")).transaction_version(checkpoint.app)
    (checkpoint.path / "commits" / f"{last}").unlink(missing_ok=True)
    (checkpoint.path / "commits" / f".{last}.crc").unlink(missing_ok=True)
    before = replayed()
    produce(cluster, Message("beside", b"after"))
    again = open_query(stats, home, part)
    again.start(spark.spark, options, is_once=True)
    again.await_end()
    assert replayed() == before + 1
    home.close()
    stored = stored_records(cluster, "behind", "beside")
    records = [(record.store_ms / 1000, record.topic, record.body_bytes) for record in stored]
    assert len(records) == 1001
    for spec in SPECS:
        assert read_sums(tmp_path, spec) == summed(records, spec)
    (latency,) = read_latency(table_path(tmp_path, LATENCY), *ALWAYS)
    assert latency.messages == 1001


def test_devices_are_counted_by_a_query_of_their_own_in_steps_and_once(
    cluster: Stack, spark: SparkJobSession, tmp_path: Path
) -> None:
    def send(start: int, end: int) -> None:
        devices = [f"device-{n % 30}" for n in range(start, end)]
        produce(
            cluster,
            *[Message("fleet", b"x", client_id=device) for device in devices],
            Message("fleet", b"sdk"),
        )

    stats = StatsSection(data_dir=str(tmp_path), devices_records_per_batch_max=40, talkers_max=30)
    (part,) = [part for part in parts_of(stats) if part.name == DEVICES]
    assert [p.name for p in parts_of(stats.model_copy(update={"devices": False}))] == [TPS_1S_TABLE.name]
    options = {"registry": cluster.registry, "topics": "fleet", "starting_offsets": "earliest"}
    home = JobDirectory(tmp_path)
    checkpoint = QueryCheckpoint(home.checkpoint(part.name))
    tables = [table_path(tmp_path, table.name) for table in part.tables]
    for start, end, batches in ((0, 99, 3), (99, 100, 4)):
        send(start, end)
        wait_listed(cluster, "fleet")
        query = open_query(stats, home, part)
        query.start(spark.spark, options, is_once=True)
        query.await_end()
        query.close()
        assert [deltalake.DeltaTable(table).transaction_version(checkpoint.app) for table in tables] == [
            batches - 1
        ] * 2
        # As after a crash between the tables' commits and Spark's: the last batch is replayed.
        (checkpoint.path / "commits" / f"{batches - 1}").unlink()
        # Their checksums, and what asks for their permissions, would be processes that each batch starts.
        assert not list(checkpoint.path.rglob("*.crc"))
    home.close()
    assert sum(deltalake.DeltaTable(tables[0]).to_pyarrow_table()["messages"].to_pylist()) == 100
    (found,) = read_devices(tables[0], *ALWAYS, topic="fleet")
    assert found.devices == 30
    talkers = read_talkers(tables[1], *ALWAYS, limit=100)
    assert {talker.client_id: talker.messages for talker in talkers} == Counter(
        f"device-{n % 30}" for n in range(100)
    )
