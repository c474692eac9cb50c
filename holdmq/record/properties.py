"""The properties of a record: text pairs, then optionally the MQTT 5 properties as they came.

::

    | key | 0x01 | value | 0x02 | key | 0x01 | value | 0x02 | …   order and repeats are kept
    | … | 0x00 | MQTT 5 properties, verbatim |                     optional, to the end

Keys and values are UTF-8. Inside a pair the characters U+0000–U+0003 are written U+0003 and
then the character + U+0040, so 0x00, 0x01 and 0x02 only ever separate. The MQTT 5 part is the
properties alone, without their length (`holdmq.mqtt.properties.decode_block` reads it).
Binary values are base64url text. Source: storage.md, Properties.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdmq.errors import Code, RecordError

KEY: Final = b"KEYS\x01"
UNIQUE: Final = b"UNIQ_KEY\x01"
"""How a pair with a message's key, or its unique id, begins."""

RESERVED_KEYS: Final[dict[str, str]] = {
    "TAGS": "the tag; encoders write it first",
    "KEYS": "a key of the message; one pair for each",
    "UNIQ_KEY": "the producer's own id of the message",
    "PS": "producer id, epoch and sequence, for the window that is completed from the log",
    "ONCE": "what a QoS 2 publish is known by, so that it is stored once (holdmq.record.once)",
    "ORIGIN": "topic/queue/first offset/attempt of the message that this is a copy of; the last one is the "
    "latest move",
    "REAL_TOPIC": "the topic of a message that a group failed with, in its retries and dead letters",
    "DUE": "when the timer releases the message, in ms since the epoch (+ms in a PRODUCE: from then on); "
    "kept by the copy that it releases",
    "DEST": "topic/queue that the timer releases the message to",
    "DELETED": "in a table: the key has no value from now on; empty",
    "CLIENT_ID": "the MQTT client, or the SDK instance, that published",
}
"""Keys with a meaning of their own. A user's key is stored with `USER_PREFIX`, so none can collide."""

USER_PREFIX: Final = "u."

PROPERTIES_BYTES_MAX: Final = 65_535
"""Field 19 has two bytes."""

USER_BYTES_MAX: Final = 32 * 1024
"""Tag and users' properties together: half of the field, so that the log's own pairs always fit."""

_TAGS_FIRST: Final = b"TAGS\x01"
_TAGS_LATER: Final = b"\x02TAGS\x01"
_ESCAPES: Final = {0: "\x03@", 1: "\x03A", 2: "\x03B", 3: "\x03C"}
_USER_PROPERTY: Final = 0x26
# Property identifiers of a PUBLISH by the shape of their value (MQTT 5, 2.2.2.2).
_FIXED_SIZES: Final = {0x01: 1, 0x02: 4, 0x23: 2}
_LENGTH_PREFIXED: Final = frozenset((0x03, 0x08, 0x09))
_VARINT: Final = 0x0B


class RecordProperties(NamedTuple):
    """Decoded properties: the pairs in order, and the MQTT 5 part (None = there is none)."""

    pairs: list[tuple[str, str]]
    mqtt: bytes | None

    def first(self, key: str) -> str | None:
        """The value of the first pair with this key."""
        for name, value in self.pairs:
            if name == key:
                return value
        return None


def encode_properties(pairs: Iterable[tuple[str, str]], mqtt: bytes | None = None) -> bytes:
    """Encode pairs in their order, then the MQTT 5 properties (without their length; None = none).

    Keys are written as given: the caller adds `USER_PREFIX` to users' keys and puts TAGS first.
    Raises RecordError (LIMIT_EXCEEDED) over 65,535 bytes, or over 32 KiB of tag, users' pairs
    and MQTT 5 properties together; MALFORMED_BATCH for an empty key or text that is no UTF-8.
    """
    parts: list[str] = []
    user_parts: list[str] = []
    for key, value in pairs:
        if not key:
            raise RecordError("a property has an empty key")
        pair = f"{key.translate(_ESCAPES)}\x01{value.translate(_ESCAPES)}\x02"
        parts.append(pair)
        if key == "TAGS" or key.startswith(USER_PREFIX):
            user_parts.append(pair)
    try:
        raw = "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"a property is no UTF-8 text: {error.reason}") from None
    user_bytes = len("".join(user_parts).encode())
    if mqtt is not None:
        user_bytes += len(mqtt)
        raw = raw + b"\x00" + mqtt
    if user_bytes > USER_BYTES_MAX:
        raise RecordError(
            f"tag and user properties take {user_bytes} bytes, {USER_BYTES_MAX} are allowed",
            Code.LIMIT_EXCEEDED,
        )
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise RecordError(
            f"properties take {len(raw)} bytes, {PROPERTIES_BYTES_MAX} are allowed", Code.LIMIT_EXCEEDED
        )
    return raw


