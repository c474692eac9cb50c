"""The table of known topics: topic bytes → what the caller computed from them, checked once.

Devices repeat themselves: nearly every PUBLISH names a topic that this worker has just seen.
One dictionary look-up then replaces the UTF-8 check, the wildcard check, and all that ingress
derives from a topic (log topic, tag, queue).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from holdmq.mqtt.filters import check_topic

T = TypeVar("T")

TOPICS_CACHED_MAX = 65_536
"""Entries of a table by default: three times a worker's 20,000 devices with a topic each; about
15 MB with topics of 50 bytes, and at most 65,536 × `CACHED_TOPIC_BYTES_MAX` of topics."""

CACHED_TOPIC_BYTES_MAX = 256
"""Longer topics are checked each time and not kept: 64 KiB topics must not fill the table."""


class CheckedTopics(Generic[T]):
    """Bounded table of checked topics, shared by all decoders of a worker.

    `create(topic)` is called with the bytes of a valid topic name (UTF-8, not empty, no wildcard)
    that is not in the table, and returns the entry that messages carry, never None; it may raise
    MqttError to refuse a topic. What it computes must stay true as long as the table is used. At
    most `max_entries` entries are kept, in two generations: when the newer one is half of them, it
    becomes the older one, and what was in that and not used since is forgotten. `rotations` counts
    this; when it grows steadily the table is too small.

    `entries` is the newer generation; it is public so that the decoder's loop looks it up
    without a call. A miss there goes through `admit`, which may replace `entries`.
    """

    __slots__ = ("_create", "_generation_max", "_older", "entries", "rotations")

    def __init__(self, create: Callable[[bytes], T], max_entries: int = TOPICS_CACHED_MAX) -> None:
        self._create = create
        self._generation_max = max(1, max_entries // 2)
        self._older: dict[bytes, T] = {}
        self.entries: dict[bytes, T] = {}
        self.rotations = 0

    def __len__(self) -> int:
        return len(self.entries) + len(self._older)

    def clear(self) -> None:
        """Forget all entries: they are made anew."""
        self.entries = {}
        self._older = {}

    def admit(self, topic: bytes) -> T:
        """Return the entry of `topic`, made if it is new. Raises MqttError for what is no topic name."""
        entry = self.entries.get(topic)
        if entry is not None:
            return entry
        entry = self._older.pop(topic, None)
        if entry is None:
            check_topic(topic)
            entry = self._create(topic)
        if len(topic) <= CACHED_TOPIC_BYTES_MAX:
            if len(self.entries) >= self._generation_max:
                self._older = self.entries
                self.entries = {}
                self.rotations += 1
            self.entries[topic] = entry
        return entry
