"""The TPS query: messages, bytes and largest latency by topic and second of the broker's store time.

Each micro-batch is aggregated by itself and its rows carry its id; readers sum over batches. There is no
watermark and no state, so a topic that lags loses nothing, and there is nothing to rebuild after a crash.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from prometheus_client import Counter, Gauge, Histogram
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from holdmq.errors import StartupError
from holdmq.telemetry import METRICS
from spark_streaming.job.sink import Sink
from spark_streaming.tables import TPS_1S_SCHEMA

COLUMNS: Final = "topic,store_time,born_time,body_size"

BATCHES: Final = Counter(
    "holdmq_stats_batches_total",
    "Micro-batches, written or already there after a crash.",
    ["outcome"],
    registry=METRICS,
)
MESSAGES: Final = Counter("holdmq_stats_messages_total", "Messages counted.", registry=METRICS)
BATCH_SECONDS: Final = Histogram(
    "holdmq_stats_batch_seconds",
    "From the start of a batch's aggregation to its commit.",
    buckets=(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8),
    registry=METRICS,
)
NEWEST_SECOND: Final = Gauge(
    "holdmq_stats_newest_second_timestamp_seconds", "The newest second in the table.", registry=METRICS
)

log = structlog.get_logger("holdmq.stats")


class TpsJob:
    """One running TPS query; `start` makes it. Its methods are called from any thread, and block."""

    def __init__(self, checkpoint: Path, sink: Sink) -> None:
        """`checkpoint` and `sink` belong together: StartupError when only one of them is there."""
        self._checkpoint = checkpoint
        self._sink = sink
        self._query: StreamingQuery | None = None
        self._app = ""
        self._idle = threading.Condition()
        self._is_in_batch = False
        if not (checkpoint / "metadata").exists() and not sink.is_empty():
            raise StartupError(
                f"the table {sink.path} has rows, but its checkpoint {checkpoint} is gone: counting again "
                "from the log would count twice; restore the checkpoint, or move the table away to count anew"
            )

    def start(self, spark: SparkSession, options: Mapping[str, str], interval_ms: int) -> None:
        """Start counting what the source with `options` gives, a batch every `interval_ms`."""
        stream = spark.readStream.format("holdmq").options(**options, columns=COLUMNS).load()
        self._query = (
            stream.writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{interval_ms} milliseconds")
            .start()
        )

    def await_end(self) -> None:
        """Wait until the query ends; raises what ended it, unless that was `stop`."""
        assert self._query is not None, "start comes first"
        self._query.awaitTermination()

    def backlog(self) -> int | None:
        """Return how many records the last batch left unread, None before the first batch."""
        assert self._query is not None, "start comes first"
        progress = self._query.lastProgress
        if progress is None:
            return None
        return sum(backlog_of(source.endOffset, source.latestOffset) for source in progress.sources)

    def stop(self, wait_s: float) -> None:
        """End the query after the batch that is running, if that ends within `wait_s`.

        A batch that is cut off is replayed at the next start, and counted once.
        """
        with self._idle:
            self._idle.wait_for(lambda: not self._is_in_batch, wait_s)
        if self._query is not None:
            try:
                self._query.stop()
            except (Py4JError, OSError, PySparkException) as error:
                log.warning("a batch was cut off, the next start replays it", reason=str(error))

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        with self._idle:
            self._is_in_batch = True
        try:
            self._write_batch(batch, batch_id)
        finally:
            with self._idle:
                self._is_in_batch = False
                self._idle.notify_all()

    def _write_batch(self, batch: DataFrame, batch_id: int) -> None:
        started = time.monotonic()
        if not self._app:
            self._app = app_of(self._checkpoint)
        if batch_id <= self._sink.last_batch(self._app):
            BATCHES.labels("replayed").inc()
            return
        rows = as_rows(aggregate(batch).toArrow(), batch_id)
        self._sink.write(self._app, batch_id, rows)
        BATCHES.labels("written").inc()
        BATCH_SECONDS.observe(time.monotonic() - started)
        if rows.num_rows:
            MESSAGES.inc(pc.sum(rows["messages"]).as_py())
            NEWEST_SECOND.set(pc.max(rows["second"]).as_py().timestamp())
        self._sink.maintain(dt.datetime.now(dt.UTC))


def aggregate(batch: DataFrame) -> DataFrame:
    """Return second, topic, messages, bytes and latency_max_ms of a batch of the source."""
    latency = F.unix_millis("store_time") - F.unix_millis("born_time")
    return batch.groupBy(F.date_trunc("second", "store_time").alias("second"), "topic").agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum("body_size").alias("bytes"),
        F.greatest(F.max(latency), F.lit(0)).alias("latency_max_ms"),
    )


def as_rows(aggregated: pa.Table, batch_id: int) -> pa.Table:
    """Return the rows of `tps_1s` for what `aggregate` computed."""
    ids = pa.array([batch_id] * aggregated.num_rows, pa.int64())
    return aggregated.append_column("batch_id", ids).select(TPS_1S_SCHEMA.names).cast(TPS_1S_SCHEMA)


def app_of(checkpoint: Path) -> str:
    """Return the Delta application id of a checkpoint: Spark's id of the query, which lives in it."""
    query = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))
    return f"holdmq-tps-{query['id']}"


def backlog_of(end: str | None, latest: str | None) -> int:
    """Return the records between a source's end and latest offsets, as a progress report has them."""
    read, held = _offsets(end), _offsets(latest)
    return sum(max(0, offset - read.get(key, 0)) for key, offset in held.items() if "/" in key)


def _offsets(text: str | None) -> dict[str, int]:
    found = json.loads(text) if text else None
    return found if isinstance(found, dict) else {}
