"""SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK (3.8 – 3.11).

::

    SUBSCRIBE    | packet id 2 | properties (5) | filter, options 1 | filter, options 1 | …
    options        7–6 reserved, 5–4 retain handling, 3 retain as published, 2 no local, 1–0 QoS
                   (MQTT 3: bits 7–2 reserved)
    SUBACK       | packet id 2 | properties (5) | reason code 1 | …
    UNSUBSCRIBE  | packet id 2 | properties (5) | filter | filter | …
    UNSUBACK     | packet id 2 | properties (5) | reason code 1 … (5) |
"""

from __future__ import annotations

from typing import Final

from holdmq.errors import UsageError
from holdmq.mqtt.fields import (
    encode_packet_id,
    encode_utf8,
    frame,
    malformed,
    protocol_error,
    read_byte,
    read_packet_id,
    read_utf8,
)
from holdmq.mqtt.filters import parse_filter
from holdmq.mqtt.packets import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from holdmq.mqtt.properties import NO_PROPERTIES, Properties, encode_properties, read_properties
from holdmq.mqtt.protocol import (
    FILTERS_PER_PACKET_MAX,
    MQTT_5,
    PACKET_NAMES,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from holdmq.mqtt.reasons import MqttError, ReasonCode, check_own_reason, check_reason

_V3_SUBACK_CODES: Final = frozenset({0x00, 0x01, 0x02, 0x80})


def _read_head(
    data: bytes, pos: int, end: int, packet_type: int, version: int, sender: int
) -> tuple[int, Properties, int]:
    packet_id, pos = read_packet_id(data, pos, end, PACKET_NAMES[packet_type])
    properties: Properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = read_properties(data, pos, end, packet_type, sender)
    return packet_id, properties, pos


def _check_count(count: int, packet_type: int) -> None:
    if count == FILTERS_PER_PACKET_MAX:
        raise MqttError(
            ReasonCode.QUOTA_EXCEEDED,
            f"{PACKET_NAMES[packet_type]} has more than {FILTERS_PER_PACKET_MAX} topic filters; send several",
        )


def _read_subscription(data: bytes, pos: int, end: int, version: int) -> tuple[Subscription, int]:
    topic_filter, pos = read_utf8(data, pos, end, "topic filter")  # [MQTT-3.8.3-1]
    parsed = parse_filter(topic_filter)
    options, pos = read_byte(data, pos, end, "subscription options")
    if version != MQTT_5:
        if options > 2:  # 3.1.1: [MQTT-3.8.3-4]
            raise malformed(f"SUBSCRIBE asks for QoS {options}")
        return Subscription(topic_filter, options), pos
    if options & 0xC0:  # [MQTT-3.8.3-5]
        raise malformed("a reserved bit of the subscription options is set")
    if options & 0x03 == 3:
        raise protocol_error("SUBSCRIBE asks for QoS 3")
    if options & 0x30 == 0x30:
        raise protocol_error("SUBSCRIBE has retain handling 3")
    no_local = bool(options & 0x04)
    if no_local and parsed.is_shared:  # [MQTT-3.8.3-4]
        raise protocol_error("no local on a shared subscription")
    return (
        Subscription(topic_filter, options & 3, no_local, bool(options & 0x08), options >> 4 & 3),
        pos,
    )


def decode_subscribe(data: bytes, pos: int, end: int, version: int, sender: int) -> Subscribe:
    """Decode the body of a SUBSCRIBE. Raises MqttError."""
    packet_id, properties, pos = _read_head(data, pos, end, SUBSCRIBE, version, sender)
    subscriptions: list[Subscription] = []
    while pos < end:
        _check_count(len(subscriptions), SUBSCRIBE)
        subscription, pos = _read_subscription(data, pos, end, version)
        subscriptions.append(subscription)
    if not subscriptions:  # [MQTT-3.8.3-2] (3.1.1: [MQTT-3.8.3-3])
        raise protocol_error("SUBSCRIBE has no topic filter")
    return Subscribe(packet_id, subscriptions, properties)


def decode_unsubscribe(data: bytes, pos: int, end: int, version: int, sender: int) -> Unsubscribe:
    """Decode the body of an UNSUBSCRIBE. Raises MqttError."""
    packet_id, properties, pos = _read_head(data, pos, end, UNSUBSCRIBE, version, sender)
    topic_filters: list[str] = []
    while pos < end:
        _check_count(len(topic_filters), UNSUBSCRIBE)
        topic_filter, pos = read_utf8(data, pos, end, "topic filter")  # [MQTT-3.10.3-1]
        parse_filter(topic_filter)
        topic_filters.append(topic_filter)
    if not topic_filters:  # [MQTT-3.10.3-2]
        raise protocol_error("UNSUBSCRIBE has no topic filter")
    return Unsubscribe(packet_id, topic_filters, properties)


def decode_suback(data: bytes, pos: int, end: int, version: int, sender: int) -> SubAck:
    """Decode the body of a SUBACK. Raises MqttError."""
    packet_id, properties, pos = _read_head(data, pos, end, SUBACK, version, sender)
    codes = list(data[pos:end])
    if not codes:
        raise protocol_error("SUBACK has no reason code")
    for code in codes:
        if version == MQTT_5:
            check_reason(code, SUBACK, sender)
        elif code not in _V3_SUBACK_CODES:  # 3.1.1: [MQTT-3.9.3-2]
            raise malformed(f"SUBACK carries the reserved return code 0x{code:02X}")
    return SubAck(packet_id, codes, properties)


def decode_unsuback(data: bytes, pos: int, end: int, version: int, sender: int) -> UnsubAck:
    """Decode the body of an UNSUBACK. Raises MqttError."""
    packet_id, properties, pos = _read_head(data, pos, end, UNSUBACK, version, sender)
    codes = list(data[pos:end])
    if version != MQTT_5:
        if codes:
            raise malformed("UNSUBACK has bytes after its packet identifier")
    elif not codes:
        raise protocol_error("UNSUBACK has no reason code")
    for code in codes:
        check_reason(code, UNSUBACK, sender)
    return UnsubAck(packet_id, codes, properties)


def _check_own_filter(topic_filter: str) -> bytes:
    raw = encode_utf8(topic_filter, "topic filter")
    try:
        parse_filter(topic_filter)
    except MqttError as error:
        raise UsageError(str(error)) from None
    return raw


def _head(packet_id: int, properties: Properties, packet_type: int, version: int) -> bytes:
    head = encode_packet_id(packet_id)
    return head + encode_properties(properties, packet_type) if version == MQTT_5 else head


def _options(subscription: Subscription, version: int) -> bytes:
    qos = subscription.qos
    if qos not in (0, 1, 2) or subscription.retain_handling not in (0, 1, 2):
        raise UsageError("a subscription's QoS and retain handling must be 0, 1 or 2")
    if version != MQTT_5:
        return bytes((qos,))
    if subscription.no_local and parse_filter(subscription.topic_filter).is_shared:
        raise UsageError("a shared subscription cannot have no_local")  # [MQTT-3.8.3-4]
    return bytes(
        (
            qos
            | (0x04 if subscription.no_local else 0)
            | (0x08 if subscription.retain_as_published else 0)
            | subscription.retain_handling << 4,
        )
    )


def encode_subscribe(packet: Subscribe, version: int) -> bytes:
    """Encode a SUBSCRIBE. Raises UsageError."""
    if not packet.subscriptions:
        raise UsageError("SUBSCRIBE needs at least one subscription")
    parts = [_head(packet.packet_id, packet.properties, SUBSCRIBE, version)]
    for subscription in packet.subscriptions:
        parts += _check_own_filter(subscription.topic_filter), _options(subscription, version)
    return frame(SUBSCRIBE << 4 | 2, *parts)


def encode_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    """Encode an UNSUBSCRIBE. Raises UsageError."""
    if not packet.topic_filters:
        raise UsageError("UNSUBSCRIBE needs at least one topic filter")
    head = _head(packet.packet_id, packet.properties, UNSUBSCRIBE, version)
    return frame(UNSUBSCRIBE << 4 | 2, head, *map(_check_own_filter, packet.topic_filters))


def encode_suback(packet: SubAck, version: int) -> bytes:
    """Encode a SUBACK; for MQTT 3 every failure becomes 0x80. Raises UsageError."""
    if not packet.reason_codes:
        raise UsageError("SUBACK needs a reason code for each subscription")
    for code in packet.reason_codes:
        check_own_reason(code, SUBACK)
    codes = packet.reason_codes
    if version != MQTT_5:
        codes = [min(code, 0x80) for code in codes]
    head = _head(packet.packet_id, packet.properties, SUBACK, version)
    return frame(SUBACK << 4, head, bytes(codes))


def encode_unsuback(packet: UnsubAck, version: int) -> bytes:
    """Encode an UNSUBACK; MQTT 3 has no reason codes, they are left out. Raises UsageError."""
    head = _head(packet.packet_id, packet.properties, UNSUBACK, version)
    if version != MQTT_5:
        return frame(UNSUBACK << 4, head)
    if not packet.reason_codes:
        raise UsageError("UNSUBACK needs a reason code for each topic filter")
    for code in packet.reason_codes:
        check_own_reason(code, UNSUBACK)
    return frame(UNSUBACK << 4, head, bytes(packet.reason_codes))
