"""What waits for sent messages: one send, a batch, many bodies, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from holdmq.client.lanes import SendChunk, SendResult
from holdmq.errors import HoldMQError
from holdmq.message import MessageId, TopicQueue

FAILURES_LOGGED_EVERY: Final = 1_000
"""One-way failures per line of the log, after the first: a broker that is away must not fill a disk."""

log = structlog.get_logger("holdmq.client")


class StoredRun(NamedTuple):
    """Consecutive messages in one queue, from `first_offset` on (-1: stored before, place forgotten)."""

    queue: TopicQueue
    first_offset: int
    messages: int


class One:
    """One message; `future` gets its SendResult."""

    __slots__ = ("future",)
    wants_positions = True

    def __init__(self, future: asyncio.Future[SendResult]) -> None:
        self.future = future

    def stored(
        self,
        _chunk: SendChunk,
        queue: TopicQueue,
        first_offset: int,
        store_id: bytes,
        positions: Sequence[int],
    ) -> None:
        if not self.future.done():
            known = bool(positions) and positions[0] >= 0
            place = MessageId(store_id, positions[0]) if known else None
            self.future.set_result(SendResult(queue, first_offset, place))

    def failed(self, _chunk: SendChunk, error: HoldMQError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Many:
    """The messages of a batch; `future` is done when all are settled."""

    __slots__ = ("future", "left", "results")
    wants_positions = True

    def __init__(self, count: int, future: asyncio.Future[None]) -> None:
        self.results: list[SendResult | HoldMQError | None] = [None] * count
        self.left = count
        self.future = future

    def stored(
        self,
        chunk: SendChunk,
        queue: TopicQueue,
        first_offset: int,
        store_id: bytes,
        positions: Sequence[int],
    ) -> None:
        results = self.results
        if first_offset >= 0 and len(positions) == chunk.count:
            for offset, (index, position) in enumerate(
                zip(chunk.indices, positions, strict=True), first_offset
            ):
                place = MessageId(store_id, position) if position >= 0 else None
                results[index] = SendResult(queue, offset, place)
        else:
            for k, index in enumerate(chunk.indices):
                results[index] = SendResult(queue, first_offset + k if first_offset >= 0 else -1, None)
        self._settled(chunk)

    def failed(self, chunk: SendChunk, error: HoldMQError) -> None:
        for index in chunk.indices:
            self.results[index] = error
        self._settled(chunk)

    def _settled(self, chunk: SendChunk) -> None:
        self.left -= chunk.count
        if self.left == 0 and not self.future.done():
            self.future.set_result(None)


class Bodies:
    """Many bodies; `future` is done when all are settled."""

    __slots__ = ("errors", "future", "left", "runs")
    wants_positions = False

    def __init__(self, count: int, future: asyncio.Future[None]) -> None:
        self.left = count
        self.future = future
        self.runs: dict[int, StoredRun] = {}
        """By the index of their first body."""
        self.errors: dict[int, tuple[int, HoldMQError]] = {}
        """By the index of the first body: how many failed, and why."""

    def stored(
        self,
        chunk: SendChunk,
        queue: TopicQueue,
        first_offset: int,
        _store_id: bytes,
        _positions: Sequence[int],
    ) -> None:
        self.runs[chunk.indices[0]] = StoredRun(queue, first_offset, chunk.count)
        self.settled(chunk.count)

    def failed(self, chunk: SendChunk, error: HoldMQError) -> None:
        self.errors[chunk.indices[0]] = chunk.count, error
        self.settled(chunk.count)

    def settled(self, count: int) -> None:
        """So many are known to be stored or not."""
        self.left -= count
        if self.left == 0 and not self.future.done():
            self.future.set_result(None)

    def results(self) -> list[SendResult | HoldMQError]:
        """A result or an error for each body."""
        found: list[SendResult | HoldMQError] = []
        for index in sorted(self.runs.keys() | self.errors.keys()):
            if index in self.errors:
                count, error = self.errors[index]
                found += [error] * count
            else:
                queue, first, count = self.runs[index]
                found += [SendResult(queue, first + k if first >= 0 else -1, None) for k in range(count)]
        return found


class OneWay:
    """Takes results that no caller waits for; failures are counted and logged."""

    __slots__ = ("failed_messages", "stored_messages")
    wants_positions = False

    def __init__(self) -> None:
        self.stored_messages = 0
        self.failed_messages = 0

    def stored(
        self, chunk: SendChunk, _queue: TopicQueue, _first: int, _store_id: bytes, _positions: Sequence[int]
    ) -> None:
        self.stored_messages += chunk.count

    def failed(self, chunk: SendChunk, error: HoldMQError) -> None:
        before = self.failed_messages
        self.failed_messages += chunk.count
        if not before or before // FAILURES_LOGGED_EVERY < self.failed_messages // FAILURES_LOGGED_EVERY:
            log.error("one-way messages were not stored", reason=str(error), messages=self.failed_messages)
