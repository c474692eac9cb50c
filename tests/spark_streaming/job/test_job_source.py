from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from holdmq.config.analytics import StatsSection
from spark_streaming.job.devices import COLUMNS
from spark_streaming.job.job_source import JobSource
from spark_streaming.job.parts import every_part
from spark_streaming.source.columns import arrow_schema
from spark_streaming.source.reader import StreamReader


def test_a_batch_has_the_columns_of_a_part_and_no_rows_and_needs_no_cluster() -> None:
    for part in every_part(StatsSection()):
        source = JobSource({"columns": part.columns, "registry": "127.0.0.1:1"})
        found = list(source.reader(source.schema()).read(InputPartition(None)))
        assert [batch.num_rows for batch in found] == [0]
        assert found[0].schema == arrow_schema(tuple(part.columns.split(",")))


def test_a_stream_is_the_source_s() -> None:
    source = JobSource({"columns": COLUMNS, "starting_offsets": "earliest"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    assert reader.initialOffset() == {}
