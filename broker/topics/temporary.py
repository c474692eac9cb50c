"""Temporary topics: in memory only, gone when their last reader leaves.

Who reads one is known to `broker.readers`, whichever way it reads. A topic that nobody ever reads goes as
well, after `unread_s`. Their messages are kept by the store in memory: bounded, oldest dropped.
Source: broker.md, Topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from storage.api.queues import TemporaryQueues

UNREAD_S: Final = 60.0
"""How long a temporary topic waits for its first reader: who creates one has a minute to read."""


class KnowsReaders(Protocol):
    """What is known of a topic's readers."""

    def is_read(self, topic: str) -> bool:
        """Whether anybody reads a topic."""


class TemporaryTopics:
    """All temporary topics. `drop(topic)` is called for one that is to go; tell `unread` of topics."""

    def __init__(
        self, readers: KnowsReaders, drop: Callable[[str], None], unread_s: float = UNREAD_S
    ) -> None:
        self.store: TemporaryQueues | None = None
        self.left = 0
        self._readers = readers
        self._drop = drop
        self._unread_s = unread_s
        self._topics: set[str] = set()
        self._waiting: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def numbers(self) -> Mapping[str, int]:
        """Gauges and counters, as `RequestFamily.numbers`."""
        return {
            "topics_temporary": len(self._topics),
            "topics_temporary_left_total": self.left,
        }

    def added(self, topic: str) -> None:
        """A temporary topic is there (again, with other settings)."""
        if topic in self._topics:
            return
        if self.store is not None:
            self.store.add(topic)
        self._topics.add(topic)
        self._waiting[topic] = self._loop.time() + self._unread_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._unread_s, self._expire)

    def removed(self, topic: str) -> None:
        """Forget a topic that is gone from the table."""
        self._topics.discard(topic)
        self._waiting.pop(topic, None)
        if self.store is not None:
            self.store.remove(topic)

    def unread(self, topic: str) -> None:
        """The last reader of a topic has gone: a temporary one goes with it."""
        if topic in self._topics:
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
            del self._waiting[topic]
            if not self._readers.is_read(topic):
                self.unread(topic)
        if self._waiting:
            self._timer = self._loop.call_at(min(self._waiting.values()), self._expire)
