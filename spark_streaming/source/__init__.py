"""The `holdmq` data source of Spark, batch and stream."""

from spark_streaming.source.reader import FORMAT, HoldMQDataSource

__all__ = ["FORMAT", "HoldMQDataSource"]
