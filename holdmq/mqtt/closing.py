"""PINGREQ, PINGRESP, DISCONNECT, AUTH (3.12 – 3.15).

::

    PINGREQ, PINGRESP   nothing
    DISCONNECT, AUTH    | reason 1 | property length, properties |   MQTT 5; both, or the last,
                                                                     may be absent
"""

from __future__ import annotations

from holdmq.mqtt.fields import frame, malformed, protocol_error
from holdmq.mqtt.packets import Auth, Disconnect
from holdmq.mqtt.properties import NO_PROPERTIES, Properties, encode_properties, read_properties
from holdmq.mqtt.protocol import AUTH, DISCONNECT, MQTT_5, PACKET_NAMES, SERVER
from holdmq.mqtt.reasons import check_own_reason, check_reason


def check_empty(pos: int, end: int, packet_type: int) -> None:
    """Raise MqttError 0x81 unless the packet has no body."""
    if pos != end:
        raise malformed(f"{PACKET_NAMES[packet_type]} has a remaining length of {end - pos}; it must be 0")


def _read_reason(data: bytes, pos: int, end: int, packet_type: int, sender: int) -> tuple[int, Properties]:
    reason_code = check_reason(data[pos], packet_type, sender)
    pos += 1
    properties: Properties = NO_PROPERTIES
    if pos < end:  # 3.14.2.2.1: the property length may be left out
        properties, pos = read_properties(data, pos, end, packet_type, sender)
        if pos != end:
            raise malformed(f"{PACKET_NAMES[packet_type]} has bytes after its last field")
    return reason_code, properties


def decode_disconnect(data: bytes, pos: int, end: int, version: int, sender: int) -> Disconnect:
    """Decode the body of a DISCONNECT. Raises MqttError."""
    if version != MQTT_5:
        if sender == SERVER:
            raise protocol_error("an MQTT 3 server sends no DISCONNECT")
        check_empty(pos, end, DISCONNECT)
    if pos == end:
        return Disconnect()
    return Disconnect(*_read_reason(data, pos, end, DISCONNECT, sender))


def decode_auth(data: bytes, pos: int, end: int, version: int, sender: int) -> Auth:
    """Decode the body of an AUTH. Raises MqttError."""
    if version != MQTT_5:
        raise malformed("packet type 15 is reserved in MQTT 3")
    if pos == end:  # 3.15.2.1: success without properties may be empty
        check_reason(0, AUTH, sender)
        return Auth()
    reason_code, properties = _read_reason(data, pos, end, AUTH, sender)
    if properties.authentication_method is None:  # 3.15.2.2.2
        raise protocol_error("AUTH has no authentication method")
    return Auth(reason_code, properties)


def encode_reason(packet: Disconnect | Auth, version: int) -> bytes:
    """Encode a DISCONNECT or AUTH in its shortest form. Raises UsageError."""
    first = packet.packet_type << 4
    if version != MQTT_5 or (not packet.reason_code and packet.properties == NO_PROPERTIES):
        return bytes((first, 0))
    check_own_reason(packet.reason_code, packet.packet_type)
    reason = bytes((packet.reason_code,))
    if packet.properties == NO_PROPERTIES:
        return frame(first, reason)
    return frame(first, reason, encode_properties(packet.properties, packet.packet_type))
