"""What the job counts: one query over the source for each part, with its own checkpoint and tables.

A part turns a micro-batch into rows of its tables; the query around it (`query.py`) writes them exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from holdmq.config import StatsSection
from spark_streaming.job import tps
from spark_streaming.tables import TPS_1H_TABLE, TPS_1M_TABLE, TPS_1S_TABLE, TableSpec

Rows = Mapping[str, pa.Table]
"""Rows of one batch by the name of their table; a table without rows may be missing."""

COUNTS: Final = "tps_1s"
"""The query that counts messages; it has the name of the table that it began with."""


class Part(NamedTuple):
    """One query: which columns of the source it reads, how often, and what it writes.

    `rows` is called with a batch of the source and its id, on the query's thread; it runs Spark and blocks.
    For the same records it returns the same rows. `written` is told of a batch that was written just now.
    """

    name: str
    """Of the directory of its checkpoint."""
    columns: str
    interval_ms: int
    tables: tuple[TableSpec, ...]
    rows: Callable[[DataFrame, int], Rows]
    written: Callable[[Rows], None]


def parts_of(stats: StatsSection) -> list[Part]:
    """Return everything that the job counts; their tables are all different."""
    return [
        Part(
            COUNTS,
            tps.COLUMNS,
            stats.trigger_interval_ms,
            (TPS_1S_TABLE, TPS_1M_TABLE, TPS_1H_TABLE),
            tps.rows_of,
            tps.note,
        )
    ]
