"""What went in and out: by topic, queue, consumer group and source, in total and in rolling windows.

Who counts adds to plain numbers that belong to the second under way. `tick` takes them, and `settle` adds
them up, in steps: the cost grows with what was busy in that second, not with what exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import add, attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from broker.kernel.core.windows import (
    COLUMNS,
    GIVEN_BACK,
    MESSAGES_OUT,
    MESSAGES_REPLAYED,
    REQUEUED,
    TIMED_OUT,
    Ints,
    Windows,
)
from holdmq.names.topics import TEMPORARY_SUFFIX
from holdmq.rpc.connection import Connection

TOPICS_MAX: Final = 20_000
"""Topics with counts of their own: twice the default of broker.topics_max; 69 MB when all are used."""
GROUPS_MAX: Final = 10_000
"""The default of broker.groups_max; 34 MB."""
QUEUES_MAX: Final = 20_000
"""Queues with counts of their own, 69 MB: five thousand topics of four. Others count in their topic only."""
NO_QUEUE: Final = -1
"""For what is counted in a topic alone."""

GROUP_TOPICS_MAX: Final = 10_000
"""(group, topic) pairs with counts of their own, 34 MB: others count in their group only."""
CLIENTS_MAX: Final = 2_000
"""Clients with counts of their own, by client id, 7 MB: as many applications and gateway workers as a broker
has as a rule. Others count in their user only, until some of these are silent for a day."""
USERS_MAX: Final = 1_000
"""Access keys with counts of their own, 3 MB."""

Queue = tuple[str, int]
GroupTopic = tuple[str, str]


class TrafficSource(NamedTuple):
    """Names the other end of a connection: its client id, and its access key ("" = anonymous)."""

    client_id: str
    user: str


SourceOf = Callable[[Connection], TrafficSource]
NO_SOURCE: Final = TrafficSource("", "")


def untold(_: Connection) -> TrafficSource:
    """Tell no connection from another: for a broker's rooms on their own."""
    return NO_SOURCE


