"""The 27 properties of MQTT 5 (2.2.2): one table, one immutable value class, one codec.

::

    | length, variable byte integer | identifier 1 | value | identifier 1 | value | …
      counts what follows                            by the identifier's type
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from holdmq.errors import UsageError
from holdmq.mqtt.fields import (
    encode_binary,
    encode_u16,
    encode_utf8,
    encode_varint,
    malformed,
    protocol_error,
    read_binary,
    read_byte,
    read_u16,
    read_u32,
    read_utf8,
    read_varint,
)
from holdmq.mqtt.protocol import (
    AUTH,
    CLIENT,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PACKET_NAMES,
    PROPERTIES_BYTES_MAX,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SERVER,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
)
from holdmq.mqtt.reasons import MqttError, ReasonCode

# The types of values; FLAG is a byte that may be 0 or 1 only.
FLAG: Final = 0
TWO_BYTES: Final = 1
FOUR_BYTES: Final = 2
VARINT: Final = 3
BINARY: Final = 4
UTF8: Final = 5
UTF8_PAIR: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Properties:
    """The properties of one packet; None (or an empty tuple) means absent. Immutable, so shareable."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifiers_available: int | None = None
    shared_subscription_available: int | None = None

    def __repr__(self) -> str:
        values = ((spec.name, getattr(self, spec.name)) for spec in PROPERTIES)
        there = (f"{name}={value!r}" for name, value in values if value not in (None, ()))
        return f"Properties({', '.join(there)})"


NO_PROPERTIES: Final = Properties()


class PropertySpec(NamedTuple):
    """One row of table 2-4.

    `packets` has the bit `1 << packet type` set for each packet that may carry the property (bit
    0: the will), `repeats` for each where it may stand more than once. `minimum` is the least
    value allowed.
    """

    identifier: int
    name: str
    kind: int
    packets: int
    repeats: int = 0
    minimum: int = 0


def _bits(*packet_types: int) -> int:
    mask = 0
    for packet_type in packet_types:
        mask |= 1 << packet_type
    return mask


