"""Packets as a trace shows them, sans-IO: plain values, without secrets, and short."""

from __future__ import annotations

from typing import Any, Final

from gateway.ground.entries import TopicEntry
from holdmq.mqtt import (
    AckRun,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    PublishRun,
    ReasonCode,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    publishes,
)
from holdmq.mqtt.properties import PROPERTIES
from holdmq.mqtt.protocol import PACKET_NAMES

TEXT_MAX: Final = 64
"""Characters of a payload that are shown: enough to tell one from another."""
LIST_MAX: Final = 32
"""Packet ids, filters or reason codes shown of one packet."""
_SECRETS: Final = frozenset(("authentication_data",))

View = dict[str, Any]


def views(item: object) -> list[View]:
    """The packets of one item that a Decoder returned; `topic` is in those of PUBLISH, and only there."""
    if isinstance(item, PublishRun):
        return [_publish(message) for message in publishes(_with_names(item))]
    if isinstance(item, AckRun):
        return [{"packet": PACKET_NAMES[item.packet_type], "packet_ids": item.packet_ids[:LIST_MAX]}]
    return [_view(item)]  # type: ignore[arg-type]


def _with_names(run: PublishRun[Any]) -> PublishRun[bytes]:
    """A gateway's run has entries where others have the bytes of the topic."""
    named: PublishRun[bytes] = PublishRun(run.buffer)
    named.messages = [
        (message[0].said.encode() if isinstance(message[0], TopicEntry) else message[0], *message[1:])
        for message in run.messages
    ]
    return named


def _publish(packet: Publish) -> View:
    view: View = {"packet": "PUBLISH", "topic": packet.topic, "qos": packet.qos}
    if packet.packet_id:
        view["packet_id"] = packet.packet_id
    view |= {name: True for name in ("retain", "dup") if getattr(packet, name)}
    view["payload_bytes"] = len(packet.payload)
    view["payload"] = _text(packet.payload)
    return view | _properties(packet.properties)


def _view(packet: Packet) -> View:
    view: View = {"packet": PACKET_NAMES[packet.packet_type]}
    if isinstance(packet, Connect):
        view |= _connect(packet)
    elif isinstance(packet, ConnAck):
        view["session_present"] = packet.session_present
    elif isinstance(packet, Subscribe):
        view["filters"] = {s.topic_filter: s.qos for s in packet.subscriptions[:LIST_MAX]}
    elif isinstance(packet, Unsubscribe):
        view["filters"] = packet.topic_filters[:LIST_MAX]
    elif isinstance(packet, SubAck | UnsubAck):
        view["reason_codes"] = [f"0x{code:02X}" for code in packet.reason_codes[:LIST_MAX]]
    packet_id = getattr(packet, "packet_id", 0)
    if packet_id:
        view["packet_id"] = packet_id
    code = getattr(packet, "reason_code", None)
    if code is not None and (code or isinstance(packet, ConnAck | Disconnect | Auth)):
        view["reason_code"] = f"0x{code:02X}"
        view["reason"] = ReasonCode(code).name.lower()
    return view | _properties(getattr(packet, "properties", None))


def _connect(packet: Connect) -> View:
    view: View = {
        "client_id": packet.client_id,
        "mqtt": {3: "3.1", 4: "3.1.1", 5: "5"}.get(packet.version, ""),
        "clean_start": packet.clean_start,
        "keep_alive_s": packet.keep_alive,
    }
    if packet.username is not None:
        view["username"] = packet.username
    if packet.password is not None:
        view["password"] = "***"  # noqa: S105 # what is shown instead of one
    if packet.will is not None:
        view["will"] = {"topic": packet.will.topic, "qos": packet.will.qos, "retain": packet.will.retain}
    return view


def _properties(properties: Properties | None) -> View:
    if properties is None:
        return {}
    shown: View = {}
    for spec in PROPERTIES:
        value = getattr(properties, spec.name)
        if value is None or value == ():
            continue
        if spec.name in _SECRETS:
            value = "***"
        elif isinstance(value, bytes):
            value = _text(value)
        shown[spec.name] = value
    return {"properties": shown} if shown else {}


def _text(payload: bytes) -> str:
    """The beginning of a payload for people: text if it is some, else hexadecimal digits."""
    head = payload[:TEXT_MAX]
    try:
        text = head.decode()
    except UnicodeDecodeError:
        return head[: TEXT_MAX // 2].hex()
    return text if text.isprintable() else ascii(text)[1:-1][:TEXT_MAX]
