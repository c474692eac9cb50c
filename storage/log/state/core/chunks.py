"""A file's content as chunks: cut where its own bytes say so, named by what they hold.

A file is written anew as a whole, and mostly with few changes. Where a chunk ends depends on the eight bytes
around it alone, so what did not change is cut as before, and a chunk that is in the log already is not
appended again. Source: content-defined chunking as of LBFS (Muthitacharoen et al., SOSP 2001).
"""

from __future__ import annotations

import zlib
from hashlib import blake2b
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from holdmq.errors import RecordError

CHUNK_BYTES_MIN: Final = 512
CHUNK_BYTES_MAX: Final = 16 << 10
"""One row: far below any record, and well below a millisecond of the event loop."""
ID_BYTES: Final = 16
_MEAN_BITS: Final = 11
"""Two KiB between two cuts on average: a changed number costs one, compressed, and an id of 16 bytes more."""
_WINDOW: Final = 8
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the high bits of the product depend on all of a window's bytes."""
_SCAN_BYTES: Final = 1 << 20
_PLAIN: Final = b"\0"
_DEFLATED: Final = b"\1"


class Chunk(NamedTuple):
    """A part of a file: the name that its content gives it, and the content."""

    id: bytes
    content: bytes


def chunks_of(content: bytes) -> list[Chunk]:
    """Cut a file's content; joined, the chunks are the content again."""
    view = memoryview(content)
    bounds = [0]
    for cut in _cuts(content):
        while cut - bounds[-1] > CHUNK_BYTES_MAX:
            bounds.append(bounds[-1] + CHUNK_BYTES_MAX)
        if cut - bounds[-1] >= CHUNK_BYTES_MIN or cut == len(content):
            bounds.append(cut)
    parts = [bytes(view[begin:end]) for begin, end in pairwise(bounds) if begin < end]
    return [Chunk(blake2b(part, digest_size=ID_BYTES).digest(), part) for part in parts]


def _cuts(content: bytes) -> list[int]:
    """Where the content says that a chunk may end; at last its own end."""
    raw = np.frombuffer(content, np.uint8)
    found: list[int] = []
    for begin in range(0, len(raw) - _WINDOW + 1, _SCAN_BYTES):
        count = min(_SCAN_BYTES, len(raw) - _WINDOW + 1 - begin)
        words: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.ndarray(
            (count,), "<u8", raw, begin, strides=(1,)
        )
        marks = np.flatnonzero((words * _FACTOR) >> np.uint64(64 - _MEAN_BITS) == 0)
        found += (marks + (begin + _WINDOW)).tolist()
    if not found or found[-1] != len(raw):
        found.append(len(raw))
    return found


def encode_chunk(content: bytes) -> bytes:
    """A chunk as the value of a row: compressed, where that is shorter."""
    deflated = zlib.compress(content, 1)
    return _DEFLATED + deflated if len(deflated) < len(content) else _PLAIN + content


def decode_chunk(value: bytes) -> bytes:
    """The content of a chunk's row; RecordError if it is none."""
    kind, rest = value[:1], value[1:]
    if kind == _PLAIN and len(rest) <= CHUNK_BYTES_MAX:
        return rest
    if kind == _DEFLATED:
        inflating = zlib.decompressobj()
        try:
            content = inflating.decompress(rest, CHUNK_BYTES_MAX)
        except zlib.error as error:
            raise RecordError(f"a chunk of a state file is damaged: {error}") from None
        if inflating.eof and not inflating.unused_data:
            return content
    raise RecordError("a chunk of a state file is of no known form")
