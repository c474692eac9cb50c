"""Numbers that every part of the codec shares: packet types, protocol levels, who sends, limits."""

from __future__ import annotations

from typing import Final

# 2.1.2 MQTT Control Packet type; 0 is reserved and stands for the will's property block in masks.
WILL: Final = 0
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

PACKET_NAMES: Final = (
    "will",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)

# Protocol levels as CONNECT carries them (3.1.2.2).
MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5: Final = 5

# Who sent what a decoder reads.
CLIENT: Final = 1
SERVER: Final = 2

# Bits of the PUBLISH fixed header's first byte (3.3.1).
DUP: Final = 0x08
QOS_MASK: Final = 0x06
RETAIN: Final = 0x01

VARINT_MAX: Final = 268_435_455
"""The largest variable byte integer (1.5.5)."""

# The largest packet any level can express: 5 bytes of fixed header and a full remaining length.

PROPERTIES_BYTES_MAX: Final = 65_535
"""The largest property block: what a log record's properties can hold. It also bounds the time
that one packet can take, as properties are decoded one by one."""

FILTERS_PER_PACKET_MAX: Final = 10_000
"""The most filters in one SUBSCRIBE or UNSUBSCRIBE, for the same reason: a packet of the maximum
size could name a million, and hold up the worker's other connections for seconds."""
