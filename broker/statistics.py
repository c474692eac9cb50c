"""Counts per topic since the broker's start; rates are for whoever scrapes them."""

from __future__ import annotations


class TopicCounts:
    """Messages and bytes of one topic, in and out."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0


class Statistics:
    """Per-topic counts. Bounded by topics_max: only topics of the table are counted."""

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics: dict[str, TopicCounts] = {}

    def of(self, topic: str) -> TopicCounts:
        """The topic's counts, made at first use."""
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = TopicCounts()
        return counts
