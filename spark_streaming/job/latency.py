"""The table `latency`: messages by minute, topic and how long after their born time they were stored.

Percentiles cannot be summed; counts in buckets can. A device whose clock runs ahead counts into the first.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from holdmq.analytics.schemas import LATENCY, LATENCY_ABOVE_MS, LATENCY_BOUNDS_MS, LATENCY_SCHEMA
from spark_streaming.tables import TableSpec, fold, with_batch

LATENCY_TABLE: Final = TableSpec(
    LATENCY,
    1,
    LATENCY_SCHEMA,
    ("minute", "topic", "le_ms"),
    {"messages": "sum", "batch_id": "max"},
    2 * 3600,
)


def bucket(latency_ms: Column) -> Column:
    """Return the upper bound (`le_ms`) of the bucket that a latency in ms belongs to."""
    chosen = F.when(latency_ms <= LATENCY_BOUNDS_MS[0], LATENCY_BOUNDS_MS[0])
    for bound in LATENCY_BOUNDS_MS[1:-1]:
        chosen = chosen.when(latency_ms <= bound, bound)
    return chosen.otherwise(LATENCY_ABOVE_MS).cast("long")


def latency_rows(counted: pa.Table, batch_id: int) -> pa.Table:
    """Return the rows of `latency` for `counted`, which has second, topic, le_ms and messages."""
    minutes = pc.floor_temporal(counted["second"], unit="minute").cast(LATENCY_SCHEMA.field("minute").type)
    return fold(LATENCY_TABLE, with_batch(counted.append_column("minute", minutes), batch_id))
