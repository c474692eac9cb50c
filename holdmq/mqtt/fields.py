"""The data types of section 1.5: integers, strings, binary data, read from and written to bytes.

Readers take `(data, pos, end)` and never look at or past `end`, the end of the packet (or of the
property block); what does not fit is MqttError 0x81. They return the value and the position
after it.
"""

from __future__ import annotations

from holdmq.errors import UsageError
from holdmq.mqtt.protocol import VARINT_MAX
from holdmq.mqtt.reasons import MqttError, ReasonCode


def malformed(message: str) -> MqttError:
    """Make the error for bytes that cannot be parsed (0x81)."""
    return MqttError(ReasonCode.MALFORMED_PACKET, message)


def protocol_error(message: str) -> MqttError:
    """Make the error for what parses but is not allowed (0x82)."""
    return MqttError(ReasonCode.PROTOCOL_ERROR, message)


def read_byte(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    """Read one byte; return it and the position behind it."""
    if pos >= end:
        raise malformed(f"the packet ends before its {what}")
    return data[pos], pos + 1


def read_u16(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    """Read a two byte integer (1.5.2)."""
    if pos + 2 > end:
        raise malformed(f"the packet ends inside its {what}")
    return data[pos] << 8 | data[pos + 1], pos + 2


def read_u32(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    """Read a four byte integer (1.5.3)."""
    if pos + 4 > end:
        raise malformed(f"the packet ends inside its {what}")
    return int.from_bytes(data[pos : pos + 4], "big"), pos + 4


def read_varint(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    """Read a variable byte integer in its shortest form (1.5.5)."""
    value = 0
    shift = 0
    while True:
        if pos >= end:
            raise malformed(f"the packet ends inside its {what}")
        digit = data[pos]
        pos += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            break
        shift += 7
        if shift > 21:
            raise malformed(f"the {what} is a variable byte integer of more than four bytes")
    if digit == 0 and shift:
        raise malformed(f"the {what} is not encoded in the fewest bytes")  # [MQTT-1.5.5-1]
    return value, pos


def read_binary(data: bytes, pos: int, end: int, what: str) -> tuple[bytes, int]:
    """Read binary data (1.5.6): two bytes of length, then that many bytes."""
    if pos + 2 > end:
        raise malformed(f"the packet ends inside the length of its {what}")
    start = pos + 2
    stop = start + (data[pos] << 8 | data[pos + 1])
    if stop > end:
        raise malformed(f"the packet ends inside its {what}")
    return data[start:stop], stop


def decode_utf8(raw: bytes, what: str) -> str:
    """Decode a UTF-8 encoded string (1.5.4); MqttError 0x81 for what it forbids."""
    try:
        text = raw.decode()  # strict: refuses surrogates and overlong forms [MQTT-1.5.4-1]
    except UnicodeDecodeError as error:
        raise malformed(f"the {what} is not UTF-8: {error.reason} at byte {error.start}") from None
    if "\0" in text:
        raise malformed(f"the {what} contains U+0000")  # [MQTT-1.5.4-2]
    return text


def read_utf8(data: bytes, pos: int, end: int, what: str) -> tuple[str, int]:
    """Read a UTF-8 encoded string (1.5.4). U+FEFF is a character as any other [MQTT-1.5.4-3]."""
    raw, pos = read_binary(data, pos, end, what)
    return decode_utf8(raw, what), pos


def read_packet_id(data: bytes, pos: int, end: int, packet_name: str) -> tuple[int, int]:
    """Read a packet identifier, 1–65,535."""
    packet_id, pos = read_u16(data, pos, end, "packet identifier")
    if not packet_id:  # [MQTT-2.2.1-3] (3.1.1: [MQTT-2.3.1-1])
        raise protocol_error(f"{packet_name} carries packet identifier 0")
    return packet_id, pos


def encode_u16(value: int, what: str) -> bytes:
    """Encode a two byte integer; UsageError when it does not fit."""
    if not 0 <= value <= 0xFFFF:
        raise UsageError(f"{what} is {value}; it must be 0–65535")
    return value.to_bytes(2, "big")


def encode_packet_id(packet_id: int) -> bytes:
    """Encode a packet identifier, 1–65,535; UsageError otherwise."""
    if not 0 < packet_id <= 0xFFFF:
        raise UsageError(f"the packet identifier is {packet_id}; it must be 1–65535")
    return packet_id.to_bytes(2, "big")


def encode_varint(value: int) -> bytes:
    """Encode a variable byte integer, 0–268,435,455; UsageError otherwise."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value <= VARINT_MAX:
        raise UsageError(f"{value} does not fit a variable byte integer; the largest is {VARINT_MAX}")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_binary(value: bytes, what: str) -> bytes:
    """Encode binary data; UsageError above 65,535 bytes."""
    if len(value) > 0xFFFF:
        raise UsageError(f"the {what} has {len(value)} bytes; MQTT carries at most 65535")
    return len(value).to_bytes(2, "big") + value


def encode_utf8(text: str, what: str) -> bytes:
    """Encode a string; UsageError for U+0000, surrogates and more than 65,535 bytes."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the {what} cannot be UTF-8: {error.reason}") from None
    if b"\0" in raw:
        raise UsageError(f"the {what} contains U+0000, which MQTT forbids")
    return encode_binary(raw, what)


def frame(first: int, *parts: bytes) -> bytes:
    """Put the fixed header (first byte and remaining length) before `parts` and join them."""
    return b"".join((bytes((first,)), encode_varint(sum(map(len, parts))), *parts))
