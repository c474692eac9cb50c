"""What a push consumer has in hand of one queue: pulled, handed out, finished. Pure.

Records stay as bytes until they are handed out. `floor` is the offset below which everything is
finished: what is reported, and where the next member begins.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

from holdmq.message import TopicQueue
from holdmq.record.codec import QUEUE_OFFSET_AT

SPAN_MAX: Final = 2_000
"""Offsets handed out past the floor: what one slow message may cause to be delivered again after a
crash (RocketMQ's consumeConcurrentlyMaxSpan)."""

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


class TakenRecord(NamedTuple):
    """A record that was handed out: `records[at:]` begins with it."""

    offset: int
    records: memoryview
    at: int


class _Part:
    __slots__ = ("at", "left", "records")

    def __init__(self, records: memoryview, count: int) -> None:
        self.records = records
        self.at = 0
        self.left = count


class ProcessQueue:
    """One queue under one lease. `turn` rises with `discard`, so that answers from before it are void."""

    __slots__ = (
        "_done",
        "_handed",
        "_parts",
        "_taken",
        "committed",
        "generation",
        "is_asked",
        "is_fresh",
        "is_stopped",
        "log_epoch",
        "next_offset",
        "queue",
        "reported",
        "rest_until",
        "running",
        "turn",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self, queue: TopicQueue, generation: int, offset: int, log_epoch: int, is_fresh: bool = False
    ) -> None:
        self.queue = queue
        self.generation = generation
        self.next_offset = offset
        """What is pulled next."""
        self.log_epoch = log_epoch
        self.is_fresh = is_fresh
        """Begun at the queue's beginning by itself: a beginning that retention raised is no loss."""
        self.is_stopped = False
        """Nothing more is handed out."""
        self.is_asked = False
        self.rest_until = 0.0
        self.turn = 0
        self.waiting = 0
        """Records pulled and not handed out."""
        self.waiting_bytes = 0
        """Bytes of the pulled parts that are not handed out whole."""
        self.running = 0
        """Records in workers' hands; counted by who hands them out."""
        self.reported = -1
        """What was last said to the broker, which may not have heard it."""
        self.committed = -1
        """What the broker has said that it has."""
        self._parts: deque[_Part] = deque()
        self._handed = offset
        self._taken: deque[int] = deque()
        self._done: set[int] = set()

    @property
    def floor(self) -> int:
        """The offset below which everything is finished."""
        return self._taken[0] if self._taken else self._handed

    @property
    def unfinished(self) -> int:
        """Records handed out and not finished: in workers' hands, or failed and waiting."""
        return len(self._taken) - len(self._done)

    @property
    def has_next(self) -> bool:
        """Whether `take` would return something."""
        return self.waiting > 0 and not self.is_stopped and self._handed - self.floor < SPAN_MAX

    def put(self, records: memoryview, count: int, next_offset: int, log_epoch: int) -> None:
        """An answer came: whole records, in order; filters may have passed over some offsets."""
        if count:
            self._parts.append(_Part(records, count))
            self.waiting += count
            self.waiting_bytes += len(records)
        self.is_fresh &= next_offset == self.next_offset
        self._moved(next_offset, log_epoch)

    def jump(self, offset: int, log_epoch: int) -> None:
        """Nothing can be read at `next_offset`: go on at `offset`."""
        self._moved(offset, log_epoch)

    def take(self) -> TakenRecord | None:
        """Hand out the next record; call `finish` with its offset."""
        if not self.has_next:
            return None
        part = self._parts[0]
        records, at = part.records, part.at
        offset: int = _U64.unpack_from(records, at + QUEUE_OFFSET_AT)[0]
        part.at += _U32.unpack_from(records, at)[0]
        part.left -= 1
        self.waiting -= 1
        if not part.left:
            self._parts.popleft()
            self.waiting_bytes -= len(records)
        self._taken.append(offset)
        self._handed = offset + 1 if self.waiting else self.next_offset
        return TakenRecord(offset, records, at)

    def finish(self, offset: int) -> None:
        """A record that was handed out needs nothing more."""
        taken, done = self._taken, self._done
        if taken and taken[0] == offset:
            taken.popleft()
            while taken and taken[0] in done:
                done.discard(taken.popleft())
        else:
            done.add(offset)

    def discard(self) -> None:
        """Forget what is pulled and not handed out; answers that are on their way are void."""
        self._parts.clear()
        self.waiting = 0
        self.waiting_bytes = 0
        self.next_offset = self._handed
        self.turn += 1
        self.is_asked = False

    def _moved(self, next_offset: int, log_epoch: int) -> None:
        self.next_offset = next_offset
        self.log_epoch = log_epoch
        if not self.waiting:
            self._handed = next_offset
