"""What a worker knows of an MQTT topic: computed once, found again by the topic's bytes."""

from __future__ import annotations

from gateway.ground.delayed import DELAYED_PREFIX, split_delayed
from gateway.ground.routes import NO_ROUTES, Routes
from holdmq.mqtt import ReasonCode
from holdmq.names.tenants import split_mount
from holdmq.names.topics import TopicTag, other_topic, split_mqtt_topic
from holdmq.record.codec import encode_properties


class TopicEntry:
    """An MQTT topic on its way in, as it was named (`raw`); `mqtt_topic` is below the mount of its tenant.

    `refusal` is 0, or the reason code with which every publish to it is refused. `own` is the
    (topic, tag) of its first level, or of a routing rule; `other` is used instead when that topic may not be
    created.
    `delay_s`: its messages appear so many seconds after the broker has taken them; None = at once.
    """

    __slots__ = ("delay_s", "mqtt_topic", "own", "raw", "refusal")

    def __init__(
        self,
        raw: bytes,
        mqtt_topic: str,
        refusal: int = 0,
        delay_s: int | None = None,
        routes: Routes = NO_ROUTES,
    ) -> None:
        self.raw = raw
        self.mqtt_topic = mqtt_topic
        self.refusal = refusal
        self.delay_s = delay_s
        self.own = routes.place_of(mqtt_topic) or split_mqtt_topic(mqtt_topic)

    @property
    def said(self) -> str:
        """The topic as its client says it, without a delay."""
        return split_mount(self.mqtt_topic).inner

    @property
    def other(self) -> TopicTag:
        """Where it goes when its first level gets no topic of its own."""
        return other_topic(self.mqtt_topic)


def make_entry(
    raw: bytes,
    topic_max_bytes: int,
    topic_levels_max: int,
    routes: Routes = NO_ROUTES,
    mount: str = "",
) -> TopicEntry:
    """The entry of a valid topic name, below a tenant's mount ("" = none), which no routing rule is about.

    Names that begin with `$` cannot be published by clients (4.7.2 leaves them to the server), but for
    `$delayed/<seconds>/<topic>`: its entry is that of the topic, with a delay. Longer and deeper ones
    than the limits are refused with 0x90.
    """
    delay_s: int | None = None
    name = raw
    if raw.startswith(DELAYED_PREFIX):
        delayed = split_delayed(raw)
        if delayed is not None:
            delay_s, name = delayed
    refused = name[:1] == b"$" or len(name) > topic_max_bytes or name.count(b"/") >= topic_levels_max
    refusal = ReasonCode.TOPIC_NAME_INVALID if refused else 0
    return TopicEntry(raw, mount + name.decode(), refusal, delay_s, NO_ROUTES if mount else routes)


def record_properties(tag: str | None, client_id: str, block: bytes, delay_s: int | None = None) -> bytes:
    """The record's properties of a publish: tag first, client id, its delay, then the MQTT 5 block as sent.

    Raises RecordError (LIMIT_EXCEEDED) when they are too large.
    """
    pairs = [("CLIENT_ID", client_id)] if tag is None else [("TAGS", tag), ("CLIENT_ID", client_id)]
    if delay_s is not None:
        pairs.append(("DUE", f"+{delay_s * 1000}"))  # by the broker's clock (holdmq.wire.move_headers)
    return encode_properties(pairs, block or None)
