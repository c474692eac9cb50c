"""Messages, bytes and largest latency by topic and second of the broker's store time, minute and hour.

Each micro-batch is aggregated by itself and its rows carry its id; readers sum over batches. There is no
watermark and no state, so a topic that lags loses nothing, and there is nothing to rebuild after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import Counter, Gauge
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from holdmq.analytics.schemas import LATENCY
from holdmq.service.telemetry import METRICS
from spark_streaming.job.latency import bucket, latency_rows
from spark_streaming.tables import (
    TPS_1H,
    TPS_1H_TABLE,
    TPS_1M,
    TPS_1M_TABLE,
    TPS_1S,
    TPS_1S_TABLE,
    TableSpec,
    fold,
    with_batch,
)

COLUMNS: Final = "topic,store_time,born_time,body_size"

MESSAGES: Final = Counter("holdmq_stats_messages_total", "Messages counted.", registry=METRICS)
NEWEST_SECOND: Final = Gauge(
    "holdmq_stats_newest_second_timestamp_seconds", "The newest second in the table.", registry=METRICS
)


def aggregate(batch: DataFrame) -> DataFrame:
    """Return second, topic, le_ms, messages, bytes and latency_max_ms of a batch of the source.

    `le_ms` is the bucket of the table `latency`: one pass over the messages is enough for all tables.
    """
    latency = F.unix_millis("store_time") - F.unix_millis("born_time")
    second = F.date_trunc("second", "store_time").alias("second")
    return batch.groupBy(second, "topic", bucket(latency).alias("le_ms")).agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum("body_size").alias("bytes"),
        F.greatest(F.max(latency), F.lit(0)).alias("latency_max_ms"),
    )


def rows_of(batch: DataFrame, batch_id: int) -> Mapping[str, pa.Table]:
    """Return the rows of all tables for a batch of the source; runs Spark, and blocks."""
    aggregated = aggregate(batch).toArrow()
    seconds = as_rows(aggregated, batch_id)
    minutes = rolled_up(seconds, TPS_1S_TABLE, TPS_1M_TABLE)
    return {
        TPS_1S: seconds,
        TPS_1M: minutes,
        TPS_1H: rolled_up(minutes, TPS_1M_TABLE, TPS_1H_TABLE),
        LATENCY: latency_rows(aggregated, batch_id),
    }


def as_rows(aggregated: pa.Table, batch_id: int) -> pa.Table:
    """Return the rows of `tps_1s` for what `aggregate` computed."""
    return fold(TPS_1S_TABLE, with_batch(aggregated, batch_id))


def rolled_up(rows: pa.Table, source: TableSpec, target: TableSpec) -> pa.Table:
    """Return rows of `source` summed by the minutes or hours of `target`; the other columns are the same."""
    time = target.schema.field(0)
    starts = pc.floor_temporal(rows[source.time], unit=time.name).cast(time.type)
    return fold(target, rows.set_column(0, time, starts))


def note(rows: Mapping[str, pa.Table]) -> None:
    """Take what was written into the metrics."""
    seconds = rows[TPS_1S]
    if seconds.num_rows:
        MESSAGES.inc(pc.sum(seconds["messages"]).as_py())
        NEWEST_SECOND.set(pc.max(seconds["second"]).as_py().timestamp())
