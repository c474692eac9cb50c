"""CONNECT and CONNACK (3.1, 3.2).

::

    CONNECT  | name length 2 | name | level 1 | flags 1 | keep alive 2 | properties (5) |
             | client id | will properties (5) | will topic | will payload | user name | password |
    flags      7 user name, 6 password, 5 will retain, 4–3 will QoS, 2 will, 1 clean, 0 reserved
    CONNACK  | acknowledge flags 1 (bit 0 session present) | code 1 | properties (5) |
"""

from __future__ import annotations

from typing import Final

from holdmq.errors import UsageError
from holdmq.mqtt.fields import (
    encode_binary,
    encode_u16,
    encode_utf8,
    frame,
    malformed,
    protocol_error,
    read_binary,
    read_byte,
    read_u16,
    read_utf8,
)
from holdmq.mqtt.filters import check_topic, is_topic_name
from holdmq.mqtt.packets import ConnAck, Connect, Will
from holdmq.mqtt.properties import NO_PROPERTIES, Properties, encode_properties, read_properties
from holdmq.mqtt.protocol import CLIENT, CONNACK, CONNECT, MQTT_3_1, MQTT_3_1_1, MQTT_5, WILL
from holdmq.mqtt.reasons import (
    MqttError,
    ReasonCode,
    check_own_reason,
    check_reason,
    connack_reason_code,
    connack_return_code,
)

_NAMES: Final = {b"MQIsdp": (MQTT_3_1,), b"MQTT": (MQTT_3_1_1, MQTT_5)}


class UnsupportedLevelError(MqttError):
    """A protocol level that is not spoken here; `answer_version` is the level to answer CONNACK in."""

    def __init__(self, level: int, answer_version: int) -> None:
        super().__init__(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol level {level} is not supported: MQTT 3.1 (3), 3.1.1 (4) and 5.0 (5) are",
        )
        self.answer_version = answer_version


