"""Many records at once, by numpy: check, stamp, hash and read columns of a batch.

A batch is contiguous records (layout: `holdmq.record.codec`), described by `starts` and `sizes`,
int64 arrays of one element per record: offsets into the buffer and bytes. Fields lie at any
address, so every column is one fancy index over a view with a stride of one byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdmq.record.codec import (
    BODY_LENGTH_AT,
    BORN_MS_AT,
    FIXED_SIZE,
    IPV6_EXTRA,
    NO_HOST,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_LIMIT,
    STAMP_ADDEND,
    STAMP_FACTORS,
    STORE_HOST_AT,
    STORE_MS_AT,
    SUFFIX_BYTES,
    SYS_BORN_IPV6,
    SYS_FLAG_AT,
    Buffer,
    RecordTemplate,
    TagCache,
    encode_record,
    stamp_check,
    tag_of,
)
from holdmq.record.each import BadEntry, ClaimedRun, check_each, check_sizes, each_properties

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
_SIZE: Final = Struct(">I")
_OFFSETS: Final = Struct(">qq")
_STORED: Final = Struct(">QQ")
_U32: Final = np.dtype(">u4")
_U64: Final = np.dtype(">u8")
_I64: Final = np.dtype(">i8")
_PAIR: Final = np.dtype("V16")
_WORD: Final = np.dtype("V4")

_HALF: Final = np.uint64(32)

FEW_STAMPS: Final = 24
"""Up to this many records a loop in Python is cheaper than numpy's fixed cost per call (measured)."""

NO_POSITION: Final = -1
"""PhysicalOffset of a record that lies in no log."""


class Columns(NamedTuple):
    """One array per field, one element per record; positions are offsets into the buffer."""

    queue_offset: Ints
    physical_offset: Ints
    born_ms: Ints
    store_ms: Ints
    body_start: Ints
    body_size: Ints
    topic_start: Ints
    topic_size: Ints
    properties_start: Ints
    properties_size: Ints


def starts_of(sizes: Ints) -> Ints:
    """The starts of records that lie one after the other from 0."""
    starts = np.empty(len(sizes), np.int64)
    if len(sizes):
        starts[0] = 0
        sizes[:-1].cumsum(out=starts[1:])
    return starts


def _bytes_of(buffer: Buffer | Bytes) -> Bytes:
    return buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)


def _gather(raw: Bytes, dtype: np.dtype[np.generic], at: Ints) -> Ints:
    """The big-endian integers at these offsets, as int64."""
    view: npt.NDArray[np.generic] = np.ndarray((len(raw) - dtype.itemsize + 1,), dtype, raw, strides=(1,))
    return view[at].astype(np.int64)


def _scatter(raw: Bytes, dtype: np.dtype[np.void], at: Ints, values: npt.NDArray[np.void]) -> None:
    view: npt.NDArray[np.void] = np.ndarray((len(raw) - dtype.itemsize + 1,), dtype, raw, strides=(1,))
    view[at] = values


def _ipv6_extra(raw: Bytes, starts: Ints) -> Ints | int:
    """What a longer BornHost adds to positions behind it; 0 when no record has one."""
    marked = raw[starts + (SYS_FLAG_AT + 3)] & SYS_BORN_IPV6
    if not marked.any():
        return 0
    return np.where(marked != 0, IPV6_EXTRA, 0)


def split_records(buffer: Buffer) -> Ints:
    """The sizes of the records that lie one after the other, up to the last whole one.

    Only TotalSize is read: a size that no record can have ends the split.
    """
    sizes: list[int] = []
    add = sizes.append
    unpack = _SIZE.unpack_from
    pos = 0
    end = len(buffer)
    last = end - FIXED_SIZE
    while pos <= last:
        size: int = unpack(buffer, pos)[0]
        if size < FIXED_SIZE or pos + size > end:
            break
        add(size)
        pos += size
    return np.array(sizes, np.int64)


