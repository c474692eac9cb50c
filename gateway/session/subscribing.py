"""SUBSCRIBE decided: each filter is granted, or refused with a reason code (3.8, 3.9)."""

from __future__ import annotations

from dataclasses import replace

from gateway.ground.counters import Counters
from gateway.ground.limits import SessionLimits
from gateway.ground.mounts import mounted_filter
from gateway.session.events import Subscribing
from gateway.session.outbound import Outbound
from gateway.session.replay import ReplayError, replay_of
from holdmq.mqtt import MqttError, ReasonCode, Subscribe, Subscription, plus_levels


def check_answer_fits(count: int, packet_max: int) -> None:
    """Raise MqttError 0x95 when the client has no room for a SUBACK or UNSUBACK with so many reason codes."""
    size = 2 + 2 + 1 + count + (count + 3 > 0x7F) + (count + 3 > 0x3FFF)
    if packet_max and size > packet_max:  # [MQTT-3.1.2-24]
        raise MqttError(
            ReasonCode.PACKET_TOO_LARGE,
            f"the answer for {count} filters has {size} bytes, the client takes {packet_max}",
        )


def granting(
    packet: Subscribe, outbound: Outbound, limits: SessionLimits, counters: Counters, prefix: str = ""
) -> Subscribing:
    """What `packet` asks for, below the mount `prefix`, with the reason code for each filter in SUBACK."""
    known = outbound.subscriptions
    shared = outbound.shared or {}
    # What came with the same bytes is decided before any of it is in effect.
    asked = outbound.asked or {}
    levels = outbound.plus_levels + outbound.asked_levels
    fresh: list[str] = []
    reason = ""
    granted: list[tuple[int, Subscription | None]] = []
    for wanted in packet.subscriptions:
        topic_filter = wanted.topic_filter
        is_too_long = (
            len(topic_filter.encode()) > limits.topic_max_bytes
            or topic_filter.count("/") >= limits.topic_levels_max
        )
        if prefix:
            topic_filter = mounted_filter(prefix, topic_filter)
            wanted = replace(wanted, topic_filter=topic_filter)
        code = wanted.qos  # [MQTT-3.8.4-7]
        metric = ""
        if is_too_long:
            code = ReasonCode.TOPIC_FILTER_INVALID
        elif topic_filter not in known and topic_filter not in asked and topic_filter not in shared:
            own = plus_levels(topic_filter)
            if len(known) + len(shared) + len(asked) >= limits.filters_max:
                code = ReasonCode.QUOTA_EXCEEDED
            elif own and levels + own > limits.plus_levels_max:
                code = ReasonCode.QUOTA_EXCEEDED
                metric = "subscribe_plus_levels_exceeded"
                reason = f"filters with + have more than {limits.plus_levels_max} levels together"
            else:
                asked[topic_filter] = own
                fresh.append(topic_filter)
                levels += own
                outbound.asked_levels += own
        if code >= 0x80:
            counters.refused[metric or f"subscribe_{ReasonCode(code).name.lower()}"] += 1
        granted.append((code, wanted if code < 0x80 else None))
    identifiers = packet.properties.subscription_identifiers
    event = Subscribing(packet.packet_id, granted, identifiers[0] if identifiers else None)
    event.fresh = fresh
    event.reason = reason
    outbound.asked = asked or None
    if packet.properties.user_properties:
        _take_replay(event, counters, packet.properties.user_properties)
    return event


def _take_replay(event: Subscribing, counters: Counters, properties: tuple[tuple[str, str], ...]) -> None:
    """Where the filters begin, if the client says it; what it says wrongly refuses them."""
    try:
        event.replay = replay_of(properties)
    except ReplayError as error:
        counters.refused["subscribe_replay_malformed"] += 1
        event.refuse(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, str(error))
