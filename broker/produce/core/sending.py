"""Which connections produce, and to which topics: the last few of each, for the list of connections."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

TOPICS_MAX: Final = 10
"""Topics that are remembered of one connection, those that it sent to last: 1 KB each at most, and a list of
10,000 connections stays in a frame."""

Owner = TypeVar("Owner")


class ProducingConnections(Generic[Owner]):
    """Remembers what each connection sent to. `now` is seconds of a clock that never goes back."""

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self._topics_max = topics_max
        self._topics: dict[Owner, dict[str, float]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def sent(self, owner: Owner, topic: str, now: float) -> None:
        """Messages of a connection were stored in a topic; the topic sent to longest ago makes room."""
        topics = self._topics.get(owner)
        if topics is None:
            topics = self._topics[owner] = {}
        if topic not in topics and len(topics) >= self._topics_max:
            del topics[min(topics, key=topics.__getitem__)]
        topics[topic] = now

    def topics_of(self, owner: Owner) -> list[str]:
        """The topics that a connection sent to last, by name; [] = it sent nothing."""
        return sorted(self._topics.get(owner, ()))

    def close(self, owner: Owner) -> None:
        """A connection is gone."""
        self._topics.pop(owner, None)
