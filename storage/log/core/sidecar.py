"""Sidecars of consume queues: a completed run of entries, sorted by tag hash.

::

    consumequeue/<topic>/<queue id>/<20 digits: 20·k of the run's first entry k>.hash
    | HMQS | format 2 | blocks 2 | first entry 8 | CRC-32 of the head 4 | first hash of each block, 8 each |
    then every block: | hashes 512 × 8, ascending | places in the run 512 × 2 | CRC-32 4 |    big-endian

The CRC of the head counts itself as zero. A search reads the head and the blocks that may hold a
wanted hash: a few KB for 65,536 entries. Derived: a missing or damaged one is built again.
Source: storage.md, Consume queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from holdmq.record.batch import Hashes, Ints

SUFFIX: Final = ".hash"
RUN_ENTRIES: Final = 65_536
"""Entries of a run: their places fit two bytes."""
BLOCK_ENTRIES: Final = 512
"""Entries of a block: a page or so, one read."""

_HIGH_BITS: Final = np.uint64(~(RUN_ENTRIES - 1) & 0xFFFFFFFF_FFFFFFFF)
_FORMAT: Final = 1
_MAGIC: Final = b"HMQS"
_HEAD: Final = Struct(">4sHHQI")
_CRC: Final = Struct(">I")
_BLOCKS: Final = RUN_ENTRIES // BLOCK_ENTRIES
_HASHES_BYTES: Final = 8 * BLOCK_ENTRIES
_BLOCK_BYTES: Final = 10 * BLOCK_ENTRIES + _CRC.size
_HEAD_BYTES: Final = _HEAD.size + 8 * _BLOCKS
SIZE: Final = _HEAD_BYTES + _BLOCKS * _BLOCK_BYTES

Range = tuple[int, int]
"""Wanted hashes: the lowest and the highest, both included."""
ReadAt = Callable[[int, int], bytes | bytearray]
"""Bytes of the sidecar: offset and size."""


def encode(first: int, hashes: Hashes) -> bytes:
    """The sidecar of the run that begins at entry `first`; `hashes` are its RUN_ENTRIES tag hashes."""
    order = _order_of(hashes)
    ordered = hashes[order].astype(">u8")
    places = order.astype(">u2")
    head = bytearray(_HEAD.pack(_MAGIC, _FORMAT, _BLOCKS, first, 0) + ordered[::BLOCK_ENTRIES].tobytes())
    _CRC.pack_into(head, _HEAD.size - _CRC.size, crc32(head))
    parts = [bytes(head)]
    for at in range(0, RUN_ENTRIES, BLOCK_ENTRIES):
        block = ordered[at : at + BLOCK_ENTRIES].tobytes() + places[at : at + BLOCK_ENTRIES].tobytes()
        parts += [block, _CRC.pack(crc32(block))]
    return b"".join(parts)


def _order_of(hashes: Hashes) -> Ints:
    """The places in ascending order of their hashes, and ascending where those are alike."""
    # Sorted as numbers of their own, which is several times faster: the place in the low 16 bits.
    keys = (hashes & _HIGH_BITS) | np.arange(len(hashes), dtype=np.uint64)
    keys.sort()
    order: Ints = (keys & ~_HIGH_BITS).astype(np.int64)
    ordered = hashes[order]
    if (ordered[1:] < ordered[:-1]).any():
        # Hashes that differ in the low bits only.
        return np.argsort(hashes, kind="stable")
    return order


def search(read_at: ReadAt, first: int, ranges: Sequence[Range], matches_max: int) -> Ints | None:
    """The places in the run whose hash lies in one of the ranges, ascending; None = more than the bound.

    Raises ValueError when the sidecar is damaged, or of another run or format.
    """
    fences = _fences(bytes(read_at(0, _HEAD_BYTES)), first)
    found: list[npt.NDArray[np.int64]] = []
    count = 0
    for low, high in ranges:
        # The block before the first fence that is not lower may end with it, too.
        begin = max(0, int(np.searchsorted(fences, np.uint64(low), "left")) - 1)
        end = int(np.searchsorted(fences, np.uint64(high), "right"))
        if (end - begin - 2) * BLOCK_ENTRIES > matches_max:
            return None
        for block in range(begin, end):
            places = _in_block(bytes(read_at(_HEAD_BYTES + block * _BLOCK_BYTES, _BLOCK_BYTES)), low, high)
            count += len(places)
            found.append(places)
        if count > matches_max:
            return None
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _fences(head: bytes, first: int) -> Hashes:
    if len(head) != _HEAD_BYTES:
        raise ValueError("it is shorter than its head")
    magic, version, blocks, its_first, crc = _HEAD.unpack_from(head)
    at = _HEAD.size - _CRC.size
    if crc32(head[:at] + bytes(_CRC.size) + head[_HEAD.size :]) != crc:
        raise ValueError("the CRC of its head does not match")
    if (magic, version, blocks, its_first) != (_MAGIC, _FORMAT, _BLOCKS, first):
        raise ValueError("it is of another run or format")
    return np.frombuffer(head, ">u8", _BLOCKS, _HEAD.size).astype(np.uint64)


def _in_block(block: bytes, low: int, high: int) -> Ints:
    if (
        len(block) != _BLOCK_BYTES
        or crc32(block[: -_CRC.size]) != _CRC.unpack_from(block, 10 * BLOCK_ENTRIES)[0]
    ):
        raise ValueError("the CRC of one of its blocks does not match")
    hashes = np.frombuffer(block, ">u8", BLOCK_ENTRIES).astype(np.uint64)
    begin = int(np.searchsorted(hashes, np.uint64(low), "left"))
    end = int(np.searchsorted(hashes, np.uint64(high), "right"))
    return np.frombuffer(block, ">u2", BLOCK_ENTRIES, _HASHES_BYTES)[begin:end].astype(np.int64)
