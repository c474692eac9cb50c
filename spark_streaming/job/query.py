"""One running query: batches of the source in, rows of a part's tables out, each batch exactly once."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Mapping
from typing import Final

import structlog
from prometheus_client import Counter, Histogram
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdmq.errors import HoldMQError
from holdmq.service.telemetry import METRICS
from spark_streaming.job.checkpoint import QueryCheckpoint
from spark_streaming.job.job_source import JOB_FORMAT, register
from spark_streaming.job.parts import QueryPart
from spark_streaming.job.progress import backlog_of
from spark_streaming.job.sink import Sink

BATCHES: Final = Counter(
    "holdmq_stats_batches_total",
    "Micro-batches, written or already there after a crash, by query.",
    ["query", "outcome"],
    registry=METRICS,
)
BATCH_SECONDS: Final = Histogram(
    "holdmq_stats_batch_seconds",
    "From the start of a batch's aggregation to its commit, by query.",
    ["query"],
    buckets=(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8),
    registry=METRICS,
)

PLANNER_POLL_S: Final = 0.1

log = structlog.get_logger("holdmq.stats")


class Query:
    """One part's query; `start` makes it. Its methods are called from any thread, and block."""

    def __init__(self, part: QueryPart, checkpoint: QueryCheckpoint, sink: Sink) -> None:
        self.part = part
        self._checkpoint = checkpoint
        self._sink = sink
        self._query: StreamingQuery | None = None
        self._app = ""
        self._failure: HoldMQError | None = None
        self._idle = threading.Condition()
        self._is_in_batch = False

    def start(self, spark: SparkSession, options: Mapping[str, str], is_once: bool) -> None:
        """Start counting what the source with `options` gives: until `stop`, or all that is there by now."""
        register(spark)
        stream = (
            spark.readStream.format(JOB_FORMAT)
            .options(**{**options, **self.part.options, "columns": self.part.columns})
            .load()
        )
        writer = stream.writeStream.foreachBatch(self._write).option(
            "checkpointLocation", str(self._checkpoint.path)
        )
        if is_once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.part.interval_ms} milliseconds")
        self._query = writer.start()

    def await_planner(self, wait_s: float) -> None:
        """Wait until the source's planner, a Python process, has answered once, at most `wait_s`."""
        deadline = time.monotonic() + wait_s
        query = self._started
        while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
            time.sleep(PLANNER_POLL_S)

    def await_end(self) -> None:
        """Wait until the query ends; raises what ended it, unless that was `stop` or there is no more."""
        try:
            self._started.awaitTermination()
        except Exception:
            # Spark shows what a batch raised as text in a sentence of its own.
            if self._failure is not None:
                raise self._failure from None
            raise

    def backlog(self) -> int | None:
        """Return how many records the last batch left unread, None before the first batch."""
        progress = self._started.lastProgress
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

    def close(self) -> None:
        """Give back what the sink holds; the query must have ended, or its JVM."""
        self._sink.close()

    @property
    def _started(self) -> StreamingQuery:
        assert self._query is not None, "start comes first"
        return self._query

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        with self._idle:
            self._is_in_batch = True
        try:
            self._write_batch(batch, batch_id)
        except HoldMQError as error:
            self._failure = error
            raise
        finally:
            with self._idle:
                self._is_in_batch = False
                self._idle.notify_all()

    def _write_batch(self, batch: DataFrame, batch_id: int) -> None:
        started = time.monotonic()
        part = self.part
        self._app = self._app or self._checkpoint.app
        if batch_id <= self._sink.last_batch(self._app):
            BATCHES.labels(part.name, "replayed").inc()
            return
        rows = part.rows(batch, batch_id)
        self._sink.write(self._app, batch_id, rows)
        BATCHES.labels(part.name, "written").inc()
        BATCH_SECONDS.labels(part.name).observe(time.monotonic() - started)
        part.written(rows)
        self._sink.maintain(dt.datetime.now(dt.UTC))
