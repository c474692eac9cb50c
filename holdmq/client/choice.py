"""Which queue a message goes to: that of its key, or the next in turn of brokers that are well."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Final

import xxhash

from holdmq.client.faults import Faults
from holdmq.client.route import RouteTable, TopicRoute
from holdmq.errors import Code, RemoteError
from holdmq.message import TopicQueue

KEYS_CACHED_MAX: Final = 65_536
"""Keys of a topic whose queue is remembered (about 150 bytes each)."""


class _Topic:
    """What is worked out once per route of a topic."""

    __slots__ = ("known", "route", "weighing")

    def __init__(self, route: TopicRoute) -> None:
        self.route = route
        self.known: dict[bytes | str, TopicQueue] = {}
        # holdmq.names.topics.rank_queues has the definition.
        self.weighing = [
            (queue.broker.encode() + queue.queue_id.to_bytes(4, "big"), queue) for queue in route.write_queues
        ]

    def ranked(self, key: bytes | str) -> list[TopicQueue]:
        raw = key.encode() if isinstance(key, str) else key
        weighed = [
            (xxhash.xxh3_64_intdigest(raw + suffix), queue.broker, queue.queue_id, queue)
            for suffix, queue in self.weighing
        ]
        weighed.sort(reverse=True)
        return [queue for _, _, _, queue in weighed]

    def own(self, key: bytes | str) -> TopicQueue:
        queue = self.known.get(key)
        if queue is None:
            if len(self.known) >= KEYS_CACHED_MAX:
                self.known.clear()
            queue = self.known[key] = self.ranked(key)[0]
        return queue


class Choice:
    """Chooses queues by a RouteTable and what is known of the brokers' faults."""

    def __init__(self, routes: RouteTable, faults: Faults, clock: Callable[[], float]) -> None:
        self._routes = routes
        self._faults = faults
        self._clock = clock
        self._turn = secrets.randbits(16)
        self._topics: dict[str, _Topic] = {}
        routes.on_routes.append(self._routes_changed)

    def close(self) -> None:
        """Hear of routes no more."""
        self._routes.on_routes.remove(self._routes_changed)

    def knows(self, topic: str) -> bool:
        """Whether a queue of this topic was chosen since its route changed last: it has some, then."""
        return topic in self._topics

    def of(self, topic: str, key: bytes | str | None) -> TopicQueue:
        """The queue of a key, or the next in turn without one."""
        return self.in_turn(topic) if key is None else self.of_key(topic, key)

    def spread(self, wanted: Iterable[tuple[str, bytes | str | None]]) -> dict[TopicQueue, list[int]]:
        """Which of these (topic, key) go to which queue; those of a topic that have no key go to one."""
        groups: dict[TopicQueue, list[int]] = {}
        in_turn: dict[str, TopicQueue] = {}
        for index, (topic, key) in enumerate(wanted):
            queue = in_turn.get(topic) if key is None else None
            if queue is None:
                queue = self.of(topic, key)
                if key is None:
                    in_turn[topic] = queue
            groups.setdefault(queue, []).append(index)
        return groups

    def of_key(self, topic: str, key: bytes | str) -> TopicQueue:
        """The queue of a key: over all known queues, absent brokers' too.

        While its broker is away (no answer for `reroute_s`) the next in rank, unless the topic is ordered:
        then it stays. RemoteError (TOPIC_UNKNOWN) for a topic without queues.
        """
        known = self._topic(topic)
        queue = known.own(key)
        if known.route.order or not self._faults.is_away(queue.broker):
            return queue
        return next((q for q in known.ranked(key) if not self._faults.is_away(q.broker)), queue)

    def in_turn(self, topic: str) -> TopicQueue:
        """The next queue in turn, of a broker that is connected (or was not tried yet) and does not rest.

        Without any, of a connected one that was fastest last; without that too, simply the next.
        """
        queues = self._topic(topic).route.write_queues
        now = self._clock()
        self._turn += 1
        connected: TopicQueue | None = None
        for i in range(len(queues)):
            queue = queues[(self._turn + i) % len(queues)]
            if not self._routes.is_available(queue.broker):
                continue
            if not self._faults.is_resting(queue.broker, now):
                return queue
            if connected is None or self._latency_ms(queue) < self._latency_ms(connected):
                connected = queue
        return connected if connected is not None else queues[self._turn % len(queues)]

    def has_other(self, queue: TopicQueue) -> bool:
        """Whether the topic has a queue at another broker that is connected and does not rest."""
        route = self._routes.get(queue.topic)
        now = self._clock()
        return route is not None and any(
            other.broker != queue.broker
            and self._routes.is_available(other.broker)
            and not self._faults.is_resting(other.broker, now)
            for other in route.write_queues
        )

    def has_refuge(self, queue: TopicQueue) -> bool:
        """Whether `of_key` has another broker to name while this queue's is away."""
        route = self._routes.get(queue.topic)
        return route is not None and any(
            other.broker != queue.broker and not self._faults.is_away(other.broker)
            for other in route.write_queues
        )

    def _latency_ms(self, queue: TopicQueue) -> float:
        return self._faults.of(queue.broker).latency_ms

    def _topic(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        if known is None:
            route = self._routes.get(topic)
            if route is None or not route.write_queues:
                raise RemoteError(
                    Code.TOPIC_UNKNOWN,
                    f"topic {topic!r} has no queue to write to: its perm forbids it, or its brokers are away",
                )
            known = self._topics[topic] = _Topic(route)
        return known

    def _routes_changed(self, topics: frozenset[str]) -> None:
        for topic in topics:
            self._topics.pop(topic, None)
