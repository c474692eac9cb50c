"""Copies of moved messages on their way into the log: each once, appended together, and alerts.

A copy that is due later waits in the store's timer, a dead letter is appended at once. It is told as done
when it is confirmed. What has a copy in the log is remembered, and found again there at a start, so that a
repeat makes no second one. Source: storage.md, Moves.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import structlog

from broker.kernel.events import Event
from broker.retry.core.dead_letters import Marks
from broker.retry.core.moves import Copy, Key, KnownMoves, copied_by
from broker.topics.requests import TopicRequests
from holdmq.errors import HoldMQError, RecordError, StorageError
from holdmq.record.batch import split_records
from holdmq.record.codec import Record, decode_record
from holdmq.record.origin import DLQ_PREFIX, RETRY_PREFIX
from storage.api.batches import Batch, BatchRun
from storage.api.queues import MessageQueues
from storage.api.store import OrderedStore
from storage.api.timer import TIMER_QUEUE, TIMER_TOPIC, DelayedRecord

COPIES_MAX_BYTES: Final = 32 << 20
"""Copies on their way to confirmation; past it nothing more is read. What one connection may have in hand."""
APPEND_MAX_BYTES: Final = 1 << 20
"""Copies of one append (but always one): it fits any segment's rest."""
KNOWN_LOG_BYTES: Final = 64 << 20
"""How far back in the log a start looks for moves: no checkpoint is further back."""
KNOWN_RECORDS: Final = 4_096
"""Records of the timer, and of each group's dead letters, that a start looks at whatever their age."""
WALK_RECORDS: Final = 512
WALK_BYTES: Final = 4 << 20
ALERT_INTERVAL_S: Final = 1.0
"""Dead letters are logged at most this often: a group that fails with everything is one event."""

log = structlog.get_logger("holdmq.broker")


class MovedMessage(NamedTuple):
    """What became of a message: the number of its copy, and when that is due.

    `due_ms` -1: it is a dead letter (`is_dead`), or had been moved before (`is_repeat`).
    """

    attempt: int
    due_ms: int
    is_dead: bool
    is_repeat: bool


class DeadLetter(NamedTuple):
    """A message that a group gave up: where it first was, and how often it was retried."""

    group: str
    topic: str
    queue_id: int
    offset: int
    attempts: int


class FoundMove(NamedTuple):
    """A copy that a start found in the log, at `offset` of the queue of `topic`."""

    key: Key
    attempt: int
    topic: str
    offset: int


Done = Callable[[MovedMessage | HoldMQError], None]


