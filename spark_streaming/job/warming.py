"""Runs the job's plans once over nothing, before the first message.

Loading classes, compiling the plan and starting Python workers takes seconds on a small machine. Done at
start they delay readiness; left to the first batch they would delay the first row that somebody waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_streaming.job.parts import Part
from spark_streaming.source.columns import arrow_schema, spark_schema

_COLUMNS = "columns"


class NothingSource(DataSource):
    """A source with the columns that a part reads, and no rows; needs no cluster."""

    @classmethod
    def name(cls) -> str:
        return "holdmq_nothing"

    def schema(self) -> StructType:
        return spark_schema(_names(self))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NothingReader(_names(self))


class _NothingReader(DataSourceReader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([], arrow_schema(self._names))


def _names(source: DataSource) -> tuple[str, ...]:
    return tuple(source.options[_COLUMNS].split(","))


def warm_up(spark: SparkSession, parts: Iterable[Part]) -> None:
    """Have every part aggregate a batch without rows; blocking, 1–3 s each."""
    spark.dataSource.register(NothingSource)
    for part in parts:
        nothing = spark.read.format(NothingSource.name()).option(_COLUMNS, part.columns)
        part.rows(nothing.load(), 0)
