"""What consumer groups have yet to consume, by count and by age.

Counts follow from offsets and queue bounds. The age is the store time of the message at which a group is:
it is read, from memory or on the reader pool, and kept, as it never changes for a (topic, queue, offset).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from broker.alerts.core.backlog_readings import TopicBacklog
from broker.groups.requests import Groups
from broker.kernel.offset_times import Place, Times, look_up_times
from broker.shared_groups.requests import SharedMode
from broker.topics.core.table import Topic
from holdmq.errors import BusyError, HoldMQError
from holdmq.wire.group_headers import SHARED
from storage.api.queues import MessageQueues

QUEUES_PER_TURN: Final = 512
"""Queues that are looked at in one turn of the loop: well below a millisecond."""
LOOKUPS_MAX: Final = 4_096
"""Store times that one measurement reads, at worst each from disk. What is left is unknown until the next."""
AGES_MAX: Final = 65_536
"""Store times that are kept, some 200 bytes each; the first in goes first."""

MEASURING_MAX: Final = 16
"""Measurements under way, then BUSY: each has the rows of all groups in hand."""
RETRY_AFTER_MS: Final = 200


class QueueBacklog(NamedTuple):
    """A group in one queue: the first offset that it has not done, and how many from there on."""

    topic: str
    queue_id: int
    offset: int
    messages: int


Found = list[tuple[str, str, list[QueueBacklog]]]
Rows = list[TopicBacklog]
Done = Callable[[Rows | HoldMQError], None]


class Backlogs:
    """The backlogs of all groups of one broker."""

    def __init__(self, store: MessageQueues, groups: Groups, shared: SharedMode) -> None:
        self.lookups = self.unknown = self.measuring = 0
        self._store = store
        self._groups = groups
        self._shared = shared
        self._ages: Times = {}

    def numbers(self) -> Mapping[str, int]:
        """Gauges and counters for metrics."""
        return {
            "backlog_lookups_total": self.lookups,
            "backlog_ages": len(self._ages),
            "backlog_ages_unknown": self.unknown,
            "backlog_measurements": self.measuring,
        }

    def topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        """A topic that is gone may come again, with other messages at its offsets."""
        if before is not None and after is None:
            self._ages.clear()

    def groups(self) -> list[str]:
        """The names of all groups."""
        groups = self._groups
        return sorted({*groups.settings.table.groups, *groups.members.groups(), *self._shared.core.groups})

    def of(self, name: str) -> tuple[str, list[QueueBacklog]]:
        """A group's mode, and its backlog in every queue that it has begun with."""
        shared = self._shared.core.groups.get(name)
        found: list[QueueBacklog] = []
        is_shared = shared is not None and bool(shared.order)
        if shared is not None:
            for queue in shared.order:
                first, end = self._store.bounds(queue.key.topic, queue.key.queue_id)
                floor = max(first, queue.floor)
                messages = max(0, end - floor - queue.acknowledged.count)
                found.append(QueueBacklog(queue.key.topic, queue.key.queue_id, floor, messages))
        table = self._groups.offsets.table
        known = {(one.topic, one.queue_id) for one in found}
        for topic in table.topics(name):
            for queue_id, offset in table.queues(name, topic).items():
                if (topic, queue_id) in known:
                    continue  # it says where a shared group was reset to
                first, end = self._store.bounds(topic, queue_id)
                at = max(first, offset)
                found.append(QueueBacklog(topic, queue_id, at, max(0, end - at)))
        known_group = self._groups.get(name)
        mode = SHARED if is_shared else "" if known_group is None else known_group.mode
        return mode, found

    def measure(self, names: list[str], done: Done) -> None:
        """Call `done` with a row for each of these groups and its topics; later, or from inside.

        Groups that do not exist have no rows. Raises BUSY.
        """
        if self.measuring >= MEASURING_MAX:
            raise BusyError("the backlog is being measured for others", RETRY_AFTER_MS)
        self.measuring += 1
        self._count(iter(names), [], set(), done)

    def _count(self, names: Iterator[str], found: Found, unknown: set[Place], done: Done) -> None:
        queues = 0
        for name in names:
            mode, backlog = self.of(name)
            found.append((name, mode, backlog))
            places = ((one.topic, one.queue_id, one.offset) for one in backlog if one.messages)
            unknown.update(place for place in places if place not in self._ages)
            queues += 1 + len(backlog)
            if queues >= QUEUES_PER_TURN:
                asyncio.get_running_loop().call_soon(self._count, names, found, unknown, done)
                return
        self.unknown = max(0, len(unknown) - LOOKUPS_MAX)
        wanted = list(islice(unknown, LOOKUPS_MAX))
        self.lookups += len(wanted)
        look_up_times(self._store, wanted, partial(self._looked, found, done))

    def _looked(self, found: Found, done: Done, times: Times | HoldMQError) -> None:
        if isinstance(times, HoldMQError):
            self.measuring -= 1
            done(times)
            return
        self._ages.update(times)
        while len(self._ages) > AGES_MAX:
            del self._ages[next(iter(self._ages))]
        self._finish(iter(found), [], done)

    def _finish(self, found: Iterator[tuple[str, str, list[QueueBacklog]]], rows: Rows, done: Done) -> None:
        queues = 0
        for group, mode, backlog in found:
            rows += _rows(group, mode, backlog, self._ages)
            queues += 1 + len(backlog)
            if queues >= QUEUES_PER_TURN:
                asyncio.get_running_loop().call_soon(self._finish, found, rows, done)
                return
        self.measuring -= 1
        done(rows)


def _rows(
    group: str, mode: str, backlog: list[QueueBacklog], ages: Mapping[Place, int]
) -> Iterator[TopicBacklog]:
    by_topic: dict[str, list[QueueBacklog]] = {}
    for queue in backlog:
        by_topic.setdefault(queue.topic, []).append(queue)
    for topic, queues in by_topic.items():
        oldest = (ages.get((q.topic, q.queue_id, q.offset), 0) for q in queues if q.messages)
        known = [at_ms for at_ms in oldest if at_ms]
        yield TopicBacklog(
            group, mode, topic, sum(q.messages for q in queues), min(known, default=0), len(queues)
        )
