"""``format("holdmq")``: the data source, its batch reader and its stream reader (`writer` has the others).

Spark pickles these objects and sends them to planner and worker processes, so they hold options and
plain state only; connections come from `link_to`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
import structlog
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdmq.errors import TransportError, UsageError
from holdmq.message import TopicQueue
from spark_streaming.source.columns import arrow_schema, asked_of, build_batch, spark_schema
from spark_streaming.source.link import (
    ASK_TIMEOUT_S,
    ClusterLink,
    ColumnPuller,
    Positions,
    Snapshot,
    link_to,
)
from spark_streaming.source.offsets import (
    LOST,
    OffsetRange,
    Offsets,
    advance,
    cut_back,
    overtaken,
    parse_queue,
    ranges,
)
from spark_streaming.source.options import Options, parse_options, parse_write_options
from spark_streaming.source.plan import split
from spark_streaming.source.pushdown import Pushed, narrow, push
from spark_streaming.source.ranges import RETENTION, RETRY_MAX_S, RETRY_MIN_S, RangeReader, data_loss

FORMAT: Final = "holdmq"
PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"

A = TypeVar("A", Snapshot, Positions)

log = structlog.get_logger("holdmq.spark")


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges_: Sequence[OffsetRange]) -> None:
        super().__init__(tuple(ranges_))


class HoldMQDataSource(DataSource):
    """Topics of a HoldMQ cluster as a table of messages; options: `options.OPTIONS`.

    PySpark finds and registers it by itself (`pyspark_holdmq`).
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        kind = _FilteredReader if _takes_filters() else _BatchReader
        return kind(_checked(self.options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = _checked(self.options, schema)
        if options.ending is not None or options.ending_ms is not None:
            raise UsageError("format holdmq: ending_offsets is for batch reads; a stream has no end")
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        # The SDK's producer: readers start without it.
        from spark_streaming.source.writer import BatchWriter

        _refuse_overwriting(overwrite, 'mode("append")')
        return BatchWriter(parse_write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from spark_streaming.source.writer import StreamWriter

        _refuse_overwriting(overwrite, 'outputMode("append")')
        return StreamWriter(parse_write_options(self.options), schema)


def _refuse_overwriting(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise UsageError(f"format holdmq: a topic is only ever appended to; write with {instead}")


def _checked(given: Any, schema: StructType) -> Options:
    options = parse_options(given)
    if schema != spark_schema(options.columns):
        raise UsageError(
            f"format holdmq: the schema is fixed by the option columns ({','.join(options.columns)}); "
            "choose columns there, not with .schema(…)"
        )
    return options


def _read(
    options: Options, wanted: Sequence[OffsetRange], tags: frozenset[str] | None
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(options.columns)
    link = link_to(options.registries, options.security, options.cluster, options.tenant)
    answers = RangeReader(
        ColumnPuller(
            link,
            asked_of(options.columns),
            None if tags is None else sorted(tags),
            options.read_replicas,
        ),
        wanted,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_s=options.read_timeout_s,
    )
    for answer in answers:
        yield build_batch(answer, schema)


def _whole_snapshot(options: Options, why: str) -> Snapshot:
    link = link_to(options.registries, options.security, options.cluster, options.tenant)
    return _of_all(link, lambda: link.snapshot(options.is_wanted), why)


def _offsets_at(options: Options, store_ms: int, why: str) -> dict[TopicQueue, int]:
    link = link_to(options.registries, options.security, options.cluster, options.tenant)
    return _of_all(link, lambda: link.offsets_at(options.is_wanted, store_ms), why).offsets


def _of_all(link: ClusterLink, ask: Callable[[], A], why: str) -> A:
    """An answer that has no silent broker; those that have copies may be away for a failover."""
    began = time.monotonic()
    pause_s = RETRY_MIN_S
    while True:
        found = ask()
        if not found.silent:
            return found
        if time.monotonic() - began >= max(ASK_TIMEOUT_S, link.patience_s(found.silent)):
            raise TransportError(f"{why} needs every broker, and {', '.join(found.silent)} did not answer")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_MAX_S)


def _start(options: Options, held: Snapshot, why: str) -> Offsets:
    """Where a query begins that has no checkpoint; `held` has every queue that there is."""
    if options.starting_latest:
        return advance({}, held.bounds, held.epochs, None)
    if options.starting_ms is not None:
        # A queue that is made from now on is not among them: it is read from its first record.
        known = _offsets_at(options, options.starting_ms, why)
        return dict(sorted({**held.epochs, **{str(queue): at for queue, at in known.items()}}.items()))
    return dict(options.starting or {})


def _end(options: Options, held: Snapshot, start: Offsets, why: str) -> Offsets:
    """Where a batch read ends: never before it starts."""
    last = advance({}, held.bounds, held.epochs, None)
    if options.ending_ms is not None:
        chosen = {str(queue): at for queue, at in _offsets_at(options, options.ending_ms, why).items()}
    else:
        chosen = options.ending or {}
    return {**last, **{key: max(offset, start.get(key, 0)) for key, offset in chosen.items()}}


def _check_loss(options: Options, lost: Sequence[OffsetRange]) -> None:
    if lost and options.fail_on_data_loss:
        raise data_loss(lost[0], RETENTION)


def _counting_lost(start: Offsets, end: Offsets, held: Snapshot) -> tuple[Offsets, list[OffsetRange]]:
    """Return `end` with the records that retention took on the way to it added to the count, and these."""
    lost = overtaken(ranges(start, end), held.bounds)
    gone = sum(item.end - item.start for item in lost)
    return (dict(sorted({**end, LOST: start.get(LOST, 0) + gone}.items())) if gone else end), lost


def _partitions(
    options: Options, wanted: Sequence[OffsetRange], firsts: Mapping[TopicQueue, int] | None = None
) -> list[InputPartition]:
    parts = split(wanted, options.max_partitions, firsts, options.min_partitions)
    return [RangesPartition(part) for part in parts]


class _BatchReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        options, pushed = self._options, self._pushed
        why = "a batch read"
        held = _whole_snapshot(options, why)
        start = _start(options, held, why)
        firsts, ends = (
            {} if at_ms is None else _offsets_at(options, at_ms, why)
            for at_ms in (pushed.store_first_ms, pushed.store_end_ms)
        )
        wanted = narrow(ranges(start, _end(options, held, start, why)), pushed, held.bounds, firsts, ends)
        _check_loss(options, overtaken(wanted, held.bounds))
        # Spark takes an empty list for "one partition"; its value None says that there is nothing to read.
        if pushed.tags(options.tags) == frozenset():
            return []
        return _partitions(options, wanted, {queue: bounds.first for queue, bounds in held.bounds.items()})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition.value or (), self._pushed.tags(self._options.tags))


class _FilteredReader(_BatchReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that the source answers; return those that Spark has to test."""
        self._pushed, left = push(filters)
        return left


def _takes_filters() -> bool:
    """Whether Spark will push filters down: it calls a reader that could take them an error otherwise.

    Without ``spark.sql.python.filterPushdown.enabled`` it plans in workers of another module.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == PUSHDOWN_WORKER)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream side: one object lives in the driver's planner for as long as the query runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._target: Offsets | None = None
        self._newest: Offsets | None = None
        self._silent: tuple[str, ...] = ()

    def initialOffset(self) -> Offsets:  # noqa: N802
        options = self._options
        if options.starting is not None:
            return dict(options.starting)
        why = "starting at latest or at a time"
        return _start(options, _whole_snapshot(options, why), why)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_records)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return where the next batch ends; `start` for every queue whose broker does not answer.

        An available-now query waits for the brokers that it still needs, and fails without them: it would
        end without their records. Raises DataLossError when retention overtook `start` and that is to fail.
        """
        held = self._held(start)
        if held is None:
            return start
        for gone in cut_back(start, held.bounds):
            log.warning("the log was cut", queue=str(gone.queue), offset=gone.end, goes_on_at=gone.start)
        bounds = held.bounds
        if self._target is not None:
            bounds = {
                queue: bound._replace(end=min(bound.end, self._target.get(str(queue), bound.first)))
                for queue, bound in bounds.items()
            }
        self._newest, lost = _counting_lost(start, advance(start, bounds, held.epochs, None), held)
        end = self._newest
        if isinstance(limit, ReadMaxRows):
            end, lost = _counting_lost(start, advance(start, bounds, held.epochs, limit.max_rows), held)
        elif not isinstance(limit, ReadAllAvailable):
            raise UsageError(f"format holdmq: {type(limit).__name__} is no limit that this source can keep")
        _check_loss(self._options, lost)
        return end

    def _held(self, start: Offsets) -> Snapshot | None:
        """What the cluster holds; None = nobody said. For an available-now query all that it needs of it."""
        deadline = time.monotonic() + self._options.read_timeout_s
        pause_s = RETRY_MIN_S
        while True:
            held, silent = self._ask()
            if self._target is None:
                return held
            needed = {
                queue.broker
                for key, offset in self._target.items()
                if (queue := parse_queue(key)) is not None and start.get(key, 0) < offset
            }
            missing = sorted(needed if held is None else needed.intersection(held.silent))
            if not missing:
                return held
            if time.monotonic() >= deadline:
                raise TransportError(
                    f"an available-now query has records to read at {', '.join(missing)}, and got no answer "
                    f"for {self._options.read_timeout_s:.0f} s: {silent}"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _ask(self) -> tuple[Snapshot | None, str]:
        try:
            options = self._options
            link = link_to(options.registries, options.security, options.cluster, options.tenant)
            held = link.snapshot(options.is_wanted)
        except TransportError as error:
            self._note_silent(("every registry",), str(error))
            return None, str(error)
        self._note_silent(held.silent, "its queues wait")
        return held, f"{', '.join(held.silent)} silent"

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        return self._newest

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        held = _whole_snapshot(self._options, "an available-now query")
        self._target = advance({}, held.bounds, held.epochs, None)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return _partitions(self._options, ranges(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition.value or (), self._options.tags)

    def _note_silent(self, silent: tuple[str, ...], why: str) -> None:
        if silent == self._silent:
            return
        self._silent = silent
        if silent:
            log.warning("no answer", silent=", ".join(silent), reason=why)
        else:
            log.warning("all brokers answer again")