class Copies:
    """All copies of one broker, on its loop.

    `marks` say which moves do not count any more. `room_made` happens after every append, when there may be
    room again; `recovered` once, when the copies that the log had at the start are known; `letters_written`
    with every group of dead letters that are in the log: what alarms are made of.
    """

    def __init__(self, store: OrderedStore, topics: TopicRequests, marks: Marks) -> None:
        self.room_made: Event[[]] = Event()
        self.letters_written: Event[[Sequence[DeadLetter]]] = Event()
        self.recovered: Event[[]] = Event()
        self.known = KnownMoves()
        self._marks = marks
        self.retries = self.dead_letters = self.repeats = self.size_bytes = 0
        self._store = store
        self._timer = store.timer
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._is_recovered = False
        self._ready: deque[Copy] = deque()
        self._lacking: dict[str, list[Copy]] = {}
        self._in_hand: dict[Key, list[Done]] = {}
        self._is_append_due = False
        self._unlogged: Counter[str] = Counter()
        self._last_letter: dict[str, DeadLetter] = {}
        self._log_timer: asyncio.TimerHandle | None = None
        self._logged_at = float("-inf")

    @property
    def has_room(self) -> bool:
        """Whether more may be read."""
        return self.size_bytes < COPIES_MAX_BYTES

    @property
    def is_recovered(self) -> bool:
        """Whether it is known what the log has; no copy is taken before."""
        return self._is_recovered

    def numbers(self) -> dict[str, int]:
        """Counters (names in _total) and gauges."""
        return {
            "moves_retried_total": self.retries,
            "moves_dead_letters_total": self.dead_letters,
            "moves_repeats_total": self.repeats,
            "moves_copies_bytes": self.size_bytes,
            "moves_known": len(self.known),
            "moves_known_evicted_total": self.known.evicted,
        }

    # What the log has

    def recover(self) -> None:
        """Look for the copies that the log has, on the reader pool; then `recovered` happens."""
        topics = [TIMER_TOPIC]
        topics += [row.topic for row in self._topics.table.rows() if row.topic.startswith(DLQ_PREFIX)]
        queues = [(topic, *self._store.bounds(topic, TIMER_QUEUE)) for topic in topics]
        floor = self._store.confirmed_position - KNOWN_LOG_BYTES
        future = self._loop.run_in_executor(self._store.reader_pool, find_moves, self._store, queues, floor)
        future.add_done_callback(self._recovered)

    def _recovered(self, finished: asyncio.Future[list[FoundMove]]) -> None:
        if finished.cancelled():
            return
        self._is_recovered = True
        error = finished.exception()
        if error is None:
            for move in finished.result():
                if not self._is_forgotten(move):
                    self.known.note(move.key, move.attempt)
        else:
            # At least once stands; a repeat of a move from before this start may make a second copy.
            log.error("the moves before this start are not known", reason=str(error))
        self.recovered.happened()

    def _is_forgotten(self, move: FoundMove) -> bool:
        group, topic, _, _ = move.key
        return self._marks.of(group).is_forgotten(topic, int(move.topic != TIMER_TOPIC), move.offset)

    # Appending

    def put(self, copy: Copy, attempts: int, done: Done, queues: int = 1) -> None:
        """Append a copy of a record with so many attempts, unless one of it is known or on its way.

        `done` is called once, perhaps before this returns: with Moved when the copy is in the log, or with
        an error, and then it is not. `queues`: of its topic, should it not exist.
        """
        known = self.known.attempt_past(copy.key, attempts)
        if known:
            self.repeats += 1
            done(MovedMessage(known, -1, copy.is_dead, True))
            return
        waiting = self._in_hand.get(copy.key)
        if waiting is not None:
            waiting.append(done)
            return
        self._in_hand[copy.key] = [done]
        self.size_bytes += len(copy.record)
        if self._topics.table.get(copy.topic) is not None:
            self._add_ready(copy)
            return
        lacking = self._lacking.get(copy.topic)
        if lacking is not None:
            lacking.append(copy)
            return
        self._lacking[copy.topic] = [copy]
        self._topics.require(copy.topic, max(1, queues), partial(self._have_topic, copy.topic))

    def _have_topic(self, topic: str, error: HoldMQError | None) -> None:
        copies = self._lacking.pop(topic, [])
        if error is not None:
            self._answer(copies, error)
            self.room_made.happened()
            return
        for copy in copies:
            self._add_ready(copy)

    def _add_ready(self, copy: Copy) -> None:
        self._ready.append(copy)
        if not self._is_append_due:
            self._is_append_due = True
            self._loop.call_soon(self._append_ready)

    def _append_ready(self) -> None:
        self._is_append_due = False
        while self._ready:
            is_dead = self._ready[0].due_ms is None
            copies: list[Copy] = []
            size = 0
            while self._ready and (self._ready[0].due_ms is None) == is_dead:
                size += len(self._ready[0].record)
                if copies and size > APPEND_MAX_BYTES:
                    break
                copies.append(self._ready.popleft())
            if is_dead:
                self._store.append(_batch_of(copies), partial(self._appended, copies))
            else:
                self._schedule(copies)

    def _schedule(self, copies: list[Copy]) -> None:
        delayed = [DelayedRecord(copy.record, copy.due_ms or 0) for copy in copies]
        try:
            self._timer.schedule(delayed, partial(self._appended, copies))
        except RecordError as error:
            if len(copies) == 1:
                self._answer(copies, error)
                return
            # One of them cannot wait: which one is found by asking for each.
            for copy in copies:
                self._schedule([copy])

    def _appended(self, copies: list[Copy], _batch: Batch, error: StorageError | None) -> None:
        self._answer(copies, error)
        self.room_made.happened()

    def _answer(self, copies: list[Copy], error: HoldMQError | None) -> None:
        """These copies are in the log, or none of them is."""
        letters: list[DeadLetter] = []
        for copy in copies:
            self.size_bytes -= len(copy.record)
            waiting = self._in_hand.pop(copy.key)
            if error is not None:
                for done in waiting:
                    done(error)
                continue
            self.known.note(copy.key, copy.attempt)
            if copy.is_dead:
                self.dead_letters += 1
                letters.append(DeadLetter(*copy.key, copy.attempt - 1))
            elif copy.topic.startswith(RETRY_PREFIX):
                self.retries += 1
            self.repeats += len(waiting) - 1
            due_ms = -1 if copy.due_ms is None else copy.due_ms
            for index, done in enumerate(waiting):
                done(MovedMessage(copy.attempt, due_ms, copy.is_dead, index > 0))
        if letters:
            self._alert(letters)

    # Alerts

    def close(self) -> None:
        """Log what is not logged yet."""
        if self._log_timer is not None:
            self._log_timer.cancel()
            self._log_letters()

    def _alert(self, letters: list[DeadLetter]) -> None:
        for letter in letters:
            self._unlogged[letter.group] += 1
            self._last_letter[letter.group] = letter
        if self._log_timer is None:
            wait_s = max(0.0, self._logged_at + ALERT_INTERVAL_S - self._loop.time())
            self._log_timer = self._loop.call_later(wait_s, self._log_letters)
        self.letters_written.happened(letters)

    def _log_letters(self) -> None:
        """Say which groups gave messages up."""
        self._log_timer = None
        self._logged_at = self._loop.time()
        unlogged, self._unlogged = self._unlogged, Counter()
        for group, messages in unlogged.items():
            letter = self._last_letter.pop(group)
            log.warning(
                "messages went to the dead letters",
                group=group,
                messages=messages,
                last_topic=letter.topic,
                last_queue_id=letter.queue_id,
                last_offset=letter.offset,
                attempts=letter.attempts,
                hint="holdmq dlq read shows them, holdmq dlq resend sends them again",
            )


