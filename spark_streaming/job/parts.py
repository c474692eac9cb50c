"""What the job counts: one query over the source for each part, with its own checkpoint and tables.

A part turns a micro-batch into rows of its tables; the query around it (`query.py`) writes them exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from holdmq.config.analytics import StatsSection
from spark_streaming.job import devices, tps
from spark_streaming.job.latency import LATENCY_TABLE
from spark_streaming.tables import TPS_1H_TABLE, TPS_1M_TABLE, TPS_1S_TABLE, TableSpec

Rows = Mapping[str, pa.Table]
"""Rows of one batch by the name of their table; a table without rows may be missing."""

COUNTS: Final = "tps_1s"
"""The query that counts messages; it has the name of the table that it began with."""
DEVICES: Final = "devices_1m"
"""The query that counts devices and finds top talkers."""


class QueryPart(NamedTuple):
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
    options: Mapping[str, str] = MappingProxyType({})
    """Options of the source that are others than the job's."""
    is_beside: bool = False
    """Whether its batches take so long that they leave half of the cores to others."""

    def tasks_max(self, cores: int) -> int:
        """Return how many of `cores` a batch may take at once."""
        return max(1, cores // 2) if self.is_beside else cores


def parts_of(stats: StatsSection) -> list[QueryPart]:
    """Return everything that the job counts as it is configured."""
    return [part for part in every_part(stats) if stats.devices or part.name != DEVICES]


def every_part(stats: StatsSection) -> list[QueryPart]:
    """Return everything that the job can count; their tables are all different."""
    counts = QueryPart(
        COUNTS,
        tps.COLUMNS,
        stats.trigger_interval_ms,
        (TPS_1S_TABLE, TPS_1M_TABLE, TPS_1H_TABLE, LATENCY_TABLE),
        tps.rows_of,
        tps.note,
    )
    return [counts, _devices(stats)]


def _devices(stats: StatsSection) -> QueryPart:
    return QueryPart(
        DEVICES,
        devices.COLUMNS,
        stats.devices_interval_s * 1000,
        (devices.DEVICES_TABLE, devices.TALKERS_TABLE),
        partial(devices.rows_of, talkers_max=stats.talkers_max),
        devices.note,
        {"max_records_per_batch": str(stats.devices_records_per_batch_max)},
        # A batch of a minute takes seconds: the batch of every second finds another core free.
        is_beside=True,
    )
