"""One queue as one `shared` group consumes it: what is done, what waits, where new messages begin.

Every offset from the floor to `next_offset` is in one place only: acknowledged, in `waiting`, claimed by a
read, in flight (`broker.shared_groups.core.shared`), delayed, or on its way elsewhere. So nothing is handed
out twice.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from broker.shared_groups.core.acknowledged import Acknowledged, bits

SHARED_WINDOW: Final = 65_536
"""Offsets past the floor that may be handed out: 8 KiB of bitmap, and what one stuck message may cost."""


class QueueKey(NamedTuple):
    """A queue of a topic, as one group consumes it."""

    group: str
    topic: str
    queue_id: int


class Waiting(NamedTuple):
    """Messages that were handed out or read before and wait for their next time."""

    first: int
    messages: int
    attempts: int


class Claim:
    """Offsets that a read may hand out: until `SharedQueue.finish` nobody else gets them.

    `count` bounds the messages to hand out; with a filter the range is longer than that.
    """

    __slots__ = ("attempts", "count", "end", "first", "is_fresh", "queue")

    def __init__(
        self, queue: SharedQueue, first: int, end: int, count: int, attempts: int, is_fresh: bool
    ) -> None:
        self.queue = queue
        self.first = first
        self.end = end
        self.count = count
        self.attempts = attempts
        self.is_fresh = is_fresh


class SharedQueue:
    """The state of one queue of one group. `next_offset` is the first that was never claimed."""

    __slots__ = (
        "acknowledged",
        "delayed",
        "in_flight",
        "is_full",
        "is_gone",
        "is_scanned",
        "key",
        "next_offset",
        "waiting",
        "window",
    )

    def __init__(self, key: QueueKey, floor: int, window: int = SHARED_WINDOW) -> None:
        self.key = key
        self.acknowledged = Acknowledged(floor)
        self.next_offset = floor
        self.waiting: list[Waiting] = []
        self.window = window
        self.in_flight = 0
        self.delayed = 0
        self.is_full = False
        """Whether the last claim met the window's end with messages behind it."""
        self.is_gone = False
        """Whether another state took this one's place: what is still in flight of it means nothing."""
        self.is_scanned = False
        """Whether a read with a filter looks for new messages: one at a time."""

    @property
    def floor(self) -> int:
        return self.acknowledged.floor

    def has_any(self, end: int) -> bool:
        """Whether a claim would find something now; `end` is the queue's."""
        if self.waiting:
            return True
        return self.next_offset < min(end, self.floor + self.window) and not self.is_scanned

    def claim(self, end: int, count: int, is_filtered: bool) -> Claim | None:
        """Claim up to `count` messages, those that wait before new ones; None if there are none.

        `end` is the queue's end now. The caller ends every claim with `finish`.
        """
        waiting = self._claim_waiting(count)
        if waiting is not None:
            return waiting
        limit = self.floor + self.window
        self.is_full = self.next_offset >= limit and end > limit
        begin, stop = self.next_offset, min(end, limit)
        if begin >= stop or self.is_scanned:
            return None
        if is_filtered:
            self.is_scanned = True
        else:
            stop = min(stop, begin + count)
        self.next_offset = stop
        return Claim(self, begin, stop, min(count, stop - begin), 0, True)

    def _claim_waiting(self, count: int) -> Claim | None:
        while self.waiting:
            first, size, attempts = heapq.heappop(self.waiting)
            if first < self.floor:
                size -= self.floor - first
                first = self.floor
            if size <= 0:
                continue
            if size > count:
                heapq.heappush(self.waiting, Waiting(first + count, size - count, attempts))
                size = count
            return Claim(self, first, first + size, size, attempts, False)
        return None

    def finish(self, claim: Claim, upto: int, handed: int) -> int:
        """End a claim: offsets below `upto` were looked at, and of these the bits of `handed` handed out.

        Bit 0 is `claim.first`. What was looked at and not handed out is passed by: a filter rejected it, or
        it cannot be read. The rest waits again. Returns how many were passed by.
        """
        upto = min(max(upto, claim.first), claim.end)
        if claim.is_fresh:
            self.is_scanned = False
        if upto < claim.end:
            if claim.is_fresh and self.next_offset == claim.end:
                self.next_offset = upto
            else:
                self.put_back(upto, claim.end - upto, claim.attempts)
        rejected = bits(upto - claim.first) & ~handed
        if rejected:
            self.acknowledged.add(claim.first, rejected)
        return rejected.bit_count()

    def put_back(self, first: int, count: int, attempts: int) -> None:
        """Let these messages be handed out again."""
        heapq.heappush(self.waiting, Waiting(first, count, attempts))

    def acknowledge(self, first: int, mask: int) -> None:
        """Done for good: the bits of `mask`, bit 0 being offset `first`."""
        self.acknowledged.add(first, mask)

    def pass_by(self, first: int) -> int:
        """Retention took what lies below `first`: the floor moves there. How many were not done."""
        behind = self.acknowledged.raise_floor(first)
        self.next_offset = max(self.next_offset, first)
        return behind

    def waiting_count(self) -> int:
        """Messages that wait to be handed out again."""
        return sum(run.messages for run in self.waiting)

    # What survives a restart

    def restore(self, attempts: dict[int, int]) -> None:
        """After a start: what lies above the floor and is not done waits, with the attempts that are known.

        `attempts` are those of single offsets; offsets that were never handed out, as far as is known, are
        left to be found as new ones.
        """
        acknowledged = self.acknowledged
        end = max(acknowledged.end, max(attempts, default=-1) + 1)
        self.next_offset = end
        for first, count in acknowledged.missing(end):
            begin = first
            for offset in range(first, first + count):
                if attempts.get(offset, 0) != attempts.get(begin, 0):
                    self.put_back(begin, offset - begin, attempts.get(begin, 0))
                    begin = offset
            self.put_back(begin, first + count - begin, attempts.get(begin, 0))
