"""The rows of the job's tables of throughput, as tests compare them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import NamedTuple

import deltalake

from spark_streaming.tables import TPS_1S_TABLE, TableSpec, fold


class TpsRow(NamedTuple):
    """What one topic received in one second, minute or hour.

    Messages, bytes of their bodies, largest latency in ms. `second` is the time at which it began.
    """

    second: dt.datetime
    topic: str
    messages: int
    bytes: int
    latency_max_ms: int


def read_tps(table_dir: str | Path, since: dt.datetime, table: TableSpec = TPS_1S_TABLE) -> list[TpsRow]:
    """Return one row per second (minute, hour) and topic from `since` (aware) on, ordered by both.

    Raises deltalake.exceptions.TableNotFoundError before the job's first start.
    """
    found = deltalake.DeltaTable(table_dir).to_pyarrow_table(
        filters=[(table.time, ">=", since.astimezone(dt.UTC))]
    )
    rows = fold(table, found).drop_columns("batch_id")
    return [TpsRow(*row.values()) for row in rows.to_pylist()]
