"""Which messages of a queue a group is done with: a floor, and a bitmap of what lies above it.

Bits are those of one int: a whole range is set by one shift, and a window of 65,536 offsets is 8 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator


def bits(count: int) -> int:
    """`count` bits, the lowest ones."""
    return (1 << count) - 1


def ranges_of(mask: int, base: int = 0) -> Iterator[tuple[int, int]]:
    """The runs of set bits as (first, count), bit 0 being `base`."""
    while mask:
        skipped = (mask & -mask).bit_length() - 1
        mask >>= skipped
        base += skipped
        count = (mask ^ (mask + 1)).bit_length() - 1
        yield base, count
        mask >>= count
        base += count


class Acknowledged:
    """Everything below `floor`, and the set bits of `mask` (bit 0 is the floor, and never set)."""

    __slots__ = ("floor", "mask")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.mask = 0

    def __contains__(self, offset: int) -> bool:
        return offset < self.floor or bool(self.mask >> (offset - self.floor) & 1)

    @property
    def end(self) -> int:
        """Behind the last offset that is acknowledged."""
        return self.floor + self.mask.bit_length()

    @property
    def count(self) -> int:
        """Offsets above the floor that are acknowledged."""
        return self.mask.bit_count()

    def add(self, first: int, mask: int) -> None:
        """Acknowledge the set bits of `mask`, bit 0 being offset `first`; what is there stays."""
        shift = first - self.floor
        self.mask |= mask << shift if shift >= 0 else mask >> -shift
        if self.mask & 1:
            self._advance((self.mask ^ (self.mask + 1)).bit_length() - 1)

    def raise_floor(self, floor: int) -> int:
        """Acknowledge all below `floor`; how many offsets that were not become so."""
        if floor <= self.floor:
            return 0
        count = floor - self.floor
        lost = count - (self.mask & bits(count)).bit_count()
        self._advance(count)
        if self.mask & 1:
            self._advance((self.mask ^ (self.mask + 1)).bit_length() - 1)
        return lost

    def ranges(self) -> list[tuple[int, int]]:
        """What is acknowledged above the floor, as (first, count)."""
        return list(ranges_of(self.mask, self.floor))

    def missing(self, end: int) -> list[tuple[int, int]]:
        """What is not acknowledged between the floor and `end`, as (first, count)."""
        if end <= self.floor:
            return []
        return list(ranges_of(~self.mask & bits(end - self.floor), self.floor))

    def _advance(self, count: int) -> None:
        self.mask >>= count
        self.floor += count
