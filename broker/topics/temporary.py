"""Temporary topics: in memory only, gone when their last subscriber leaves.

A subscriber is a connection that pulls one of the topic's queues. A topic that nobody ever subscribes to
goes as well, after UNSUBSCRIBED_S. Their messages are kept by the store in memory: bounded, oldest dropped.
Source: broker.md, Topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from holdmq.rpc.connection import Connection
from storage.api.queues import TemporaryQueues

UNSUBSCRIBED_S: Final = 60.0
"""How long a temporary topic waits for its first subscriber: who creates one has a minute to subscribe."""


class TemporaryTopics:
    """Subscribers of temporary topics. `drop(topic)` is called for one that is to go."""

    def __init__(self, drop: Callable[[str], None], unsubscribed_s: float = UNSUBSCRIBED_S) -> None:
        self.store: TemporaryQueues | None = None
        self.left = 0
        self._drop = drop
        self._unsubscribed_s = unsubscribed_s
        self._subscribers: dict[str, set[Connection]] = {}
        self._topics_of: dict[Connection, set[str]] = {}
        self._waiting: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def numbers(self) -> Mapping[str, int]:
        """Gauges and counters, as `RequestFamily.numbers`."""
        return {
            "topics_temporary": len(self._subscribers),
            "topics_temporary_left_total": self.left,
        }

    def added(self, topic: str) -> None:
        """A temporary topic is there (again, with other settings)."""
        if topic in self._subscribers:
            return
        if self.store is not None:
            self.store.add(topic)
        self._subscribers[topic] = set()
        self._waiting[topic] = self._loop.time() + self._unsubscribed_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._unsubscribed_s, self._expire)

    def removed(self, topic: str) -> None:
        """Forget a topic that is gone from the table, with its subscribers."""
        for connection in self._subscribers.pop(topic, set()):
            topics = self._topics_of.get(connection, set())
            topics.discard(topic)
            if not topics:
                self._topics_of.pop(connection, None)
        self._waiting.pop(topic, None)
        if self.store is not None:
            self.store.remove(topic)

    def subscribed(self, topic: str, connection: Connection) -> None:
        """This connection reads the topic: it stays while the connection does."""
        subscribers = self._subscribers.get(topic)
        if subscribers is None or connection in subscribers:
            return
        subscribers.add(connection)
        self._topics_of.setdefault(connection, set()).add(topic)
        self._waiting.pop(topic, None)

    def closed(self, connection: Connection) -> None:
        """A connection is gone; what only it subscribed to goes with it."""
        for topic in self._topics_of.pop(connection, set()):
            subscribers = self._subscribers[topic]
            subscribers.discard(connection)
            if not subscribers:
                self.left += 1
                self._drop(topic)

    def close(self) -> None:
        """Stop the timer with the broker."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for topic in [topic for topic, due in self._waiting.items() if due <= now]:
            self.left += 1
            self._drop(topic)
        if self._waiting:
            self._timer = self._loop.call_at(min(self._waiting.values()), self._expire)
