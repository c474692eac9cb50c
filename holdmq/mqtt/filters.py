"""Topic names and topic filters (4.7), and the filters of shared subscriptions (4.8.2)."""

from __future__ import annotations

from typing import NamedTuple

from holdmq.mqtt.fields import decode_utf8
from holdmq.mqtt.reasons import MqttError, ReasonCode

TOPIC_BYTES_MAX = 65_535
"""What a two byte length can say; no topic name or filter is longer [MQTT-4.7.3-3]."""

SHARE_PREFIX = "$share/"


class ParsedFilter(NamedTuple):
    """A subscription's filter: `share_name` is None for an ordinary subscription."""

    share_name: str | None
    topic_filter: str

    @property
    def is_shared(self) -> bool:
        """Whether this came from `$share/<name>/<filter>`."""
        return self.share_name is not None


def check_topic(topic: bytes) -> str:
    """Return the topic name in `topic`, or raise MqttError: 0x81 not UTF-8, 0x82 empty, 0x90 wildcard."""
    if not topic:  # [MQTT-4.7.3-1]
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "the topic name is empty")
    text = decode_utf8(topic, "topic name")  # [MQTT-3.3.2-1] [MQTT-4.7.3-2]
    if "+" in text or "#" in text:  # [MQTT-3.3.2-2] [MQTT-4.7.0-1] (3.1.1: [MQTT-4.7.1-1])
        raise MqttError(ReasonCode.TOPIC_NAME_INVALID, f"the topic name {text!r} contains a wildcard")
    return text


def is_topic_name(text: str) -> bool:
    """Whether `text` is a valid topic name: for what does not come from the wire."""
    try:
        return len(raw := text.encode()) <= TOPIC_BYTES_MAX and check_topic(raw) == text
    except (MqttError, UnicodeEncodeError):
        return False


def _invalid(topic_filter: str, why: str) -> MqttError:
    return MqttError(ReasonCode.TOPIC_FILTER_INVALID, f"the topic filter {topic_filter!r} {why}")


def check_filter(topic_filter: str) -> str:
    """Return `topic_filter` if it is a filter by 4.7.1, `$share` not looked at; MqttError 0x8F otherwise.

    The text must have come through `decode_utf8` or an equal check.
    """
    if not topic_filter:  # [MQTT-4.7.3-1]
        raise _invalid(topic_filter, "is empty")
    if "#" in topic_filter or "+" in topic_filter:
        levels = topic_filter.split("/")
        for level in levels[:-1]:
            if "#" in level:
                raise _invalid(topic_filter, "has # before its last level")  # [MQTT-4.7.1-1]
        for level in levels:
            if len(level) > 1 and "#" in level:
                raise _invalid(topic_filter, "has # beside other characters")  # [MQTT-4.7.1-1]
            if len(level) > 1 and "+" in level:
                raise _invalid(topic_filter, "has + beside other characters")  # [MQTT-4.7.1-2]
    return topic_filter


def plus_levels(topic_filter: str) -> int:
    """Levels of a filter with `+`, those of `$share/<name>/` too; 0 without `+`: what a match may compare."""
    return topic_filter.count("/") + 1 if "+" in topic_filter else 0


def parse_filter(text: str) -> ParsedFilter:
    """Split a subscription's filter into share name and topic filter, both checked; MqttError 0x8F otherwise.

    `$share/` means a shared subscription in every version: MQTT 3 gives the prefix no meaning of
    its own, and brokers agree on this one.
    """
    if text != "$share" and not text.startswith(SHARE_PREFIX):
        return ParsedFilter(None, check_filter(text))
    share_name, slash, topic_filter = text[len(SHARE_PREFIX) :].partition("/")
    if not share_name or not slash:  # [MQTT-4.8.2-1]
        raise _invalid(text, "has no share name or no filter; write $share/<name>/<filter>")
    if "+" in share_name or "#" in share_name:  # [MQTT-4.8.2-2]
        raise _invalid(text, "has a wildcard in its share name")
    if not topic_filter:  # [MQTT-4.8.2-2]
        raise _invalid(text, "has an empty filter after its share name")
    return ParsedFilter(share_name, check_filter(topic_filter))


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a topic name is matched by a filter (4.7); both valid, `$share/<name>/` already taken off."""
    if topic_filter == topic:
        return True
    wanted = topic_filter.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    levels = topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        if len(levels) < len(wanted):
            return False
        levels = levels[: len(wanted)]  # `sport/#` matches `sport` too (4.7.1.2)
    elif len(levels) != len(wanted):
        return False
    return all(want in ("+", level) for want, level in zip(wanted, levels, strict=True))
