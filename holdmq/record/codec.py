"""The log record: bytes <-> fields, one record at a time (`record_batch` has the numpy side).

::

       0  TotalSize 4   4  MagicCode 4   8  BodyCRC 4   12  QueueId 4   16  Flag 4
      20  QueueOffset 8 *                28  PhysicalOffset 8 *
      36  SysFlag 4     40  BornTimestamp 8             48  BornHost 8 (20 with SysFlag 0x10)
      56  StoreTimestamp 8 *             64  StoreHost 8 *
      72  ReconsumeTimes 4               76  PreparedTransactionOffset 8
      84  BodyLength 4 | Body n | TopicLength 1 | Topic n | PropertiesLength 2 | Properties n
          StampCheck 4 * | TotalSize 4

Big-endian; offsets signed, the others unsigned; with an IPv6 BornHost everything from 56 on
lies 12 bytes later. Fields with * are the broker's stamp and zero as the producer sends them.
BodyCRC is the CRC-32 (zlib) of everything from 12 to StampCheck as the producer sends it;
StampCheck covers the stamp, the sizes check each other, the magic is fixed and BodyCRC checks
itself: every byte is covered. Source: storage.md, The record.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, ip_address
from struct import Struct
from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from zlib_ng.zlib_ng import crc32

from holdmq.errors import Code, RecordError
from holdmq.message import Message, MessageId
from holdmq.record.compression import decompress
from holdmq.record.properties import (
    PROPERTIES_BYTES_MAX,
    RESERVED_KEYS,
    USER_BYTES_MAX,
    USER_PREFIX,
    RecordProperties,
    decode_properties,
    encode_properties,
    mqtt_user_properties,
    tag_of,
    user_properties,
)
from holdmq.record.tags import TAG_CACHE_MAX, TagCache, prefix_hash, tag_hash

__all__ = [
    "PROPERTIES_BYTES_MAX",
    "RESERVED_KEYS",
    "TAG_CACHE_MAX",
    "USER_BYTES_MAX",
    "USER_PREFIX",
    "Record",
    "RecordProperties",
    "RecordTemplate",
    "TagCache",
    "body_crc",
    "decode_host",
    "decode_properties",
    "decode_record",
    "encode_host",
    "encode_message",
    "encode_properties",
    "encode_record",
    "message_properties",
    "mqtt_user_properties",
    "prefix_hash",
    "stamp_check",
    "tag_hash",
    "tag_of",
    "tag_of_record",
    "user_properties",
]

MAGIC: Final = 0x484D5131  # HMQ1
BLANK_MAGIC: Final = 0x484D5130  # HMQ0
BLANK_SIZE_MIN: Final = 12
"""TotalSize, magic, TotalSize: what a blank needs at least."""

FIXED_SIZE: Final = 99
"""A record of an IPv4 BornHost with no body, topic or properties."""
IPV6_EXTRA: Final = 12

RECORD_BYTES_LIMIT: Final = 12 * 1024 * 1024
"""No `record_max_bytes` may be larger."""
TOPIC_BYTES_MAX: Final = 127

SYS_COMPRESSED: Final = 0x2
SYS_BORN_IPV6: Final = 0x10
SYS_STORE_ID: Final = 0x20
SYS_RETAIN: Final = 0x40
SYS_ROLLED: Final = 0x80
SYS_QOS: Final = 0x300
SYS_QOS_SHIFT: Final = 8
SYS_KNOWN: Final = 0x3FE

# Field positions of the diagram: whoever patches or gathers fields takes them from here.
MAGIC_AT: Final = 4
CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_MS_AT: Final = 40
STORE_MS_AT: Final = 56
STORE_HOST_AT: Final = 64
RECONSUME_AT: Final = 72
MARK_AT: Final = 76
"""PreparedTransactionOffset, which holds COPY_MARK or a producer's mark."""
BODY_LENGTH_AT: Final = 84
SUFFIX_BYTES: Final = 8
"""StampCheck and TotalSize, at the record's end."""

