"""Which reads are sent to a replica, and which it keeps: decided by how far behind the log's end they are.

A reader far behind costs a leader its page cache: what it asks for comes from the disk, and pushes out what
everybody else reads. How far that is, is a bound of bytes: what was appended last is in memory, and nothing
cheap says more. Source: RocketMQ's accessMessageInMemoryMaxRatio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdmq.wire.replica_reads import ReplicaReads


class ReadableCopy(NamedTuple):
    """A copy in sync: where clients may read from it, and below which log position it has everything."""

    address: str
    position: int


class FarReads:
    """A leader's choice. `copies` are those that may be read now, in an order that stays."""

    is_copy = False

    def __init__(
        self, copies: Callable[[], Sequence[ReadableCopy]], end: Callable[[], int], far_bytes: int
    ) -> None:
        self.named = 0
        self._copies = copies
        self._end = end
        self._far_bytes = far_bytes

    def next_at(self, wanted: int, place: int, position: int | None, is_at_end: bool = False) -> str:
        """Name the replica that a reader is to ask for what follows `position`; "" = the leader.

        `wanted` is a ReplicaReads. `place`: which of the copies in sync, from 1 on, 0 = none of them; there
        may be fewer. `position` None = not known, so far away only for who prefers replicas.
        """
        if wanted == ReplicaReads.NEVER or place <= 0 or is_at_end:
            return ""
        end = self._end()
        if wanted != ReplicaReads.PREFER and (position is None or end - position <= self._far_bytes):
            return ""
        needed = end if position is None else position
        copies = [copy for copy in self._copies() if copy.position >= needed]
        if not copies:
            return ""
        self.named += 1
        return copies[(place - 1) % len(copies)].address


class CopyReads:
    """A replica's choice: it keeps who is still far behind, and sends all others back. `address` is its own.

    A reader goes back at half the distance at which it came, so that it does not go to and fro.
    """

    is_copy = True

    def __init__(self, address: str, end: Callable[[], int], far_bytes: int) -> None:
        self._address = address
        self._end = end
        self._far_bytes = far_bytes

    def next_at(self, wanted: int, place: int, position: int | None, is_at_end: bool = False) -> str:
        """Return `address` for who is to stay; "" = the leader is to be asked for what follows."""
        if wanted == ReplicaReads.NEVER or is_at_end:
            # What comes next may be confirmed already, and not yet known to be here.
            return ""
        if wanted == ReplicaReads.PREFER or position is None:
            return self._address
        return self._address if self._end() - position > self._far_bytes // 2 else ""


def far_bytes_of(configured: int, memory_bytes: int) -> int:
    """How far behind the log's end a read is far: as configured, 0 = 40 % of the memory.

    RocketMQ's ratio: the page cache has little more of the log than that beside all else on the machine.
    """
    return configured or memory_bytes * 2 // 5
