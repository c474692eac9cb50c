"""Routing rules: whole trees of MQTT topics that are stored in one log topic. Sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdmq.mqtt.filters import matches
from holdmq.names.topics import TopicTag


class Route(NamedTuple):
    """What matches the filter is stored in the log topic, whose tags are whole MQTT topics."""

    topic_filter: str
    topic: str


class Routes:
    """The rules of a gateway, in their order: the first that matches counts."""

    def __init__(self, rules: Sequence[Route] = ()) -> None:
        self._rules = tuple(rules)

    @property
    def topics(self) -> tuple[str, ...]:
        """The log topics of the rules, each once."""
        return tuple(dict.fromkeys(rule.topic for rule in self._rules))

    def place_of(self, mqtt_topic: str) -> TopicTag | None:
        """Where a topic goes by the rules; None = to the log topic of its first level."""
        for rule in self._rules:
            if matches(rule.topic_filter, mqtt_topic):
                return TopicTag(rule.topic, mqtt_topic)
        return None


NO_ROUTES = Routes()