def _batch_of(copies: list[Copy]) -> Batch:
    """Copies as a batch for the log, in their order."""
    runs: list[BatchRun] = []
    for copy in copies:
        if runs and (runs[-1].topic, runs[-1].queue_id) == (copy.topic, copy.queue_id):
            runs[-1].count += 1
        else:
            runs.append(BatchRun(copy.topic, copy.queue_id, 1))
    records = [copy.record for copy in copies]
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    return Batch(memoryview(bytearray().join(records)), sizes, runs)


# On the reader pool


def find_moves(store: OrderedStore, queues: list[tuple[str, int, int]], floor: int) -> list[FoundMove]:
    """The newest moves in these queues (topic, first and end offset), back to the log position `floor`."""
    found: list[FoundMove] = []
    for topic, first, end in queues:
        newest_first: list[list[FoundMove]] = []
        looked_at = size = 0
        while end > first:
            begin = max(first, end - WALK_RECORDS)
            records = records_between(store, topic, begin, end)
            moves = [(record.queue_offset, copied_by(record, topic)) for record in records]
            newest_first.append([FoundMove(*move, topic, at) for at, move in moves if move is not None])
            looked_at += end - begin
            size += sum(record.total_size for record in records)
            is_enough = looked_at >= KNOWN_RECORDS or size >= KNOWN_LOG_BYTES
            if is_enough and records and records[0].physical_offset < floor:
                break
            end = begin
        for moves_of_slice in reversed(newest_first):
            found += moves_of_slice
    return found


def records_between(store: MessageQueues, topic: str, offset: int, end: int) -> list[Record]:
    """The records of a system topic's queue from `offset` to below `end`, as far as they can be read."""
    records: list[Record] = []
    while offset < end:
        read = store.read_queue_cold(topic, TIMER_QUEUE, 0, offset, WALK_BYTES, end - offset)
        for part in read.parts:
            at = 0
            for size in split_records(part).tolist():
                records.append(decode_record(part, at))
                at += size
        if read.next_offset <= offset:
            break
        offset = read.next_offset
    return records