class TickCounts:
    """What happened since the last tick; `put_us` and `get_us` are what `puts` and `gets` took together."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_replayed",
        "get_us",
        "gets",
        "given_back",
        "messages_in",
        "messages_out",
        "messages_replayed",
        "put_us",
        "puts",
        "requeued",
        "timed_out",
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
        self.messages_replayed = 0
        self.bytes_replayed = 0
        self.requeued = 0
        self.timed_out = 0
        self.given_back = 0

    def taken(self, messages: int, size_bytes: int, *, is_replay: bool = False) -> None:
        """Count messages that were sent to a reader: to a consumer, or to who reads again or in bulk."""
        if is_replay:
            self.messages_replayed += messages
            self.bytes_replayed += size_bytes
        else:
            self.messages_out += messages
            self.bytes_out += size_bytes


_values = attrgetter(
    "messages_in", "bytes_in", "messages_out", "bytes_out", "puts", "put_us", "gets", "get_us",
    "messages_replayed", "bytes_replayed", "requeued", "timed_out", "given_back",
)  # fmt: skip
"""In the order of the columns of broker.kernel.core.windows."""


class Statistics:
    """The counts of one broker. `now` is the clock's that `tick` is told, in seconds."""

    def __init__(self, now: float = 0.0, queues_max: int = QUEUES_MAX, source_of: SourceOf = untold) -> None:
        self._source_of = source_of
        self.topics: Windows[str] = Windows(TOPICS_MAX, now)
        self.queues: Windows[Queue] = Windows(queues_max, now)
        self.groups: Windows[str] = Windows(GROUPS_MAX, now)
        self.group_topics: Windows[GroupTopic] = Windows(GROUP_TOPICS_MAX, now)
        self.clients: Windows[str] = Windows(CLIENTS_MAX, now)
        self.users: Windows[str] = Windows(USERS_MAX, now)
        self.broker: Windows[str] = Windows(1, now)
        """Everything together, under the key ""."""
        self._by_queue: dict[Queue, TickCounts] = {}
        self._by_group: dict[GroupTopic, TickCounts] = {}
        self._by_source: dict[TrafficSource, TickCounts] = {}
        self._late_queues: dict[Queue, TickCounts] = {}
        self._late_groups: dict[GroupTopic, TickCounts] = {}
        self._late_sources: dict[TrafficSource, TickCounts] = {}

    def of(self, topic: str, queue_id: int = NO_QUEUE) -> TickCounts:
        """What to add to for a queue, or for a topic alone; not to be kept beyond this turn of the loop."""
        counts = self._by_queue.get((topic, queue_id))
        if counts is None:
            counts = self._by_queue[topic, queue_id] = TickCounts()
        return counts

    def of_connection(self, connection: Connection) -> TickCounts:
        """What to add to for who is at the other end; not to be kept beyond this turn of the loop."""
        source = self._source_of(connection)
        counts = self._by_source.get(source)
        if counts is None:
            counts = self._by_source[source] = TickCounts()
        return counts

    def of_group(self, group: str, topic: str) -> TickCounts:
        """What to add to for a group and one of its topics; not to be kept beyond this turn of the loop.

        Temporary groups count together: every client may make new ones.
        """
        if group.endswith(TEMPORARY_SUFFIX):
            group = TEMPORARY_SUFFIX
        counts = self._by_group.get((group, topic))
        if counts is None:
            counts = self._by_group[group, topic] = TickCounts()
        return counts

    def tick(self, now: float) -> None:
        """A second is over: take its counts. Call `settle` until there are none left."""
        while self.settle(len(self._late_queues) + len(self._late_groups) + len(self._late_sources)):
            pass  # the last second's, of a loop that had no turn to spare
        self._late_queues, self._by_queue = self._by_queue, {}
        self._late_groups, self._by_group = self._by_group, {}
        self._late_sources, self._by_source = self._by_source, {}
        for windows in (*self._named(), self.broker):
            windows.begin(now)

    def settle(self, count: int) -> bool:
        """Add up to `count` queues, and as many groups and sources, to the windows; True = there are more."""
        found = [self._late_queues.popitem() for _ in range(min(count, len(self._late_queues)))]
        if found:
            deltas = _matrix([counts for _, counts in found])
            self.topics.add([key[0] for key, _ in found], deltas)
            self.broker.add([""], deltas.sum(axis=0, keepdims=True))
            named = [at for at, (key, _) in enumerate(found) if key[1] != NO_QUEUE]
            self.queues.add([found[at][0] for at in named], deltas[named])
        groups = [self._late_groups.popitem() for _ in range(min(count, len(self._late_groups)))]
        if groups:
            deltas = _matrix([counts for _, counts in groups])
            self.groups.add([key[0] for key, _ in groups], deltas)
            self.group_topics.add([key for key, _ in groups], deltas)
            # What came back from consumers is known by group alone; of the broker it is told, too.
            deltas[:, :REQUEUED] = 0
            self.broker.add([""], deltas.sum(axis=0, keepdims=True))
        sources = [self._late_sources.popitem() for _ in range(min(count, len(self._late_sources)))]
        if sources:
            deltas = _matrix([counts for _, counts in sources])
            # What was confirmed after its connection had closed is nobody's.
            clients = [at for at, (source, _) in enumerate(sources) if source.client_id]
            self.clients.add([sources[at][0].client_id for at in clients], deltas[clients])
            users = [at for at, (source, _) in enumerate(sources) if source.user]
            self.users.add([sources[at][0].user for at in users], deltas[users])
        return bool(self._late_queues or self._late_groups or self._late_sources)

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
        self._forget_group_topics(1, topic)

    def forget_group(self, group: str) -> None:
        """A group is gone."""
        self.groups.forget(group)
        self._forget_group_topics(0, group)

    def topics_of(self, groups: frozenset[str]) -> list[GroupTopic]:
        """The (group, topic) pairs of which there are counts, by name."""
        return sorted(key for key in self.group_topics if key[0] in groups)

    def _forget_group_topics(self, part: int, name: str) -> None:
        for key in [key for key in self.group_topics if key[part] == name]:
            self.group_topics.forget(key)
        for under_way in (self._by_group, self._late_groups):
            for key in [key for key in under_way if key[part] == name]:
                del under_way[key]

    def _named(self) -> tuple[Windows[Any], ...]:
        return self.topics, self.queues, self.groups, self.group_topics, self.clients, self.users

    def numbers(self) -> Mapping[str, int]:
        """Gauges and counters for metrics."""
        total = self.broker.total("")
        return {
            "statistics_topics": len(self.topics),
            "statistics_queues": len(self.queues),
            "statistics_groups": len(self.groups),
            "statistics_group_topics": len(self.group_topics),
            "statistics_clients": len(self.clients),
            "statistics_users": len(self.users),
            "statistics_unnamed_total": sum(windows.unnamed for windows in self._named()),
            "messages_out_total": total[MESSAGES_OUT],
            "messages_replayed_total": total[MESSAGES_REPLAYED],
            "messages_requeued_total": total[REQUEUED],
            "messages_timed_out_total": total[TIMED_OUT],
            "messages_given_back_total": total[GIVEN_BACK],
        }


def _matrix(counts: Collection[TickCounts]) -> Ints:
    if not counts:
        return np.zeros((0, COLUMNS), np.int64)
    return np.array([_values(one) for one in counts], np.int64)
