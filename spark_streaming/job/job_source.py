"""The source as the job reads it: streams of the cluster's messages, and a batch of nothing to warm up with.

Spark starts Python workers, and a daemon for each kind of them, anew for a source that it learned of in
another way. With one source for both, warming up starts the very workers that the queries use afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_streaming.source import FORMAT, HoldMQDataSource
from spark_streaming.source.columns import arrow_schema
from spark_streaming.source.options import parse_options

JOB_FORMAT: Final = f"{FORMAT}_job"


class JobSource(HoldMQDataSource):
    """``format("holdmq_job")``: its streams are those of ``holdmq``, its batches have no rows."""

    @classmethod
    def name(cls) -> str:
        return JOB_FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NothingReader(parse_options(self.options).columns)


class _NothingReader(DataSourceReader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([], arrow_schema(self._names))


def register(spark: SparkSession) -> None:
    """Make the session know the source; again, it changes nothing."""
    spark.dataSource.register(JobSource)