def encode_batch(
    topic: bytes,
    queue_id: int,
    bodies: Sequence[bytes],
    properties: bytes | Sequence[bytes] = b"",
    born_ms: int = 0,
    born_host: bytes = NO_HOST,
    sys_flag: int = 0,
) -> tuple[bytes, Ints]:
    """Records of many bodies of one queue, and their sizes.

    `properties` are encoded ones: the same for all, or one for each body. Raises RecordError.
    """
    if isinstance(properties, bytes):
        encode = RecordTemplate(topic, queue_id, properties, born_host, sys_flag).encode
        records = [encode(body, born_ms) for body in bodies]
    else:
        records = [
            encode_record(topic, queue_id, body, own, born_ms, born_host, sys_flag)
            for body, own in zip(bodies, properties, strict=True)
        ]
    return b"".join(records), np.fromiter(map(len, records), np.int64, len(records))


def stamp_checks(queue_offsets: Ints, physical_offsets: Ints, store_ms: int, store_host: int) -> Ints:
    """Field 21 of records with one store time and host: see `holdmq.record.codec.stamp_check`."""
    a, b, c, d = STAMP_FACTORS
    constant = (store_ms * c + store_host * d + STAMP_ADDEND) & 0xFFFFFFFFFFFFFFFF
    total = queue_offsets.view(np.uint64) * np.uint64(a) + physical_offsets.view(np.uint64) * np.uint64(b)
    return ((total + np.uint64(constant)) >> _HALF).view(np.int64)


def stamp(
    records: memoryview | bytearray,
    starts: Ints,
    sizes: Ints,
    queue_offsets: Ints,
    position: int | None,
    store_ms: int,
    store_host: bytes,
) -> None:
    """Write the stamp (fields 6, 7, 11, 12, 21) of every record, in place.

    `position` is the log offset of the buffer's first byte (None = the records lie in no log: their
    PhysicalOffset is -1), `store_host` the 8-byte store id.
    The records must have passed `check_entries`.
    """
    count = len(starts)
    if count <= FEW_STAMPS:
        host = int.from_bytes(store_host, "big")
        for start, size, offset in zip(starts.tolist(), sizes.tolist(), queue_offsets.tolist(), strict=True):
            physical_offset = NO_POSITION if position is None else position + start
            _stamp_one(records, start, size, offset, physical_offset, store_ms, host)
        return
    raw = _bytes_of(records)
    offsets = np.empty((count, 2), _I64)
    offsets[:, 0] = queue_offsets
    physical = np.full(count, NO_POSITION, np.int64) if position is None else starts + position
    offsets[:, 1] = physical
    _scatter(raw, _PAIR, starts + QUEUE_OFFSET_AT, offsets.view(_PAIR)[:, 0])
    pair = np.frombuffer(store_ms.to_bytes(8, "big") + store_host, _PAIR)
    _scatter(raw, _PAIR, starts + STORE_MS_AT + _ipv6_extra(raw, starts), pair)
    checks = stamp_checks(queue_offsets, physical, store_ms, int.from_bytes(store_host, "big"))
    _scatter(raw, _WORD, starts + sizes - SUFFIX_BYTES, checks.astype(_U32).view(_WORD))


def _stamp_one(
    records: memoryview | bytearray,
    start: int,
    size: int,
    offset: int,
    physical: int,
    store_ms: int,
    host: int,
) -> None:
    store_at = start + STORE_MS_AT
    if records[start + SYS_FLAG_AT + 3] & SYS_BORN_IPV6:
        store_at += IPV6_EXTRA
    _OFFSETS.pack_into(records, start + QUEUE_OFFSET_AT, offset, physical)
    _STORED.pack_into(records, store_at, store_ms, host)
    _SIZE.pack_into(records, start + size - SUFFIX_BYTES, stamp_check(offset, physical, store_ms, host))


def check_entries(
    records: Buffer,
    sizes: Ints,
    runs: Sequence[ClaimedRun],
    record_max_bytes: int = RECORD_BYTES_LIMIT,
    properties: list[bytes] | None = None,
) -> BadEntry | None:
    """Whether a PRODUCE's records may be stamped; the first that may not and why, else None.

    Checked: counts of runs and sizes against the body, the record's layout, topic and queue of each
    record's run, a stamp of zeros, and BodyCRC (a wrong one would cut the log behind it at the
    next recovery). When all is well, `properties` (if given) gets each record's encoded ones.
    """
    if sum(run[2] for run in runs) != len(sizes):
        return BadEntry(0, f"the runs count {sum(run[2] for run in runs)} records, the batch {len(sizes)}")
    if not len(sizes):
        return None
    plain = sizes.astype("<i8", copy=False).tobytes()
    bad = check_sizes(plain, len(records), record_max_bytes)
    if bad is not None:
        return bad
    return check_each(bytes(records), plain, runs, [] if properties is None else properties)


