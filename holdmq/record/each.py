"""The records of a PRODUCE, one by one: may they be stored, and what properties have they?

Records of one device or producer mostly have the properties of the one before, perhaps but for the unique
id: what is alike is found by comparing it where it lies. A loop, as numpy's calls have a fixed cost that
a PRODUCE does not earn back. It reads with `librt.strings`, which mypyc turns into loads: two 32-bit
fields that stand side by side are one. Sizes are read so, too: a list of them would be an object each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from librt.strings import read_i64_be, read_i64_le
from zlib_ng.zlib_ng import crc32

from holdmq.record.codec import (
    BODY_LENGTH_AT,
    CRC_AT,
    FIXED_SIZE,
    IPV6_EXTRA,
    MAGIC,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_MS_AT,
    SUFFIX_BYTES,
    SYS_BORN_IPV6,
    SYS_FLAG_AT,
    SYS_KNOWN,
    SYS_QOS,
    SYS_STORE_ID,
)
from holdmq.record.properties import KEY, UNIQUE

if TYPE_CHECKING:
    from mypy_extensions import i64

ClaimedRun = tuple[bytes, int, int]
"""What a run of a batch claims of its records: topic, queue id, count."""

WRONG_SIZE: Final = "its TotalSize is not its size in the batch"
WRONG_END: Final = "its size is not repeated at its end"
WRONG_MAGIC: Final = "its MagicCode is not HMQ1"
WRONG_FLAGS: Final = "its SysFlag has bits without a meaning, or not 0x20 (StoreHost is the store id)"
WRONG_BODY: Final = "its BodyLength does not fit its size"
WRONG_TOPIC: Final = "its TopicLength does not fit its size"
WRONG_PROPERTIES: Final = "its PropertiesLength does not fit its size"
STAMPED: Final = "it is stamped already: offsets, store time, host and check must be zero"
WRONG_CRC: Final = "its BodyCRC does not match its bytes"
_WRONG_QUEUE: Final = "its QueueId is not its run's"
_WRONG_NAME: Final = "its topic is not its run's"

NOT_ALIKE: Final = -1
"""The size of the properties before, when nothing may be taken to be alike to them."""

_U32: Final = 0xFFFFFFFF
_UNKNOWN_FLAGS: Final = _U32 & ~SYS_KNOWN
_AFTER_NAME: Final = bytes(8)
"""What `is_same` may read behind a run's topic."""
_TOP_BITS: Final = 0x0080808080808080
"""Of all bytes but the first, whose own is the sign."""
_BITS_5: Final = 0x2020202020202020


class BadEntry(NamedTuple):
    """The first record of a batch that must be refused, and why."""

    entry: int
    reason: str


