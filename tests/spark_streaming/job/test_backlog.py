from __future__ import annotations

import asyncio
import datetime as dt
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cluster_view import listed
from structlog.testing import capture_logs
from two_brokers import Cluster, two_brokers

from holdmq.analytics.reading import BacklogPoint, read_backlog
from holdmq.analytics.schemas import BACKLOG
from holdmq.client import Admin, GroupAdmin, Message, Producer, TopicQueue
from holdmq.client.statistics import BacklogView
from holdmq.wire.statistics_headers import BacklogRow
from spark_streaming.job.backlog import BACKLOG_TABLE, SAMPLES, BacklogSampler, backlog_rows, write_sample
from spark_streaming.job.delta_sink import DeltaSink
from spark_streaming.tables import table_path

NOON = dt.datetime(2026, 1, 2, 12, 0, tzinfo=dt.UTC)
TIMEOUT_S = 10.0
"""All of it is waited for a broker that is away: sampled twice without one, a test takes that long twice."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from two_brokers(tmp_path_factory.mktemp("backlog"))


def sampling_of(said: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the sampler said; its connections say something too."""
    return [(line["event"], line["broker"]) for line in said if "backlog is sampled" in line["event"]]


def test_a_sample_has_a_row_for_each_group_topic_and_broker() -> None:
    views = {
        "b1": BacklogView([BacklogRow("g", "clustering", "t", 7, 900, 4)], 1000, 0),
        "b0": BacklogView([BacklogRow("g", "", "t", 0, 0, 4), BacklogRow("h", "", "t", 1, 1005, 4)], 1000, 0),
    }
    rows = backlog_rows(views, NOON)
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (NOON, "g", "t", "b0", 0, 0),
        (NOON, "h", "t", "b0", 1, 0),
        (NOON, "g", "t", "b1", 7, 100),
    ]
    assert backlog_rows({}, NOON).schema.equals(rows.schema)


def test_samples_are_batches_that_go_on_after_a_restart(tmp_path: Path) -> None:
    view = BacklogView([BacklogRow("g", "", "t", 5, 0, 1)], 0, 0)
    for start in range(2):
        sink = DeltaSink(tmp_path, [BACKLOG_TABLE], lambda _: dt.timedelta(days=1))
        sink.standings("")
        sink.create()
        for second in range(2):
            time = NOON + dt.timedelta(minutes=start, seconds=second)
            write_sample(sink, backlog_rows({"b": view}, time))
    table = table_path(tmp_path, BACKLOG)
    found = read_backlog(table, NOON, NOON + dt.timedelta(hours=1), step_s=60)
    assert found == [BacklogPoint(NOON + dt.timedelta(minutes=start), "g", "", 5, 0) for start in range(2)]


async def test_what_groups_have_yet_to_consume_is_sampled_and_who_is_away_is_said_once(
    cluster: Cluster,
) -> None:
    written: list[pa.Table] = []

    async def write(rows: pa.Table) -> None:
        written.append(rows)

    async def sampled() -> Counter[tuple[str, str, str]]:
        await sampler.sample(dt.datetime.now(dt.UTC))
        rows = written.pop().to_pylist()
        return Counter({(row["group"], row["topic"], row["broker"]): row["lag"] for row in rows})

    registries = cluster.registries
    async with Producer(registries) as producer, Admin(registries) as admin, GroupAdmin(registries) as groups:
        await admin.create_topic("sampled", queues=2)
        await listed(registries, "sampled", 4)
        for broker, messages in (("broker-0", 3), ("broker-1", 5)):
            for queue_id in range(2):
                queue = TopicQueue("sampled", broker, queue_id)
                await producer.send_batch([Message("sampled", b"m")] * messages, queue=queue)
        await groups.update("billing")
        await groups.reset("billing", "sampled", "earliest")
        whole = {("billing", "sampled", "broker-0"): 6, ("billing", "sampled", "broker-1"): 10}

        sampler = BacklogSampler(admin, write, TIMEOUT_S)
        with capture_logs() as said:
            assert await sampled() == whole
            assert sampling_of(said) == []
            cluster.second.stop("broker", signal.SIGKILL)
            before = SAMPLES.labels("part")._value.get()
            for _ in range(2):
                assert await sampled() == {("billing", "sampled", "broker-0"): 6}
            assert sampling_of(said) == [("the backlog is sampled without it", "broker-1")]
            assert SAMPLES.labels("part")._value.get() == before + 2
            cluster.second.start("broker")
            # Its connection comes back in its own time.
            async with asyncio.timeout(100):
                while await sampled() != whole:
                    pass
            assert sampling_of(said)[1:] == [("the backlog is sampled with it again", "broker-1")]


async def test_without_a_registry_there_is_no_sample_and_nothing_ends(cluster: Cluster) -> None:
    async def write(rows: pa.Table) -> None:
        raise AssertionError(rows)

    async with Admin(["127.0.0.1:9"]) as admin:
        sampler = BacklogSampler(admin, write, TIMEOUT_S)
        with capture_logs() as said:
            await sampler.sample(NOON)
            await sampler.sample(NOON)
        assert sampling_of(said) == [("the backlog is sampled without it", "every broker")]
