"""What a producer has in hand for one queue: messages not sent yet, and runs not answered yet.

Sequences are given when a run is sent for the first time and never change while the run may
be stored, so that a resent run is a repeat for the broker. Pure: no event loop, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from holdmq.errors import HoldMQError
from holdmq.message import Message, MessageId, TopicQueue

RUNS_IN_FLIGHT_MAX: Final = 32
"""Unanswered runs per queue: half of the 64 batches by which a broker knows a repeat."""
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0


class SendResult(NamedTuple):
    """Where a message is. `queue_offset` -1 and `message_id` None: stored before, place forgotten.

    So it is for delayed messages too: they get their place when they are due.
    """

    queue: TopicQueue
    queue_offset: int
    message_id: MessageId | None


class Owner(Protocol):
    """Whoever waits for the messages of a chunk."""

    def settle(self, index: int, result: SendResult | HoldMQError) -> None:
        """The message with this index is stored or given up; later calls for it change nothing."""


class Terms(NamedTuple):
    """What a caller asked for. `deadline` is loop time; `is_tied`: the named queue or none.

    `due`: what DUE says of a delayed message, None = it is not delayed.
    """

    deadline: float
    key: bytes | str | None
    is_tied: bool
    due: str | None = None


class Chunk:
    """Messages of one caller for one queue, encoded; they are stored or given up together."""

    __slots__ = ("indices", "is_settled", "messages", "owner", "records", "sizes", "terms")

    def __init__(
        self,
        owner: Owner,
        indices: Sequence[int],
        messages: Sequence[Message],
        records: Sequence[bytes],
        terms: Terms,
    ) -> None:
        self.owner = owner
        self.indices = indices
        self.messages = messages
        self.sizes = [len(record) for record in records]
        self.records = b"".join(records)
        self.terms = terms
        self.is_settled = False

    def fail(self, error: HoldMQError) -> None:
        """Tell the owner that these messages were given up."""
        if not self.is_settled:
            self.is_settled = True
            for index in self.indices:
                self.owner.settle(index, error)


class Run:
    """Chunks that were sent together: one run of a PRODUCE, the same bytes each time."""

    __slots__ = ("chunks", "count", "first", "size_bytes")

    def __init__(self, first: int, chunks: list[Chunk]) -> None:
        self.first = first
        self.chunks = chunks
        self.count = sum(len(chunk.sizes) for chunk in chunks)
        self.size_bytes = sum(len(chunk.records) for chunk in chunks)

    @property
    def is_delayed(self) -> bool:
        """Whether these messages wait at the broker; those of one run all do, or none does."""
        return self.chunks[0].terms.due is not None

    @property
    def is_given_up(self) -> bool:
        return all(chunk.is_settled for chunk in self.chunks)

    def stored(self, queue: TopicQueue, base_offset: int, store_id: bytes, positions: list[int]) -> None:
        """Tell the owners where their messages are."""
        k = 0
        for chunk in self.chunks:
            for index in chunk.indices:
                offset = base_offset + k if base_offset >= 0 else -1
                known = k < len(positions) and positions[k] >= 0
                place = MessageId(store_id, positions[k]) if known else None
                if not chunk.is_settled:
                    chunk.owner.settle(index, SendResult(queue, offset, place))
                k += 1
            chunk.is_settled = True


class Lane:
    """One queue. `is_stalled`: a run must be resent before anything new is sent."""

    __slots__ = (
        "attempts",
        "epoch",
        "in_flight",
        "is_gapped",
        "is_stalled",
        "next_sequence",
        "queue",
        "resend_at",
        "sent",
        "waiting",
    )

    def __init__(self, queue: TopicQueue) -> None:
        self.queue = queue
        self.epoch = 1
        self.next_sequence = 0
        self.waiting: deque[Chunk] = deque()
        self.sent: deque[Run] = deque()
        self.in_flight = 0
        self.is_stalled = False
        self.is_gapped = False
        """The broker waits for sequences that will not come: `begin_epoch` before the next resend."""
        self.attempts = 0
        self.resend_at = 0.0

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.sent

    @property
    def may_send(self) -> bool:
        return bool(self.waiting) and not self.is_stalled and len(self.sent) < RUNS_IN_FLIGHT_MAX

    def next_run(self, room_bytes: int, is_first: bool) -> Run | None:
        """Number the next waiting chunks that fit; None if none may go. A PRODUCE's first always fits."""
        if not self.may_send:
            return None
        chunks: list[Chunk] = []
        while self.waiting and (len(self.waiting[0].records) <= room_bytes or (is_first and not chunks)):
            if chunks and (self.waiting[0].terms.due is None) != (chunks[0].terms.due is None):
                break
            chunk = self.waiting.popleft()
            room_bytes -= len(chunk.records)
            chunks.append(chunk)
        if not chunks:
            return None
        run = Run(self.next_sequence, chunks)
        self.next_sequence += run.count
        self.sent.append(run)
        return run

    def stall(self, now: float, pause_s: float) -> None:
        """A run was not stored: once all answers are in, `runs_to_resend` from `now + pause_s` on."""
        self.is_stalled = True
        self.resend_at = max(self.resend_at, now + pause_s)

    def may_resend(self, now: float) -> bool:
        return self.is_stalled and self.in_flight == 0 and now >= self.resend_at

    def runs_to_resend(self) -> list[Run]:
        """Leave the stall; return every unanswered run in order."""
        self.is_stalled = False
        self.attempts += 1
        return list(self.sent)

    def begin_epoch(self) -> list[Run]:
        """Start numbering anew, without the runs that were given up; returns those."""
        dropped = [run for run in self.sent if run.is_given_up]
        self.sent = deque(run for run in self.sent if not run.is_given_up)
        self.epoch += 1
        self.is_gapped = False
        self.next_sequence = 0
        for run in self.sent:
            run.first = self.next_sequence
            self.next_sequence += run.count
        return dropped

    def pause_s(self, retry_after_ms: int, jitter: float) -> float:
        """How long to wait before the next attempt; `jitter` in 0.5–1.5."""
        backoff = min(BACKOFF_MIN_S * 2.0**self.attempts, BACKOFF_MAX_S)
        return max(backoff, retry_after_ms / 1000) * jitter
