"""What a producer has in hand for one queue: messages not sent yet, and runs not answered yet.

Sequences are given when a run is sent for the first time and never change while the run may
be stored, so that a resent run is a repeat for the broker. Pure: no event loop, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from holdmq.client.records import move
from holdmq.errors import HoldMQError, RemoteError
from holdmq.message import MessageId, TopicQueue
from holdmq.record.batch import body_sizes_of, starts_of

RUNS_IN_FLIGHT_MAX: Final = 32
"""Unanswered runs per queue: half of the 64 batches by which a broker knows a repeat."""

Key = bytes | str


class SendResult(NamedTuple):
    """Where a message is. `queue_offset` -1 and `message_id` None: stored before, place forgotten.

    So it is for delayed messages too: they get their place when they are due.
    """

    queue: TopicQueue
    queue_offset: int
    message_id: MessageId | None


class ChunkOwner(Protocol):
    """Whoever waits for the messages of a chunk; told once of each chunk.

    `wants_positions`: whether `stored` needs the records' log positions.
    """

    wants_positions: bool

    def stored(
        self,
        chunk: SendChunk,
        queue: TopicQueue,
        first_offset: int,
        store_id: bytes,
        positions: Sequence[int],
    ) -> None:
        """The chunk's messages are in this queue, from `first_offset` on (-1 = not known any more)."""

    def failed(self, chunk: SendChunk, error: HoldMQError) -> None:
        """The chunk's messages were given up."""


class Terms(NamedTuple):
    """What a caller asked for. `deadline` is loop time; `is_tied`: the named queue or none.

    `due`: what DUE says of a delayed message, None = it is not delayed.
    """

    deadline: float
    key: Key | None
    is_tied: bool
    due: str | None = None


class SendChunk:
    """Messages of one caller for one queue, encoded; they are stored or given up together.

    `sizes`: of the records, as the wire has them; `largest` of them, 0 = it is to be looked for. `indices`:
    which of the owner's messages they are. `keys`: their own keys, None where one has none; None alone =
    nobody has one. `may_be_stored`: they were sent and not answered, so that the broker may have them.
    """

    __slots__ = (
        "_smallest_body",
        "count",
        "indices",
        "is_settled",
        "keys",
        "largest",
        "may_be_stored",
        "owner",
        "records",
        "sizes",
        "terms",
        "topic",
    )

    def __init__(
        self,
        owner: ChunkOwner,
        topic: str,
        indices: Sequence[int],
        records: bytes,
        sizes: bytes,
        keys: Sequence[Key | None] | None,
        terms: Terms,
        largest: int = 0,
    ) -> None:
        self.owner = owner
        self.topic = topic
        self.indices = indices
        self.records = records
        self.sizes = sizes
        self.count = len(sizes) // 4
        if not largest:
            largest = len(records) if self.count == 1 else int(np.frombuffer(sizes, ">u4").max())
        self.largest = largest
        self._smallest_body = -1
        self.keys = keys
        self.terms = terms
        self.is_settled = False
        self.may_be_stored = False

    @property
    def is_keyed(self) -> bool:
        """Whether a key says where these messages go, so that their order matters."""
        return self.terms.key is not None or self.keys is not None

    @property
    def is_free(self) -> bool:
        """Whether any queue of the topic will do."""
        return not self.terms.is_tied and not self.is_keyed

    @property
    def smallest_body(self) -> int:
        """Bytes of the smallest body as it travels; looked for when it is asked for first."""
        if self._smallest_body < 0:
            starts = starts_of(np.frombuffer(self.sizes, ">u4").astype(np.int64))
            self._smallest_body = int(body_sizes_of(self.records, starts).min())
        return self._smallest_body

    def fail(self, error: HoldMQError) -> None:
        """Tell the owner that these messages were given up."""
        if not self.is_settled:
            self.is_settled = True
            self.owner.failed(self, error)

    def moved(self, places: Sequence[int], queue_id: int) -> SendChunk:
        """A chunk of these of its messages for another queue of the topic, in place of this one."""
        sizes = np.frombuffer(self.sizes, ">u4").astype(np.int64)
        records = self.records
        if len(places) < self.count:
            ends = np.cumsum(sizes).tolist()
            begins = [0, *ends]
            records = b"".join([records[begins[i] : ends[i]] for i in places])
            sizes = sizes[list(places)]
        return SendChunk(
            self.owner,
            self.topic,
            [self.indices[i] for i in places],
            move(records, sizes, queue_id),
            sizes.astype(">u4").tobytes(),
            None if self.keys is None else [self.keys[i] for i in places],
            self.terms,
        )


