"""The catalogue of malformed input: what the specification forbids, and the reason code it gets."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holdmq.mqtt import (
    CLIENT,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    SERVER,
    CheckedTopics,
    Decoder,
    MqttError,
    encode_acks,
)
from holdmq.mqtt.protocol import FILTERS_PER_PACKET_MAX, PROPERTIES_BYTES_MAX, PUBACK

V31, V311, V5 = MQTT_3_1, MQTT_3_1_1, MQTT_5


class Bad(NamedTuple):
    name: str
    version: int
    wire: bytes
    reason: int
    sender: int = CLIENT


def packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    length, out = len(body), bytearray((first,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + body


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def connect(version: int, flags: int, *payload: bytes, properties: bytes = b"\x00") -> bytes:
    name = b"\x00\x06MQIsdp" if version == V31 else b"\x00\x04MQTT"
    head = name + bytes((version, flags)) + b"\x00\x0a"
    return packet(0x10, head, properties if version == V5 else b"", *payload)


def block(*properties: bytes) -> bytes:
    joined = b"".join(properties)
    return bytes((len(joined),)) + joined


ID = text(b"id")
PUB5 = b"\x00\x01a"  # the topic of an MQTT 5 PUBLISH with QoS 0, before its properties

FRAMING = [
    Bad("packet type 0", V311, b"\x00\x00", 0x81),
    Bad("packet type 15 in 3.1.1", V311, b"\xf0\x00", 0x81),
    Bad("packet type 15 in 3.1", V31, b"\xf0\x00", 0x81),
    Bad("a remaining length of five bytes", V311, b"\xc0\x80\x80\x80\x80\x01", 0x81),
    Bad("a remaining length of five bytes in PUBLISH", V311, b"\x30\x80\x80\x80\x80\x01", 0x81),
    Bad("a remaining length not in the fewest bytes", V5, b"\xc0\x80\x00", 0x81),
    Bad("a PUBLISH length not in the fewest bytes", V5, b"\x30\x84\x00\x00\x01a\x00", 0x81),
    Bad("the first packet is not CONNECT", 0, b"\xc0\x00", 0x82),
    Bad("the first packet is PUBLISH", 0, b"\x30\x03\x00\x01a", 0x82),
    Bad("the first packet is a short PUBACK", 0, b"\x40\x02\x00\x01", 0x82),
    Bad("a second CONNECT", V311, connect(V311, 2, ID), 0x82),
    *(Bad(f"packet type {kind} from a client", V5, bytes((kind << 4, 0)), 0x82) for kind in (2, 9, 11, 13)),
    *(
        Bad(f"packet type {kind} from a server", V5, bytes((kind << 4 | flags, 0)), 0x82, SERVER)
        for kind, flags in ((1, 0), (8, 2), (10, 2), (12, 0))
    ),
    *(
        Bad(f"reserved flags of {first:#x}", version, wire, 0x81)
        for version in (V311, V5)
        for first, wire in (
            (0x41, b"\x41\x02\x00\x01"),
            (0x52, b"\x52\x02\x00\x01"),
            (0x60, b"\x60\x02\x00\x01"),
            (0x6A, b"\x6a\x02\x00\x01"),
            (0x78, b"\x78\x02\x00\x01"),
            (0x80, packet(0x80, b"\x00\x01", b"\x00" if version == V5 else b"", text(b"a"), b"\x00")),
            (0xA0, packet(0xA0, b"\x00\x01", b"\x00" if version == V5 else b"", text(b"a"))),
            (0xC1, b"\xc1\x00"),
            (0xE1, b"\xe1\x00"),
        )
    ),
    Bad("reserved flags of AUTH", V5, b"\xf1\x00", 0x81),
    Bad("reserved flags of CONNACK", V311, b"\x21\x02\x00\x00", 0x81, SERVER),
    Bad("reserved flags of SUBACK", V311, b"\x91\x03\x00\x01\x00", 0x81, SERVER),
    Bad("reserved flags of UNSUBACK", V311, b"\xb1\x02\x00\x01", 0x81, SERVER),
    Bad("reserved flags of PINGRESP", V311, b"\xd1\x00", 0x81, SERVER),
    Bad("3.1 SUBSCRIBE without QoS 1", V31, packet(0x80, b"\x00\x01", text(b"a"), b"\x00"), 0x81),
    Bad("3.1 PUBREL with QoS 2", V31, b"\x64\x02\x00\x01", 0x81),
]

CONNECTS = [
    Bad("a wrong protocol name", 0, packet(0x10, text(b"MQTu"), b"\x04\x02\x00\x0a", ID), 0x84),
    Bad("a protocol name in lower case", 0, packet(0x10, text(b"mqtt"), b"\x04\x02\x00\x0a", ID), 0x84),
    Bad("level 4 under 3.1's name", 0, packet(0x10, text(b"MQIsdp"), b"\x04\x02\x00\x0a", ID), 0x84),
    Bad("level 3 under 3.1.1's name", 0, packet(0x10, text(b"MQTT"), b"\x03\x02\x00\x0a", ID), 0x84),
    Bad("level 0", 0, packet(0x10, text(b"MQTT"), b"\x00\x02\x00\x0a", ID), 0x84),
    Bad("level 6", 0, packet(0x10, text(b"MQTT"), b"\x06\x02\x00\x0a\x00", ID), 0x84),
    Bad("a bridge's level 0x84", 0, packet(0x10, text(b"MQTT"), b"\x84\x02\x00\x0a", ID), 0x84),
    Bad("a bridge's level 0x83", 0, packet(0x10, text(b"MQIsdp"), b"\x83\x02\x00\x0a", ID), 0x84),
    Bad("CONNECT without a body", 0, b"\x10\x00", 0x81),
    Bad("CONNECT with reserved fixed header flags", 0, b"\x12" + connect(V311, 2, ID)[1:], 0x81),
    Bad(
        "an MQTT 5 CONNECT with a length not in the fewest bytes",
        0,
        b"\x10\x8f\x00" + connect(V5, 2, ID)[2:],
        0x81,
    ),
    Bad("3.1.1 reserved connect flag", 0, connect(V311, 0x03, ID), 0x81),
    Bad("5 reserved connect flag", 0, connect(V5, 0x03, ID), 0x81),
    Bad("will QoS without will", 0, connect(V311, 0x0A, ID), 0x81),
    Bad("will retain without will", 0, connect(V5, 0x22, ID), 0x81),
    Bad("will QoS 3", 0, connect(V311, 0x1E, ID, text(b"w"), text(b"")), 0x81),
    Bad("5 will QoS 3", 0, connect(V5, 0x1E, ID, b"\x00", text(b"w"), text(b"")), 0x81),
    Bad("3.1 password without user name", 0, connect(V31, 0x42, ID, text(b"p")), 0x81),
    Bad("3.1.1 password without user name", 0, connect(V311, 0x42, ID, text(b"p")), 0x81),
    Bad("3.1.1 user name announced and absent", 0, connect(V311, 0x82, ID), 0x81),
    Bad("3.1.1 password announced and absent", 0, connect(V311, 0xC2, ID, text(b"u")), 0x81),
    Bad("3.1 empty client id", 0, connect(V31, 0x02, text(b"")), 0x85),
    Bad("3.1.1 empty client id without clean session", 0, connect(V311, 0x00, text(b"")), 0x85),
    Bad("no client id", 0, connect(V311, 0x02), 0x81),
    Bad("a client id that is cut", 0, connect(V311, 0x02, b"\x00\x05abc"), 0x81),
    Bad("a client id with U+0000", 0, connect(V311, 0x02, text(b"a\0b")), 0x81),
    Bad("a client id with a surrogate", 0, connect(V311, 0x02, text(b"\xed\xa0\x80")), 0x81),
    Bad("a client id with an overlong form", 0, connect(V311, 0x02, text(b"\xc0\xaf")), 0x81),
    Bad("a client id with an overlong U+0000", 0, connect(V311, 0x02, text(b"\xc0\x80")), 0x81),
    Bad("a client id above U+10FFFF", 0, connect(V311, 0x02, text(b"\xf4\x90\x80\x80")), 0x81),
    Bad("a user name that is not UTF-8", 0, connect(V5, 0x82, ID, text(b"\xff")), 0x81),
    Bad("a will topic with a wildcard", 0, connect(V311, 0x06, ID, text(b"a/#"), text(b"")), 0x90),
    Bad("an empty will topic", 0, connect(V5, 0x06, ID, b"\x00", text(b""), text(b"")), 0x82),
    Bad("a will topic that is not UTF-8", 0, connect(V311, 0x06, ID, text(b"\xff"), text(b"")), 0x81),
    Bad("a will without payload", 0, connect(V311, 0x06, ID, text(b"w")), 0x81),
    Bad("bytes after the last field", 0, connect(V311, 0x02, ID, b"\x00"), 0x81),
    Bad("5 bytes after the last field", 0, connect(V5, 0x02, ID, ID), 0x81),
    Bad("receive maximum 0", 0, connect(V5, 2, ID, properties=block(b"\x21\x00\x00")), 0x82),
    Bad("maximum packet size 0", 0, connect(V5, 2, ID, properties=block(b"\x27\0\0\0\0")), 0x82),
    Bad("request problem information 2", 0, connect(V5, 2, ID, properties=block(b"\x17\x02")), 0x82),
    Bad("request response information 2", 0, connect(V5, 2, ID, properties=block(b"\x19\x02")), 0x82),
    Bad("session expiry twice", 0, connect(V5, 2, ID, properties=block(b"\x11\0\0\0\1" * 2)), 0x82),
    Bad("authentication data without method", 0, connect(V5, 2, ID, properties=block(b"\x16\0\1d")), 0x82),
    Bad("will delay outside the will", 0, connect(V5, 2, ID, properties=block(b"\x18\0\0\0\1")), 0x81),
    Bad("will delay twice", 0, connect(V5, 6, ID, block(b"\x18\0\0\0\1" * 2), text(b"w"), text(b"")), 0x82),
    Bad("receive maximum in a will", 0, connect(V5, 6, ID, block(b"\x21\0\1"), text(b"w"), text(b"")), 0x81),
    Bad("an unknown property", 0, connect(V5, 2, ID, properties=block(b"\x2b\x00")), 0x81),
    Bad("property identifier 0", 0, connect(V5, 2, ID, properties=block(b"\x00\x00")), 0x81),
    Bad("an identifier not in the fewest bytes", 0, connect(V5, 2, ID, properties=b"\x04\xa1\0\0\1"), 0x81),
    Bad("a property that is cut", 0, connect(V5, 2, ID, properties=block(b"\x21\x00")), 0x81),
    Bad("properties longer than the packet", 0, connect(V5, 2, properties=b"\x05\x21\x00"), 0x81),
    Bad("a property length not in the fewest bytes", 0, connect(V5, 2, ID, properties=b"\x80\x00"), 0x81),
]  # fmt: skip

PUBLISHES = [
    Bad("PUBLISH QoS 3", V311, packet(0x36, PUB5, b"\x00\x01"), 0x81),
    Bad("PUBLISH QoS 3 with DUP and retain", V5, packet(0x3F, PUB5, b"\x00\x01\x00"), 0x81),
    Bad("PUBLISH QoS 0 with DUP", V311, packet(0x38, PUB5), 0x82),
    Bad("PUBLISH QoS 0 with DUP and retain", V5, packet(0x39, PUB5, b"\x00"), 0x82),
    Bad("PUBLISH packet id 0", V311, packet(0x32, PUB5, b"\x00\x00"), 0x82),
    Bad("PUBLISH QoS 2 packet id 0", V5, packet(0x34, PUB5, b"\x00\x00\x00"), 0x82),
    Bad("PUBLISH without a body", V311, b"\x30\x00", 0x81),
    Bad("PUBLISH with half a topic length", V311, b"\x30\x01\x00", 0x81),
    Bad("PUBLISH that ends in its topic", V311, b"\x30\x03\x00\x02a", 0x81),
    Bad("PUBLISH that ends before its packet id", V311, packet(0x32, PUB5), 0x81),
    Bad("PUBLISH that ends in its packet id", V311, packet(0x32, PUB5, b"\x00"), 0x81),
    Bad("PUBLISH that ends before its properties", V5, packet(0x30, PUB5), 0x81),
    Bad("PUBLISH that ends in its properties", V5, packet(0x30, PUB5, b"\x02\x01"), 0x81),
    Bad("an empty topic", V311, packet(0x30, b"\x00\x00"), 0x82),
    Bad("an empty topic without an alias", V5, packet(0x30, b"\x00\x00\x00"), 0x82),
    Bad("a topic with #", V311, packet(0x30, text(b"a/#")), 0x90),
    Bad("a topic with +", V5, packet(0x30, text(b"a+b"), b"\x00"), 0x90),
    Bad("a topic with U+0000", V311, packet(0x30, text(b"a\0")), 0x81),
    Bad("a topic with a surrogate", V311, packet(0x30, text(b"\xed\xbf\xbf")), 0x81),
    Bad("a topic with an overlong form", V311, packet(0x30, text(b"\xe0\x80\xaf")), 0x81),
    Bad("a topic that is cut inside a character", V311, packet(0x30, text(b"\xf0\xaa\x9b")), 0x81),
    Bad("topic alias 0", V5, packet(0x30, PUB5, block(b"\x23\0\0")), 0x94),
    Bad("topic alias 0 behind another property", V5, packet(0x30, PUB5, block(b"\x09\0\0\x23\0\0")), 0x94),
    Bad("a topic alias above the maximum", V5, packet(0x30, PUB5, block(b"\x23\0\6")), 0x94),
    Bad("a topic alias that was not set", V5, packet(0x30, b"\x00\x00", block(b"\x23\0\1")), 0x82),
    Bad("a topic alias twice", V5, packet(0x30, PUB5, block(b"\x23\0\1\x23\0\1")), 0x82),
    Bad("a client's subscription identifier", V5, packet(0x30, PUB5, block(b"\x0b\x01")), 0x82),
    Bad("subscription identifier 0", V5, packet(0x30, PUB5, block(b"\x0b\x00")), 0x82, SERVER),
    Bad("payload format indicator 2", V5, packet(0x30, PUB5, block(b"\x01\x02")), 0x82),
    Bad("payload format indicator twice", V5, packet(0x30, PUB5, block(b"\x01\x01\x01\x01")), 0x82),
    Bad("message expiry twice", V5, packet(0x30, PUB5, block(b"\x02\0\0\0\1" * 2)), 0x82),
    Bad("message expiry that is cut", V5, packet(0x30, PUB5, block(b"\x02\0\0\0")), 0x81),
    Bad("content type twice", V5, packet(0x30, PUB5, block(b"\x03\0\1a" * 2)), 0x82),
    Bad("a content type that is not UTF-8", V5, packet(0x30, PUB5, block(b"\x03\0\1\xff")), 0x81),
    Bad("a content type with U+0000", V5, packet(0x30, PUB5, block(b"\x03\0\1\0")), 0x81),
    Bad("a response topic with a wildcard", V5, packet(0x30, PUB5, block(b"\x08\0\1#")), 0x82),
    Bad("an empty response topic", V5, packet(0x30, PUB5, block(b"\x08\0\0")), 0x82),
    Bad("correlation data twice", V5, packet(0x30, PUB5, block(b"\x09\0\0\x09\0\0")), 0x82),
    Bad("a user property without a value", V5, packet(0x30, PUB5, block(b"\x26\0\1k")), 0x81),
    Bad("a user property's value past the block", V5, packet(0x30, PUB5, b"\x06\x26\0\1k\0\1", b"v"), 0x81),
    Bad("a user property with U+0000", V5, packet(0x30, PUB5, block(b"\x26\0\1\0\0\0")), 0x81),
    Bad("a property of CONNECT in PUBLISH", V5, packet(0x30, PUB5, block(b"\x21\0\1")), 0x81),
    Bad(
        "a property block above the bound",
        V5,
        packet(0x30, PUB5, b"\x80\x80\x04", b"\x26\0\0\0\0" * (PROPERTIES_BYTES_MAX // 5), b"\x02"),
        0x97,
    ),
]

ACKS = [
    *(Bad(f"{first:#x} id 0", V311, bytes((first, 2, 0, 0)), 0x82) for first in (0x40, 0x50, 0x62, 0x70)),
    Bad("packet id 0 after others", V5, encode_acks(PUBACK, [1, 2]) + b"\x40\x02\0\0", 0x82),
    Bad("PUBACK without a body", V311, b"\x40\x00", 0x81),
    Bad("PUBACK with half a packet id", V5, b"\x40\x01\x00", 0x81),
    Bad("a reason code in 3.1.1", V311, b"\x40\x03\x00\x01\x00", 0x81),
    Bad("a reason code that PUBACK has not", V5, b"\x40\x03\x00\x01\x92", 0x82),
    Bad("a reason code that PUBREL has not", V5, b"\x62\x03\x00\x01\x10", 0x82),
    Bad("a reserved reason code", V5, b"\x50\x03\x00\x01\x7f", 0x82),
    Bad("PUBCOMP with bytes after its properties", V5, b"\x70\x05\x00\x01\x00\x00\x00", 0x81),
    Bad("a reason string twice", V5, packet(0x40, b"\0\1\0", block(b"\x1f\0\0\x1f\0\0")), 0x82),
    Bad("topic alias in PUBACK", V5, packet(0x40, b"\0\1\0", block(b"\x23\0\1")), 0x81),
]  # fmt: skip

SUBSCRIPTIONS = [
    Bad("SUBSCRIBE without a filter", V311, b"\x82\x02\x00\x01", 0x82),
    Bad("5 SUBSCRIBE without a filter", V5, b"\x82\x03\x00\x01\x00", 0x82),
    Bad("SUBSCRIBE packet id 0", V311, packet(0x82, b"\0\0", text(b"a"), b"\0"), 0x82),
    Bad("SUBSCRIBE QoS 3", V311, packet(0x82, b"\0\1", text(b"a"), b"\x03"), 0x81),
    Bad("SUBSCRIBE reserved bits in 3.1.1", V311, packet(0x82, b"\0\1", text(b"a"), b"\x04"), 0x81),
    Bad("5 SUBSCRIBE QoS 3", V5, packet(0x82, b"\0\1\0", text(b"a"), b"\x03"), 0x82),
    Bad("5 SUBSCRIBE retain handling 3", V5, packet(0x82, b"\0\1\0", text(b"a"), b"\x30"), 0x82),
    Bad("5 SUBSCRIBE reserved bit", V5, packet(0x82, b"\0\1\0", text(b"a"), b"\x40"), 0x81),
    Bad("no local on a shared subscription", V5, packet(0x82, b"\0\1\0", text(b"$share/g/a"), b"\x04"), 0x82),
    Bad("a filter without options", V311, packet(0x82, b"\0\1", text(b"a")), 0x81),
    Bad("a filter that is cut", V311, packet(0x82, b"\0\1", b"\0\5a"), 0x81),
    Bad("a filter that is not UTF-8", V311, packet(0x82, b"\0\1", text(b"\xff"), b"\0"), 0x81),
    Bad("an empty filter", V311, packet(0x82, b"\0\1", text(b""), b"\0"), 0x8F),
    Bad("# in the middle", V5, packet(0x82, b"\0\1\0", text(b"a/#/b"), b"\0"), 0x8F),
    Bad("+ beside a character", V5, packet(0x82, b"\0\1\0", text(b"a+/b"), b"\0"), 0x8F),
    Bad("subscription identifier 0", V5, packet(0x82, b"\0\1", block(b"\x0b\0"), text(b"a"), b"\0"), 0x82),
    Bad("two subscription identifiers", V5,
        packet(0x82, b"\0\1", block(b"\x0b\1\x0b\2"), text(b"a"), b"\0"), 0x82),
    Bad("a subscription identifier of five bytes", V5,
        packet(0x82, b"\0\1", block(b"\x0b\x80\x80\x80\x80\1"), text(b"a"), b"\0"), 0x81),
    Bad("more filters than the bound", V311,
        packet(0x82, b"\0\1", b"\0\1a\0" * (FILTERS_PER_PACKET_MAX + 1)), 0x97),
    Bad("UNSUBSCRIBE without a filter", V311, b"\xa2\x02\x00\x01", 0x82),
    Bad("UNSUBSCRIBE packet id 0", V311, packet(0xA2, b"\0\0", text(b"a")), 0x82),
    Bad("UNSUBSCRIBE with an invalid filter", V5, packet(0xA2, b"\0\1\0", text(b"#a")), 0x8F),
    Bad("UNSUBSCRIBE of more than the bound", V311,
        packet(0xA2, b"\0\1", b"\0\1a" * (FILTERS_PER_PACKET_MAX + 1)), 0x97),
    Bad("SUBACK without a reason code", V5, b"\x90\x03\x00\x01\x00", 0x82, SERVER),
    Bad("SUBACK return code 3", V311, b"\x90\x03\x00\x01\x03", 0x81, SERVER),
    Bad("SUBACK reason code 0x11", V5, b"\x90\x04\x00\x01\x00\x11", 0x82, SERVER),
    Bad("SUBACK packet id 0", V311, b"\x90\x03\x00\x00\x00", 0x82, SERVER),
    Bad("UNSUBACK with a reason code in 3.1.1", V311, b"\xb0\x03\x00\x01\x00", 0x81, SERVER),
    Bad("UNSUBACK without a reason code in 5", V5, b"\xb0\x03\x00\x01\x00", 0x82, SERVER),
    Bad("UNSUBACK reason code 1", V5, b"\xb0\x04\x00\x01\x00\x01", 0x82, SERVER),
]  # fmt: skip

OTHERS = [
    Bad("CONNACK reserved flags", V311, b"\x20\x02\x02\x00", 0x81, SERVER),
    Bad("CONNACK return code 6", V311, b"\x20\x02\x00\x06", 0x82, SERVER),
    Bad("CONNACK refuses with a session present", V311, b"\x20\x02\x01\x05", 0x82, SERVER),
    Bad("5 CONNACK refuses with a session present", V5, b"\x20\x03\x01\x87\x00", 0x82, SERVER),
    Bad("CONNACK reason code 0x8E", V5, b"\x20\x03\x00\x8e\x00", 0x82, SERVER),
    Bad("CONNACK bytes after its end", V311, b"\x20\x03\x00\x00\x00", 0x81, SERVER),
    Bad("CONNACK maximum QoS 2", V5, b"\x20\x05\x00\x00\x02\x24\x02", 0x82, SERVER),
    Bad("CONNACK authentication data alone", V5, b"\x20\x06\0\0\x03\x16\0\0", 0x82, SERVER),
    Bad("PINGREQ with a body", V311, b"\xc0\x01\x00", 0x81),
    Bad("PINGRESP with a body", V5, b"\xd0\x01\x00", 0x81, SERVER),
    Bad("3.1.1 DISCONNECT with a body", V311, b"\xe0\x01\x00", 0x81),
    Bad("3.1.1 DISCONNECT from a server", V311, b"\xe0\x00", 0x82, SERVER),
    Bad("DISCONNECT reason that only a server has", V5, b"\xe0\x01\x8e", 0x82),
    Bad("DISCONNECT with will from a server", V5, b"\xe0\x01\x04", 0x82, SERVER),
    Bad("DISCONNECT reason code 0x84", V5, b"\xe0\x01\x84", 0x82),
    Bad("DISCONNECT with a client's server reference", V5, b"\xe0\x06\x00\x04\x1c\0\1s", 0x82),
    Bad("DISCONNECT with a server's session expiry", V5, b"\xe0\x07\x00\x05\x11\0\0\0\1", 0x82, SERVER),
    Bad("DISCONNECT with bytes after its properties", V5, b"\xe0\x03\x00\x00\x00", 0x81),
    Bad("AUTH from a client without anything", V5, b"\xf0\x00", 0x82),
    Bad("AUTH without a method", V5, b"\xf0\x02\x18\x00", 0x82),
    Bad("AUTH success from a client", V5, b"\xf0\x06\x00\x04\x15\0\1m", 0x82),
    Bad("AUTH re-authenticate from a server", V5, b"\xf0\x06\x19\x04\x15\0\1m", 0x82, SERVER),
]

CATALOGUE = FRAMING + CONNECTS + PUBLISHES + ACKS + SUBSCRIPTIONS + OTHERS


SHOWN = {
    "MQTT-1.5.4-1": (
        "a client id with a surrogate",
        "a client id with an overlong form",
        "a client id above U+10FFFF",
        "a topic with a surrogate",
        "a filter that is not UTF-8",
    ),
    "MQTT-1.5.4-2": (
        "a client id with U+0000",
        "a topic with U+0000",
        "a content type with U+0000",
    ),
    "MQTT-1.5.5-1": (
        "a remaining length not in the fewest bytes",
        "a PUBLISH length not in the fewest bytes",
        "a property length not in the fewest bytes",
    ),
    "MQTT-1.5.7-1": ("a user property with U+0000",),
    "MQTT-2.1.3-1": (
        "reserved flags of 0x41",
        "reserved flags of 0x52",
        "reserved flags of 0xc1",
    ),
    "MQTT-2.2.1-3": (
        "SUBSCRIBE packet id 0",
        "UNSUBSCRIBE packet id 0",
        "PUBLISH packet id 0",
    ),
    "MQTT-3.1.0-1": (
        "the first packet is not CONNECT",
        "the first packet is PUBLISH",
    ),
    "MQTT-3.1.0-2": ("a second CONNECT",),
    "MQTT-3.1.2-1": (
        "a wrong protocol name",
        "a protocol name in lower case",
    ),
    "MQTT-3.1.2-2": (
        "level 0",
        "level 6",
    ),
    "MQTT-3.1.2-3": ("5 reserved connect flag",),
    "MQTT-3.1.2-9": ("a will without payload",),
    "MQTT-3.1.2-11": ("will QoS without will",),
    "MQTT-3.1.2-12": ("5 will QoS 3",),
    "MQTT-3.1.2-13": ("will retain without will",),
    "MQTT-3.1.2-16": ("5 bytes after the last field",),
    "MQTT-3.1.2-17": ("3.1.1 user name announced and absent",),
    "MQTT-3.1.2-18": ("5 bytes after the last field",),
    "MQTT-3.1.2-19": ("3.1.1 password announced and absent",),
    "MQTT-3.1.3-3": ("no client id",),
    "MQTT-3.1.3-4": ("a client id with a surrogate",),
    "MQTT-3.1.3-11": ("a will topic that is not UTF-8",),
    "MQTT-3.1.3-12": ("a user name that is not UTF-8",),
    "MQTT-3.1.4-1": (
        "CONNECT without a body",
        "properties longer than the packet",
        "a property that is cut",
    ),
    "MQTT-3.2.2-17": ("a topic alias above the maximum",),
    "MQTT-3.3.1-2": ("PUBLISH QoS 0 with DUP",),
    "MQTT-3.3.1-4": ("PUBLISH QoS 3",),
    "MQTT-3.3.2-1": (
        "an empty topic without an alias",
        "a topic with an overlong form",
    ),
    "MQTT-3.3.2-2": (
        "a topic with #",
        "a topic with +",
    ),
    "MQTT-3.3.2-8": ("topic alias 0",),
    "MQTT-3.3.2-9": ("a topic alias above the maximum",),
    "MQTT-3.3.2-13": ("an empty response topic",),
    "MQTT-3.3.2-14": ("a response topic with a wildcard",),
    "MQTT-3.3.2-19": ("a content type that is not UTF-8",),
    "MQTT-3.3.4-6": ("a client's subscription identifier",),
    "MQTT-3.4.2-1": ("a reason code that PUBACK has not",),
    "MQTT-3.5.2-1": ("a reserved reason code",),
    "MQTT-3.6.1-1": (
        "reserved flags of 0x60",
        "reserved flags of 0x6a",
    ),
    "MQTT-3.6.2-1": ("a reason code that PUBREL has not",),
    "MQTT-3.8.1-1": ("reserved flags of 0x80",),
    "MQTT-3.8.3-1": ("a filter that is not UTF-8",),
    "MQTT-3.8.3-2": ("5 SUBSCRIBE without a filter",),
    "MQTT-3.8.3-4": ("no local on a shared subscription",),
    "MQTT-3.8.3-5": ("5 SUBSCRIBE reserved bit",),
    "MQTT-3.10.1-1": ("reserved flags of 0xa0",),
    "MQTT-3.10.3-2": ("UNSUBSCRIBE without a filter",),
    "MQTT-3.14.1-1": ("reserved flags of 0xe1",),
    "MQTT-3.14.2-1": (
        "DISCONNECT reason that only a server has",
        "DISCONNECT reason code 0x84",
    ),
    "MQTT-3.14.2-2": ("DISCONNECT with a server's session expiry",),
    "MQTT-3.15.1-1": ("reserved flags of AUTH",),
    "MQTT-3.15.2-1": ("AUTH success from a client",),
    "MQTT-4.7.0-1": ("a topic with #",),
    "MQTT-4.7.1-1": ("# in the middle",),
    "MQTT-4.7.1-2": ("+ beside a character",),
    "MQTT-4.7.3-1": (
        "an empty topic",
        "an empty filter",
    ),
    "MQTT-4.12.0-7": ("AUTH without a method",),
}
"""What the standard says → the cases that show what becomes of who does not keep to it."""


def decoder_for(bad: Bad) -> Decoder[bytes]:
    return Decoder(CheckedTopics(bytes), version=bad.version, sender=bad.sender, topic_alias_maximum=5)


@pytest.mark.mqtt(*SHOWN)
@pytest.mark.parametrize("bad", CATALOGUE, ids=lambda bad: bad.name)
def test_malformed_input_is_refused_with_its_reason_code(bad: Bad) -> None:
    with pytest.raises(MqttError) as raised:
        decoder_for(bad).feed(bad.wire)
    assert f"{raised.value.reason_code:#04x}" == f"{bad.reason:#04x}", str(raised.value)


@pytest.mark.parametrize("bad", CATALOGUE, ids=lambda bad: bad.name)
def test_malformed_input_is_refused_the_same_byte_by_byte(bad: Bad) -> None:
    decoder = decoder_for(bad)
    tail = bad.wire[-60:]

    def feed_slowly() -> None:
        decoder.feed(bad.wire[: -len(tail)])
        for index in range(len(tail)):
            decoder.feed(tail[index : index + 1])

    with pytest.raises(MqttError) as raised:
        feed_slowly()
    assert f"{raised.value.reason_code:#04x}" == f"{bad.reason:#04x}", str(raised.value)


def test_the_bounds_themselves_are_accepted() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=V5)
    many = packet(0x82, b"\0\1\0", b"\0\1a\0" * FILTERS_PER_PACKET_MAX)
    full = packet(0x30, PUB5, b"\xff\xff\x03", b"\x26\0\0\0\0" * (PROPERTIES_BYTES_MAX // 5))
    assert [len(decoder.feed(wire)) for wire in (many, full)] == [1, 1]


def test_the_cases_that_show_a_statement_are_in_the_catalogue() -> None:
    assert {case for cases in SHOWN.values() for case in cases} <= {bad.name for bad in CATALOGUE}
