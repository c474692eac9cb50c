"""Keys and unique ids in encoded properties, and their hashes: a loop over records that mypyc compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i64_be, write_i64_le
from xxhash import xxh3_64_intdigest

from holdmq.record.codec import SUFFIX_BYTES
from holdmq.record.each import NOT_ALIKE, id_span, is_alike, is_printable, is_same, properties_at
from holdmq.record.properties import KEY, UNIQUE

if TYPE_CHECKING:
    from mypy_extensions import i64

_U32: Final = 0xFFFFFFFF
_FACTOR: Final = 0x5BD1E995
_ADDEND: Final = 0x9E3779B9
_BEFORE: Final = bytes(4)


def hash_of(marker: bytes, topic: bytes, escaped: bytes) -> int:
    """The 32-bit hash of a key (`KEY`) or unique id (`UNIQUE`) of a topic, as its properties write it."""
    return _hash(_BEFORE + escaped, len(_BEFORE), len(_BEFORE) + len(escaped), _seed(marker, topic))


def _seed(marker: bytes, topic: bytes) -> int:
    return xxh3_64_intdigest(b"\0".join((marker, topic))) & _U32


def _hash(data: bytes, begin: i64, end: i64, seed: i64) -> i64:
    """The hash of a part of `data` that at least 4 bytes lie before: xxh3 would take an object per record.

    Each word of 4 bytes is multiplied in, and the product's halves are folded: products stay below 2^63.
    """
    value: i64 = seed
    at: i64 = begin
    while at + 4 <= end:
        word: i64 = read_i64_be(data, at - 4) & _U32
        value = (value ^ word) * _FACTOR + _ADDEND
        value = (value ^ value >> 32) & _U32
        at += 4
    word = end - begin
    while at < end:
        word = word << 8 | data[at]
        at += 1
    value = (value ^ word & _U32) * _FACTOR + _ADDEND
    return (value ^ value >> 32) & _U32


def keys_in(properties: bytes) -> list[tuple[bytes, bytes]]:
    """Marker and value, as written, of every key and unique id in encoded properties."""
    found: list[tuple[bytes, bytes]] = []
    end = properties.find(b"\0")
    if end < 0:
        end = len(properties)
    for marker in (KEY, UNIQUE):
        at = properties.find(marker, 0, end)
        while at >= 0:
            stop = properties.find(b"\x02", at, end)
            if stop < 0:
                break
            # Only where a pair begins: a value may end like a key.
            if at == 0 or properties[at - 1] == 2:
                found.append((marker, properties[at + len(marker) : stop]))
            at = properties.find(marker, stop, end)
    return found


def add_hashes(
    topic: bytes,
    data: bytes,
    first: int,
    count: int,
    found: BytesWriter,
    id_cut: i64 = 0,
    span_bytes: i64 = 0,
) -> int:
    """Write the hash of each different key of each record, and the record's start: little-endian, 64 bits.

    The `count` records are well-formed and lie one after the other from byte `first` of `data` on; returned
    is where they end. With `id_cut` the last bytes of a unique id are left off, and neighbours that are alike
    then are noted by the first of them, as far as they lie within `span_bytes` from its start: a producer
    counts its messages.
    """
    seed: i64 = _seed(UNIQUE, topic)
    start: i64 = first
    left: i64 = count
    like_at: i64 = 0
    like_size: i64 = NOT_ALIKE
    id_begin: i64 = 0
    id_end: i64 = 0
    stem_end: i64 = 0
    hash_: i64 = 0
    noted: i64 = -1
    noted_at: i64 = 0
    while left > 0:
        end: i64 = start + (read_i64_be(data, start) >> 32)
        at: i64 = properties_at(data, start)
        size: i64 = end - SUFFIX_BYTES - at
        # Else the hash is the last one's, as of most records of a producer.
        if not (
            id_cut
            and id_end
            and size == like_size
            and is_same(data, at, data, like_at, stem_end)
            and is_same(data, at + id_end, data, like_at + id_end, size - id_end)
            and is_printable(data, at + stem_end, at + id_end)
        ):
            if size != like_size or not is_alike(data, at, like_at, size, id_begin, id_end):
                properties = data[at : at + size]
                id_begin, id_end = id_span(properties)
                like_size = size
                if not id_end and (UNIQUE in properties or KEY in properties):
                    like_size = NOT_ALIKE
                    for marker, value in dict.fromkeys(keys_in(properties)):
                        stem = value[: max(0, len(value) - id_cut)] if marker == UNIQUE else value
                        write_i64_le(found, hash_of(marker, topic, stem))
                        write_i64_le(found, start)
            if id_end:
                stem_end = max(id_begin, id_end - id_cut)
                hash_ = _hash(data, at + id_begin, at + stem_end, seed)
        like_at = at
        if id_end and not (id_cut and hash_ == noted and end - noted_at <= span_bytes):
            noted, noted_at = hash_, start
            write_i64_le(found, hash_)
            write_i64_le(found, start)
        start = end
        left -= 1
    return start
