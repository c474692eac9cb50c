"""What a worker knows of an MQTT topic: computed once, found again by the topic's bytes."""

from __future__ import annotations

from holdmq.mqtt import ReasonCode
from holdmq.record import encode_properties
from holdmq.topics import TopicTag, other_topic, split_mqtt_topic


class TopicEntry:
    """An MQTT topic on its way in.

    `refusal` is 0, or the reason code with which every publish to it is refused. `own` is the
    (topic, tag) of its first level; `tag_of` gives the encoded TAGS property once it is known
    whether that topic exists or the shared one is used.
    """

    __slots__ = ("mqtt_topic", "own", "refusal")

    def __init__(self, mqtt_topic: str, refusal: int = 0) -> None:
        self.mqtt_topic = mqtt_topic
        self.refusal = refusal
        self.own = split_mqtt_topic(mqtt_topic)

    @property
    def other(self) -> TopicTag:
        """Where it goes when its first level gets no topic of its own."""
        return other_topic(self.mqtt_topic)


def make_entry(raw: bytes, topic_max_bytes: int, topic_levels_max: int) -> TopicEntry:
    """The entry of a valid topic name.

    Names that begin with `$` cannot be published by clients (4.7.2 leaves them to the server);
    longer and deeper ones than the limits are refused with 0x90.
    """
    refused = raw[:1] == b"$" or len(raw) > topic_max_bytes or raw.count(b"/") >= topic_levels_max
    return TopicEntry(raw.decode(), ReasonCode.TOPIC_NAME_INVALID if refused else 0)


def record_properties(tag: str | None, client_id: str, block: bytes) -> bytes:
    """The record's properties of a publish: tag first, client id, then the MQTT 5 block as sent.

    Raises RecordError (LIMIT_EXCEEDED) when they are too large.
    """
    pairs = [("CLIENT_ID", client_id)] if tag is None else [("TAGS", tag), ("CLIENT_ID", client_id)]
    return encode_properties(pairs, block or None)