class ChunkRun:
    """Chunks that were sent together: one run of a PRODUCE, the same bytes each time."""

    __slots__ = ("chunks", "count", "first", "size_bytes")

    def __init__(self, first: int, chunks: list[SendChunk]) -> None:
        self.first = first
        self.chunks = chunks
        self.count = sum(chunk.count for chunk in chunks)
        self.size_bytes = sum(len(chunk.records) for chunk in chunks)

    @property
    def may_be_stored(self) -> bool:
        """Whether the broker may have any of it."""
        return any(chunk.may_be_stored for chunk in self.chunks)

    def note_unsure(self) -> None:
        """Whether the broker has it is unknown from now on, until an answer to the same run says so."""
        for chunk in self.chunks:
            chunk.may_be_stored = True

    @property
    def is_delayed(self) -> bool:
        """Whether these messages wait at the broker; those of one run all do, or none does."""
        return self.chunks[0].terms.due is not None

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits for any of it."""
        return all(chunk.is_settled for chunk in self.chunks)

    @property
    def wants_positions(self) -> bool:
        """Whether somebody waits for places in the log."""
        return any(chunk.owner.wants_positions for chunk in self.chunks)

    def stored(self, queue: TopicQueue, base_offset: int, store_id: bytes, positions: Sequence[int]) -> None:
        """Tell the owners where their messages are."""
        k = 0
        for chunk in self.chunks:
            end = k + chunk.count
            if not chunk.is_settled:
                chunk.is_settled = True
                offset = base_offset + k if base_offset >= 0 else -1
                chunk.owner.stored(chunk, queue, offset, store_id, positions[k:end])
            k = end


class Lane:
    """One queue. `is_stalled`: a run must be resent before anything new is sent."""

    __slots__ = (
        "attempts",
        "epoch",
        "gone_at",
        "in_flight",
        "is_epoch_known",
        "is_gapped",
        "is_stalled",
        "last_error",
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
        self.waiting: deque[SendChunk] = deque()
        self.sent: deque[ChunkRun] = deque()
        self.in_flight = 0
        self.is_stalled = False
        self.is_epoch_known = False
        """The broker stored something of this epoch. Before, any first sequence would be right for it: a
        second run must not get there while the first may be refused."""
        self.is_gapped = False
        """The broker waits for sequences that will not come: `begin_epoch` before anything else is sent."""
        self.gone_at: float | None = None
        """Loop time at which the broker said that it has no such queue: everything goes elsewhere."""
        self.attempts = 0
        self.resend_at = 0.0
        self.last_error: RemoteError | None = None
        """The last refusal since something was stored: why a send may end without an answer."""

    @property
    def topic(self) -> str:
        """Return the topic of the lane's queue."""
        return self.queue.topic

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.sent

    @property
    def may_send(self) -> bool:
        return (
            bool(self.waiting)
            and not self.is_stalled
            and self.gone_at is None
            and len(self.sent) < (RUNS_IN_FLIGHT_MAX if self.is_epoch_known else 1)
        )

    def next_run(self, room_bytes: int, is_first: bool) -> ChunkRun | None:
        """Number the next waiting chunks that fit; None if none may go. A PRODUCE's first always fits."""
        if not self.may_send:
            return None
        chunks: list[SendChunk] = []
        while self.waiting and (len(self.waiting[0].records) <= room_bytes or (is_first and not chunks)):
            if chunks and (self.waiting[0].terms.due is None) != (chunks[0].terms.due is None):
                break
            chunk = self.waiting.popleft()
            room_bytes -= len(chunk.records)
            chunks.append(chunk)
        if not chunks:
            return None
        if self.is_gapped and not self.sent:
            self.begin_epoch()
        run = ChunkRun(self.next_sequence, chunks)
        self.next_sequence += run.count
        self.sent.append(run)
        return run

    def stall(self, now: float, pause_s: float) -> None:
        """A run was not stored: once all answers are in, `runs_to_resend` from `now + pause_s` on."""
        self.is_stalled = True
        self.resend_at = max(self.resend_at, now + pause_s)

    def may_resend(self, now: float) -> bool:
        """Whether everything unanswered may be sent again."""
        return self.is_stalled and self.gone_at is None and self.in_flight == 0 and now >= self.resend_at

    def runs_to_resend(self) -> list[ChunkRun]:
        """Leave the stall; return every unanswered run in order."""
        self.is_stalled = False
        self.attempts += 1
        return list(self.sent)

    def stored(self, run: ChunkRun) -> None:
        """A run is stored: it leaves, and others may follow each other."""
        self.sent.remove(run)
        self.is_epoch_known = True
        self.attempts = 0
        self.last_error = None

    def begin_epoch(self) -> list[SendChunk]:
        """Number everything unanswered anew, to be sent again, but for what nobody waits for; returns that.

        Nothing may be in flight. What may be stored is then stored twice.
        """
        chunks = [chunk for run in self.sent for chunk in run.chunks]
        self.sent.clear()
        self.waiting.extendleft(chunk for chunk in reversed(chunks) if not chunk.is_settled)
        self.epoch += 1
        self.next_sequence = 0
        self.is_gapped = self.is_epoch_known = self.is_stalled = False
        return [chunk for chunk in chunks if chunk.is_settled]

    def take_all(self) -> list[SendChunk]:
        """Empty the lane: every chunk in its order, settled ones too; what comes next has a new epoch.

        Nothing may be in flight. What may be stored is then stored twice if it is sent again.
        """
        dropped = self.begin_epoch() if self.sent else []
        chunks = dropped + list(self.waiting)
        self.waiting.clear()
        self.is_stalled = False
        return chunks

    def take_free(self) -> list[SendChunk]:
        """Take out what any queue may have and is surely not stored, and what nobody waits for any more.

        The others keep their order.
        """
        sent = [chunk for run in self.sent for chunk in run.chunks]
        is_unsure = self.in_flight or any(chunk.may_be_stored for chunk in sent)
        dropped: list[SendChunk] = []
        if not is_unsure and any(chunk.is_free for chunk in sent):
            dropped = self.begin_epoch()
        free = [chunk for chunk in self.waiting if chunk.is_free and not chunk.may_be_stored]
        if free:
            self.waiting = deque(chunk for chunk in self.waiting if not chunk.is_free or chunk.may_be_stored)
        return dropped + free
