"""PUBLISH (3.3): the hot path in both directions.

::

    | type 3, flags 1 | remaining length 1–4 | topic length 2 | topic | packet id 2 (QoS > 0) |
    | property length 1–4, properties (MQTT 5) | payload to the end |
    flags   3 dup, 2–1 QoS, 0 retain

Inbound, `walk_publishes` turns a buffer of concatenated packets into one tuple each, without an
object per field: the topic becomes its entry in the `CheckedTopics`, the payload stays where it is.
Outbound, `encode_publish` makes the parts that all receivers share; only the packet id differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from holdmq.errors import UsageError
from holdmq.mqtt.fields import (
    encode_packet_id,
    encode_varint,
    malformed,
    protocol_error,
    read_u16,
    read_varint,
)
from holdmq.mqtt.filters import is_topic_name
from holdmq.mqtt.packets import Publish
from holdmq.mqtt.properties import NO_PROPERTIES, Properties, block_bounds, decode_block, encode_block
from holdmq.mqtt.protocol import DUP, MQTT_5, PUBLISH, RETAIN, SERVER, VARINT_MAX
from holdmq.mqtt.reasons import MqttError, ReasonCode
from holdmq.mqtt.topics import CheckedTopics

T = TypeVar("T")


class PublishRun(Generic[T]):
    """Consecutive PUBLISH packets of one `feed`, as tuples over one buffer.

    `messages` has for each `(topic, flags, packet_id, start, end, properties)`:

    - `topic`: the entry that the decoder's TopicTable made (aliases are resolved);
    - `flags`: 0–13, bit 3 dup, bits 2–1 QoS, bit 0 retain;
    - `packet_id`: 1–65,535, or 0 for QoS 0;
    - `buffer[start:end]`: the payload;
    - `properties`: MQTT 5's property block as sent, checked, without its length and without the
      topic alias; b"" when there is none. `decode_publish_properties` reads its fields.

    `buffer` is the bytes object that was fed (or was put together from pieces): slicing a
    memoryview of it keeps all of it alive, slicing it copies the payload.
    """

    __slots__ = ("buffer", "messages")
    packet_type: ClassVar[int] = PUBLISH

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.messages: list[tuple[T, int, int, int, int, bytes]] = []

    def __len__(self) -> int:
        return len(self.messages)


class TopicAliases(Generic[T]):
    """The topic aliases that a peer has set on one connection: alias → entry, at most `maximum`."""

    __slots__ = ("entries", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.entries: dict[int, T] = {}


def walk_publishes(
    data: bytes,
    pos: int,
    end: int,
    max_packet_size: int,
    version: int,
    sender: int,
    topics: CheckedTopics[T],
    aliases: TopicAliases[T] | None,
    messages: list[tuple[T, int, int, int, int, bytes]],
) -> int:
    """Append a tuple to `messages` for every whole PUBLISH from `pos` on; return where that ended.

    Stops at the first packet of another type, or one that is not whole in `data[:end]`. Raises
    MqttError for a malformed one; those before it are in `messages`.
    """
    entries = topics.entries
    with_properties = version == MQTT_5
    while end - pos >= 2:
        first = data[pos]
        if first >> 4 != 3:
            break
        length = data[pos + 1]
        body = pos + 2
        if length > 0x7F:
            length, body = _long_length(data, pos, end, version)
            if length < 0:
                break
        stop = body + length
        if stop - pos > max_packet_size:
            raise packet_too_large(stop - pos, max_packet_size)
        if stop > end:
            break
        flags = first & 0x0F
        if flags > 5 and (flags & 6 == 6 or flags & 14 == 8):
            raise _bad_flags(flags)
        if length < 2:
            raise malformed("PUBLISH ends inside the length of its topic name")
        start = body + 2
        after = start + (data[body] << 8 | data[body + 1])
        if after > stop:
            raise malformed("PUBLISH ends inside its topic name")
        topic = data[start:after]
        packet_id = 0
        if flags & 6:
            start = after + 2
            if start > stop:
                raise malformed("PUBLISH ends inside its packet identifier")
            packet_id = data[after] << 8 | data[after + 1]
            if not packet_id:  # [MQTT-2.2.1-3] (3.1.1: [MQTT-2.3.1-1])
                raise protocol_error("PUBLISH carries packet identifier 0")
        else:
            start = after
        properties = b""
        if with_properties:
            if start >= stop:
                raise malformed("PUBLISH ends before its properties")
            if data[start]:
                properties, alias, start = _read_block(data, start, stop, sender)
                if alias:
                    entry = _resolve(topic, alias, topics, aliases)
                    messages.append((entry, flags, packet_id, start, stop, properties))
                    entries = topics.entries
                    pos = stop
                    continue
            else:
                start += 1
        known = entries.get(topic)
        if known is None:
            known = topics.admit(topic)
            entries = topics.entries
        messages.append((known, flags, packet_id, start, stop, properties))
        pos = stop
    return pos


def read_lone_publish(data: bytes, flags: int, topic: bytes, version: int) -> int:
    """Where the topic ends, if `data` is exactly one PUBLISH with these flags (QoS 0 or 1), this topic and no
    properties, and nothing is wrong with it; 0 if it is anything else, which `walk_publishes` then decides.

    For what devices repeat: nothing is looked up or made.
    """
    end = len(data)
    if end < 5 or data[0] != 0x30 | flags:
        return 0
    length = data[1]
    body = 2
    if length > 0x7F:
        high = data[2]
        if not 0 < high < 0x80:
            return 0
        length = (length & 0x7F) | high << 7
        body = 3
    start = body + 2
    stop = start + len(topic)
    payload = stop + (2 if flags else 0) + (1 if version == MQTT_5 else 0)
    if body + length != end or payload > end or data[body] << 8 | data[body + 1] != len(topic):
        return 0
    if flags and not data[stop] and not data[stop + 1]:  # [MQTT-2.2.1-3] (3.1.1: [MQTT-2.3.1-1])
        return 0
    if version == MQTT_5 and data[payload - 1]:
        return 0
    return stop if data[start:stop] == topic else 0


def packet_too_large(size_bytes: int, max_packet_size: int) -> MqttError:
    """Make the error for a packet above the limit (0x95) [MQTT-3.1.2-24] [MQTT-3.2.2-15]."""
    return MqttError(
        ReasonCode.PACKET_TOO_LARGE,
        f"a packet of {size_bytes} bytes; the maximum packet size here is {max_packet_size}",
    )


def _bad_flags(flags: int) -> MqttError:
    if flags & 6 == 6:
        return malformed("PUBLISH has QoS 3")  # [MQTT-3.3.1-4]
    return protocol_error("PUBLISH with QoS 0 has DUP set")  # [MQTT-3.3.1-2]


def _long_length(data: bytes, pos: int, end: int, version: int) -> tuple[int, int]:
    """Read a remaining length of several bytes; (−1, 0) when its last byte has not come yet."""
    length = data[pos + 1] & 0x7F
    shift = 7
    body = pos + 2
    while True:
        if body >= end:
            return -1, 0
        digit = data[body]
        body += 1
        length |= (digit & 0x7F) << shift
        if digit < 0x80:
            if digit == 0 and version == MQTT_5:  # [MQTT-1.5.5-1]; MQTT 3 does not ask for it
                raise malformed("the remaining length is not encoded in the fewest bytes")
            return length, body
        shift += 7
        if shift > 21:
            raise malformed("the remaining length has more than four bytes")  # 2.1.4


def _read_block(data: bytes, pos: int, end: int, sender: int) -> tuple[bytes, int, int]:
    """Check the property block at `pos`; return it without topic alias, the alias (0: none), its end.

    The common properties are checked here, without an object for each; a block with any other, or
    with anything wrong, goes through `decode_block`, which decides and says what.
    """
    start, stop = block_bounds(data, pos, end)
    alias_at = -1
    seen = 0
    at = start
    while at < stop:
        found = data[at]
        if found == 0x26:
            after = _after_text(data, _after_text(data, at + 1, stop), stop)
        elif seen >> found & 1:
            break
        elif found == 0x23:
            alias_at = at
            after = at + 3
        elif found == 0x02:
            after = at + 5
        elif found == 0x03:
            after = _after_text(data, at + 1, stop)
        elif found == 0x01 and at + 1 < stop and data[at + 1] < 2:
            after = at + 2
        else:
            break
        if after > stop:
            break
        seen |= 1 << found
        at = after
    if at < stop:
        if decode_block(data, start, stop, PUBLISH, sender).topic_alias is None:
            return data[start:stop], 0, stop
        alias_at = _find(data, start, stop, 0x23)
    if alias_at < 0:
        return data[start:stop], 0, stop
    alias = data[alias_at + 1] << 8 | data[alias_at + 2]
    if not alias:  # [MQTT-3.3.2-8]
        raise MqttError(ReasonCode.TOPIC_ALIAS_INVALID, "topic_alias is 0")
    return data[start:alias_at] + data[alias_at + 3 : stop], alias, stop


def _after_text(data: bytes, pos: int, end: int) -> int:
    """Return the position after the string at `pos`, or past `end` when it is not there or not valid."""
    if pos + 2 > end:
        return end + 1
    after = pos + 2 + (data[pos] << 8 | data[pos + 1])
    if after > end:
        return after
    text = data[pos + 2 : after]
    return after if text.isascii() and b"\0" not in text else end + 1


def _resolve(topic: bytes, alias: int, topics: CheckedTopics[T], aliases: TopicAliases[T] | None) -> T:
    """Set or look up a topic alias (3.3.2.3.4)."""
    if aliases is None or alias > aliases.maximum:  # [MQTT-3.3.2-9] [MQTT-3.3.2-11]
        maximum = 0 if aliases is None else aliases.maximum
        raise MqttError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}; the maximum here is {maximum}")
    if topic:
        entry = topics.admit(topic)
        aliases.entries[alias] = entry  # [MQTT-3.3.2-12]
        return entry
    known = aliases.entries.get(alias)
    if known is None:
        raise protocol_error(f"PUBLISH uses topic alias {alias} before setting it")
    return known


_FIXED_SIZES = {0x01: 1, 0x02: 4, 0x23: 2}


def _find(block: bytes, pos: int, end: int, identifier: int) -> int:
    """Return where the property `identifier` stands in a checked PUBLISH block, or −1."""
    while pos < end:
        found = block[pos]
        if found == identifier:
            return pos
        pos += 1
        size = _FIXED_SIZES.get(found)
        if size is not None:
            pos += size
        elif found == 0x0B:
            _, pos = read_varint(block, pos, end, "subscription identifier")
        else:
            length, pos = read_u16(block, pos, end, "property")
            pos += length
            if found == 0x26:
                length, pos = read_u16(block, pos, end, "property")
                pos += length
    return -1


def decode_publish_properties(block: bytes) -> Properties:
    """Decode the property block of a `PublishRun` message or of a stored record. Raises MqttError."""
    return decode_block(block, 0, len(block), PUBLISH, SERVER)


def publishes(run: PublishRun[bytes]) -> list[Publish]:
    """Turn a run whose entries are the topics themselves into packets: for clients and tests."""
    return [
        Publish(
            topic.decode(),
            run.buffer[start:end],
            flags >> 1 & 3,
            bool(flags & RETAIN),
            bool(flags & DUP),
            packet_id,
            decode_publish_properties(properties) if properties else NO_PROPERTIES,
        )
        for topic, flags, packet_id, start, end, properties in run.messages
    ]


def delivery_properties(
    block: bytes, message_expiry_s: int | None, subscription_ids: Sequence[int] = ()
) -> bytes:
    """Return a stored property block as one receiver gets it.

    `block` is a publisher's block (as `PublishRun` gives it); `message_expiry_s` what is left of
    its message expiry interval in seconds [MQTT-3.3.2-6], or None to leave the block's as it is;
    `subscription_ids` all identifiers of the matching subscriptions [MQTT-3.3.4-3, -4]. All else
    is forwarded unaltered and in order [MQTT-3.3.2-4] [MQTT-3.3.2-15 … -20].
    """
    if message_expiry_s is not None:
        at = _find(block, 0, len(block), 0x02)
        if at >= 0:
            block = block[: at + 1] + message_expiry_s.to_bytes(4, "big") + block[at + 5 :]
    if subscription_ids:
        block += b"".join(b"\x0b" + encode_varint(identifier) for identifier in subscription_ids)
    return block


def encode_publish(
    version: int, topic: bytes, payload: bytes | memoryview, flags: int, properties: bytes = b""
) -> tuple[bytes, bytes]:
    """Encode a PUBLISH as `(head, tail)`: what stands before and after its packet id.

    `topic` is a valid topic name's bytes; `flags` bit 3 dup, bits 2–1 QoS, bit 0 retain;
    `properties` an MQTT 5 block without its length (`delivery_properties`), left out in MQTT 3.
    With QoS > 0 the packet is `head + packet_id.to_bytes(2, "big") + tail`, for any number of
    receivers; with QoS 0 it is `head` alone and `tail` is empty. `republish` sets DUP.
    """
    size = 2 + len(topic) + len(payload)
    if flags & 6:
        size += 2
    before = b""
    if version == MQTT_5:
        before = encode_varint(len(properties)) + properties if properties else b"\x00"
        size += len(before)
    if size < 0x80:
        head = bytes((0x30 | flags, size)) + len(topic).to_bytes(2, "big") + topic
    elif size > VARINT_MAX:
        raise UsageError(f"a PUBLISH of {size} bytes; MQTT carries at most {VARINT_MAX}")
    else:
        head = b"%c%b%b%b" % (0x30 | flags, encode_varint(size), len(topic).to_bytes(2, "big"), topic)
    if flags & 6:
        return head, b"".join((before, payload))
    return b"".join((head, before, payload)), b""


def republish(head: bytes) -> bytes:
    """Return the `head` of a QoS 1 or 2 PUBLISH with DUP set, for sending it again [MQTT-3.3.1-1]."""
    return bytes((head[0] | DUP,)) + head[1:]


def encode_publish_packet(packet: Publish, version: int) -> bytes:
    """Encode a `Publish`. Raises UsageError for a bad topic, QoS, packet id or property."""
    if packet.qos not in (0, 1, 2):
        raise UsageError(f"QoS {packet.qos}; it must be 0, 1 or 2")
    aliased = version == MQTT_5 and packet.properties.topic_alias is not None
    if not is_topic_name(packet.topic) and not (aliased and not packet.topic):
        raise UsageError(f"{packet.topic!r} is not a topic name")
    if packet.dup and not packet.qos:
        raise UsageError("DUP is for QoS 1 and 2")
    if packet.packet_id and not packet.qos:
        raise UsageError("a QoS 0 PUBLISH has no packet identifier")  # [MQTT-2.2.1-2]
    flags = packet.qos << 1 | (DUP if packet.dup else 0) | (RETAIN if packet.retain else 0)
    properties = encode_block(packet.properties, PUBLISH) if version == MQTT_5 else b""
    head, tail = encode_publish(version, packet.topic.encode(), packet.payload, flags, properties)
    return head + encode_packet_id(packet.packet_id) + tail if packet.qos else head
