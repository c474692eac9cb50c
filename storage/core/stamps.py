"""What an append does to each of its records: stamp it, and hash its tag. Loops that mypyc compiles.

numpy has a fixed cost per call, which a batch of a device or two does not earn back, and from 500
elements on it hands the interpreter to another thread at every call: an append then waits for whoever
took it. Larger records are left to numpy (`holdmq.record.batch.stamp`), as these loops copy them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from librt.strings import (
    BytesWriter,
    read_i32_le,
    read_i64_be,
    read_i64_le,
    write_i32_le,
    write_i64_be,
    write_i64_le,
)

from holdmq.record.codec import (
    IPV6_EXTRA,
    QUEUE_OFFSET_AT,
    STORE_MS_AT,
    SUFFIX_BYTES,
    SYS_BORN_IPV6,
    SYS_FLAG_AT,
    TagCache,
)
from holdmq.record.each import properties_at
from holdmq.record.tags import PROPERTIES_CACHE_MAX, has_keys

if TYPE_CHECKING:
    from mypy_extensions import i64

EACH_BYTES_MAX: Final = 1_024
"""Mean size of records up to which copying them costs less than numpy's calls (measured)."""

_PART_BYTES: Final = 32 << 10
"""Records are written back in parts that stay in the processor's cache."""
_U32: Final = 0xFFFFFFFF
_SIGN: Final = 1 << 31
_SPAN: Final = 1 << 64
# holdmq.record.codec.STAMP_FACTORS and STAMP_ADDEND as signed numbers: the product's low 64 bits are the
# same.
_A: Final = 0x9E3779B97F4A7C15 - _SPAN
_B: Final = 0xBF58476D1CE4E5B9 - _SPAN
_C: Final = 0x94D049BB133111EB - _SPAN
_D: Final = 0xD6E8FEB86659FD93 - _SPAN
_ADDEND: Final = 0xA0761D6478BD642F - _SPAN


def stamp_each(
    records: memoryview,
    data: bytes,
    first: int,
    count: int,
    queue_offset: int,
    position: int,
    store_ms: int,
    store_host: int,
) -> int:
    """Stamp `count` records of one queue in place, from byte `first` of the batch on; where they end in it.

    `data` is what `records` holds, `position` the log offset of its first byte, `store_host` the store id
    as a signed number. The records must have passed `holdmq.record.batch.check_entries`.
    """
    start: i64 = first
    offset: i64 = queue_offset
    physical: i64 = position + first
    ms: i64 = store_ms
    host: i64 = store_host
    # `check_of`, but for what changes: factors of 64 bits are objects, which each use would convert again.
    a: i64 = _A
    b: i64 = _B
    same: i64 = ms * _C + host * _D + _ADDEND
    part = BytesWriter()
    begin: i64 = start
    last: i64 = offset + count
    while offset < last:
        total: i64 = read_i64_be(data, start) >> 32
        end: i64 = start + total
        extra: i64 = IPV6_EXTRA if data[start + SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0
        store_at: i64 = start + STORE_MS_AT + extra
        _copy(part, data, start, start + QUEUE_OFFSET_AT)
        write_i64_be(part, offset)
        write_i64_be(part, physical)
        _copy(part, data, start + SYS_FLAG_AT, store_at)
        write_i64_be(part, ms)
        write_i64_be(part, host)
        part.write(data[store_at + 16 : end - SUFFIX_BYTES])
        check: i64 = ((offset * a + physical * b + same) >> 32) & _U32
        write_i64_be(part, (((check ^ _SIGN) - _SIGN) << 32) | total)
        start = end
        offset += 1
        physical += total
        if end - begin >= _PART_BYTES:
            records[begin:end] = part.getvalue()
            part = BytesWriter()
            begin = end
    if begin < start:
        records[begin:start] = part.getvalue()
    return start


def _copy(part: BytesWriter, data: bytes, at: i64, end: i64) -> None:
    """Write a few fields as they are, a multiple of 4 bytes: a slice would be an object for each record."""
    while end - at >= 8:
        write_i64_le(part, read_i64_le(data, at))
        at += 8
    if at < end:
        write_i32_le(part, read_i32_le(data, at))


def check_of(offset: i64, physical: i64, store_ms: i64, store_host: i64) -> i64:
    """Field 21, as `holdmq.record.codec.stamp_check`."""
    total: i64 = offset * _A + physical * _B + store_ms * _C + store_host * _D + _ADDEND
    return (total >> 32) & _U32


class Tagged(NamedTuple):
    """Tag hashes of records, 8 bytes each, little-endian; and whether there are any, and any keys."""

    hashes: bytes
    has_tags: bool
    has_keys: bool


class TagHashes:
    """Tag hashes in topics of one `key_levels`; remembers properties that may come again."""

    def __init__(self, key_levels: int) -> None:
        self._cache = TagCache(key_levels)
        self._known: dict[bytes, int] = {}

    @property
    def remembered(self) -> int:
        """How many properties' hashes are known, PROPERTIES_CACHE_MAX at most."""
        return len(self._known)

    def each(self, data: bytes, first: int, count: int) -> Tagged:
        """The hashes of `count` well-formed records that lie one after the other from byte `first` on."""
        start: i64 = first
        known = self._known
        made = BytesWriter()
        all_bits: i64 = 0
        keyed = False
        left: i64 = count
        while left > 0:
            end: i64 = start + (read_i64_be(data, start) >> 32)
            properties = data[properties_at(data, start) : end - SUFFIX_BYTES]
            # Properties with a key come once: after the first ones of a batch none is looked for.
            found = None if keyed else known.get(properties)
            if found is None:
                found = self._cache.hash_in(properties)
                if has_keys(properties):
                    keyed = True
                else:
                    if len(known) >= PROPERTIES_CACHE_MAX:
                        known.clear()
                    known[properties] = found
            value: i64 = found
            write_i64_le(made, value)
            all_bits |= value
            start = end
            left -= 1
        return Tagged(made.getvalue(), all_bits != 0, keyed)
