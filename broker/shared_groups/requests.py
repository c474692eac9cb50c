"""The `shared` mode's requests: open, pull, ack, nack, extend, close, state.

A pull is served at once, or parked with its member and woken by arrivals, by messages that come back, by
room at its member and by resumes (broker.shared_groups.pulls). An ack is answered when its record is in the
log (broker.shared_groups.journal). One timer serves every deadline of the broker. Source: broker.md, Three
ways to consume.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import structlog

from broker.kernel.request_family import HelloOf, RequestFamily
from broker.kernel.snapshot_file import SnapshotFile
from broker.kernel.statistics import Statistics
from broker.shared_groups.core.members import SharedGroupMember
from broker.shared_groups.core.queue import SharedQueue
from broker.shared_groups.core.records import Entry, snapshot_entry
from broker.shared_groups.core.shared import READY_MAX, Comeback, MessagesBack, SettlingMember, Shared
from broker.shared_groups.core.subscriptions import ALL, SubscriptionFilter
from broker.shared_groups.journal import SharedJournal
from broker.shared_groups.moves import Move, SharedMoves
from broker.shared_groups.pulls import HeldPull, SharedPulls
from broker.shared_groups.starts import KeptOffset, SharedStarts, is_volatile
from broker.shared_groups.state import state_of, warn_of_behind, warn_of_full
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import Code, HoldMQError, RemoteError, StorageError
from holdmq.names.topics import group_fault, is_temporary, topic_fault
from holdmq.record.origin import RETRY_PREFIX, retry_topic
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import SHARED, GroupSubscription
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty
from holdmq.wire.shared_headers import (
    EARLIEST,
    LATEST,
    SharedAckRequest,
    SharedCloseRequest,
    SharedExtendRequest,
    SharedNack,
    SharedNackRequest,
    SharedOpenRequest,
    SharedOpenResponse,
    SharedPullRequest,
    SharedRange,
    SharedSettleResponse,
    SharedStateRequest,
)
from storage.api.batches import Batch
from storage.api.log_order import LogOrder
from storage.api.queues import MessageQueues
from storage.api.retention import QueueNeed

INVISIBLE_MIN_MS: Final = 100
INVISIBLE_MAX_MS: Final = 12 * 3_600_000
"""As long as SQS lets a message be invisible."""
NACK_DELAY_MAX_MS: Final = 365 * 24 * 3_600_000
MEMBERS_MAX: Final = 100_000
"""Members of all shared groups here: ten for each of 10,000 connections."""
QUEUES_MAX: Final = 100_000
"""(group, queue) pairs: 10 KiB each at worst, some hundred bytes as a rule."""
SUBSCRIPTIONS_MAX: Final = 1_000
RANGES_MAX: Final = 65_536
"""Rows of one ack, nack or extend."""
LATE_S: Final = 1.0
LATE_GRACE_S: Final = 0.2
"""After the process stood still, what members sent meanwhile is read before deadlines count."""

log = structlog.get_logger("holdmq.broker")


class SharedGate(Protocol):
    """What is known of groups elsewhere (broker.groups.requests)."""

    def ensure(self, name: str, mode: str, done: Callable[[HoldMQError | None], None]) -> None:
        """Call `done` when the group exists durably in this mode; raises when it must not."""

    def admit_pull(self, group: str) -> None:
        """Raise GROUP_UNKNOWN or GROUP_DISABLED when a group must not pull."""

    def is_paused(self, group: str) -> bool:
        """Whether a group is to get nothing."""


class SharedReaders(Protocol):
    """Told of what members read (broker.readers)."""

    def subscribe(
        self, connection: Connection, kind: str, group: str, topics: Iterable[str], member_id: int
    ) -> None:
        """A member reads these topics until it leaves."""

    def unsubscribe(self, connection: Connection, group: str, member_id: int) -> None:
        """End what a member reads: it left."""

    def seen(self, connection: Connection, group: str, member_id: int) -> bool:
        """A member reads; False = it is none."""


class SharedMode(RequestFamily):
    """All shared groups of one broker.

    `load` it over an open store, before the first request. `hello_of` says who is at the other end of a
    connection; `readers` are told of members.
    """

    def __init__(
        self,
        core: Shared,
        gate: SharedGate,
        queues: MessageQueues,
        order: LogOrder,
        topics: TopicTable,
        file: SnapshotFile,
        statistics: Statistics,
        *,
        kept_offset: KeptOffset,
        move: Move,
        may_hand_out: Callable[[], bool],
        hello_of: HelloOf,
        readers: SharedReaders,
    ) -> None:
        self.core = core
        self._gate = gate
        self._hello_of = hello_of
        self._readers = readers
        self._statistics = statistics
        self.journal = SharedJournal(queues, order, file, self._capture, lambda: core.counts.passed)
        self.starts = SharedStarts(core, queues, topics, kept_offset)
        self.pulls = SharedPulls(
            core, queues, topics, self.starts, statistics, gate.is_paused, may_hand_out, self._settle
        )
        self.moves = SharedMoves(core, self.journal, move, self._settle)
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._members: dict[Connection, dict[int, SharedGroupMember]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_draining = False
        self._is_settling = False

    # The part

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.SHARED_OPEN: self.open,
            RequestCode.SHARED_PULL: self.pull,
            RequestCode.SHARED_ACK: self.ack,
            RequestCode.SHARED_NACK: self.nack,
            RequestCode.SHARED_EXTEND: self.extend,
            RequestCode.SHARED_CLOSE: self.close_member,
            RequestCode.SHARED_STATE: self.state,
        }

    def load(self, accept_backup: bool = False) -> None:
        """Read what the groups have done (blocking), before the first request. StorageError if damaged."""
        for queue in self.journal.load(self.core.window, accept_backup):
            end = self._queues.bounds(queue.key.topic, queue.key.queue_id)[1]
            if queue.next_offset > end:
                # Nothing that the log does not have can be done.
                log.error(
                    "a shared group is ahead of its queue, and goes on at the queue's end",
                    group=queue.key.group,
                    topic=queue.key.topic,
                    queue_id=queue.key.queue_id,
                    floor=queue.floor,
                    end_offset=end,
                )
                queue = SharedQueue(queue.key, min(queue.floor, end), self.core.window)
            group = self.core.group(queue.key.group)
            group.add_queue(queue)
            group.left_ms = time.time_ns() // 1_000_000

    def start(self) -> None:
        """Begin to save snapshots."""
        self.journal.start()

    def close(self) -> None:
        """Stop the timers, and finish a snapshot under way (blocking)."""
        if self._timer is not None:
            self._timer.cancel()
        self.journal.close()

    def closed(self, connection: Connection) -> None:
        now = self._loop.time()
        for member in self._members.pop(connection, {}).values():
            # Nobody is blamed for the broker's own end.
            self.core.leave(member, now, not self._is_draining)
            self._member_left(member)
        self._settle()

    def release_all(self) -> None:
        self._is_draining = self.pulls.is_draining = self.moves.is_draining = True
        for member in list(self.core.members.values()):
            self._release_pull(member)

    def numbers(self) -> Mapping[str, int | float]:
        core, counts = self.core, self.core.counts
        return {
            "shared_members": len(core.members),
            "shared_deliveries": len(core.deliveries),
            "shared_in_flight": core.in_flight,
            "shared_deadlines": len(core.deadlines),
            "shared_windows_full": len(core.full),
            "shared_moves_waiting": len(self.moves),
            "shared_delivered_total": counts.delivered,
            "shared_redelivered_total": counts.redelivered,
            "shared_acknowledged_total": counts.acknowledged,
            "shared_passed_total": counts.passed,
            "shared_expired_total": counts.expired,
            "shared_moved_total": counts.moved,
            "shared_lost_total": self.moves.lost,
            "shared_damaged_total": self.pulls.damaged,
            "shared_behind_total": core.counts.behind,
            "shared_pulls_parked_total": self.pulls.parked,
            "shared_pulls_cold_total": self.pulls.cold_reads,
            "shared_records_total": self.journal.records,
            "shared_records_refused_total": self.journal.refused,
            "shared_snapshots_total": self.journal.snapshots,
            "shared_snapshot_failures_total": self.journal.snapshot_failures,
        }

    def confirmed(self, batches: list[Batch]) -> None:
        """Messages became visible: serve the parked pulls of groups that read their topics."""
        if not self.core.members:
            return
        for topic in {run.topic for batch in batches for run in batch.runs}:
            for name in self.starts.groups_of(topic):
                self.core.wake(name)
            if topic.startswith(RETRY_PREFIX):
                self.core.wake(topic.removeprefix(RETRY_PREFIX))
        if self.core.outcome.woken:
            self._settle()

    def group_paused(self, group: str, is_paused: bool) -> None:
        """A group was paused or resumed."""
        if not is_paused:
            self.core.wake(group)
            self._settle()

    def topic_changed(self, _before: Topic | None, after: Topic | None) -> None:
        """A topic appeared, grew or was resumed."""
        if after is not None and not after.is_paused:
            for name in self.starts.groups_of(after.name):
                self.core.wake(name)
            self._settle()

    def group_deleted(self, group: str) -> None:
        """A group without members is gone: so is what it has done."""
        known = self.core.groups.get(group)
        if known is not None and not known.members:
            self.starts.forget(known)
            self.core.forget(group)
            self.journal.news.forgot(group)
            self.journal.write()

    def offsets_reset(self, group: str, topics: set[str]) -> None:
        """A group's offsets were reset: it begins anew where they say."""
        known = self.core.groups.get(group)
        if known is None:
            return
        for queue in [queue for queue in known.order if queue.key.topic in topics]:
            offset = self.starts.kept_offset(*queue.key)
            new = self.core.reset(queue.key, offset) if offset >= 0 else None
            if new is not None and not is_volatile(new):
                self.journal.news.reset(new)
        self._settle()

    def needs(self) -> Iterator[QueueNeed]:
        """What groups have yet to be done with; on any thread."""
        for group in list(self.core.groups.values()):
            seen_ms = time.time_ns() // 1_000_000 if group.members else group.left_ms
            for queue in list(group.order):
                key = queue.key
                yield QueueNeed(f"group {key.group}", seen_ms, key.topic, key.queue_id, queue.floor)

    def floor(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset below which a group is done with a queue; None = it never read it."""
        known = self.core.groups.get(group)
        queue = None if known is None else known.queues.get((topic, queue_id))
        return None if queue is None else queue.floor

    # Members

    def open(self, request: Request) -> None:
        """SHARED_OPEN: answered when it is durable where the group begins."""
        header = request.header(SharedOpenRequest)
        self._check_open(header)

        def ensured(error: HoldMQError | None) -> None:
            try:
                if error is not None:
                    raise error
                if not request.connection.is_closed:
                    self._join(request, header)
            except HoldMQError as refusal:
                request.refuse(refusal)

        self._gate.ensure(header.group, SHARED, ensured)

    def _join(self, request: Request, header: SharedOpenRequest) -> None:
        wanted = self._check_open(header)
        group = self.core.group(header.group)
        started = self.starts.subscribe(
            group, wanted, header.start, header.is_own_start, frozenset(map(str, header.begun))
        )
        member = self.core.join(group.name, request.connection, header.ready_max, header.invisible_ms, wanted)
        member.joined_ms = time.time_ns() // 1_000_000
        self._members.setdefault(request.connection, {})[member.member_id] = member
        self._readers.subscribe(request.connection, SHARED, group.name, wanted, member.member_id)
        unsaved = [queue for queue in group.order if queue.key in self.starts.unsaved]
        if not unsaved:
            request.reply(SharedOpenResponse(member.member_id, started))
            return
        for queue in unsaved:
            self.journal.news.began(queue)

        def written(error: StorageError | None) -> None:
            if error is None:
                self.starts.unsaved.difference_update([queue.key for queue in unsaved])
                request.reply(SharedOpenResponse(member.member_id, started))
                return
            self._drop(member)
            request.refuse(error)

        self.journal.write(written)

    def _check_open(self, header: SharedOpenRequest) -> dict[str, SubscriptionFilter]:
        fault = group_fault(header.group)
        if fault is not None:
            raise RemoteError(Code.GROUP_INVALID, fault)
        if self._is_draining:
            raise RemoteError(Code.SHUTTING_DOWN, "the broker is draining")
        if not 1 <= header.ready_max <= READY_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"ready_max {header.ready_max}; 1 to {READY_MAX} are possible"
            )
        _check_invisible(header.invisible_ms)
        if header.start not in (EARLIEST, LATEST):
            raise RemoteError(Code.MISSING_FIELD, f"start {header.start!r} is not earliest or latest")
        if len(self.core.members) >= MEMBERS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{MEMBERS_MAX} members of shared groups at this broker")
        if sum(len(group.order) for group in self.core.groups.values()) >= QUEUES_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"shared groups read {QUEUES_MAX} queues at this broker")
        return self._check_subscriptions(header.group, rows(GroupSubscription, header.subscriptions))

    def _check_subscriptions(
        self, name: str, subscriptions: list[GroupSubscription]
    ) -> dict[str, SubscriptionFilter]:
        if not 1 <= len(subscriptions) <= SUBSCRIPTIONS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {SUBSCRIPTIONS_MAX} topics can be subscribed to")
        known = self.core.groups.get(name)
        wanted: dict[str, SubscriptionFilter] = {}
        for topic, text in subscriptions:
            fault = topic_fault(topic)
            if fault is not None:
                raise RemoteError(Code.TOPIC_INVALID, fault)
            wanted[topic] = SubscriptionFilter(text)
            other = known.filters.get(topic) if known is not None and known.members else None
            if other is not None and other.text != text:
                raise RemoteError(
                    Code.MODE_CONFLICT,
                    f"members of group {name!r} read {topic!r} with filter {other.text!r}, not {text!r}",
                )
        wanted[retry_topic(name)] = SubscriptionFilter(ALL)
        return wanted

    def close_member(self, request: Request) -> None:
        """SHARED_CLOSE: what the member has comes again, as if it never had it."""
        self._drop(self._member(request.connection, request.header(SharedCloseRequest).member_id))
        request.reply(Empty())
        self._settle()

    def _drop(self, member: SharedGroupMember) -> None:
        """End a member whose connection lives."""
        connection = member.owner
        assert isinstance(connection, Connection)
        self._release_pull(member)
        self.core.leave(member, self._loop.time(), False)
        members = self._members.get(connection, {})
        members.pop(member.member_id, None)
        if not members:
            self._members.pop(connection, None)
        self._member_left(member)

    def _release_pull(self, member: SharedGroupMember) -> None:
        parked = self.core.unpark(member)
        if parked is not None:
            assert isinstance(parked.owner, HeldPull)
            self.pulls.reply(parked.owner, [])

    def _member_left(self, member: SharedGroupMember) -> None:
        """A temporary group goes with its last member."""
        group = member.group
        assert isinstance(member.owner, Connection)
        self._readers.unsubscribe(member.owner, group.name, member.member_id)
        if group.members:
            return
        group.left_ms = time.time_ns() // 1_000_000
        if is_temporary(group.name):
            self.starts.forget(group)
            self.core.forget(group.name)

    def _member(self, connection: Connection, member_id: int) -> SharedGroupMember:
        member = self._members.get(connection, {}).get(member_id)
        if member is None:
            raise RemoteError(Code.RECEIPT_UNKNOWN, f"member {member_id} is not open on this connection")
        return member

    # Pull, ack, nack, extend

    def pull(self, request: Request) -> None:
        """SHARED_PULL: answered now, from the reader pool, or after a hold."""
        header = request.header(SharedPullRequest)
        member = self._member(request.connection, header.member_id)
        if header.invisible_ms:
            _check_invisible(header.invisible_ms)
        if header.messages_max < 1:
            raise RemoteError(Code.LIMIT_EXCEEDED, "a SHARED_PULL asks for at least one message")
        if member.is_pulling:
            raise RemoteError(Code.LIMIT_EXCEEDED, "a member has one SHARED_PULL at a time")
        if not is_temporary(member.group.name):
            self._gate.admit_pull(member.group.name)
        self._readers.seen(request.connection, member.group.name, member.member_id)
        member.is_pulling = True
        self.pulls.begin(request, header, member)
        self._settle()

    def ack(self, request: Request) -> None:
        """SHARED_ACK: answered when the log has it."""
        header = request.header(SharedAckRequest)
        member = self._member(request.connection, header.member_id)
        refused: list[SharedRange] = []
        masks: dict[int, SettlingMember] = {}
        for row in _bounded(rows(SharedRange, header.ranges)):
            settling = self.core.settle(member, row.receipt, row.offset, row.messages)
            if settling is None or settling.mask.bit_count() != row.messages:
                refused.append(row)
            if settling is not None:
                known = masks.get(row.receipt)
                if known is not None:
                    settling = SettlingMember(settling.delivery, settling.mask | known.mask)
                masks[row.receipt] = settling
        kept: list[SettlingMember] = []
        for settling in masks.values():
            queue = settling.delivery.queue
            if is_volatile(queue):
                self.core.settled(settling)
            else:
                kept.append(settling)
                self.journal.news.acknowledged(queue, settling.delivery.first, settling.mask)
        if kept:
            self.journal.write(partial(self._acknowledged, request, kept, refused))
        else:
            request.reply(SharedSettleResponse(refused))
        self._settle()

    def _acknowledged(
        self,
        request: Request,
        kept: list[SettlingMember],
        refused: list[SharedRange],
        error: StorageError | None,
    ) -> None:
        for settling in kept:
            if error is None:
                self.core.settled(settling)
            else:
                self.core.unsettled(settling, self._loop.time())
        if error is None:
            request.reply(SharedSettleResponse(refused))
        else:
            request.refuse(error)
        self._settle()

    def nack(self, request: Request) -> None:
        """SHARED_NACK: answered at once; the messages come again after their delay."""
        header = request.header(SharedNackRequest)
        member = self._member(request.connection, header.member_id)
        wanted = _bounded(rows(SharedNack, header.ranges))
        for row in wanted:
            if not 0 <= row.delay_ms <= NACK_DELAY_MAX_MS:
                raise RemoteError(
                    Code.DELAY_INVALID, f"a delay of {row.delay_ms} ms; 0 to a year is possible"
                )
        now = self._loop.time()
        refused = [
            SharedRange(receipt, offset, messages)
            for receipt, offset, messages, delay_ms in wanted
            if self.core.nack(member, receipt, offset, messages, delay_ms, now, header.is_attempt) != messages
        ]
        request.reply(SharedSettleResponse(refused))
        self._settle()

    def extend(self, request: Request) -> None:
        """SHARED_EXTEND: answered at once."""
        header = request.header(SharedExtendRequest)
        member = self._member(request.connection, header.member_id)
        _check_invisible(header.invisible_ms)
        deadline = self._loop.time() + header.invisible_ms / 1e3
        refused = [
            row
            for row in _bounded(rows(SharedRange, header.ranges))
            if self.core.extend(member, row.receipt, row.offset, row.messages, deadline) != row.messages
        ]
        request.reply(SharedSettleResponse(refused))
        self._settle()

    def state(self, request: Request) -> None:
        """SHARED_STATE: what groups have done, and what they have in hand."""
        name = request.header(SharedStateRequest).group
        groups = [group for group in self.core.groups.values() if name in ("", group.name)]
        request.reply(state_of(groups, self.core.full, self._queues.bounds, self._hello_of))

    # What steps lead to

    def _settle(self) -> None:
        """Write down, move and serve what the last steps led to; set the timer."""
        if self._is_settling:
            return
        self._is_settling = True
        try:
            while self.core.outcome:
                outcome = self.core.take_outcome()
                for attempted in outcome.attempted:
                    if not is_volatile(attempted[0]):
                        self.journal.news.attempted(*attempted)
                for back in outcome.back:
                    self._count(back)
                for queue in outcome.filled:
                    warn_of_full(queue)
                for queue, messages in outcome.behind:
                    warn_of_behind(queue, messages)
                self.moves.start(outcome.moving)
                for group in outcome.woken.values():
                    self.pulls.pump(group)
            if self.journal.news:
                self.journal.write()
        finally:
            self._is_settling = False
        self._set_timer()

    def _count(self, back: MessagesBack) -> None:
        key = back.queue.key
        counts = self._statistics.of_group(key.group, key.topic)
        counts.requeued += back.messages if back.is_again else 0
        counts.timed_out += back.messages if back.why is Comeback.TIMED_OUT else 0
        counts.given_back += back.messages if back.why is Comeback.GIVEN_BACK else 0

    def _capture(self) -> list[Entry]:
        tried = self.core.tried()
        return [
            snapshot_entry(queue, tried.get(queue.key, ()))
            for group in self.core.groups.values()
            for queue in group.order
            if not is_volatile(queue) and queue.key not in self.starts.unsaved
        ]

    # The timer

    def _set_timer(self) -> None:
        at = self.core.deadlines.next()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now - self._timer_at > LATE_S:
            self._timer_at = now + LATE_GRACE_S
            self._timer = self._loop.call_at(self._timer_at, self._deadline_reached)
            return
        for parked in self.core.expire(now):
            assert isinstance(parked.owner, HeldPull)
            self.pulls.reply(parked.owner, [])
        self._settle()


def _check_invisible(invisible_ms: int) -> None:
    if not INVISIBLE_MIN_MS <= invisible_ms <= INVISIBLE_MAX_MS:
        raise RemoteError(
            Code.DELAY_INVALID,
            f"an invisible time of {invisible_ms} ms; {INVISIBLE_MIN_MS} to {INVISIBLE_MAX_MS} are possible",
        )


def _bounded(found: Sequence[Any]) -> Sequence[Any]:
    if not 1 <= len(found) <= RANGES_MAX:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {RANGES_MAX} rows are possible")
    return found
