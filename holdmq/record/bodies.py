"""Records of messages that differ in their bodies and unique ids only: a loop that mypyc compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from zlib_ng.zlib_ng import crc32

from holdmq.record.codec import BODY_LENGTH_AT, BORN_MS_AT, MAGIC, QUEUE_ID_AT, SUFFIX_BYTES

if TYPE_CHECKING:
    from mypy_extensions import i64

ID_DIGITS: Final = 10
"""Hex digits of the count in a unique id: a million messages per second for twelve days, then they repeat."""
ID_MASK: Final = (1 << (4 * ID_DIGITS)) - 1

_BODY_AT: Final = BODY_LENGTH_AT + 4
_LOW_DIGITS: Final = 8
_LOW: Final = 0xFFFFFFFF
_SIGN: Final = 1 << 31
_ONES: Final = 0x0101010101010101


class EncodedBodies(NamedTuple):
    """Records, their sizes as the wire has them, and the size of the largest."""

    records: bytes
    sizes: bytes
    largest: int


def encode_each(
    template: bytes, id_at: int, first_count: int, born_ms: int, bodies: Sequence[bytes]
) -> EncodedBodies:
    """Records like `template`, one for each body, that are born at `born_ms`.

    `template` is an unstamped record without a body; at `id_at` it has the `ID_DIGITS` hex digits of its
    unique id's count, which goes on from `first_count`.
    """
    out = BytesWriter()
    sizes = BytesWriter()
    largest: i64 = 0
    born = born_ms.to_bytes(8, "big")
    before_body = template[QUEUE_ID_AT:BORN_MS_AT] + born + template[BORN_MS_AT + 8 : BODY_LENGTH_AT]
    after_id = template[id_at + ID_DIGITS : -SUFFIX_BYTES]
    front = tail = wire_size = b""
    front_size: i64 = -1
    tail_high: i64 = -1
    extra: i64 = len(template)
    count: i64 = first_count & ID_MASK
    for body in bodies:
        size: i64 = len(body)
        if size != front_size:
            front, front_size = before_body + int(size).to_bytes(4, "big"), size
            wire_size = int(size + extra).to_bytes(4, "big")
            largest = max(largest, size + extra)
        high: i64 = count >> 32
        if high != tail_high:
            tail, tail_high = template[_BODY_AT:id_at] + b"%02x" % int(high), high
        digits = int(_hex_digits(count & _LOW)).to_bytes(_LOW_DIGITS, "big")
        covered = b"".join((front, body, tail, digits, after_id))
        crc = crc32(covered)
        size += extra
        write_i64_be(out, size << 32 | MAGIC)
        write_i32_be(out, crc - (1 << 32) if crc >= _SIGN else crc)
        out.write(covered)
        write_i64_be(out, size)
        sizes.write(wire_size)
        count = count + 1 & ID_MASK
    return EncodedBodies(out.getvalue(), sizes.getvalue(), largest)


def _hex_digits(value: i64) -> i64:
    """The eight hex digits of 32 bits, in ASCII, as they stand in memory from the highest byte on."""
    digits: i64 = (value << 16 | value) & 0x0000FFFF0000FFFF
    digits = (digits << 8 | digits) & 0x00FF00FF00FF00FF
    digits = (digits << 4 | digits) & 0x0F * _ONES
    letters: i64 = (digits + 0x06 * _ONES) >> 4 & _ONES
    return digits + 0x30 * _ONES + letters * 39