def check_sizes(sizes: bytes, size_bytes: int, record_max_bytes: int) -> BadEntry | None:
    """Whether records may have these sizes (64 bits, little-endian) that are to add up to `size_bytes`."""
    largest: i64 = record_max_bytes
    total: i64 = 0
    at: i64 = 0
    end: i64 = len(sizes)
    while at < end:
        size: i64 = read_i64_le(sizes, at)
        if size < FIXED_SIZE or size > largest:
            return BadEntry(at // 8, f"it has {size} bytes; {FIXED_SIZE} to {record_max_bytes} are allowed")
        total += size
        at += 8
    if total == size_bytes:
        return None
    return BadEntry(end // 8 - 1, f"the sizes add up to {total} of {size_bytes} bytes")


def check_each(
    data: bytes, sizes: bytes, runs: Sequence[ClaimedRun], properties: list[bytes]
) -> BadEntry | None:
    """As `record_batch.check_entries`, for records of good sizes (`check_sizes`); adds each one's properties.

    The runs' counts are together that of the sizes. Of a record whose properties are alike to the ones before
    but for the unique id, those are added again.
    """
    start: i64 = 0
    entry: i64 = 0
    last: i64 = 0
    add = properties.append
    crc_of = crc32
    like = b""
    like_at: i64 = 0
    like_size: i64 = NOT_ALIKE
    id_begin: i64 = 0
    id_end: i64 = 0
    may_have_ids = True
    for topic, queue_id, count in runs:
        name_size: i64 = len(topic) + 1
        name = len(topic).to_bytes(1, "big") + topic + _AFTER_NAME
        wanted_queue: i64 = queue_id
        last += count
        while entry < last:
            end: i64 = start + read_i64_le(sizes, 8 * entry)
            reason = _problem(data, start, end, name, name_size, wanted_queue)
            crc: i64 = read_i64_be(data, start + CRC_AT - 4) & _U32
            if not reason and crc_of(data[start + QUEUE_ID_AT : end - SUFFIX_BYTES]) != crc:
                reason = WRONG_CRC
            if reason:
                if reason is _WRONG_QUEUE:
                    reason = f"its QueueId is not {queue_id}, its run's"
                elif reason is _WRONG_NAME:
                    reason = f"its topic is not {topic.decode('utf-8', 'replace')!r}, its run's"
                return BadEntry(entry, reason)
            at: i64 = properties_at(data, start)
            own_size: i64 = end - SUFFIX_BYTES - at
            if own_size != like_size or not is_alike(data, at, like_at, like_size, id_begin, id_end):
                like = data[at : at + own_size]
                like_size = own_size
                if may_have_ids:
                    id_begin, id_end = id_span(like)
                    # Who sends some without an id mostly sends all without: nothing but time is lost else.
                    may_have_ids = id_end > 0
            like_at = at
            add(like)
            start = end
            entry += 1
    return None


def layout_fault(data: bytes, start: i64, end: i64) -> str:
    """Which field of the record at `start` does not fit its size, `end` - `start`; empty = all do."""
    size: i64 = end - start
    head: i64 = read_i64_be(data, start)
    if head >> 32 != size:
        return WRONG_SIZE
    if read_i64_be(data, end - SUFFIX_BYTES) & _U32 != size:
        return WRONG_END
    if head & _U32 != MAGIC:
        return WRONG_MAGIC
    flags: i64 = read_i64_be(data, start + SYS_FLAG_AT - 4) & _U32
    if flags & _UNKNOWN_FLAGS or not flags & SYS_STORE_ID or flags & SYS_QOS == SYS_QOS:
        return WRONG_FLAGS
    extra: i64 = IPV6_EXTRA if flags & SYS_BORN_IPV6 else 0
    body_at: i64 = start + BODY_LENGTH_AT + extra
    if body_at + 15 > end:
        return WRONG_BODY
    topic_at: i64 = body_at + 4 + (read_i64_be(data, body_at - 4) & _U32)
    if topic_at + 11 > end:
        return WRONG_BODY
    properties_at: i64 = topic_at + 1 + data[topic_at]
    if properties_at + 10 > end:
        return WRONG_TOPIC
    length: i64 = (data[properties_at] << 8) + data[properties_at + 1]
    return "" if properties_at + 10 + length == end else WRONG_PROPERTIES


def _problem(data: bytes, start: i64, end: i64, name: bytes, name_size: i64, queue_id: i64) -> str:
    """What is wrong with one record but for its CRC; empty = nothing.

    `name` is the run's fields 17 and 18, with 8 bytes more.
    """
    fault = layout_fault(data, start, end)
    if fault:
        return fault
    extra: i64 = IPV6_EXTRA if data[start + SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0
    store_at: i64 = start + STORE_MS_AT + extra
    stamp: i64 = (
        read_i64_be(data, start + QUEUE_OFFSET_AT)
        | read_i64_be(data, start + PHYSICAL_OFFSET_AT)
        | read_i64_be(data, store_at)
        | read_i64_be(data, store_at + 8)
        | read_i64_be(data, end - SUFFIX_BYTES) >> 32
    )
    if stamp:
        return STAMPED
    if read_i64_be(data, start + QUEUE_ID_AT - 4) & _U32 != queue_id:
        return _WRONG_QUEUE
    body_at: i64 = start + BODY_LENGTH_AT + extra
    topic_at: i64 = body_at + 4 + (read_i64_be(data, body_at - 4) & _U32)
    return "" if is_same(data, topic_at, name, 0, name_size) else _WRONG_NAME


def each_properties(data: bytes, starts: list[int], sizes: list[int]) -> list[bytes]:
    """The encoded properties of every record; the records are well-formed and begin at `starts`."""
    found: list[bytes] = []
    for begin, size in zip(starts, sizes, strict=True):
        start: i64 = begin
        found.append(data[properties_at(data, start) : start + size - SUFFIX_BYTES])
    return found


def properties_at(data: bytes, start: i64) -> i64:
    """Where the encoded properties of a well-formed record begin that begins at `start`."""
    extra: i64 = IPV6_EXTRA if data[start + SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0
    body_at: i64 = start + BODY_LENGTH_AT + extra
    topic_at: i64 = body_at + 4 + (read_i64_be(data, body_at - 4) & _U32)
    return topic_at + 3 + data[topic_at]


def id_span(properties: bytes) -> tuple[int, int]:
    """Where the value of the unique id stands in encoded properties with no other key and nothing of MQTT's.

    (0, 0) = they are not such. Whatever printable ASCII stands there, they mean the same but for the id.
    """
    at = properties.find(UNIQUE)
    if at < 0:
        return 0, 0
    begin = at + len(UNIQUE)
    end = properties.find(b"\x02", begin)
    is_pair = end >= 0 and (at == 0 or properties[at - 1] == 2) and properties.find(UNIQUE, end) < 0
    return (begin, end) if is_pair and KEY not in properties and b"\0" not in properties else (0, 0)


def is_alike(data: bytes, at: i64, other: i64, size: i64, id_begin: i64, id_end: i64) -> bool:
    """Whether properties of two records, at two places, differ in nothing but the unique id.

    Both have `size` bytes; `id_begin` and `id_end` are the other ones' `id_span`.
    """
    if not id_end:
        return is_same(data, at, data, other, size)
    return (
        is_same(data, at, data, other, id_begin)
        and is_same(data, at + id_end, data, other + id_end, size - id_end)
        and is_printable(data, at + id_begin, at + id_end)
    )


def is_same(data: bytes, at: i64, other_data: bytes, other: i64, size: i64) -> bool:
    """Whether `size` bytes at two places are equal; at least 8 more must follow both, which may be read."""
    done: i64 = 0
    while size - done >= 8:
        if read_i64_be(data, at + done) != read_i64_be(other_data, other + done):
            return False
        done += 8
    rest: i64 = 8 * (8 - (size - done))
    return rest == 64 or (read_i64_be(data, at + done) ^ read_i64_be(other_data, other + done)) >> rest == 0


def is_printable(data: bytes, at: i64, end: i64) -> bool:
    """Whether all bytes are ASCII from 0x20 on: eight at a time, the last of them perhaps twice."""
    begin: i64 = at
    while end - begin >= 8 and at < end:
        if end - at < 8:
            at = end - 8
        word: i64 = read_i64_be(data, at)
        # Bit 5 or 6 of each. A constant above 2^62 would be an object, converted at each use.
        if word < 0 or word & _TOP_BITS or (word >> 1 | word) & _BITS_5 != _BITS_5:
            return False
        at += 8
    while at < end:
        byte: i64 = data[at]
        if byte < 0x20 or byte > 0x7F:
            return False
        at += 1
    return True
