"""What went in and out: by topic, queue and consumer group, in total and in rolling windows.

Who counts adds to plain numbers that belong to the second under way. `tick` takes them, and `settle` adds
them up, in steps: the cost grows with what was busy in that second, not with what exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from operator import add, attrgetter
from typing import Final

import numpy as np

from broker.kernel.core.windows import COLUMNS, Ints, Windows
from holdmq.names.topics import TEMPORARY_SUFFIX

TOPICS_MAX: Final = 20_000
"""Topics with counts of their own: twice the default of broker.topics_max; 42 MB when all are used."""
GROUPS_MAX: Final = 10_000
"""The default of broker.groups_max; 21 MB."""
QUEUES_MAX: Final = 20_000
"""Queues with counts of their own, 42 MB: five thousand topics of four. Others count in their topic only."""
NO_QUEUE: Final = -1
"""For what is counted in a topic alone."""

Queue = tuple[str, int]


class TickCounts:
    """What happened since the last tick; `put_us` and `get_us` are what `puts` and `gets` took together."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "get_us",
        "gets",
        "messages_in",
        "messages_out",
        "put_us",
        "puts",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.puts = 0
        self.put_us = 0
        self.gets = 0
        self.get_us = 0


_values = attrgetter(
    "messages_in", "bytes_in", "messages_out", "bytes_out", "puts", "put_us", "gets", "get_us"
)
"""In the order of the columns of broker.kernel.core.windows."""


class Statistics:
    """The counts of one broker. `now` is the clock's that `tick` is told, in seconds."""

    def __init__(self, now: float = 0.0, queues_max: int = QUEUES_MAX) -> None:
        self.topics: Windows[str] = Windows(TOPICS_MAX, now)
        self.queues: Windows[Queue] = Windows(queues_max, now)
        self.groups: Windows[str] = Windows(GROUPS_MAX, now)
        self.broker: Windows[str] = Windows(1, now)
        """Everything together, under the key ""."""
        self._by_queue: dict[Queue, TickCounts] = {}
        self._by_group: dict[str, TickCounts] = {}
        self._late_queues: dict[Queue, TickCounts] = {}
        self._late_groups: dict[str, TickCounts] = {}

    def of(self, topic: str, queue_id: int = NO_QUEUE) -> TickCounts:
        """What to add to for a queue, or for a topic alone; not to be kept beyond this turn of the loop."""
        counts = self._by_queue.get((topic, queue_id))
        if counts is None:
            counts = self._by_queue[topic, queue_id] = TickCounts()
        return counts

    def of_group(self, group: str) -> TickCounts:
        """What to add to for a consumer group; not to be kept beyond this turn of the loop.

        Temporary groups count together: every client may make new ones.
        """
        if group.endswith(TEMPORARY_SUFFIX):
            group = TEMPORARY_SUFFIX
        counts = self._by_group.get(group)
        if counts is None:
            counts = self._by_group[group] = TickCounts()
        return counts

    def tick(self, now: float) -> None:
        """A second is over: take its counts. Call `settle` until there are none left."""
        while self.settle(len(self._late_queues) + len(self._late_groups)):
            pass  # the last second's, of a loop that had no turn to spare
        self._late_queues, self._by_queue = self._by_queue, {}
        self._late_groups, self._by_group = self._by_group, {}
        for windows in (self.topics, self.queues, self.groups, self.broker):
            windows.begin(now)

    def settle(self, count: int) -> bool:
        """Add up to `count` queues and as many groups to the windows; True = there are more."""
        found = [self._late_queues.popitem() for _ in range(min(count, len(self._late_queues)))]
        if found:
            deltas = _matrix([counts for _, counts in found])
            self.topics.add([key[0] for key, _ in found], deltas)
            self.broker.add([""], deltas.sum(axis=0, keepdims=True))
            named = [at for at, (key, _) in enumerate(found) if key[1] != NO_QUEUE]
            self.queues.add([found[at][0] for at in named], deltas[named])
        groups = [self._late_groups.popitem() for _ in range(min(count, len(self._late_groups)))]
        if groups:
            self.groups.add([name for name, _ in groups], _matrix([counts for _, counts in groups]))
        return bool(self._late_queues or self._late_groups)

    def topic_totals(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Counts of topics since the start, by column, with those of the second under way."""
        totals = {topic: self.topics.total(topic) for topic in topics}
        for (topic, _), counts in chain(self._by_queue.items(), self._late_queues.items()):
            if topic in totals:
                totals[topic] = [*map(add, totals[topic], _values(counts))]
        return totals

    def topic_column(self, topics: Collection[str], column: int) -> list[int]:
        """One of these counts for each topic: `topic_totals` of many, for a hundredth of its time."""
        totals = dict(zip(topics, self.topics.totals(topics, column), strict=True))
        for (topic, _), counts in chain(self._by_queue.items(), self._late_queues.items()):
            if topic in totals:
                totals[topic] += _values(counts)[column]
        return list(totals.values())

    def forget_topic(self, topic: str, queues: int) -> None:
        """A topic is gone, which had as many queues as this."""
        self.topics.forget(topic)
        for queue_id in range(NO_QUEUE, queues):
            self.queues.forget((topic, queue_id))
            self._by_queue.pop((topic, queue_id), None)
            self._late_queues.pop((topic, queue_id), None)

    def forget_group(self, group: str) -> None:
        """A group is gone."""
        self.groups.forget(group)
        self._by_group.pop(group, None)
        self._late_groups.pop(group, None)

    def numbers(self) -> Mapping[str, int]:
        """Gauges and counters for metrics."""
        return {
            "statistics_topics": len(self.topics),
            "statistics_queues": len(self.queues),
            "statistics_groups": len(self.groups),
            "statistics_unnamed_total": self.topics.unnamed + self.queues.unnamed + self.groups.unnamed,
        }


def _matrix(counts: Collection[TickCounts]) -> Ints:
    if not counts:
        return np.zeros((0, COLUMNS), np.int64)
    return np.array([_values(one) for one in counts], np.int64)
