"""Deleting queues: what topic.json says is to go is given up in the store, then taken out of topic.json.

::

    topic.json: deleting_to ─► store: a tombstone per queue ─► topic.json: stored_queues fewer, or no topic
                 ▲ a start goes on here, however far the last one came: a second tombstone changes nothing

Source: storage.md, Retention; broker.md, Topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import structlog

from broker.state.state_file import Done
from broker.topics.core import changes as topic_changes
from broker.topics.core.table import NOT_DELETING, Topic, TopicTable
from broker.topics.topic_file import Staged, TopicFile
from holdmq.errors import HoldMQError, StorageError
from storage.api.queues import DeletableQueues

RETRY_S: Final = 0.5
"""Pause before a queue that could not be deleted is tried again: its last records are being written."""

log = structlog.get_logger("holdmq.broker")


class GroupOffsets(Protocol):
    """What consumer groups have consumed."""

    def behind(self, topic: str, queue_id: int, end_offset: int) -> Sequence[tuple[str, int]]:
        """Groups that have not consumed a queue up to `end_offset`, and the offsets at which they are."""

    def queue_deleted(self, topic: str, queue_id: int) -> None:
        """Forget the groups' offsets in a queue that is gone."""


class NoGroups:
    """A broker without consumer groups: nobody is behind."""

    def behind(self, topic: str, queue_id: int, end_offset: int) -> Sequence[tuple[str, int]]:
        """No group is behind."""
        return ()

    def queue_deleted(self, topic: str, queue_id: int) -> None:
        """There is nothing to forget."""


class QueueDeletion:
    """The deletions under way."""

    def __init__(self, file: TopicFile, store: DeletableQueues, groups: GroupOffsets) -> None:
        self.groups = groups
        self.deleted = 0
        self.retries = 0
        self._file = file
        self._store = store
        self._left: dict[str, set[int]] = {}
        self._waiting: dict[str, list[Done]] = {}
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._left)

    @property
    def table(self) -> TopicTable:
        """The table of topics."""
        return self._file.table

    def begin_all(self) -> None:
        """After a start: go on with what the last run had begun."""
        for topic in [*self.table.all(), *self.table.leaving()]:
            if topic.deleting_to != NOT_DELETING:
                log.info("a deletion goes on", topic=topic.name, queues_left=topic.deleting_to)
                self.begin(topic)

    def begin(self, topic: Topic) -> None:
        """Give up the queues of a topic from `deleting_to` on (its file says so already)."""
        if topic.name in self._left:
            return
        queue_ids = range(topic.deleting_to, topic.queues_in_store)
        self._left[topic.name] = set(queue_ids)
        for queue_id in queue_ids:
            self._delete(topic.name, queue_id)
        if not queue_ids:
            self._finish(topic.name)

    def when_done(self, name: str, done: Done) -> None:
        """Call `done` when the deletion in this topic is over and durable."""
        if name in self._left:
            self._waiting.setdefault(name, []).append(done)
        else:
            done(None)

    def close(self) -> None:
        """Try nothing again; the next start goes on."""
        self._is_closed = True

    def _delete(self, name: str, queue_id: int) -> None:
        if not self._is_closed:
            self._store.delete_queue(name, queue_id, partial(self._deleted, name, queue_id))

    def _deleted(self, name: str, queue_id: int, error: StorageError | None) -> None:
        if error is None:
            left = self._left[name]
            left.discard(queue_id)
            self.deleted += 1
            self.groups.queue_deleted(name, queue_id)
            if not left:
                self._finish(name)
            return
        if self._is_closed:
            return
        if not self._store.is_being_written(name, queue_id):
            log.warning("a queue could not be deleted", topic=name, queue_id=queue_id, reason=str(error))
            self._answer(name, error)
        self.retries += 1
        self._loop.call_later(RETRY_S, self._delete, name, queue_id)

    def _finish(self, name: str) -> None:
        def plan(staged: Staged) -> None:
            topic = staged.get(name)
            if topic is None:
                return
            left = topic_changes.deleted(topic)
            if left is None:
                staged.remove(name)
            else:
                staged.put(left)

        def done(error: HoldMQError | None) -> None:
            if error is None:
                del self._left[name]
                log.info("queues were deleted", topic=name)
            elif not self._is_closed:
                log.warning("a deletion could not be written down", topic=name, reason=str(error))
                self.retries += 1
                self._loop.call_later(RETRY_S, self._finish, name)
            self._answer(name, error)

        if not self._is_closed:
            self._file.submit(plan, done, is_bounded=False)

    def _answer(self, name: str, error: HoldMQError | None) -> None:
        for done in self._waiting.pop(name, []):
            done(error)