def decode_properties(raw: bytes) -> RecordProperties:
    """Decode what `encode_properties` made; raises RecordError for bytes that it cannot have made."""
    end = raw.find(b"\x00")
    mqtt = None if end < 0 else raw[end + 1 :]
    text = raw if end < 0 else raw[:end]
    pairs: list[tuple[str, str]] = []
    if text:
        if text[-1] != 2:
            raise RecordError("the last property pair has no end")
        try:
            decoded = text[:-1].decode()
        except UnicodeDecodeError as error:
            raise RecordError(f"properties are no UTF-8 text: {error.reason}") from None
        for pair in decoded.split("\x02"):
            key, separator, value = pair.partition("\x01")
            if not separator or not key or "\x01" in value:
                raise RecordError(f"{pair[:40]!r} is no property pair")
            pairs.append((_unescape(key), _unescape(value)))
    return RecordProperties(pairs, mqtt)


def _unescape(text: str) -> str:
    if "\x03" not in text:
        return text
    head, *rest = text.split("\x03")
    parts = [head]
    for piece in rest:
        if not piece or not "@" <= piece[0] <= "C":
            raise RecordError("a property has U+0003 before something that needs no escape")
        parts.append(chr(ord(piece[0]) - 0x40) + piece[1:])
    return "".join(parts)


def tag_of(properties: bytes) -> bytes | None:
    """The tag's UTF-8 bytes in encoded properties; None = no tag, b"" = the empty tag."""
    tag = escaped_tag_of(properties)
    if tag is None:
        return None
    return unescape_tag(tag)


def value_of(properties: bytes, key: bytes) -> bytes | None:
    """The value of the first pair with this key (as it is written) in encoded properties; None = none has it.

    Much faster than `decode_properties`, for who wants one of them from many records.
    """
    first = key + b"\x01"
    if properties.startswith(first):
        start = len(first)
    else:
        limit = properties.find(b"\x00")
        start = properties.find(b"\x02" + first, 0, len(properties) if limit < 0 else limit)
        if start < 0:
            return None
        start += len(first) + 1
    end = properties.find(b"\x02", start)
    return None if end < 0 else unescape_tag(properties[start:end])


def escaped_tag_of(properties: bytes) -> bytes | None:
    """The tag as it stands in the properties (see `unescape_tag`); None = no tag."""
    if properties[:5] == _TAGS_FIRST:
        start = 5
    else:
        limit = properties.find(b"\x00")
        start = properties.find(_TAGS_LATER, 0, len(properties) if limit < 0 else limit)
        if start < 0:
            return None
        start += 6
    end = properties.find(b"\x02", start)
    return None if end < 0 else properties[start:end]


def unescape_tag(tag: bytes) -> bytes:
    """The tag that is written as these bytes."""
    if b"\x03" in tag:
        # U+0003 itself comes last: what it gives must not be read as an escape again.
        for code in range(4):
            tag = tag.replace(bytes((3, code + 0x40)), bytes((code,)))
    return tag


def user_properties(properties: RecordProperties) -> dict[str, str]:
    """Users' properties of both parts: the SDK's pairs and the MQTT 5 user properties.

    Where a key repeats, the last one stands. Raises RecordError for an MQTT 5 part that is cut.
    """
    found = {key[2:]: value for key, value in properties.pairs if key.startswith(USER_PREFIX)}
    if properties.mqtt:
        found.update(mqtt_user_properties(properties.mqtt))
    return found


def mqtt_user_properties(block: bytes) -> list[tuple[str, str]]:
    """The User Property pairs (0x26) of a PUBLISH's properties; RecordError if they are cut."""
    pairs: list[tuple[str, str]] = []
    pos = 0
    end = len(block)
    while pos < end:
        identifier = block[pos]
        pos += 1
        if identifier == _USER_PROPERTY:
            key, pos = _read_text(block, pos)
            value, pos = _read_text(block, pos)
            pairs.append((key, value))
        elif identifier in _LENGTH_PREFIXED:
            pos += 2 + int.from_bytes(block[pos : pos + 2], "big")
        elif identifier == _VARINT:
            while pos < end and block[pos] & 0x80:
                pos += 1
            pos += 1
        else:
            size = _FIXED_SIZES.get(identifier)
            if size is None:
                raise RecordError(f"MQTT property {identifier:#x} cannot stand in a PUBLISH")
            pos += size
    if pos > end:
        raise RecordError("the MQTT properties are cut")
    return pairs


def _read_text(block: bytes, pos: int) -> tuple[str, int]:
    end = pos + 2 + int.from_bytes(block[pos : pos + 2], "big")
    if end > len(block) or pos + 2 > len(block):
        raise RecordError("the MQTT properties are cut")
    try:
        return block[pos + 2 : end].decode(), end
    except UnicodeDecodeError:
        raise RecordError("an MQTT user property is no UTF-8 text") from None
