"""Records as columns: what PULL_COLUMNS answers (layout: `holdmq.wire.column_headers`).

Bodies are not gathered: their places are told, and the records go along as they lie. One pass over them
in C at the reader costs less than a slice and a join for each at the broker, where everybody waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdmq.record.batch import Ints, properties_bounds, split_records, starts_of, tags
from holdmq.record.codec import (
    BODY_LENGTH_AT,
    BORN_MS_AT,
    IPV6_EXTRA,
    QUEUE_OFFSET_AT,
    STORE_MS_AT,
    SYS_BORN_IPV6,
    SYS_COMPRESSED,
    SYS_FLAG_AT,
    Buffer,
)
from holdmq.wire.column_headers import COLUMNS, TIME_MAX_MS, VIEWS

PIECE_BYTES_MIN: Final = 256 << 10
"""Smaller parts are joined first: numpy's calls have a fixed cost that few records do not earn back."""

_TIME_MAX: Final = np.uint64(TIME_MAX_MS)


class QueueRecordsTaken(NamedTuple):
    """Records of one queue: views of whole ones, in order; those from `end_offset` on are not wanted."""

    parts: Sequence[memoryview]
    end_offset: int


class Encoded(NamedTuple):
    """`counts` has the rows of each queue, `buffers` the columns' buffers, each in one or several pieces."""

    counts: list[int]
    buffers: list[list[Buffer]]


class _Piece(NamedTuple):
    """The wanted ones of records that lie one after the other; `views` is what their views lie in."""

    rows: int
    columns: dict[str, list[npt.NDArray[Any]]]
    views: Buffer


def encode_columns(
    taken: Sequence[QueueRecordsTaken], names: Sequence[str], wanted_tags: frozenset[bytes] | None = None
) -> Encoded:
    """Encode columns of well-formed records; only those whose tag is one of `wanted_tags` (None = all)."""
    pieces: list[_Piece] = []
    counts = []
    base = 0
    for one in taken:
        begin = len(pieces)
        for records in _joined(one.parts):
            pieces.append(_encode(records, one.end_offset, names, wanted_tags, base))
            base += len(pieces[-1].views)
        counts.append(sum(piece.rows for piece in pieces[begin:]))
    buffers: list[list[Buffer]] = []
    for name in names:
        for index, dtype in enumerate(COLUMNS[name]):
            buffers.append([_as_buffer(piece.columns[name][index], dtype) for piece in pieces if piece.rows])
    if not VIEWS.isdisjoint(names):
        buffers.append([piece.views for piece in pieces])
    return Encoded(counts, buffers)


def _joined(parts: Sequence[memoryview]) -> Iterator[Buffer]:
    """The same bytes in pieces of some size."""
    small: list[memoryview] = []
    size = 0
    for part in parts:
        small.append(part)
        size += len(part)
        if size >= PIECE_BYTES_MIN:
            yield small[0] if len(small) == 1 else b"".join(small)
            small, size = [], 0
    if small:
        yield small[0] if len(small) == 1 else b"".join(small)


def _encode(
    records: Buffer, end_offset: int, names: Sequence[str], wanted_tags: frozenset[bytes] | None, base: int
) -> _Piece:
    """`base` is where the piece's views begin among those of all."""
    sizes = split_records(records)
    starts = starts_of(sizes)
    raw = np.frombuffer(records, np.uint8)
    keep = _wanted(records, raw, starts, sizes, end_offset, wanted_tags)
    if keep is not None:
        starts, sizes = starts[keep], sizes[keep]
    flags = raw[starts + (SYS_FLAG_AT + 3)]
    extra = np.where(flags & SYS_BORN_IPV6, IPV6_EXTRA, 0) if (flags & SYS_BORN_IPV6).any() else 0
    body_at = starts + BODY_LENGTH_AT + extra
    columns: dict[str, list[npt.NDArray[Any]]] = {}
    views: Buffer = b""
    if "offset" in names:
        columns["offset"] = [_ints(raw, ">i8", starts + QUEUE_OFFSET_AT)]
    if "store_time" in names:
        columns["store_time"] = [_times(raw, starts + STORE_MS_AT + extra)]
    if "born_time" in names:
        columns["born_time"] = [_times(raw, starts + BORN_MS_AT)]
    if "body_size" in names:
        columns["body_size"] = [_ints(raw, ">u4", body_at)]
    if "body" in names:
        views = records
        packed = (flags & SYS_COMPRESSED) // SYS_COMPRESSED
        columns["body"] = [body_at + 4 + base, _ints(raw, ">u4", body_at), packed]
    if "properties" in names:
        begins, ends = properties_bounds(raw, starts, sizes)
        if "body" not in names:
            # Bodies may be large, and nobody asked for them.
            views = b"".join([records[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)])
            begins, ends = starts_of(ends - begins), np.cumsum(ends - begins)
        columns["properties"] = [begins + base, ends - begins]
    return _Piece(len(starts), columns, views)


def _wanted(
    records: Buffer,
    raw: npt.NDArray[np.uint8],
    starts: Ints,
    sizes: Ints,
    end_offset: int,
    wanted_tags: frozenset[bytes] | None,
) -> npt.NDArray[np.bool_] | None:
    """Which records are wanted; None = all."""
    keep: npt.NDArray[np.bool_] | None = None
    # Offsets rise: mostly the last one says that no other has to be looked at.
    if len(starts) and int(_ints(raw, ">i8", starts[-1:] + QUEUE_OFFSET_AT)[0]) >= end_offset:
        keep = _ints(raw, ">i8", starts + QUEUE_OFFSET_AT).astype(np.int64) < end_offset
    if wanted_tags is not None:
        found = tags(records, starts, sizes)
        has_tag = np.fromiter((tag in wanted_tags for tag in found), np.bool_, len(found))
        keep = has_tag if keep is None else keep & has_tag
    return keep


def _ints(raw: npt.NDArray[np.uint8], dtype: str, at: Ints) -> npt.NDArray[Any]:
    """The big-endian integers at these offsets."""
    kind = np.dtype(dtype)
    view: npt.NDArray[Any] = np.ndarray((max(0, len(raw) - kind.itemsize + 1),), kind, raw, strides=(1,))
    found: npt.NDArray[Any] = view[at]
    return found


def _times(raw: npt.NDArray[np.uint8], at: Ints) -> npt.NDArray[Any]:
    # A born time is a device's word: unsigned, and any.
    bounded: npt.NDArray[Any] = np.minimum(_ints(raw, ">u8", at), _TIME_MAX)
    return bounded


def _as_buffer(array: npt.NDArray[Any], dtype: str) -> memoryview:
    return array.astype(dtype, copy=False).data.cast("B")
