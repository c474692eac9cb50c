"""The tables `devices_1m` and `talkers_1m`: how many devices sent something, and which sent most.

Neither can be summed. Numbers of different devices are kept as sketches (Apache DataSketches HLL), which any
reader can merge over any minutes and topics; of the talkers only the first of each batch are kept.

The source's `client_id` is its dearest column, and a minute is soon enough: these tables have a query of
their own, once a minute, so that the counts of every second neither wait for it nor pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import Counter
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from holdmq.analytics.schemas import DEVICES_1M, DEVICES_1M_SCHEMA, SKETCH_LG_K, TALKERS_1M, TALKERS_1M_SCHEMA
from holdmq.analytics.sketches import estimate, merge_sketches
from holdmq.service.telemetry import METRICS
from spark_streaming.tables import TableSpec, with_batch

COLUMNS: Final = "topic,store_time,client_id"

TALKERS_TRACKED_MIN: Final = 1_024
"""Clients that Spark counts by minute and topic to find the first of them: with more, counts are estimates
within 0.2 % of the batch's messages. 32 KiB each at most."""


def _estimated(rows: pa.Table) -> pa.Table:
    estimates = pa.array([estimate([sketch]) for sketch in rows["sketch"].to_pylist()], pa.int64())
    return rows.set_column(
        rows.schema.get_field_index("devices"), DEVICES_1M_SCHEMA.field("devices"), estimates
    )


# A query a minute writes one row for a minute and topic, rarely two: there is nothing to fold.
DEVICES_TABLE: Final = TableSpec(
    DEVICES_1M,
    1,
    DEVICES_1M_SCHEMA,
    ("minute", "topic"),
    {"messages": "sum", "devices": "max", "sketch": merge_sketches, "batch_id": "max"},
    derive=_estimated,
)
TALKERS_TABLE: Final = TableSpec(
    TALKERS_1M,
    1,
    TALKERS_1M_SCHEMA,
    ("minute", "topic", "client_id"),
    {"messages": "sum", "batch_id": "max"},
)

TALKERS_LEFT_OUT: Final = Counter(
    "holdmq_stats_talkers_left_out_messages_total",
    "Messages of devices that were not among the stats.talkers_max first of their batch, minute and topic.",
    registry=METRICS,
)


def count_devices(batch: DataFrame, talkers_max: int) -> DataFrame:
    """Return minute, topic, messages, sketch, devices and talkers (array of item, count) of a batch.

    Messages without a client id (an SDK's) are not counted. `talkers_max`: most talkers by minute and topic.
    """
    tracked = max(TALKERS_TRACKED_MIN, talkers_max)
    counted = (
        batch.where(F.col("client_id").isNotNull())
        .groupBy(F.date_trunc("minute", "store_time").alias("minute"), "topic")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.hll_sketch_agg("client_id", F.lit(SKETCH_LG_K)).alias("sketch"),
            F.expr(f"approx_top_k(client_id, {talkers_max}, {tracked})").alias("talkers"),
        )
    )
    return counted.withColumn("devices", F.hll_sketch_estimate("sketch"))


def rows_of(batch: DataFrame, batch_id: int, talkers_max: int) -> Mapping[str, pa.Table]:
    """Return the rows of both tables for a batch of the source; runs Spark, and blocks."""
    return as_rows(count_devices(batch, talkers_max).toArrow(), batch_id)


def as_rows(counted: pa.Table, batch_id: int) -> Mapping[str, pa.Table]:
    """Return the rows of both tables for what `count_devices` computed."""
    lists = counted["talkers"].combine_chunks()
    talkers = pc.list_flatten(lists)
    of_row = pc.list_parent_indices(lists)
    rows = pa.table(
        {
            "minute": counted["minute"].take(of_row),
            "topic": counted["topic"].take(of_row),
            "client_id": pc.struct_field(talkers, "item"),
            "messages": pc.struct_field(talkers, "count"),
        }
    )
    return {
        DEVICES_1M: with_batch(counted, batch_id).select(DEVICES_1M_SCHEMA.names).cast(DEVICES_1M_SCHEMA),
        TALKERS_1M: with_batch(rows, batch_id).cast(TALKERS_1M_SCHEMA),
    }


def note(rows: Mapping[str, pa.Table]) -> None:
    """Take what was written into the metrics."""
    counted, kept = (pc.sum(rows[name]["messages"]).as_py() or 0 for name in (DEVICES_1M, TALKERS_1M))
    TALKERS_LEFT_OUT.inc(max(0, counted - kept))