_MESSAGE: Final = _bits(PUBLISH, WILL)
_LOGON: Final = _bits(CONNECT, CONNACK)
_REASONS: Final = _bits(CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
_ALL: Final = _MESSAGE | _LOGON | _REASONS | _bits(SUBSCRIBE, UNSUBSCRIBE)

PROPERTIES: Final = (
    PropertySpec(0x01, "payload_format_indicator", FLAG, _MESSAGE),
    PropertySpec(0x02, "message_expiry_interval", FOUR_BYTES, _MESSAGE),
    PropertySpec(0x03, "content_type", UTF8, _MESSAGE),
    PropertySpec(0x08, "response_topic", UTF8, _MESSAGE),
    PropertySpec(0x09, "correlation_data", BINARY, _MESSAGE),
    PropertySpec(0x0B, "subscription_identifiers", VARINT, _bits(PUBLISH, SUBSCRIBE), _bits(PUBLISH), 1),
    PropertySpec(0x11, "session_expiry_interval", FOUR_BYTES, _LOGON | _bits(DISCONNECT)),
    PropertySpec(0x12, "assigned_client_identifier", UTF8, _bits(CONNACK)),
    PropertySpec(0x13, "server_keep_alive", TWO_BYTES, _bits(CONNACK)),
    PropertySpec(0x15, "authentication_method", UTF8, _LOGON | _bits(AUTH)),
    PropertySpec(0x16, "authentication_data", BINARY, _LOGON | _bits(AUTH)),
    PropertySpec(0x17, "request_problem_information", FLAG, _bits(CONNECT)),
    PropertySpec(0x18, "will_delay_interval", FOUR_BYTES, _bits(WILL)),
    PropertySpec(0x19, "request_response_information", FLAG, _bits(CONNECT)),
    PropertySpec(0x1A, "response_information", UTF8, _bits(CONNACK)),
    PropertySpec(0x1C, "server_reference", UTF8, _bits(CONNACK, DISCONNECT)),
    PropertySpec(0x1F, "reason_string", UTF8, _REASONS),
    PropertySpec(0x21, "receive_maximum", TWO_BYTES, _LOGON, minimum=1),
    PropertySpec(0x22, "topic_alias_maximum", TWO_BYTES, _LOGON),
    PropertySpec(0x23, "topic_alias", TWO_BYTES, _bits(PUBLISH), minimum=1),
    PropertySpec(0x24, "maximum_qos", FLAG, _bits(CONNACK)),
    PropertySpec(0x25, "retain_available", FLAG, _bits(CONNACK)),
    PropertySpec(0x26, "user_properties", UTF8_PAIR, _ALL, _ALL),
    PropertySpec(0x27, "maximum_packet_size", FOUR_BYTES, _LOGON, minimum=1),
    PropertySpec(0x28, "wildcard_subscription_available", FLAG, _bits(CONNACK)),
    PropertySpec(0x29, "subscription_identifiers_available", FLAG, _bits(CONNACK)),
    PropertySpec(0x2A, "shared_subscription_available", FLAG, _bits(CONNACK)),
)
_BY_IDENTIFIER: Final[dict[int, PropertySpec]] = {spec.identifier: spec for spec in PROPERTIES}
# [MQTT-3.14.2-2] and 3.14.2.2.5: the two DISCONNECT properties that only one side may send.
_DISCONNECT_SENDER: Final = {0x11: CLIENT, 0x1C: SERVER}


def _read_value(spec: PropertySpec, data: bytes, pos: int, end: int) -> tuple[object, int]:
    kind = spec.kind
    if kind == UTF8:
        text, pos = read_utf8(data, pos, end, spec.name)
        # [MQTT-3.3.2-14]: a response topic is a topic name.
        if spec.identifier == 0x08 and (not text or "+" in text or "#" in text):
            raise protocol_error("response_topic is empty or contains a wildcard")
        return text, pos
    if kind == UTF8_PAIR:
        key, pos = read_utf8(data, pos, end, "user property's name")
        text, pos = read_utf8(data, pos, end, "user property's value")
        return (key, text), pos
    if kind == BINARY:
        return read_binary(data, pos, end, spec.name)
    if kind == FOUR_BYTES:
        value, pos = read_u32(data, pos, end, spec.name)
    elif kind == TWO_BYTES:
        value, pos = read_u16(data, pos, end, spec.name)
    elif kind == VARINT:
        value, pos = read_varint(data, pos, end, spec.name)
    else:
        value, pos = read_byte(data, pos, end, spec.name)
        if value > 1:
            raise protocol_error(f"{spec.name} is {value}; it must be 0 or 1")
    if value < spec.minimum:
        # A topic alias of 0 has its own reason code [MQTT-3.3.2-8]; for the others 0 is 0x82.
        code = ReasonCode.TOPIC_ALIAS_INVALID if spec.identifier == 0x23 else ReasonCode.PROTOCOL_ERROR
        raise MqttError(code, f"{spec.name} is 0")
    return value, pos


def _check_place(spec: PropertySpec | None, identifier: int, packet_type: int, sender: int) -> PropertySpec:
    """Refuse a property that this packet from this sender may not carry (2.2.2.2)."""
    if spec is None:
        raise malformed(f"{PACKET_NAMES[packet_type]} carries the unknown property 0x{identifier:02X}")
    if not spec.packets >> packet_type & 1:
        raise malformed(f"{PACKET_NAMES[packet_type]} carries {spec.name}, which it may not")
    if packet_type == DISCONNECT and _DISCONNECT_SENDER.get(identifier, sender) != sender:
        raise protocol_error(f"{spec.name} in a DISCONNECT from the wrong side")
    if identifier == 0x0B and packet_type == PUBLISH and sender == CLIENT:
        raise protocol_error("a client's PUBLISH carries a subscription identifier")  # [MQTT-3.3.4-6]
    return spec


def decode_block(data: bytes, pos: int, end: int, packet_type: int, sender: int) -> Properties:
    """Decode the properties in `data[pos:end]`, a block without its length.

    Raises MqttError: 0x81 unknown, misplaced or cut property; 0x82 repeated or out of range;
    0x94 topic alias 0.
    """
    if pos == end:
        return NO_PROPERTIES
    values: dict[str, object] = {}
    while pos < end:
        identifier, pos = read_varint(data, pos, end, "property identifier")
        spec = _check_place(_BY_IDENTIFIER.get(identifier), identifier, packet_type, sender)
        value, pos = _read_value(spec, data, pos, end)
        name = spec.name
        if spec.repeats >> packet_type & 1:
            cast("list[object]", values.setdefault(name, [])).append(value)
        elif name in values:
            raise protocol_error(f"{PACKET_NAMES[packet_type]} carries {name} twice")
        elif spec.repeats:
            values[name] = [value]
        else:
            values[name] = value
    for name in ("subscription_identifiers", "user_properties"):
        several = values.get(name)
        if several is not None:
            values[name] = tuple(cast("list[object]", several))
    return Properties(**values)  # type: ignore[arg-type]


def block_bounds(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Read the block's length at `pos`; return the block's start and end."""
    length, pos = read_varint(data, pos, end, "property length")
    if length > PROPERTIES_BYTES_MAX:
        raise MqttError(
            ReasonCode.QUOTA_EXCEEDED,
            f"a property block of {length} bytes; at most {PROPERTIES_BYTES_MAX} are accepted",
        )
    if pos + length > end:
        raise malformed("the packet ends inside its properties")
    return pos, pos + length


def read_properties(data: bytes, pos: int, end: int, packet_type: int, sender: int) -> tuple[Properties, int]:
    """Read length and properties at `pos`; return them and the position after them. Raises MqttError."""
    start, stop = block_bounds(data, pos, end)
    properties = decode_block(data, start, stop, packet_type, sender)
    if properties.authentication_data is not None and properties.authentication_method is None:
        # 3.1.2.11.10, 3.2.2.3.18, 3.15.2.2.3
        raise protocol_error(f"{PACKET_NAMES[packet_type]} carries authentication data without a method")
    return properties, stop


def _encode_value(spec: PropertySpec, value: object) -> bytes:
    kind = spec.kind
    if kind == UTF8:
        return encode_utf8(cast(str, value), spec.name)
    if kind == BINARY:
        return encode_binary(cast(bytes, value), spec.name)
    if kind == UTF8_PAIR:
        key, text = cast("tuple[str, str]", value)
        return encode_utf8(key, "user property's name") + encode_utf8(text, "user property's value")
    number = cast(int, value)
    if number < spec.minimum:
        raise UsageError(f"{spec.name} is {number}; it must be at least {spec.minimum}")
    if kind == FOUR_BYTES:
        if not 0 <= number <= 0xFFFF_FFFF:
            raise UsageError(f"{spec.name} is {number}; it must fit four bytes")
        return number.to_bytes(4, "big")
    if kind == TWO_BYTES:
        return encode_u16(number, spec.name)
    if kind == VARINT:
        return encode_varint(number)
    if number not in (0, 1):
        raise UsageError(f"{spec.name} is {number}; it must be 0 or 1")
    return b"\x01" if number else b"\x00"


def encode_block(properties: Properties, packet_type: int) -> bytes:
    """Encode `properties` without the block's length, in the order of table 2-4.

    Raises UsageError for a property that `packet_type` may not carry or a value out of range.
    """
    if properties is NO_PROPERTIES:
        return b""
    parts: list[bytes] = []
    for spec in PROPERTIES:
        value: object = getattr(properties, spec.name)
        if value is None or value == ():
            continue
        if not spec.packets >> packet_type & 1:
            raise UsageError(f"{PACKET_NAMES[packet_type]} may not carry {spec.name}")
        identifier = bytes((spec.identifier,))
        if not spec.repeats:
            parts.append(identifier + _encode_value(spec, value))
            continue
        several = cast("tuple[object, ...]", value)
        if len(several) > 1 and not spec.repeats >> packet_type & 1:
            raise UsageError(f"{PACKET_NAMES[packet_type]} may carry {spec.name} once only")
        parts.extend(identifier + _encode_value(spec, one) for one in several)
    return b"".join(parts)


def encode_properties(properties: Properties, packet_type: int) -> bytes:
    """Encode length and properties. Raises UsageError as `encode_block` does."""
    block = encode_block(properties, packet_type)
    return encode_varint(len(block)) + block
