"""PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 – 3.7), one by one and in runs.

::

    | type, flags 1 | remaining length | packet id 2 | reason 1 | property length, properties |
      0x40 0x50 0x62 0x70                              MQTT 5 only; both, or the last, may be absent

The short form, four bytes with reason 0 (success), is nearly all of the traffic, and comes in
bursts: `AckRun` carries the packet ids of consecutive ones, and `encode_acks` writes many.
"""

from __future__ import annotations

import re
import sys
from array import array
from typing import Final

from holdmq.errors import UsageError
from holdmq.mqtt.fields import encode_packet_id, frame, malformed, protocol_error, read_packet_id
from holdmq.mqtt.packets import PubAck, PubComp, PubRec, PubRel
from holdmq.mqtt.properties import NO_PROPERTIES, Properties, encode_properties, read_properties
from holdmq.mqtt.protocol import MQTT_5, PACKET_NAMES, PUBACK, PUBCOMP, PUBREC, PUBREL
from holdmq.mqtt.reasons import check_own_reason, check_reason

_SWAP: Final = sys.byteorder == "little"
_FIRST: Final = {PUBACK: 0x40, PUBREC: 0x50, PUBREL: 0x62, PUBCOMP: 0x70}
# Possessive, so that a run of any length is found in one pass and nothing is kept to go back to.
_RUNS: Final = {
    first: re.compile(b"(?:" + re.escape(bytes((first,))) + b"\x02..)++", re.DOTALL)
    for first in _FIRST.values()
}
_HEADS: Final = {packet_type: bytes((first, 2)) for packet_type, first in _FIRST.items()}

Ack = PubAck | PubRec | PubRel | PubComp
_CLASSES: Final[dict[int, type[PubAck | PubRec | PubRel | PubComp]]] = {
    PUBACK: PubAck,
    PUBREC: PubRec,
    PUBREL: PubRel,
    PUBCOMP: PubComp,
}


class AckRun:
    """Consecutive short acknowledgements of one type: `packet_ids` in order, all with success."""

    __slots__ = ("packet_ids", "packet_type")

    def __init__(self, packet_type: int, packet_ids: list[int]) -> None:
        self.packet_type = packet_type
        self.packet_ids = packet_ids

    def __len__(self) -> int:
        return len(self.packet_ids)


def read_ack_run(data: bytes, pos: int, first: int) -> tuple[AckRun, int] | None:
    """Read the whole short acknowledgements at `pos` that start with `first`; None when there is none.

    Returns the run and the position after it. Raises MqttError 0x82 for packet id 0.
    """
    found = _RUNS[first].match(data, pos)
    if found is None:
        return None
    stop = found.end()
    if stop - pos == 4:
        ids = [data[pos + 2] << 8 | data[pos + 3]]
    else:
        words = array("H", data[pos:stop])
        if _SWAP:
            words.byteswap()
        ids = words[1::2].tolist()
    if 0 in ids:  # [MQTT-2.2.1-3] (3.1.1: [MQTT-2.3.1-1])
        error = protocol_error(f"{PACKET_NAMES[first >> 4]} carries packet identifier 0")
        if ids[0]:
            error.decoded.append(AckRun(first >> 4, ids[: ids.index(0)]))
        raise error
    return AckRun(first >> 4, ids), stop


def decode_ack(data: bytes, pos: int, end: int, packet_type: int, version: int, sender: int) -> Ack:
    """Decode the body of one acknowledgement in any of its forms. Raises MqttError."""
    packet_id, pos = read_packet_id(data, pos, end, PACKET_NAMES[packet_type])
    reason_code = 0
    properties: Properties = NO_PROPERTIES
    if version == MQTT_5 and pos < end:
        reason_code = check_reason(data[pos], packet_type, sender)
        pos += 1
        if pos < end:  # 3.4.2.2.1: the property length may be left out
            properties, pos = read_properties(data, pos, end, packet_type, sender)
    if pos != end:
        raise malformed(f"{PACKET_NAMES[packet_type]} has bytes after its last field")
    return _CLASSES[packet_type](packet_id, reason_code, properties)


def encode_ack(packet: Ack, version: int) -> bytes:
    """Encode one acknowledgement in its shortest form. Raises UsageError.

    MQTT 3 has no way to refuse: reason code and properties are left out there.
    """
    packet_type = packet.packet_type
    packet_id = encode_packet_id(packet.packet_id)
    if version != MQTT_5 or (not packet.reason_code and packet.properties == NO_PROPERTIES):
        return _HEADS[packet_type] + packet_id
    check_own_reason(packet.reason_code, packet_type)
    reason = bytes((packet.reason_code,))
    if packet.properties == NO_PROPERTIES:
        return frame(_FIRST[packet_type], packet_id, reason)
    return frame(_FIRST[packet_type], packet_id, reason, encode_properties(packet.properties, packet_type))


def encode_short_ack(packet_type: int, packet_id: int) -> bytes:
    """Encode one short acknowledgement (success), every version's same four bytes.

    `packet_id` is 1–65,535. Raises UsageError for another.
    """
    if not 0 < packet_id <= 0xFFFF:
        raise UsageError(f"packet identifier {packet_id} is not 1–65535")
    return (_FIRST[packet_type] << 24 | 2 << 16 | packet_id).to_bytes(4, "big")


def encode_acks(packet_type: int, packet_ids: list[int]) -> bytes:
    """Encode short acknowledgements (success) of one type, in order, every version's same four bytes.

    `packet_ids` are 1–65,535 each; b"" for none. Raises UsageError for others.
    """
    count = len(packet_ids)
    if count == 1:
        return encode_short_ack(packet_type, packet_ids[0])
    try:
        ids = array("H", packet_ids)
    except OverflowError:
        raise UsageError("a packet identifier is not 1–65535") from None
    if 0 in ids:
        raise UsageError("a packet identifier is 0; it must be 1–65535")
    words = array("H", (_FIRST[packet_type] << 8 | 2,)) * (2 * count)
    words[1::2] = ids
    if _SWAP:
        words.byteswap()
    return words.tobytes()


def encode_pubacks(packet_ids: list[int]) -> bytes:
    """Encode a PUBACK with success for each packet id: `encode_acks(PUBACK, …)`."""
    return encode_acks(PUBACK, packet_ids)


def encode_pubrecs(packet_ids: list[int]) -> bytes:
    """Encode a PUBREC with success for each packet id."""
    return encode_acks(PUBREC, packet_ids)


def encode_pubrels(packet_ids: list[int]) -> bytes:
    """Encode a PUBREL with success for each packet id."""
    return encode_acks(PUBREL, packet_ids)


def encode_pubcomps(packet_ids: list[int]) -> bytes:
    """Encode a PUBCOMP with success for each packet id."""
    return encode_acks(PUBCOMP, packet_ids)