COPY_MARK: Final = -1
"""Field 14 of a copy that a broker makes. Elsewhere, and not in a transaction, it is a producer's mark: a
number that all its records have, by which a broker finds them again after a crash (0 = none)."""

VERIFY_NONE: Final = 0
VERIFY_BODY: Final = 1
VERIFY_ALL: Final = 3

# Odd, so that no change of one byte can vanish: checked for every byte in the tests.
STAMP_FACTORS: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
STAMP_ADDEND: Final = 0xA0761D6478BD642F
_MASK64: Final = 0xFFFFFFFFFFFFFFFF

SHORT_BYTES: Final = 1_100
"""Up to here a record is written field by field: compiled, half the time, as no number becomes an object on
its way. Behind it the writer copies what it has as it grows, and joining is cheaper (measured)."""
_BORN_MS_PLAIN: Final = 1 << 61
"""Past it a time needs an object; of no use, but a record can carry it."""

_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")
_NO_CHECK: Final = bytes(4)
_SIGN: Final = 1 << 31
_HEAD: Final = Struct(">IIIIIqqIQ8sQ8sIqI")
_HEAD_IPV6: Final = Struct(">IIIIIqqIQ20sQ8sIqI")
_STAMP: Final = Struct(">qq20xQQ")  # at 20, IPv4 BornHost
_STAMP_IPV6: Final = Struct(">qq32xQQ")
_BEFORE_BORN: Final = Struct(">IIqqI")
_AFTER_HOST: Final = Struct(">QQIq")
_U32: Final = Struct(">I")
_U16: Final = Struct(">H")

Buffer = bytes | bytearray | memoryview


def stamp_check(queue_offset: int, physical_offset: int, store_ms: int, store_host: int) -> int:
    """Field 21: the high half of a 64-bit multiply-add of fields 6, 7, 11 and 12 (StoreHost big-endian)."""
    a, b, c, d = STAMP_FACTORS
    total = queue_offset * a + physical_offset * b + store_ms * c + store_host * d + STAMP_ADDEND
    return (total & _MASK64) >> 32


def encode_host(address: str, port: int) -> bytes:
    """BornHost of an IP address and port: 8 bytes, or 20 for IPv6; RecordError if it is no address."""
    try:
        ip = ip_address(address)
    except ValueError:
        raise RecordError(f"{address!r} is no IP address") from None
    return ip.packed + port.to_bytes(4, "big")


def decode_host(host: bytes) -> tuple[str, int]:
    """Address and port of a BornHost of 8 or 20 bytes."""
    return str(ip_address(host[:-4])), int.from_bytes(host[-4:], "big")


NO_HOST: Final = IPv4Address(0).packed + b"\0\0\0\0"
"""BornHost of a message that no socket brought."""


_HEADS_MAX: Final = 1024
"""Queues times QoS, of which a gateway uses a few hundred; another one is only made again."""


@lru_cache(maxsize=_HEADS_MAX)
def _before_born(queue_id: int, flag: int, sys_flag: int) -> bytes:
    """Fields 4 to 8: the same bytes object for all templates of a queue, as a worker has many thousands."""
    return _BEFORE_BORN.pack(queue_id, flag, 0, 0, sys_flag)


