"""Reads ranges of queues to their end, through outages of brokers and losses of records."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from holdmq.errors import Code, HoldMQError, RemoteError, TransportError, WireError
from holdmq.message import TopicQueue
from holdmq.wire.column_headers import COLUMNS_QUEUES_MAX, ColumnQueue
from holdmq.wire.headers import PulledQueue
from spark_streaming.source.columns import ColumnAnswer, QueueRows
from spark_streaming.source.offsets import FROM_FIRST, OffsetRange
from spark_streaming.source.replica_pulls import PulledColumns

RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
log = structlog.get_logger("holdmq.spark")


RETENTION: Final = "retention removed them before they were read"


class DataLossError(HoldMQError):
    """Records that were promised to a query are gone; the message names topic, queue and offsets."""


def data_loss(gone: OffsetRange, why: str) -> DataLossError:
    """Return the error that says which records are gone, why, and what goes on without them."""
    return DataLossError(f"{_loss(gone, why)}; with fail_on_data_loss=false the query goes on at {gone.end}")


def _loss(gone: OffsetRange, why: str) -> str:
    queue = gone.queue
    return (
        f"topic {queue.topic}, queue {queue.queue_id} at broker {queue.broker}: "
        f"records {gone.start} to {gone.end - 1} are gone, {why}"
    )


class Puller(Protocol):
    """What reading needs of a Link: see `link.ColumnPuller`."""

    def pull(self, broker: str, queues: Sequence[ColumnQueue]) -> PulledColumns:
        """Read the next records of `queues` at `broker`; raises TransportError, RemoteError."""


class RangeReader:
    """Reads the ranges of one task. Iterate once; each Answer's buffers are the caller's.

    A broker that is absent, busy or gives nothing is asked again for up to `timeout_s`, then
    TransportError is raised and Spark runs the task again. Records that retention or damage took raise
    DataLossError when `fail_on_data_loss`, else they are logged with their count, and reading goes on
    after them.
    """

    def __init__(
        self,
        puller: Puller,
        ranges: Sequence[OffsetRange],
        *,
        fail_on_data_loss: bool,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.lost = 0
        self._puller = puller
        self._by_broker: dict[str, list[OffsetRange]] = {}
        for item in ranges:
            self._by_broker.setdefault(item.queue.broker, []).append(item)
        self._fail_on_data_loss = fail_on_data_loss
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep

    def __iter__(self) -> Iterator[ColumnAnswer]:
        for broker, todo in self._by_broker.items():
            while todo:
                asked, later = todo[:COLUMNS_QUEUES_MAX], todo[COLUMNS_QUEUES_MAX:]
                left, answer = self._pull(broker, asked)
                if answer.parts:
                    yield answer
                todo = left + later

    def _pull(self, broker: str, asked: list[OffsetRange]) -> tuple[list[OffsetRange], ColumnAnswer]:
        """Ask until something comes: what is still to be read then, and what came."""
        deadline = self._clock() + self._timeout_s
        pause_s = RETRY_MIN_S
        while True:
            cause: HoldMQError | None = None
            try:
                pulled = self._puller.pull(broker, [_ask(item) for item in asked])
            except HoldMQError as error:
                if not error.retriable:
                    raise
                cause = error
            else:
                left, answer = self._sort(asked, pulled)
                if answer.parts or len(left) < len(asked) or _places(left) != _places(asked):
                    return left, answer
            if self._clock() >= deadline:
                raise TransportError(
                    f"broker {broker} gave no records for {self._timeout_s:.0f} s: "
                    f"{cause or 'it has them, but answers without any'}"
                ) from cause
            self._sleep(pause_s * (0.5 + random.random()))  # noqa: S311 # jitter guards nothing
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _sort(
        self, asked: list[OffsetRange], pulled: PulledColumns
    ) -> tuple[list[OffsetRange], ColumnAnswer]:
        """Split an answer: what is still to be read, and what came.

        Queues that it has no row for found no room in it. A queue may be asked for in several ranges.
        """
        parts: list[QueueRows] = []
        left: list[OffsetRange] = []
        rows = iter(pulled.queues)
        row = next(rows, None)
        for item in asked:
            if row is None or (row.topic, row.queue_id) != (item.queue.topic, item.queue.queue_id):
                left.append(item)
                continue
            if row.records:
                parts.append(QueueRows(item.queue, row.records))
            start = self._next_start(item, row)
            if start < item.end:
                # The new start is a position of the log as it is now.
                left.append(item._replace(start=start, epoch=pulled.log_epoch))
            row = next(rows, None)
        if row is not None:
            raise WireError(f"an answer has rows of {row.topic}/{row.queue_id}, which it was not asked for")
        return left, ColumnAnswer(parts, pulled.columns, pulled.buffers)

    def _next_start(self, item: OffsetRange, row: PulledQueue) -> int:
        if row.status == Code.OK:
            if row.end_offset <= row.next_offset < item.end:
                # It ends before what it had when the batch was planned.
                return self._note_cut(item, row.end_offset)
            return row.next_offset
        if row.status == Code.OFFSET_BEHIND:
            if item.start != FROM_FIRST:
                self._lose(item, row.next_offset, RETENTION)
            return row.next_offset
        if row.status == Code.OFFSET_AHEAD:
            return self._note_cut(item, row.next_offset)
        if row.status == Code.CORRUPT:
            self._lose(item, row.next_offset, "the log is damaged there")
            return row.next_offset
        if row.status in (Code.TOPIC_UNKNOWN, Code.QUEUE_UNKNOWN):
            self._lose(item, item.end, "the queue was deleted")
            return item.end
        raise RemoteError(Code(row.status), f"pull of {item.queue} from {item.start}")

    @staticmethod
    def _note_cut(item: OffsetRange, next_offset: int) -> int:
        # Nothing that is in the log is skipped: what took the place of the cut records is new.
        log.warning("the log was cut", queue=str(item.queue), offset=item.start, goes_on_at=next_offset)
        return next_offset if next_offset < item.start else item.end

    def _lose(self, item: OffsetRange, next_offset: int, why: str) -> None:
        first = max(item.start, 0)
        last = min(max(next_offset, first), item.end)
        gone = item._replace(start=first, end=last)
        if self._fail_on_data_loss:
            raise data_loss(gone, why)
        self.lost += last - first
        log.warning("records lost", sentence=_loss(gone, why), records=last - first, lost_by_task=self.lost)


def _ask(item: OffsetRange) -> ColumnQueue:
    return ColumnQueue(item.queue.topic, item.queue.queue_id, item.epoch, max(item.start, 0), item.end)


def _places(items: Sequence[OffsetRange]) -> set[tuple[TopicQueue, int]]:
    return {(item.queue, item.start) for item in items}
