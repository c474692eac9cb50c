"""Which reads are sent to a replica, and which it keeps: decided by how far behind the log's end they are.

A reader far behind costs a leader its page cache: what it asks for comes from the disk, and pushes out what
everybody else reads. How far that is, is a bound of bytes: what was appended last is in memory, and nothing
cheap says more. Source: RocketMQ's accessMessageInMemoryMaxRatio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdmq.wire.replica_reads import ReplicaReads


class ReadableCopy(NamedTuple):
    """A copy in sync: where clients may read from it, and below which log position it has everything."""

    address: str
    position: int


class ReadCounts:
    """Counts of a replica, over all times in which it led or copied.

    `redirected`: queues and look-ups that it, leading, sent to a copy; `served`: requests to read that it
    took as a copy, and `sent_back`: requests and queues that it sent back to the leader.
    """

    def __init__(self) -> None:
        self.redirected = self.served = self.sent_back = 0


class NextReads(Protocol):
    """Says where a reader goes on: `is_copy` = here another replica leads."""

    is_copy: bool

    def next_at(self, wanted: int, place: int, position: int | None, is_at_end: bool = False) -> str:
        """Name the address to ask for what follows `position` in the log; "" = the leader.

        `wanted` is a ReplicaReads. `place`: which of the copies in sync, from 1 on, 0 = none of them; there
        may be fewer. `position` None = not known. `is_at_end`: nothing follows that is known here.
        """


class FarReads:
    """A leader's `NextReads`. `copies` are those that may be read now, in an order that stays."""

    def __init__(
        self,
        copies: Callable[[], Sequence[ReadableCopy]],
        end: Callable[[], int],
        far_bytes: int,
        counts: ReadCounts,
    ) -> None:
        self.is_copy = False
        self._copies = copies
        self._end = end
        self._far_bytes = far_bytes
        self._counts = counts

    def next_at(self, wanted: int, place: int, position: int | None, is_at_end: bool = False) -> str:
        """Name a copy for what is far from the end, or for who prefers copies whatever it is."""
        if wanted == ReplicaReads.NEVER or place <= 0 or is_at_end:
            return ""
        end = self._end()
        if wanted != ReplicaReads.PREFER and (position is None or end - position <= self._far_bytes):
            return ""
        needed = end if position is None else position
        copies = [copy for copy in self._copies() if copy.position >= needed]
        if not copies:
            return ""
        self._counts.redirected += 1
        return copies[(place - 1) % len(copies)].address


class CopyReads:
    """A copy's `NextReads`: it keeps who is still far behind, and sends all others back.

    A reader goes back at half the distance at which it came, so that it does not go to and fro. `address` is
    the copy's own.
    """

    def __init__(self, address: str, end: Callable[[], int], far_bytes: int, counts: ReadCounts) -> None:
        self.is_copy = True
        self._counts = counts
        self._address = address
        self._end = end
        self._far_bytes = far_bytes

    def next_at(self, wanted: int, place: int, position: int | None, is_at_end: bool = False) -> str:
        """Name this copy for who is to stay."""
        # At the end, what comes next may be confirmed already, and not yet known to be here.
        stays = wanted != ReplicaReads.NEVER and not is_at_end
        if stays and wanted != ReplicaReads.PREFER and position is not None:
            stays = self._end() - position > self._far_bytes // 2
        if not stays:
            self._counts.sent_back += 1
        return self._address if stays else ""


def far_bytes_of(configured: int, memory_bytes: int) -> int:
    """How far behind the log's end a read is far: as configured, 0 = 40 % of the memory.

    RocketMQ's ratio: the page cache has little more of the log than that beside all else on the machine.
    """
    return configured or memory_bytes * 2 // 5