class RecordTemplate:
    """Encodes records that differ in body and born time only.

    Keep one per (topic, queue, properties, flags, connection) where messages repeat: it is the
    cheapest way to make a record. Raises RecordError for what no record can hold.
    """

    __slots__ = ("_after", "_before", "_fixed", "_tail")

    def __init__(
        self,
        topic: bytes,
        queue_id: int,
        properties: bytes = b"",
        born_host: bytes = NO_HOST,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        prepared: int = 0,
    ) -> None:
        if not 0 < len(topic) <= TOPIC_BYTES_MAX:
            raise RecordError(f"a topic of {len(topic)} bytes: 1 to {TOPIC_BYTES_MAX} are allowed")
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise RecordError(
                f"properties of {len(properties)} bytes: {PROPERTIES_BYTES_MAX} are allowed",
                Code.LIMIT_EXCEEDED,
            )
        if sys_flag & ~SYS_KNOWN:
            raise RecordError(f"SysFlag {sys_flag:#x} has bits without a meaning")
        host_size = len(born_host)
        if host_size == 20:
            sys_flag |= SYS_BORN_IPV6
        elif host_size == 8:
            sys_flag &= ~SYS_BORN_IPV6
        else:
            raise RecordError(f"BornHost of {host_size} bytes: 8 or 20 are allowed")
        # Every store of this product stamps its 8-byte id.
        sys_flag |= SYS_STORE_ID
        self._before: bytes = _before_born(queue_id, flag, sys_flag)
        self._after: bytes = born_host + _AFTER_HOST.pack(0, 0, reconsume_times, prepared)
        self._tail: bytes = b"".join(
            (len(topic).to_bytes(1, "big"), topic, len(properties).to_bytes(2, "big"), properties)
        )
        self._fixed: int = FIXED_SIZE - 3 + host_size - 8 + len(self._tail)

    def encode(self, body: bytes, born_ms: int) -> bytes:
        """One record, complete but for the stamp; RecordError (RECORD_TOO_LARGE) past 12 MiB."""
        length = len(body)
        total = self._fixed + length
        if total > RECORD_BYTES_LIMIT:
            raise RecordError(
                f"a record of {total} bytes: {RECORD_BYTES_LIMIT} are allowed", Code.RECORD_TOO_LARGE
            )
        if total <= SHORT_BYTES and 0 <= born_ms < _BORN_MS_PLAIN:
            part = BytesWriter()
            part.write(self._before)
            write_i64_be(part, born_ms)
            part.write(self._after)
            write_i32_be(part, length)
            part.write(body)
            part.write(self._tail)
            return _whole(total, part.getvalue())
        covered = b"".join(
            (
                self._before,
                born_ms.to_bytes(8, "big"),
                self._after,
                length.to_bytes(4, "big"),
                body,
                self._tail,
            )
        )
        return _whole(total, covered)


def _whole(total: int, covered: bytes) -> bytes:
    """The record around what BodyCRC covers."""
    crc: int = crc32(covered)
    if total <= SHORT_BYTES:
        record = BytesWriter()
        write_i64_be(record, total << 32 | MAGIC)
        write_i32_be(record, (crc ^ _SIGN) - _SIGN)
        record.write(covered)
        write_i64_be(record, total)  # behind a StampCheck of 0
        return record.getvalue()
    size = total.to_bytes(4, "big")
    return b"".join((size, _MAGIC_BYTES, crc.to_bytes(4, "big"), covered, _NO_CHECK, size))


def encode_record(
    topic: bytes,
    queue_id: int,
    body: bytes,
    properties: bytes,
    born_ms: int,
    born_host: bytes = NO_HOST,
    sys_flag: int = 0,
    flag: int = 0,
    reconsume_times: int = 0,
    prepared: int = 0,
) -> bytes:
    """One record, complete but for the stamp.

    `topic` has 1–127 bytes, `properties` are encoded ones, `born_host` has 8 bytes or 20 (IPv6;
    its flag, and the one of the store id, are set here). Raises RecordError for what no record
    can hold.
    """
    if (
        len(born_host) == 8
        and 0 < len(topic) <= TOPIC_BYTES_MAX
        and len(properties) <= PROPERTIES_BYTES_MAX
        and not sys_flag & ~(SYS_KNOWN ^ SYS_BORN_IPV6)
    ):
        length = len(body)
        total = FIXED_SIZE + length + len(topic) + len(properties)
        if total <= RECORD_BYTES_LIMIT:
            covered = b"".join(
                (
                    _COVERED_FIELDS.pack(
                        queue_id,
                        flag,
                        sys_flag | SYS_STORE_ID,
                        born_ms,
                        born_host,
                        reconsume_times,
                        prepared,
                        length,
                    ),
                    body,
                    len(topic).to_bytes(1, "big"),
                    topic,
                    len(properties).to_bytes(2, "big"),
                    properties,
                )
            )
            return _whole(total, covered)
    template = RecordTemplate(
        topic, queue_id, properties, born_host, sys_flag, flag, reconsume_times, prepared
    )
    return template.encode(body, born_ms)


