"""Reads ranges of queues to their end, through outages of brokers and losses of records."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from holdmq.errors import Code, HoldMQError, RemoteError, TransportError
from holdmq.wire.headers import PulledQueue, PullQueue
from spark_streaming.source.columns import Answer, Part
from spark_streaming.source.link import Pulled
from spark_streaming.source.offsets import FROM_FIRST, Range

RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
QUEUES_PER_PULL: Final = 1_024
"""Queues named in one PULL: far below the broker's bound; more of them are read one group after another."""

log = structlog.get_logger("holdmq.spark")


class DataLossError(HoldMQError):
    """Records that were promised to a query are gone; the message names queue and offsets."""


class Puller(Protocol):
    """What reading needs of a Link."""

    def pull(self, broker: str, queues: Sequence[PullQueue]) -> Pulled:
        """Read the next records of `queues` at `broker`; raises TransportError, RemoteError."""


class RangeReader:
    """Reads the ranges of one task. Iterate once; each Answer's buffer is the caller's.

    An absent broker is asked again for up to `timeout_s` without progress, then TransportError is
    raised and Spark runs the task again. Records that retention or damage took raise DataLossError
    when `fail_on_data_loss`, else they are logged with their count, and reading goes on after them.
    """

    def __init__(
        self,
        puller: Puller,
        ranges: Sequence[Range],
        *,
        fail_on_data_loss: bool,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.lost = 0
        self._puller = puller
        self._by_broker: dict[str, list[Range]] = {}
        for item in ranges:
            self._by_broker.setdefault(item.queue.broker, []).append(item)
        self._fail_on_data_loss = fail_on_data_loss
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep

    def __iter__(self) -> Iterator[Answer]:
        for broker, todo in self._by_broker.items():
            while todo:
                asked, later = todo[:QUEUES_PER_PULL], todo[QUEUES_PER_PULL:]
                left, answer = self._sort(asked, self._pull(broker, asked))
                if answer.parts:
                    yield answer
                todo = left + later

    def _pull(self, broker: str, asked: list[Range]) -> Pulled:
        deadline = self._clock() + self._timeout_s
        pause_s = RETRY_MIN_S
        while True:
            try:
                return self._puller.pull(broker, [_ask(item) for item in asked])
            except HoldMQError as error:
                if not error.retriable:
                    raise
                if self._clock() >= deadline:
                    raise TransportError(
                        f"broker {broker} gave no records for {self._timeout_s:.0f} s: {error}"
                    ) from error
            self._sleep(pause_s * (0.5 + random.random()))
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _sort(self, asked: list[Range], pulled: Pulled) -> tuple[list[Range], Answer]:
        """Split an answer: what is still to be read, and what came. Queues it has no row for were cut off."""
        parts: list[Part] = []
        left = asked[len(pulled.queues) :]
        for item, row in zip(asked, pulled.queues, strict=False):
            if row.records:
                parts.append(Part(item.queue, row.records, item.end))
            start = self._next_start(item, row)
            if start < item.end:
                # The new start is a position of the log as it is now.
                left.append(item._replace(start=start, epoch=pulled.log_epoch))
        return left, Answer(pulled.body, parts)

    def _next_start(self, item: Range, row: PulledQueue) -> int:
        if row.status == Code.OK:
            if not row.records and row.next_offset >= row.end_offset:
                # It ends before what it had when the batch was planned.
                return self._note_cut(item, row.end_offset)
            return row.next_offset
        if row.status == Code.OFFSET_BEHIND:
            if item.start != FROM_FIRST:
                self._lose(item, row.next_offset, "retention removed them before they were read")
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
    def _note_cut(item: Range, next_offset: int) -> int:
        # Nothing that is in the log is skipped: what took the place of the cut records is new.
        log.warning("the log was cut", queue=str(item.queue), offset=item.start, goes_on_at=next_offset)
        return next_offset if next_offset < item.start else item.end

    def _lose(self, item: Range, next_offset: int, why: str) -> None:
        first = max(item.start, 0)
        last = min(max(next_offset, first), item.end)
        queue = item.queue
        text = (
            f"topic {queue.topic}, queue {queue.queue_id} at broker {queue.broker}: "
            f"records {first} to {last - 1} are gone, {why}"
        )
        if self._fail_on_data_loss:
            raise DataLossError(f"{text}; with fail_on_data_loss=false the query goes on at {last}")
        self.lost += last - first
        log.warning("records lost", sentence=text, records=last - first, lost_by_task=self.lost)


def _ask(item: Range) -> PullQueue:
    return PullQueue(item.queue.topic, item.queue.queue_id, item.epoch, max(item.start, 0))
