"""What went in and out: by topic, queue and consumer group, in total and in rolling windows.

Who counts adds to plain numbers that belong to the second under way. `tick` takes them all: its cost grows
with what was busy in that second, not with what exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import add, attrgetter
from typing import Final

import numpy as np

from broker.core.windows import COLUMNS, Ints, Windows

TOPICS_MAX: Final = 20_000
"""Topics with counts of their own: twice the default of broker.topics_max; 42 MB when all are used."""
GROUPS_MAX: Final = 10_000
"""The default of broker.groups_max; 21 MB."""
QUEUES_MAX: Final = 20_000
"""Queues with counts of their own, 42 MB: five thousand topics of four. Others count in their topic only."""
NO_QUEUE: Final = -1
"""For what is counted in a topic alone."""

Queue = tuple[str, int]


class Counts:
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
"""In the order of the columns of broker.core.windows."""


class Statistics:
    """The counts of one broker. `now` is the clock's that `tick` is told, in seconds."""

    def __init__(self, now: float = 0.0, queues_max: int = QUEUES_MAX) -> None:
        self.topics: Windows[str] = Windows(TOPICS_MAX, now)
        self.queues: Windows[Queue] = Windows(queues_max, now)
        self.groups: Windows[str] = Windows(GROUPS_MAX, now)
        self.broker: Windows[str] = Windows(1, now)
        """Everything together, under the key ""."""
        self._by_queue: dict[Queue, Counts] = {}
        self._by_group: dict[str, Counts] = {}

    def of(self, topic: str, queue_id: int = NO_QUEUE) -> Counts:
        """What to add to for a queue, or for a topic alone; not to be kept beyond this turn of the loop."""
        counts = self._by_queue.get((topic, queue_id))
        if counts is None:
            counts = self._by_queue[topic, queue_id] = Counts()
        return counts

    def of_group(self, group: str) -> Counts:
        """What to add to for a consumer group; not to be kept beyond this turn of the loop."""
        counts = self._by_group.get(group)
        if counts is None:
            counts = self._by_group[group] = Counts()
        return counts

    def tick(self, now: float) -> None:
        """A second is over."""
        by_queue, self._by_queue = self._by_queue, {}
        by_group, self._by_group = self._by_group, {}
        deltas = _matrix(by_queue.values())
        keys = list(by_queue)
        self.topics.tick([topic for topic, _ in keys], deltas, now)
        named = [at for at, key in enumerate(keys) if key[1] != NO_QUEUE]
        self.queues.tick([keys[at] for at in named], deltas[named], now)
        self.broker.tick([""], deltas.sum(axis=0, keepdims=True), now)
        self.groups.tick(list(by_group), _matrix(by_group.values()), now)

    def topic_totals(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Counts of topics since the start, by column, with those of the second under way."""
        totals = {topic: self.topics.total(topic) for topic in topics}
        for (topic, _), counts in self._by_queue.items():
            if topic in totals:
                totals[topic] = [*map(add, totals[topic], _values(counts))]
        return totals

    def forget_topic(self, topic: str, queues: int) -> None:
        """A topic is gone, which had as many queues as this."""
        self.topics.forget(topic)
        for queue_id in range(NO_QUEUE, queues):
            self.queues.forget((topic, queue_id))
            self._by_queue.pop((topic, queue_id), None)

    def forget_group(self, group: str) -> None:
        """A group is gone."""
        self.groups.forget(group)
        self._by_group.pop(group, None)

    def numbers(self) -> Mapping[str, int]:
        """Gauges and counters for metrics."""
        return {
            "statistics_topics": len(self.topics),
            "statistics_queues": len(self.queues),
            "statistics_groups": len(self.groups),
            "statistics_unnamed_total": self.topics.unnamed + self.queues.unnamed + self.groups.unnamed,
        }


def _matrix(counts: Collection[Counts]) -> Ints:
    if not counts:
        return np.zeros((0, COLUMNS), np.int64)
    return np.array([_values(one) for one in counts], np.int64)