_COVERED_FIELDS: Final = Struct(">II16xIQ8s16xIqI")  # 12–88 with a stamp of zeros, IPv4 BornHost


class Record:
    """The fields of one record. `body`, `topic` and `properties` are copies."""

    __slots__ = (
        "body",
        "born_host",
        "born_ms",
        "flag",
        "physical_offset",
        "prepared",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_host",
        "store_ms",
        "sys_flag",
        "topic",
        "total_size",
    )

    def __init__(
        self,
        total_size: int,
        queue_id: int,
        flag: int,
        queue_offset: int,
        physical_offset: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        store_ms: int,
        store_host: bytes,
        reconsume_times: int,
        prepared: int,
        body: bytes,
        topic: bytes,
        properties: bytes,
    ) -> None:
        self.total_size = total_size
        self.queue_id = queue_id
        self.flag = flag
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.born_host = born_host
        self.store_ms = store_ms
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared = prepared
        self.body = body
        self.topic = topic
        self.properties = properties

    @property
    def tag(self) -> bytes | None:
        """The tag's UTF-8 bytes; None = no tag."""
        return tag_of(self.properties)

    @property
    def qos(self) -> int:
        """The QoS of the publish (MQTT)."""
        return (self.sys_flag & SYS_QOS) >> SYS_QOS_SHIFT

    def to_message(self, broker: str | None = None) -> Message:
        """The message as an application sees it, its body as it was sent.

        RecordError if its properties cannot be read, or its compressed body not unpacked within 12 MiB.
        """
        properties = decode_properties(self.properties)
        try:
            topic = self.topic.decode()
        except UnicodeDecodeError:
            raise RecordError(f"topic {self.topic!r} is no UTF-8 text") from None
        return Message(
            topic=topic,
            body=decompress(self.body) if self.sys_flag & SYS_COMPRESSED else self.body,
            tag=properties.first("TAGS"),
            keys=tuple(value for key, value in properties.pairs if key == "KEYS"),
            properties=user_properties(properties),
            flag=self.flag,
            client_id=properties.first("CLIENT_ID"),
            born_ms=self.born_ms,
            queue_id=self.queue_id,
            queue_offset=self.queue_offset,
            store_ms=self.store_ms,
            reconsume_times=self.reconsume_times,
            unique_id=properties.first("UNIQ_KEY"),
            message_id=MessageId(self.store_host, self.physical_offset),
            broker=broker,
        )


def message_properties(message: Message) -> bytes:
    """The encoded properties of a message: its tag first, keys, ids, then the user's own.

    Raises RecordError as `encode_properties` does.
    """
    pairs: list[tuple[str, str]] = []
    if message.tag is not None:
        pairs.append(("TAGS", message.tag))
    pairs.extend(("KEYS", key) for key in message.keys)
    if message.unique_id is not None:
        pairs.append(("UNIQ_KEY", message.unique_id))
    if message.client_id is not None:
        pairs.append(("CLIENT_ID", message.client_id))
    pairs.extend((USER_PREFIX + key, value) for key, value in message.properties.items())
    return encode_properties(pairs)


def encode_message(
    message: Message, queue_id: int, born_ms: int, born_host: bytes = NO_HOST, sys_flag: int = 0
) -> bytes:
    """The record of a message for one queue of its topic; a set `message.born_ms` goes before `born_ms`."""
    return encode_record(
        message.topic.encode(),
        queue_id,
        message.body,
        message_properties(message),
        message.born_ms or born_ms,
        born_host,
        sys_flag,
        message.flag,
        message.reconsume_times,
    )


