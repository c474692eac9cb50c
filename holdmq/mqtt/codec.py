"""Bytes to packets and back, for one connection at a time.

The decoder is incremental: what arrives is decoded where it is; only the piece of a packet that
is not whole yet is kept, never more than the maximum packet size, and a packet larger than that
is refused when its fixed header is known, before any of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from holdmq.errors import UsageError
from holdmq.mqtt.acks import AckRun, decode_ack, encode_ack, read_ack_run
from holdmq.mqtt.closing import check_empty, decode_auth, decode_disconnect, encode_reason
from holdmq.mqtt.connect import (
    UnsupportedLevelError,
    decode_connack,
    decode_connect,
    encode_connack,
    encode_connect,
    read_protocol,
)
from holdmq.mqtt.fields import encode_varint, malformed, protocol_error
from holdmq.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from holdmq.mqtt.protocol import (
    AUTH,
    CLIENT,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT_3_1,
    MQTT_5,
    PACKET_NAMES,
    PINGREQ,
    PINGRESP,
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
)
from holdmq.mqtt.publish import (
    PublishRun,
    TopicAliases,
    encode_publish_packet,
    packet_too_large,
    walk_publishes,
)
from holdmq.mqtt.reasons import MqttError
from holdmq.mqtt.subscribe import (
    decode_suback,
    decode_subscribe,
    decode_unsuback,
    decode_unsubscribe,
    encode_suback,
    encode_subscribe,
    encode_unsuback,
    encode_unsubscribe,
)
from holdmq.mqtt.topics import CheckedTopics

T = TypeVar("T")

MAX_PACKET_SIZE: Final = 4 * 1024 * 1024
"""Default bound of one packet and so of what a decoder keeps: record_max_bytes (4 MiB)."""

_PINGREQ: Final = PingReq()
_PINGRESP: Final = PingResp()
_ACK_FIRST: Final = frozenset({0x40, 0x50, 0x62, 0x70})
_SENT_BY_CLIENT: Final = frozenset(
    {CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH}
)
_SENT_BY_SERVER: Final = frozenset(
    {CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP, DISCONNECT, AUTH}
)
_FLAGS_2: Final = frozenset({PUBREL, SUBSCRIBE, UNSUBSCRIBE})


class Decoder(Generic[T]):
    """Decodes what one side of a connection sends.

    - `topics`: the worker's TopicTable, whose entries the messages of a `PublishRun` carry;
    - `max_packet_size`: bytes, fixed header included; may be changed between two feeds;
    - `connect_max_size`: the same for the first packet, whose sender nobody knows; at most `max_packet_size`,
      which it is by default;
    - `sender`: CLIENT (this is a server, the default) or SERVER;
    - `version`: protocol level if it is known, as a client knows it. 0: the first packet must be
      CONNECT, which sets `version`;
    - `topic_alias_maximum`: what was, or will be, told to the peer; 0 refuses aliases. A server
      calls `allow_topic_aliases` when it decides on it after CONNECT.

    After an MqttError `version` says how an answer is to be encoded; when it is 0 the peer does
    not speak MQTT: close without one. A decoder that has raised refuses all further bytes with
    the same reason.
    """

    __slots__ = (
        "_aliases",
        "_needed",
        "_partial",
        "_refusal",
        "_sender",
        "_topics",
        "connect_max_size",
        "max_packet_size",
        "version",
    )

    def __init__(
        self,
        topics: CheckedTopics[T],
        max_packet_size: int = MAX_PACKET_SIZE,
        *,
        sender: int = CLIENT,
        version: int = 0,
        topic_alias_maximum: int = 0,
        connect_max_size: int = 0,
    ) -> None:
        if sender == SERVER and not version:
            raise UsageError("a decoder of what a server sends must be given the protocol level")
        self._topics = topics
        self.max_packet_size = max_packet_size
        self.connect_max_size = connect_max_size or max_packet_size
        self._sender = sender
        self.version = version
        self._aliases: TopicAliases[T] | None = None
        self._partial: bytearray | None = None
        self._needed = 0
        self._refusal: tuple[int, str] | None = None
        if topic_alias_maximum:
            self.allow_topic_aliases(topic_alias_maximum)

    def allow_topic_aliases(self, maximum: int, known: dict[int, T] | None = None) -> None:
        """Accept topic aliases up to `maximum` (0–65,535) from now on; `known` were set before."""
        self._aliases = TopicAliases(maximum)
        if known is not None:
            self._aliases.entries.update(known)

    def use_topics(self, topics: CheckedTopics[T], again: Callable[[T], T]) -> None:
        """Look topics up in another table from now on; `again` gives the entry there of one from before."""
        self._topics = topics
        if self._aliases is not None:
            entries = self._aliases.entries
            for alias, entry in list(entries.items()):
                entries[alias] = again(entry)

    @property
    def buffered(self) -> int:
        """Bytes kept of a packet that is not whole yet; at most `max_packet_size`."""
        return 0 if self._partial is None else len(self._partial)

    def feed(self, data: bytes) -> list[PublishRun[T] | AckRun | Packet]:
        """Decode `data`, in order, with what was kept of the last feed.

        Returns every packet that is whole: PUBLISHes as `PublishRun`, short acknowledgements as
        `AckRun`, all else as the classes of `holdmq.mqtt.packets`. `data` must not change
        afterwards. Raises MqttError at the first violation; the packets before it are its
        `decoded` and are valid.
        """
        if self._refusal is not None:
            raise MqttError(*self._refusal)
        partial = self._partial
        if partial is not None:
            if len(partial) + len(data) < self._needed and self._needed <= self.max_packet_size:
                partial += data
                return []
            data = b"".join((partial, data))
            self._partial = None
        items: list[PublishRun[T] | AckRun | Packet] = []
        try:
            pos = self._decode(data, items)
        except MqttError as error:
            error.decoded = [*items, *error.decoded]
            self._refusal = (error.reason_code, str(error))
            raise
        if pos < len(data):
            self._partial = bytearray(memoryview(data)[pos:])
        return items

    def _decode(self, data: bytes, items: list[PublishRun[T] | AckRun | Packet]) -> int:
        """Decode whole packets into `items`; return where the first that is not whole begins."""
        pos = 0
        end = len(data)
        while pos < end:
            first = data[pos]
            if self.version:
                if first >> 4 == PUBLISH:
                    stop = self._publishes(data, pos, end, items)
                    if stop > pos:
                        pos = stop
                        continue
                elif first in _ACK_FIRST:
                    run = read_ack_run(data, pos, first)
                    if run is not None:
                        items.append(run[0])
                        pos = run[1]
                        continue
            self._check_order(first)
            length, body = self._remaining_length(data, pos, end)
            if body == 0:
                break
            stop = body + length
            size_max = self.max_packet_size if self.version else self.connect_max_size
            if stop - pos > size_max:
                raise packet_too_large(stop - pos, size_max)
            if stop > end:
                self._needed = stop - pos
                break
            items.append(self._packet(data, first, body, stop))
            pos = stop
        return pos

    def _publishes(
        self, data: bytes, pos: int, end: int, items: list[PublishRun[T] | AckRun | Packet]
    ) -> int:
        run: PublishRun[T] = PublishRun(data)
        try:
            return walk_publishes(
                data,
                pos,
                end,
                self.max_packet_size,
                self.version,
                self._sender,
                self._topics,
                self._aliases,
                run.messages,
            )
        finally:
            if run.messages:
                items.append(run)

    def _check_order(self, first: int) -> None:
        """Refuse by the first byte what may not come at all, or not now."""
        packet_type = first >> 4
        if not packet_type:
            raise malformed("packet type 0 is reserved")  # 2.1.2
        if not self.version and packet_type != CONNECT:  # [MQTT-3.1.0-1]
            raise protocol_error(f"the first packet is {PACKET_NAMES[packet_type]}; it must be CONNECT")
        if self.version and packet_type == CONNECT:  # [MQTT-3.1.0-2]
            raise protocol_error("a second CONNECT on one connection")
        if packet_type not in (_SENT_BY_CLIENT if self._sender == CLIENT else _SENT_BY_SERVER):
            raise protocol_error(f"{PACKET_NAMES[packet_type]} from the wrong side")

    def _remaining_length(self, data: bytes, pos: int, end: int) -> tuple[int, int]:
        """Read the remaining length; return it and where the body starts, 0 when it is not whole yet."""
        length = 0
        for index in range(4):
            at = pos + 1 + index
            if at >= end:
                self._needed = at - pos + 1
                return 0, 0
            digit = data[at]
            length |= (digit & 0x7F) << 7 * index
            if digit < 0x80:
                if digit == 0 and index and self.version == MQTT_5:  # [MQTT-1.5.5-1]
                    raise malformed("the remaining length is not encoded in the fewest bytes")
                return length, at + 1
        raise malformed("the remaining length has more than four bytes")  # 2.1.4

    def _check_flags(self, first: int) -> None:
        """Check the fixed header's flags of all but PUBLISH [MQTT-2.1.3-1] (3.1.1: [MQTT-2.2.2-2])."""
        packet_type = first >> 4
        flags = first & 0x0F
        wanted = 2 if packet_type in _FLAGS_2 else 0
        if self.version == MQTT_3_1:
            # 3.1 does not use the other packets' flags, and lets these three set DUP when repeated.
            if wanted and flags & 0x06 != wanted:
                raise malformed(f"{PACKET_NAMES[packet_type]} must have QoS 1 in MQTT 3.1")
        elif flags != wanted:
            # [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1] [MQTT-3.15.1-1]
            raise malformed(f"{PACKET_NAMES[packet_type]} has flags {flags}; they must be {wanted}")

    def _connect(self, data: bytes, first: int, body: int, end: int) -> Connect:
        try:
            self.version, pos = read_protocol(data, body, end)
        except UnsupportedLevelError as error:
            self.version = error.answer_version
            raise
        self._check_flags(first)
        # CONNECT is a connection's first packet, so its body starts right after its fixed header.
        if self.version == MQTT_5 and body != 1 + len(encode_varint(end - body)):
            raise malformed("the remaining length is not encoded in the fewest bytes")  # [MQTT-1.5.5-1]
        return decode_connect(data, pos, end, self.version)

    def _packet(self, data: bytes, first: int, pos: int, end: int) -> Packet:
        """Decode one whole packet whose body is `data[pos:end]`."""
        packet_type = first >> 4
        if packet_type == CONNECT:
            return self._connect(data, first, pos, end)
        self._check_flags(first)
        version = self.version
        sender = self._sender
        if PUBACK <= packet_type <= PUBCOMP:
            return decode_ack(data, pos, end, packet_type, version, sender)
        if packet_type == SUBSCRIBE:
            return decode_subscribe(data, pos, end, version, sender)
        if packet_type == UNSUBSCRIBE:
            return decode_unsubscribe(data, pos, end, version, sender)
        if packet_type == DISCONNECT:
            return decode_disconnect(data, pos, end, version, sender)
        if packet_type == AUTH:
            return decode_auth(data, pos, end, version, sender)
        if packet_type == CONNACK:
            return decode_connack(data, pos, end, version, sender)
        if packet_type == SUBACK:
            return decode_suback(data, pos, end, version, sender)
        if packet_type == UNSUBACK:
            return decode_unsuback(data, pos, end, version, sender)
        check_empty(pos, end, packet_type)
        return _PINGREQ if packet_type == PINGREQ else _PINGRESP


def encode(packet: Packet, version: int) -> bytes:
    """Encode any packet for protocol level `version` (3, 4 or 5); a CONNECT has its own.

    For the hot paths see `encode_publish` and `encode_pubacks`. Raises UsageError for what the
    specification does not let anyone send.
    """
    if isinstance(packet, Publish):
        return encode_publish_packet(packet, version)
    if isinstance(packet, PubAck | PubRec | PubRel | PubComp):
        return encode_ack(packet, version)
    if isinstance(packet, Subscribe):
        return encode_subscribe(packet, version)
    if isinstance(packet, SubAck):
        return encode_suback(packet, version)
    if isinstance(packet, Unsubscribe):
        return encode_unsubscribe(packet, version)
    if isinstance(packet, UnsubAck):
        return encode_unsuback(packet, version)
    if isinstance(packet, Connect):
        return encode_connect(packet)
    if isinstance(packet, ConnAck):
        return encode_connack(packet, version)
    if isinstance(packet, Auth) and version != MQTT_5:
        raise UsageError("AUTH exists in MQTT 5 only")
    if isinstance(packet, Disconnect | Auth):
        return encode_reason(packet, version)
    return b"\xc0\x00" if isinstance(packet, PingReq) else b"\xd0\x00"
