"""``format("holdmq")``: the data source, its batch reader and its stream reader.

Spark pickles these objects and sends them to planner and worker processes, so they hold options and
plain state only; connections come from `link_to`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdmq.errors import TransportError, UsageError
from spark_streaming.source.columns import arrow_schema, build_batch, spark_schema
from spark_streaming.source.link import Snapshot, link_to
from spark_streaming.source.offsets import Offsets, Range, advance, cut_back, ranges
from spark_streaming.source.options import Options, parse_options
from spark_streaming.source.plan import split
from spark_streaming.source.ranges import RangeReader

FORMAT: Final = "holdmq"

log = structlog.get_logger("holdmq.spark")


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges_: Sequence[Range]) -> None:
        super().__init__(tuple(ranges_))


class HoldMQDataSource(DataSource):
    """Topics of a HoldMQ cluster as a table of messages; options: `options.OPTIONS`.

    Register it with ``spark.dataSource.register(HoldMQDataSource)``.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(_checked(self.options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = _checked(self.options, schema)
        if options.ending is not None:
            raise UsageError("format holdmq: ending_offsets is for batch reads; a stream has no end")
        return StreamReader(options)


def _checked(given: Any, schema: StructType) -> Options:
    options = parse_options(given)
    if schema != spark_schema(options.columns):
        raise UsageError(
            f"format holdmq: the schema is fixed by the option columns ({','.join(options.columns)}); "
            "choose columns there, not with .schema(…)"
        )
    return options


def _read(options: Options, wanted: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(options.columns)
    answers = RangeReader(
        link_to(options.registries, options.security),
        wanted,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_s=options.read_timeout_s,
    )
    for answer in answers:
        batch = build_batch(answer, schema, options.tags)
        if batch.num_rows:
            yield batch


def _whole_snapshot(options: Options, why: str) -> Snapshot:
    found = link_to(options.registries, options.security).snapshot(options.is_wanted)
    if found.silent:
        raise TransportError(f"{why} needs every broker, and {', '.join(found.silent)} did not answer")
    return found


class _BatchReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        held = _whole_snapshot(options, "a batch read")
        last = advance({}, held.bounds, held.epochs, None)
        start = last if options.starting_latest else {**(options.starting or {})}
        wanted = ranges(start, last if options.ending is None else {**last, **options.ending})
        firsts = {queue: bounds.first for queue, bounds in held.bounds.items()}
        # Spark takes an empty list for "one partition"; its value None says that there is nothing to read.
        return [RangesPartition(part) for part in split(wanted, options.max_partitions, firsts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition.value or ())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream side: one object lives in the driver's planner for as long as the query runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._target: Offsets | None = None
        self._newest: Offsets | None = None
        self._silent: tuple[str, ...] = ()

    def initialOffset(self) -> Offsets:  # noqa: N802
        options = self._options
        if options.starting_latest:
            held = _whole_snapshot(options, "starting at latest")
            return advance({}, held.bounds, held.epochs, None)
        return dict(options.starting or {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_records)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return where the next batch ends; `start` for every queue whose broker does not answer."""
        try:
            held = link_to(self._options.registries, self._options.security).snapshot(self._options.is_wanted)
        except TransportError as error:
            self._note_silent(("every registry",), str(error))
            return start
        self._note_silent(held.silent, "its queues wait")
        for gone in cut_back(start, held.bounds):
            log.warning("the log was cut", queue=str(gone.queue), offset=gone.end, goes_on_at=gone.start)
        bounds = held.bounds
        if self._target is not None:
            bounds = {
                queue: bound._replace(end=min(bound.end, self._target.get(str(queue), bound.first)))
                for queue, bound in bounds.items()
            }
        self._newest = advance(start, bounds, held.epochs, None)
        if isinstance(limit, ReadMaxRows):
            return advance(start, bounds, held.epochs, limit.max_rows)
        if isinstance(limit, ReadAllAvailable):
            return self._newest
        raise UsageError(f"format holdmq: {type(limit).__name__} is no limit that this source can keep")

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        return self._newest

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        held = _whole_snapshot(self._options, "an available-now query")
        self._target = advance({}, held.bounds, held.epochs, None)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return [RangesPartition(part) for part in split(ranges(start, end), self._options.max_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition.value or ())

    def _note_silent(self, silent: tuple[str, ...], why: str) -> None:
        if silent == self._silent:
            return
        self._silent = silent
        if silent:
            log.warning("no answer", silent=", ".join(silent), reason=why)
        else:
            log.warning("all brokers answer again")