def body_crc(record: Buffer) -> int:
    """What field 3 of this whole record must be: the stamp counts as zeros."""
    view = memoryview(record)
    store_at = STORE_MS_AT + (IPV6_EXTRA if view[SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0)
    zeros = bytes(16)
    crc = crc32(view[SYS_FLAG_AT:store_at], crc32(zeros, crc32(view[QUEUE_ID_AT:QUEUE_OFFSET_AT])))
    return crc32(view[store_at + 16 : -SUFFIX_BYTES], crc32(zeros, crc))


def decode_record(buffer: Buffer, pos: int = 0, verify: int = VERIFY_NONE) -> Record:
    """The record that begins at `pos`; what follows it is not looked at.

    Sizes, magic and lengths are always checked; `verify` VERIFY_BODY adds BodyCRC, VERIFY_ALL
    the StampCheck too (a record that no broker stamped fails it). Raises RecordError that says
    which field is wrong.
    """
    available = len(buffer) - pos
    if available < FIXED_SIZE:
        raise RecordError(f"{available} bytes are less than a record")
    total = _U32.unpack_from(buffer, pos)[0]
    if not FIXED_SIZE <= total <= available:
        raise RecordError(f"TotalSize {total} with {available} bytes there")
    extra = IPV6_EXTRA if buffer[pos + SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0
    if total < FIXED_SIZE + extra:
        raise RecordError(f"TotalSize {total} is less than a record with IPv6 takes")
    (
        _,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared,
        body_length,
    ) = (_HEAD_IPV6 if extra else _HEAD).unpack_from(buffer, pos)
    if magic != MAGIC:
        raise RecordError(f"MagicCode {magic:#010x} is not HMQ1")
    if sys_flag & ~SYS_KNOWN:
        raise RecordError(f"SysFlag {sys_flag:#x} has bits without a meaning")
    end = pos + total
    if _U32.unpack_from(buffer, end - 4)[0] != total:
        raise RecordError(f"TotalSize {total} is not repeated at the record's end")
    body_at = pos + BODY_LENGTH_AT + 4 + extra
    topic_at = body_at + body_length + 1
    if topic_at + 10 > end:
        raise RecordError(f"BodyLength {body_length} does not fit TotalSize {total}")
    properties_at = topic_at + buffer[topic_at - 1] + 2
    if properties_at + 8 > end:
        raise RecordError(f"TopicLength {buffer[topic_at - 1]} does not fit TotalSize {total}")
    properties_length = _U16.unpack_from(buffer, properties_at - 2)[0]
    if properties_at + properties_length + 8 != end:
        raise RecordError(f"PropertiesLength {properties_length} does not fit TotalSize {total}")
    if verify:
        _verify(buffer, pos, end, crc, verify)
    return Record(
        total,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared,
        bytes(buffer[body_at : topic_at - 1]),
        bytes(buffer[topic_at : properties_at - 2]),
        bytes(buffer[properties_at : end - SUFFIX_BYTES]),
    )


def _verify(buffer: Buffer, pos: int, end: int, crc: int, verify: int) -> None:
    record = memoryview(buffer)[pos:end]
    if body_crc(record) != crc:
        raise RecordError("BodyCRC does not match: a byte between QueueId and Properties is damaged")
    if verify == VERIFY_ALL:
        stamp = _STAMP_IPV6 if record[SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else _STAMP
        fields = stamp.unpack_from(record, QUEUE_OFFSET_AT)
        if stamp_check(*fields) != _U32.unpack_from(record, end - pos - SUFFIX_BYTES)[0]:
            raise RecordError("StampCheck does not match: an offset, the store time or host is damaged")


def tag_of_record(buffer: Buffer, pos: int = 0) -> str | None:
    """The tag of the well-formed record at `pos`, without decoding the rest; None = no tag."""
    extra = IPV6_EXTRA if buffer[pos + SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0
    body_at = pos + BODY_LENGTH_AT + extra
    topic_at = body_at + 4 + _U32.unpack_from(buffer, body_at)[0]
    properties_at = topic_at + 1 + buffer[topic_at]
    length = _U16.unpack_from(buffer, properties_at)[0]
    if not length:
        return None
    tag = tag_of(bytes(buffer[properties_at + 2 : properties_at + 2 + length]))
    return None if tag is None else tag.decode("utf-8", "surrogateescape")
