"""Names and places of segments: pure arithmetic.

A segment is `commitlog/<20 digits>`: the log offset of its first byte. It ends where the next
one begins, the last one with its file, so the configured size may change between starts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from holdmq.record.codec import BLANK_MAGIC, BLANK_SIZE_MIN

DIGITS: Final = 20


def name_of(offset: int) -> str:
    """The file name of what starts at `offset`."""
    return f"{offset:0{DIGITS}d}"


def offset_of(name: str) -> int | None:
    """The offset that a file name says; None = not such a name."""
    return int(name) if len(name) == DIGITS and name.isascii() and name.isdigit() else None


def offsets_of(names: Iterable[str]) -> list[int]:
    """The offsets of all such names, ascending; other names are ignored."""
    return sorted(offset for name in names if (offset := offset_of(name)) is not None)


def holding(starts: list[int], position: int) -> int:
    """The index of the segment that holds `position`; -1 = it lies before the first."""
    return bisect_right(starts, position) - 1


class Placement(NamedTuple):
    """Where a batch goes: `blank_size` bytes of blank at the log's end come first (0 = none)."""

    position: int
    blank_size: int


def place(end: int, segment_end: int, size: int) -> Placement:
    """Place `size` bytes at the log's end, in this segment or, behind a blank, at the next one's start.

    Room for a blank always stays, so that a segment can be closed whatever comes next.
    """
    if end + size + BLANK_SIZE_MIN <= segment_end:
        return Placement(end, 0)
    return Placement(segment_end, segment_end - end)


def blank_parts(size: int) -> tuple[bytes, bytes]:
    """First 8 and last 4 bytes of a blank of `size` bytes (≥ 12); zeros lie between."""
    total = size.to_bytes(4, "big")
    return total + BLANK_MAGIC.to_bytes(4, "big"), total


def blank_size_at(buffer: bytes | bytearray | memoryview, pos: int) -> int:
    """The size that a blank's head at `pos` claims; 0 = no blank begins there."""
    if len(buffer) - pos < 8 or int.from_bytes(buffer[pos + 4 : pos + 8], "big") != BLANK_MAGIC:
        return 0
    return int.from_bytes(buffer[pos : pos + 4], "big")