def read_protocol(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Read protocol name and level; return the level and the position after it.

    Raises UnsupportedLevelError (0x84) when the name is right and the level is not (bridges that
    set 0x80 in the level included), MqttError 0x84 when the name itself is wrong.
    """
    name, pos = read_binary(data, pos, end, "protocol name")
    levels = _NAMES.get(name)
    if levels is None:  # [MQTT-3.1.2-1]
        raise MqttError(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"the protocol name is {name[:16]!r}; MQTT clients say 'MQTT' or 'MQIsdp'",
        )
    level, pos = read_byte(data, pos, end, "protocol level")
    if level not in levels:  # [MQTT-3.1.2-2]
        # Whoever speaks a later level than 5 understands MQTT 5's CONNACK; all others get 3.1.1's.
        raise UnsupportedLevelError(level, MQTT_5 if MQTT_5 < level < 0x80 else MQTT_3_1_1)
    return level, pos


def _check_flags(flags: int, version: int) -> None:
    if flags & 0x01 and version != MQTT_3_1:  # [MQTT-3.1.2-3]; 3.1 calls the bit unused
        raise malformed("the reserved bit of CONNECT's flags is set")
    if flags & 0x04:
        if flags & 0x18 == 0x18:  # [MQTT-3.1.2-12] (3.1.1: [MQTT-3.1.2-14])
            raise malformed("the will's QoS is 3")
    elif flags & 0x38 and version != MQTT_3_1:  # [MQTT-3.1.2-11], -13 (3.1.1: -11, -13, -15)
        raise malformed("will QoS or will retain is set without a will")
    if flags & 0x40 and not flags & 0x80 and version != MQTT_5:  # 3.1.1: [MQTT-3.1.2-22]
        raise malformed("a password without a user name")


def _check_client_id(client_id: str, clean: bool, version: int) -> None:
    # 3.1 allows 1–23 characters; its clients send longer ones, and only an empty one is unusable.
    # [MQTT-3.1.3-5] lets a server accept more, 3.1.1's [MQTT-3.1.3-8] refuses empty without clean.
    if not client_id and (version == MQTT_3_1 or (version == MQTT_3_1_1 and not clean)):
        raise MqttError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "an empty client identifier needs 3.1.1's clean session"
        )


def _read_will(data: bytes, pos: int, end: int, flags: int, version: int) -> tuple[Will, int]:
    properties: Properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = read_properties(data, pos, end, WILL, CLIENT)
    topic, pos = read_binary(data, pos, end, "will topic")
    payload, pos = read_binary(data, pos, end, "will payload")
    # [MQTT-3.1.3-11] (3.1.1: -10): a topic name, by the rules of PUBLISH.
    return Will(check_topic(topic), payload, flags >> 3 & 3, bool(flags & 0x20), properties), pos


def decode_connect(data: bytes, pos: int, end: int, version: int) -> Connect:
    """Decode what follows the protocol level that `read_protocol` returned. Raises MqttError."""
    flags, pos = read_byte(data, pos, end, "connect flags")
    _check_flags(flags, version)
    keep_alive, pos = read_u16(data, pos, end, "keep alive")
    properties: Properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = read_properties(data, pos, end, CONNECT, CLIENT)
    client_id, pos = read_utf8(data, pos, end, "client identifier")  # [MQTT-3.1.3-3] [MQTT-3.1.3-4]
    clean = bool(flags & 0x02)
    _check_client_id(client_id, clean, version)
    packet = Connect(client_id, version, clean, keep_alive, properties=properties)
    if flags & 0x04:
        packet.will, pos = _read_will(data, pos, end, flags, version)
    # 3.1: "the User Name flag is set, but the User Name string is missing. This is valid."
    lenient = version == MQTT_3_1
    if flags & 0x80 and not (lenient and pos == end):
        packet.username, pos = read_utf8(data, pos, end, "user name")  # [MQTT-3.1.3-12]
    if flags & 0x40 and not (lenient and pos == end):
        packet.password, pos = read_binary(data, pos, end, "password")
    if pos != end:
        raise malformed("CONNECT has bytes after its last field")
    return packet


def encode_connect(packet: Connect) -> bytes:
    """Encode a CONNECT for its own `version`. Raises UsageError."""
    version = packet.version
    if version not in (MQTT_3_1, MQTT_3_1_1, MQTT_5):
        raise UsageError(f"there is no MQTT level {version}; use 3 (3.1), 4 (3.1.1) or 5 (5.0)")
    flags = 0x02 if packet.clean_start else 0
    payload = [encode_utf8(packet.client_id, "client identifier")]
    will = packet.will
    if will is not None:
        if will.qos not in (0, 1, 2) or not is_topic_name(will.topic):
            raise UsageError(f"a will needs a topic name and QoS 0–2, not {will.topic!r} and {will.qos}")
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        if version == MQTT_5:
            payload.append(encode_properties(will.properties, WILL))
        payload += encode_utf8(will.topic, "will topic"), encode_binary(will.payload, "will payload")
    if packet.username is not None:
        flags |= 0x80
        payload.append(encode_utf8(packet.username, "user name"))
    if packet.password is not None:
        if packet.username is None and version != MQTT_5:
            raise UsageError("MQTT 3 has no password without a user name")
        flags |= 0x40
        payload.append(encode_binary(packet.password, "password"))
    name = b"\x00\x06MQIsdp" if version == MQTT_3_1 else b"\x00\x04MQTT"
    head = name + bytes((version, flags)) + encode_u16(packet.keep_alive, "keep alive")
    if version == MQTT_5:
        head += encode_properties(packet.properties, CONNECT)
    return frame(CONNECT << 4, head, *payload)


def decode_connack(data: bytes, pos: int, end: int, version: int, sender: int) -> ConnAck:
    """Decode the body of a CONNACK. Raises MqttError."""
    flags, pos = read_byte(data, pos, end, "acknowledge flags")
    code, pos = read_byte(data, pos, end, "reason code")
    properties: Properties = NO_PROPERTIES
    if version == MQTT_5:
        check_reason(code, CONNACK, sender)
        properties, pos = read_properties(data, pos, end, CONNACK, sender)
    else:
        code = connack_reason_code(code)
    if flags & 0xFE and version != MQTT_3_1:  # [MQTT-3.2.2-1]; 3.1 calls the byte unused
        raise malformed("a reserved bit of CONNACK's flags is set")
    present = bool(flags & 1) and version != MQTT_3_1
    if present and code:  # [MQTT-3.2.2-6] (3.1.1: [MQTT-3.2.2-4])
        raise protocol_error("CONNACK refuses the connection and says that a session is present")
    if pos != end:
        raise malformed("CONNACK has bytes after its last field")
    return ConnAck(present, code, properties)


def encode_connack(packet: ConnAck, version: int) -> bytes:
    """Encode a CONNACK; to an MQTT 3 client the reason code becomes its nearest return code."""
    if packet.session_present and packet.reason_code:  # [MQTT-3.2.2-6]
        raise UsageError("CONNACK cannot refuse a connection and have a session present")
    present = packet.session_present and version != MQTT_3_1
    if version == MQTT_5:
        check_own_reason(packet.reason_code, CONNACK)
        head = bytes((present, packet.reason_code))
        return frame(CONNACK << 4, head, encode_properties(packet.properties, CONNACK))
    return bytes((CONNACK << 4, 2, present, connack_return_code(packet.reason_code)))
