"""Queues given up by records of the log: whoever confirms such a record does it, the leader and every copy.

The record is confirmed, then retention makes it durable, as it does for a queue that is deleted here alone. A
start does again what the records that are still there say: it changes nothing that was done before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import structlog

from holdmq.errors import RecordError, StorageError
from storage.api.batches import Appended, Batch
from storage.core.queues import Queue
from storage.log.consume_queue import Key
from storage.log.flusher import Checkpoint
from storage.log.retention.core.deleted import (
    DELETED_TOPIC,
    DeletedQueue,
    deletions_batch,
    deletions_in,
)
from storage.log.retention.retention import Deletion, Retention

ANNOUNCED_MAX: Final = 500
"""Records of one batch: below a millisecond of the loop."""

Ended = Callable[[StorageError | None], None]

log = structlog.get_logger("holdmq.storage")


class LoggedDeletions:
    """Deletes queues by appending, and what the log says. Everything is called on the loop.

    `wake` lets the flushing thread look.
    """

    def __init__(
        self,
        append: Callable[[Batch, Appended], None],
        queue_of: Callable[[Key], Queue | None],
        retention: Retention,
        wake: Callable[[], None],
        post: Callable[[Callable[[], object]], object],
        clock_ms: Callable[[], int],
    ) -> None:
        self._append = append
        self._queue_of = queue_of
        self._retention = retention
        self._wake = wake
        self._post = post
        self._clock_ms = clock_ms
        self._waiting: dict[Key, list[Ended]] = {}

    def delete(self, queue: Queue, done: Ended) -> None:
        """Give up what a queue holds; `done` is called when that is durable here, or was refused."""
        key = (queue.topic, queue.queue_id)
        self._waiting.setdefault(key, []).append(done)
        given_up = DeletedQueue(queue.topic, queue.queue_id, queue.confirmed)
        self._append(deletions_batch([given_up], self._clock_ms()), partial(self._appended, key))

    def announce(self, deleted: Iterable[DeletedQueue], done: Ended) -> None:
        """Say again what was deleted before the log had copies."""
        left = list(deleted)

        def go_on(_batch: Batch | None, error: StorageError | None) -> None:
            some = left[:ANNOUNCED_MAX]
            del left[:ANNOUNCED_MAX]
            if error is not None or not some:
                done(error)
            else:
                self._append(deletions_batch(some, self._clock_ms()), go_on)

        go_on(None, None)

    def offer(self, batches: list[Batch]) -> None:
        """Do what confirmed records say."""
        for batch in batches:
            if any(run.topic == DELETED_TOPIC for run in batch.runs):
                self._take(batch)

    def _take(self, batch: Batch) -> None:
        try:
            deleted = deletions_in(batch)
        except RecordError as error:
            log.error("the log gives up a queue that this HoldMQ cannot read", reason=str(error))
            return
        for topic, queue_id, next_offset, position in deleted:
            waiting = self._waiting.pop((topic, queue_id), [])
            queue = self._queue_of((topic, queue_id))
            if queue is None:
                self._tell(waiting, None)
                continue
            queue.first_offset = max(queue.first_offset, next_offset)
            done = partial(self._post_all, waiting)
            self._retention.deletions.append(Deletion(queue, position, next_offset, done))
        self._wake()

    def _appended(self, key: Key, _batch: Batch, error: StorageError | None) -> None:
        if error is not None:
            self._tell(self._waiting.pop(key, []), error)

    def _post_all(self, waiting: list[Ended], error: StorageError | None) -> None:
        self._post(partial(self._tell, waiting, error))

    @staticmethod
    def _tell(waiting: list[Ended], error: StorageError | None) -> None:
        for done in waiting:
            done(error)


def give_up(batches: Iterable[Batch], bounds: dict[Key, tuple[int, int]], checkpoint: Checkpoint) -> None:
    """At a start: raise the first offsets of queues that the log's records give up."""
    for batch in batches:
        try:
            deleted = deletions_in(batch)
        except RecordError as error:
            log.error("the log gives up a queue that this HoldMQ cannot read", reason=str(error))
            continue
        for topic, queue_id, next_offset, position in deleted:
            first, following = bounds.get((topic, queue_id), (0, 0))
            if first < min(next_offset, following):
                bounds[topic, queue_id] = (min(next_offset, following), following)
                checkpoint.tombstones[topic, queue_id] = (position, next_offset)
