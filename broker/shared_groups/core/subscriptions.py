"""The filter of a group's subscription: as text, as hashes for the consume queue, as a test of the tag."""

from __future__ import annotations

from typing import Final

from holdmq.errors import Code, RemoteError
from holdmq.mqtt.filters import check_filter
from holdmq.mqtt.reasons import MqttError
from holdmq.names.topics import tag_fault, tag_filter_term, tag_matches, tag_term
from holdmq.wire.headers import TermKind

ALL: Final = "*"
TAGS_MAX: Final = 1_024
"""Tags in one subscription: all of them are tested by one look-up in a sorted array."""


class SubscriptionFilter:
    """`*` = everything; with `+` or `#` in it an MQTT filter over the tag; else tags joined by `||`.

    Raises RemoteError (TAG_INVALID) for what is none of these.
    """

    __slots__ = ("_pattern", "_tags", "is_all", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_all = text in (ALL, "#")
        self._tags: frozenset[str] | None = None
        self._pattern = text
        if self.is_all:
            return
        if "+" in text or "#" in text:
            try:
                check_filter(text)
            except MqttError as error:
                raise RemoteError(Code.TAG_INVALID, f"filter {text[:64]!r}: {error}") from error
            return
        tags = [tag.strip() for tag in text.split("||")]
        if len(tags) > TAGS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{len(tags)} tags in a subscription; {TAGS_MAX} at most")
        for tag in tags:
            fault = tag_fault(tag)
            if fault is not None:
                raise RemoteError(Code.TAG_INVALID, fault)
        self._tags = frozenset(tags)

    def passes(self, tag: str | None) -> bool:
        """Whether a message with this tag (None = without) is wanted."""
        if self.is_all:
            return True
        if self._tags is not None:
            return tag in self._tags
        return tag_matches(self._pattern, tag)

    def hashes(self, topic: str, key_levels: int) -> tuple[list[int], list[int]] | None:
        """What may pass: whole tag hashes, and high halves of them; None = hashes cannot say."""
        if self.is_all:
            return None
        if self._tags is not None:
            return [tag_term(topic, tag, key_levels).hash for tag in sorted(self._tags)], []
        term = tag_filter_term(topic, self._pattern, key_levels)
        if term.kind == TermKind.PREFIX:
            return [], [term.hash >> 32]
        return None