def decode_offsets(records: Buffer | Bytes, starts: Ints) -> tuple[Ints, Ints]:
    """Queue offsets and physical offsets of well-formed records."""
    raw = _bytes_of(records)
    return _gather(raw, _I64, starts + QUEUE_OFFSET_AT), _gather(raw, _I64, starts + PHYSICAL_OFFSET_AT)


def decode_columns(records: Buffer | Bytes, starts: Ints, sizes: Ints) -> Columns:
    """The columns of well-formed records; times in ms since the epoch."""
    raw = _bytes_of(records)
    extra = _ipv6_extra(raw, starts)
    body_at = starts + BODY_LENGTH_AT + extra
    body_size = _gather(raw, _U32, body_at)
    topic_start = body_at + 5 + body_size
    topic_size = raw[topic_start - 1].astype(np.int64)
    properties_start = topic_start + topic_size + 2
    return Columns(
        _gather(raw, _I64, starts + QUEUE_OFFSET_AT),
        _gather(raw, _I64, starts + PHYSICAL_OFFSET_AT),
        _gather(raw, _U64, starts + BORN_MS_AT),
        _gather(raw, _U64, starts + STORE_MS_AT + extra),
        body_at + 4,
        body_size,
        topic_start,
        topic_size,
        properties_start,
        starts + sizes - SUFFIX_BYTES - properties_start,
    )


def body_sizes_of(records: Buffer | Bytes, starts: Ints) -> Ints:
    """Bytes of the body of well-formed records, as it lies there (compressed, if it is)."""
    raw = _bytes_of(records)
    return _gather(raw, _U32, starts + BODY_LENGTH_AT + _ipv6_extra(raw, starts))


def stores_of(records: Buffer | Bytes, starts: Ints) -> Ints:
    """StoreHost of well-formed records, as signed 64-bit numbers."""
    raw = _bytes_of(records)
    return _gather(raw, _I64, starts + STORE_HOST_AT + _ipv6_extra(raw, starts))


def properties_bounds(raw: Bytes, starts: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Start and end of every record's properties."""
    body_at = starts + BODY_LENGTH_AT + _ipv6_extra(raw, starts)
    topic_at = body_at + 4 + _gather(raw, _U32, body_at)
    return topic_at + 3 + raw[topic_at], starts + sizes - SUFFIX_BYTES


def tags(records: Buffer, starts: Ints, sizes: Ints) -> list[bytes | None]:
    """Every record's tag (UTF-8); None = no tag, b"" = the empty tag."""
    found: list[bytes | None] = [None] * len(starts)
    raw = _bytes_of(records)
    begins, ends = properties_bounds(raw, starts, sizes)
    data = bytes(records)
    for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        if end > begin:
            found[index] = tag_of(data[begin:end])
    return found


_CACHES: Final[dict[int, TagCache]] = {}


def hashes_of(properties: list[bytes], key_levels: int = 1, has_keys: bool = True) -> Hashes | None:
    """The tag hash of records with these encoded properties; None = none has a tag (all would be 0).

    `has_keys`: whether a key or unique id may be among them (see TagCache.hashes).
    """
    cache = _CACHES.get(key_levels)
    if cache is None:
        cache = _CACHES[key_levels] = TagCache(key_levels)
    hashes = cache.hashes(properties, has_keys)
    return None if hashes is None else np.frombuffer(hashes, np.uint64)


def tag_hashes(records: Buffer, starts: Ints, sizes: Ints, key_levels: int = 1) -> Hashes | None:
    """The tag hash of every record of a run; None = no record has a tag (all would be 0)."""
    first, end = int(starts[0]), int(starts[-1] + sizes[-1])
    data = bytes(memoryview(records)[first:end])
    return hashes_of(each_properties(data, (starts - first).tolist(), sizes.tolist()), key_levels)
