"""Moves: messages that consumers could not handle become retries, then dead letters.

A move reads its message again (from memory, else on the reader pool: the loop never waits for a disk),
decides what it becomes, and is told as done when the copy is confirmed (broker.retry.copies).
Source: broker.md, Failure of a consumer; storage.md, Moves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from broker.kernel.request_family import RequestFamily
from broker.kernel.statistics import Statistics
from broker.retry.copies import Copies, Done, MovedMessage
from broker.retry.core.moves import RetryPolicy, failed_copy
from broker.topics.requests import TopicRequests
from holdmq.errors import BusyError, Code, HoldMQError, RecordError, RemoteError, StorageError
from holdmq.names.topics import group_fault, is_system_topic, is_temporary
from holdmq.record.codec import VERIFY_ALL, Record, decode_record
from holdmq.record.origin import retry_topic
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.move_headers import (
    SEND_BACK_MAX,
    SendBackRequest,
    SendBackResponse,
    SendBackResult,
    SentBack,
)
from storage.api.queues import MessageQueues, QueueRead, ReadStatus

MOVES_MAX: Final = 20_000
"""Moves in hand (a few hundred bytes each); past it BUSY: twenty full SEND_BACKs."""
TURN_MOVES: Final = 32
"""Moves of one turn of the loop: a few ms of work."""
COLD_MOVES: Final = 64
"""Moves that one job on the reader pool reads; as many wait for it."""
RETRY_AFTER_MS: Final = 200

PolicyOf = Callable[[str], RetryPolicy | None]


class _Move:
    """One message that is to be moved."""

    __slots__ = ("attempts", "delay_ms", "done", "group", "level", "offset", "policy", "queue_id", "topic")

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        attempts: int,
        delay_ms: int | None,
        level: int,
        policy: RetryPolicy,
        done: Done,
    ) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.attempts = attempts
        self.delay_ms = delay_ms
        self.level = level
        self.policy = policy
        self.done = done


class Moves(RequestFamily):
    """All moves of one broker, on its loop.

    `policy_of` gives a group's retry settings, None = no such group.
    """

    def __init__(
        self,
        store: MessageQueues,
        copies: Copies,
        topics: TopicRequests,
        policy_of: PolicyOf,
        statistics: Statistics,
        clock_ms: Callable[[], int],
    ) -> None:
        self._statistics = statistics
        self._policy_of = policy_of
        self.moves_max = MOVES_MAX
        self.refused = self.failed = self.cold_reads = self.in_hand = 0
        self.copies = copies
        self._clock_ms = clock_ms
        self._store = store
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Move] = deque()
        self._cold: deque[_Move] = deque()
        self._reading: asyncio.Future[Any] | None = None
        self._is_woken = False
        self._is_closed = False
        copies.room_made.subscribe(self._wake)
        copies.recovered.subscribe(self._wake)

    # The part

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.SEND_BACK: self.send_back}

    def numbers(self) -> Mapping[str, int]:
        return {
            "moves_in_hand": self.in_hand,
            "moves_refused_total": self.refused,
            "moves_failed_total": self.failed,
            "moves_cold_reads_total": self.cold_reads,
            **self.copies.numbers(),
        }

    def release_all(self) -> None:
        """Draining: what is not yet on its way to the log is refused; its consumers send it back again."""
        self._is_closed = True
        waiting = [*self._waiting, *self._cold]
        self._waiting.clear()
        self._cold.clear()
        for move in waiting:
            self._settle(move.done, RemoteError(Code.SHUTTING_DOWN, "the broker is draining"))
        self.copies.close()

    def send_back(self, request: Request) -> None:
        """SEND_BACK: answered when every copy is confirmed, or refused."""
        header = request.header(SendBackRequest)
        messages = rows(SentBack, header.messages)
        if not 1 <= len(messages) <= SEND_BACK_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"a SEND_BACK names 1 to {SEND_BACK_MAX} messages")
        results: list[SendBackResult | None] = [None] * len(messages)
        left = len(messages)

        def settled(index: int, moved: MovedMessage | HoldMQError) -> None:
            nonlocal left
            results[index] = _result(moved)
            left -= 1
            if isinstance(moved, MovedMessage) and not moved.is_repeat:
                counts = self._statistics.of_group(header.group, messages[index].topic)
                counts.given_back += 1
                counts.requeued += not moved.is_dead
            if not left:
                request.reply(SendBackResponse([result for result in results if result is not None]))

        for index, row in enumerate(messages):
            self.move(
                header.group, row.topic, row.queue_id, row.offset, row.attempts, None,
                partial(settled, index), level=row.delay_level,
            )  # fmt: skip

    # The seam for other parts

    def move(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        attempts: int,
        delay_ms: int | None,
        done: Done,
        *,
        level: int = 0,
    ) -> None:
        """Let `group` have a message again after `delay_ms` (None = by `level` or attempts), or give it up.

        The message is the one at `offset` of a queue of `topic`, or of `%RETRY%<group>`. `attempts`: how
        often it was retried before (the record's count stands if it is higher); from the group's
        retry_max_times on it goes to the dead letters. `level` 0 = by attempts, TO_DEAD_LETTERS = not again.

        `done` is called once, perhaps before this returns: with Moved when the copy is in the log
        (only then the message may be acked), or with an error, and then nothing was moved. A repeat is told
        as done and changes nothing. Errors: MESSAGE_UNKNOWN and CORRUPT (it cannot be read, ever),
        KIND_UNFIT, GROUP_INVALID, GROUP_UNKNOWN, TOPIC_INVALID, TOPIC_UNKNOWN, QUEUE_UNKNOWN; BUSY, and
        those of the store, which may pass.
        """
        policy = self._policy_of(group)
        error = self._refusal(group, topic, queue_id, policy)
        if error is not None:
            self.refused += 1
            done(error)
            return
        assert policy is not None
        attempts = max(0, min(attempts, policy.retry_max_times))
        self.in_hand += 1
        self._waiting.append(_Move(group, topic, queue_id, offset, attempts, delay_ms, level, policy, done))
        self._wake()

    def start(self) -> None:
        """Look for moves that the log has; what is asked for meanwhile waits."""
        self.copies.recover()

    def _refusal(
        self, group: str, topic: str, queue_id: int, policy: RetryPolicy | None
    ) -> RemoteError | None:
        if self._is_closed:
            return RemoteError(Code.SHUTTING_DOWN, "the broker is draining")
        fault = group_fault(group)
        if fault is not None:
            return RemoteError(Code.GROUP_INVALID, fault)
        if policy is None:
            return RemoteError(Code.GROUP_UNKNOWN, f"group {group!r} is not known here")
        if is_temporary(group) or is_temporary(topic):
            return RemoteError(Code.KIND_UNFIT, f"{topic!r} of {group!r}: what is temporary is not retried")
        if is_system_topic(topic) and topic != retry_topic(group):
            return RemoteError(Code.TOPIC_INVALID, f"group {group!r} cannot send back what is in {topic!r}")
        known = self._topics.table.get(topic)
        if known is None:
            return RemoteError(Code.TOPIC_UNKNOWN, f"topic {topic!r} does not exist here")
        if known.kind == "temporary":
            return RemoteError(Code.KIND_UNFIT, f"topic {topic!r} is temporary: nothing of it is retried")
        if not 0 <= queue_id < known.read_queues:
            return RemoteError(Code.QUEUE_UNKNOWN, f"{topic!r} has {known.read_queues} queues here")
        if self.in_hand >= self.moves_max:
            return BusyError(f"{self.moves_max} moves are in hand", RETRY_AFTER_MS)
        return None

    # Reading

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """One turn: read some messages, and append the copies that are ready."""
        self._is_woken = False
        if not self.copies.is_recovered:
            return
        waiting = self._waiting
        for _ in range(min(TURN_MOVES, len(waiting))):
            if not self.copies.has_room or len(self._cold) >= COLD_MOVES:
                break
            move = waiting.popleft()
            read = None
            if move.offset >= 0:
                read = self._store.read_queue(move.topic, move.queue_id, 0, move.offset, 1, 1)
                if read is None:
                    self._cold.append(move)
                    continue
            self._read(move, read)
        self._read_cold()
        if waiting and self.copies.has_room and len(self._cold) < COLD_MOVES:
            self._wake()

    def _read_cold(self) -> None:
        if self._reading is not None or not self._cold or not self.copies.has_room:
            return
        moves = list(self._cold)
        self._cold.clear()
        self.cold_reads += len(moves)
        store = self._store

        def read_all() -> list[QueueRead | StorageError]:
            found: list[QueueRead | StorageError] = []
            for move in moves:
                try:
                    found.append(store.read_queue_cold(move.topic, move.queue_id, 0, move.offset, 1, 1))
                except StorageError as error:
                    found.append(error)
            return found

        def done(finished: asyncio.Future[list[QueueRead | StorageError]]) -> None:
            self._reading = None
            if finished.cancelled():
                return
            error = finished.exception()
            if error is not None:
                failure = RemoteError(Code.SYSTEM_ERROR, f"messages could not be read again: {error}")
                for move in moves:
                    self._settle(move.done, failure)
                raise error
            for move, read in zip(moves, finished.result(), strict=True):
                self._read(move, read)
            self._wake()

        self._reading = self._loop.run_in_executor(store.reader_pool, read_all)
        self._reading.add_done_callback(done)

    def _read(self, move: _Move, read: QueueRead | StorageError | None) -> None:
        """The message was read, or cannot be."""
        record = _record_of(move, read)
        if isinstance(record, HoldMQError):
            self._settle(move.done, record)
            return
        policy = move.policy
        made = self._topics.table.get(retry_topic(move.group))
        if made is not None:
            policy = policy._replace(retry_queue_nums=made.write_queues)
        try:
            copy = failed_copy(
                record,
                move.topic,
                move.group,
                move.attempts,
                move.delay_ms,
                move.level,
                policy,
                self._clock_ms(),
            )
        except RecordError as error:
            self._settle(move.done, error)
            return
        self.copies.put(
            copy, record.reconsume_times, partial(self._settle, move.done), policy.retry_queue_nums
        )

    def _settle(self, done: Done, moved: MovedMessage | HoldMQError) -> None:
        self.in_hand -= 1
        if isinstance(moved, HoldMQError):
            self.failed += 1
        done(moved)


def _record_of(move: _Move, read: QueueRead | StorageError | None) -> Record | HoldMQError:
    """The record that a move is about, or why there is none."""
    place = f"{move.topic}/{move.queue_id} at offset {move.offset}"
    if isinstance(read, StorageError):
        return read
    if read is not None and read.status is ReadStatus.CORRUPT:
        return RemoteError(Code.CORRUPT, f"{place}: {read.reason}")
    if read is None or read.status is not ReadStatus.FOUND or not read.parts:
        return RemoteError(Code.MESSAGE_UNKNOWN, f"there is no message in {place}")
    try:
        record = decode_record(read.parts[0], 0, VERIFY_ALL)
    except RecordError as error:
        return RemoteError(Code.CORRUPT, f"{place}: {error}")
    if record.queue_offset != move.offset:
        return RemoteError(Code.MESSAGE_UNKNOWN, f"there is no message in {place}")
    return record


def _result(moved: MovedMessage | HoldMQError) -> SendBackResult:
    if isinstance(moved, HoldMQError):
        remark = moved.remark if isinstance(moved, RemoteError) else str(moved)
        return SendBackResult(moved.code, 0, -1, remark)
    return SendBackResult(Code.OK, moved.attempt, moved.due_ms, "")
