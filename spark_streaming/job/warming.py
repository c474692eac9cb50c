"""Runs the job's plan once over nothing, before the first message.

Loading classes, compiling the plan and starting Python workers takes seconds on a small machine. Done at
start they delay readiness; left to the first batch they would delay the first row that somebody waits for.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_streaming.job.tps import COLUMNS, aggregate
from spark_streaming.source.columns import arrow_schema, spark_schema

_NAMES = tuple(COLUMNS.split(","))


class NothingSource(DataSource):
    """A source with the columns that the job reads, and no rows; needs no cluster."""

    @classmethod
    def name(cls) -> str:
        return "holdmq_nothing"

    def schema(self) -> StructType:
        return spark_schema(_NAMES)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NothingReader()


class _NothingReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([], arrow_schema(_NAMES))


def warm_up(spark: SparkSession) -> None:
    """Run the aggregation over a source without rows; blocking, 1–3 s."""
    spark.dataSource.register(NothingSource)
    aggregate(spark.read.format(NothingSource.name()).load()).toArrow()
