"""What a consumer wants of a topic: everything, tags, or an MQTT filter over the tag. Pure.

::

    "*"           every message
    "a"           the tag a
    "a || b/c"    the tags a and b/c
    "a/+", "#"    an MQTT filter (it has a + or a #)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from holdmq.errors import UsageError
from holdmq.mqtt.filters import check_filter
from holdmq.mqtt.reasons import MqttError
from holdmq.names.topics import tag_fault, tag_filter_term, tag_matches, tag_term
from holdmq.wire.headers import FilterTerm, TermKind

EVERYTHING: Final = "*"
SEPARATOR: Final = "||"


class TagFilter:
    """One subscription's filter; UsageError names what is wrong with `text`."""

    __slots__ = ("_mqtt", "_tags", "text")

    def __init__(self, text: str = EVERYTHING) -> None:
        self.text = text.strip()
        self._tags: frozenset[str] | None = None
        self._mqtt: str | None = None
        if self.text == EVERYTHING:
            return
        if SEPARATOR not in self.text and ("+" in self.text or "#" in self.text):
            _check_mqtt(self.text)
            self._mqtt = self.text
            return
        tags = [tag.strip() for tag in self.text.split(SEPARATOR)]
        for tag in tags:
            fault = tag_fault(tag) if tag else "a tag is empty"
            if fault is not None:
                raise UsageError(f"filter {self.text!r}: {fault}")
        self._tags = frozenset(tags)
        self.text = f" {SEPARATOR} ".join(sorted(self._tags))

    @classmethod
    def of(cls, tags: Collection[str] | None, tag_filter: str | None) -> TagFilter:
        """One of these tags, or what an MQTT filter matches ("" = no tag); neither given: everything."""
        found = cls()
        if tag_filter is not None:
            if tags is not None:
                raise UsageError("give tags or tag_filter, not both")
            if tag_filter:
                _check_mqtt(tag_filter)
            found._mqtt = tag_filter
        elif tags is not None:
            if isinstance(tags, str):
                raise UsageError("tags must be a list of tags; a text alone is tag_filter")
            found._tags = frozenset(tags)
            for fault in filter(None, map(tag_fault, found._tags)):
                raise UsageError(fault)
        return found

    @property
    def is_everything(self) -> bool:
        """Whether every message passes."""
        return self._tags is None and self._mqtt is None

    def passes(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted."""
        if self._tags is not None:
            return tag in self._tags
        return self._mqtt is None or tag_matches(self._mqtt, tag)

    def terms(self, topic: str, key_levels: int) -> list[FilterTerm]:
        """What a broker must let pass; it may send more."""
        if self._tags is not None:
            return [tag_term(topic, tag, key_levels) for tag in sorted(self._tags)]
        if self._mqtt is not None:
            return [tag_filter_term(topic, self._mqtt, key_levels)]
        return [FilterTerm(TermKind.TOPIC, topic, 0, "")]


def _check_mqtt(text: str) -> None:
    try:
        check_filter(text)
    except MqttError as error:
        raise UsageError(f"filter {text!r}: {error}") from error
