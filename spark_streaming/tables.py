"""The tables that the job writes: where they lie, their schemas, and reading them without Spark.

docs/spark.md describes them for everybody who reads the directories directly.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final, NamedTuple

import deltalake
import pyarrow as pa

TPS_1S: Final = "tps_1s"

TPS_1S_SCHEMA: Final = pa.schema(
    [
        pa.field("second", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("messages", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("latency_max_ms", pa.int64(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
    ]
)


class TpsRow(NamedTuple):
    """What one topic received in one second: messages, bytes of their bodies, largest latency in ms."""

    second: dt.datetime
    topic: str
    messages: int
    bytes: int
    latency_max_ms: int


def table_path(data_dir: str | Path, name: str) -> Path:
    """Return the directory of the table `name` of a job whose ``stats.data_dir`` is `data_dir`."""
    return Path(data_dir) / "tables" / name


def read_tps(table_dir: str | Path, since: dt.datetime) -> list[TpsRow]:
    """Return one row per second and topic from `since` (aware) on, ordered by both.

    Raises deltalake.exceptions.TableNotFoundError before the job's first start.
    """
    table = deltalake.DeltaTable(table_dir)
    found = table.to_pyarrow_table(filters=[("second", ">=", since.astimezone(dt.UTC))])
    summed = found.group_by(["second", "topic"]).aggregate(
        [("messages", "sum"), ("bytes", "sum"), ("latency_max_ms", "max")]
    )
    ordered = summed.sort_by([("second", "ascending"), ("topic", "ascending")])
    names = ["second", "topic", "messages_sum", "bytes_sum", "latency_max_ms_max"]
    return [TpsRow(*row.values()) for row in ordered.select(names).to_pylist()]
