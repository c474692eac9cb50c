"""The table `backlog`: samples of what every consumer group has yet to consume, by topic and broker.

The job's driver asks the brokers, as `holdmq group lag` does, and writes a sample as one batch. A sample that
a crash, a broker or a registry prevented is not there: nobody can take it later.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import pyarrow as pa
import structlog
from prometheus_client import Counter, Gauge

from holdmq.analytics.schemas import BACKLOG, BACKLOG_SCHEMA
from holdmq.client.admin import Admin
from holdmq.client.statistics import BacklogView
from holdmq.config.model import Config
from holdmq.errors import HoldMQError
from holdmq.rpc.security import Security
from holdmq.service.telemetry import METRICS
from spark_streaming.job.sink import Sink
from spark_streaming.source.link import ROLE
from spark_streaming.tables import TableSpec, with_batch

ROWS_MAX: Final = 5_000
"""Rows that one broker gives a sample, the longest backlogs first; what it leaves out is a metric."""
SAMPLES_APP: Final = "holdmq-backlog"
"""The writer of every sample, as batches of a query have the query's id."""

BACKLOG_TABLE: Final = TableSpec(
    BACKLOG,
    1,
    BACKLOG_SCHEMA,
    ("time", "group", "topic", "broker"),
    {"lag": "max", "age_ms": "max", "batch_id": "max"},
)

SAMPLES: Final = Counter(
    "holdmq_stats_backlog_samples_total",
    "Samples of the groups' backlog: whole, of some brokers only, or none.",
    ["outcome"],
    registry=METRICS,
)
LEFT_OUT: Final = Gauge(
    "holdmq_stats_backlog_left_out_rows",
    "Groups' topics that the last sample left out, because a broker has more than it may give.",
    registry=METRICS,
)

log = structlog.get_logger("holdmq.stats")

Views = Mapping[str, BacklogView | HoldMQError]


async def sample_backlogs(config: Config, sink: Sink, *, is_once: bool = False) -> None:
    """Take a sample every ``stats.backlog_interval_s`` until cancelled; `is_once`: one, now.

    Raises HoldMQError when a sample cannot be written.
    """
    interval_s = config.stats.backlog_interval_s

    async def write(rows: pa.Table) -> None:
        await asyncio.to_thread(write_sample, sink, rows)

    async with Admin(
        config.registries(), role=ROLE, security=Security.of(config), cluster=config.client.cluster
    ) as admin:
        sampler = BacklogSampler(admin, write, interval_s)
        if is_once:
            await sampler.sample(dt.datetime.now(dt.UTC))
        else:
            await sampler.run(interval_s)


class BacklogSampler:
    """Takes samples on one event loop; `write` takes one sample's rows, without `batch_id`."""

    def __init__(self, admin: Admin, write: Callable[[pa.Table], Awaitable[None]], timeout_s: float) -> None:
        """`timeout_s`: how long a broker may take; the others' rows wait for it."""
        self._admin = admin
        self._timeout_s = timeout_s
        self._write = write
        self._known: set[str] = set()
        self._silent: dict[str, str] = {}

    async def run(self, interval_s: float) -> None:
        """Take a sample every `interval_s` until cancelled; raises what `write` raises."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self.sample(dt.datetime.now(dt.UTC))
            # A sample that took longer than the interval is followed by the next in the grid, not by a burst.
            due = max(due + interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def sample(self, time: dt.datetime) -> None:
        """Ask all brokers and write what they answer as the sample of `time`; says once who is away."""
        try:
            views: Views = await self._admin.backlog(rows_max=ROWS_MAX, timeout_s=self._timeout_s)
        except HoldMQError as error:
            self._note({"every broker": str(error)})
            SAMPLES.labels("none").inc()
            return
        answers = {broker: view for broker, view in views.items() if isinstance(view, BacklogView)}
        self._known |= views.keys()
        self._note(
            {
                broker: str(views.get(broker, "no registry lists it"))
                for broker in sorted(self._known - answers.keys())
            }
        )
        rows = backlog_rows(answers, time)
        if rows.num_rows:
            await self._write(rows)
        LEFT_OUT.set(sum(view.left_out for view in answers.values()))
        SAMPLES.labels("whole" if not self._silent else "part" if answers else "none").inc()

    def _note(self, silent: dict[str, str]) -> None:
        if silent.keys() == self._silent.keys():
            return
        for broker in silent.keys() - self._silent.keys():
            log.warning("the backlog is sampled without it", broker=broker, reason=silent[broker])
        for broker in self._silent.keys() - silent.keys():
            log.info("the backlog is sampled with it again", broker=broker)
        self._silent = silent


def write_sample(sink: Sink, rows: pa.Table) -> None:
    """Write the rows of one sample as the next batch of `sink`, whose only table is `backlog`; blocks."""
    batch_id = sink.last_batch(SAMPLES_APP) + 1
    sink.write(SAMPLES_APP, batch_id, {BACKLOG: with_batch(rows, batch_id).cast(BACKLOG_SCHEMA)})
    sink.maintain(dt.datetime.now(dt.UTC))


def backlog_rows(views: Mapping[str, BacklogView], time: dt.datetime) -> pa.Table:
    """Return the rows of one sample, without `batch_id`: one by group, topic and broker."""
    return pa.Table.from_pylist(
        [
            {
                "time": time,
                "group": row.group,
                "topic": row.topic,
                "broker": broker,
                "lag": row.messages,
                "age_ms": max(0, view.now_ms - row.oldest_ms) if row.oldest_ms else 0,
            }
            for broker, view in sorted(views.items())
            for row in view.rows
        ],
        BACKLOG_SCHEMA.remove(BACKLOG_SCHEMA.get_field_index("batch_id")),
    )
