"""PULL: read many queues at once, and hold the request when there is nothing.

A pull is answered at once when any queue has something to say: messages, a refusal, or a
cursor that rejected messages moved. Otherwise it is parked (broker.reading.core.hold) and answered by
an arrival that its filter passes, or at its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from broker.kernel.core.filters import FilterSet
from broker.kernel.request_family import RequestFamily
from broker.kernel.statistics import Statistics
from broker.reading.core.far_reads import NextReads
from broker.reading.core.hold import Hold, ParkedPull
from broker.reading.replica_queues import QueuesAtReplica, moved_read, newer_epoch
from broker.retry.core.moves import may_pull
from broker.topics.core.table import Topic, TopicTable
from holdmq.credentials.access_keys import Grants
from holdmq.credentials.permissions import Action
from holdmq.errors import Code, HoldMQError, RemoteError, WireError
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    FilterSetRequest,
    FilterSetResponse,
    FilterTerm,
    PulledQueue,
    PullQueue,
    PullRequest,
    PullResponse,
)
from holdmq.wire.reader_headers import PULL
from holdmq.wire.replica_reads import ReplicaReads
from storage.api.batches import Batch
from storage.api.queues import HashFilter, QueueRead, ReadStatus
from storage.api.store import OrderedStore

PULL_MAX_BYTES: Final = 8 << 20
"""Largest PULL answer (but always one record): what a reader can take in one piece."""
PULL_MAX_RECORDS: Final = 65_536
PULL_QUEUES_MAX: Final = 16_384
HOLD_MAX_MS: Final = 120_000
"""Longest hold: within the idle time that firewalls give a connection."""
FILTERS_MAX: Final = 1_024
"""Registered filters per connection."""

_STATUS: Final = {
    ReadStatus.FOUND: Code.OK,
    ReadStatus.AT_END: Code.OK,
    ReadStatus.AHEAD: Code.OFFSET_AHEAD,
    ReadStatus.BEHIND: Code.OFFSET_BEHIND,
    ReadStatus.CORRUPT: Code.CORRUPT,
}


class PullInHand:
    """A PULL in hand: its request, and what its header says; `queues` as they were asked for.

    `place`: which of the replicas may be named; `moved`: answers of queues that are for it alone, by index.
    """

    __slots__ = (
        "filter_id",
        "generations",
        "group",
        "hold_ms",
        "is_replay",
        "max_bytes",
        "moved",
        "place",
        "queues",
        "replica",
        "replica_reads",
        "request",
    )

    def __init__(self, request: Request, header: PullRequest, queues: list[PullQueue]) -> None:
        self.request = request
        self.queues = queues
        self.max_bytes = max(1, min(header.max_bytes, PULL_MAX_BYTES))
        self.hold_ms = min(header.hold_ms, HOLD_MAX_MS)
        self.filter_id = header.filter_id
        self.group = header.group
        self.generations: list[int] = header.generations
        self.is_replay = header.is_replay
        self.replica_reads = header.replica_reads
        self.place = 1
        self.replica = ""
        self.moved: dict[int, QueueRead] = {}


class PullGate(Protocol):
    """What a group's pulls are asked for; who reads for no group passes."""

    def admit_pull(self, group: str) -> None:
        """Raise RemoteError when the group must not pull."""

    def is_paused(self, group: str) -> bool:
        """Whether its pulls are to get nothing now."""

    def is_fenced(
        self, connection: Connection, group: str, topic: str, queue_id: int, generation: int
    ) -> bool:
        """Whether this connection may not read this queue under this generation (0 = none)."""

    def slow_reads_place(self, group: str) -> int:
        """Which of the replicas in sync answers what is far behind, from 1 on; 0 = the leader does."""


class TellsReaders(Protocol):
    """Told of who reads (broker.readers)."""

    def seen(self, connection: Connection, group: str, member_id: int = 0) -> bool:
        """A member of a group reads; False = it is none."""

    def asked(self, connection: Connection, kind: str, topics: Iterable[str], group: str = "") -> None:
        """A connection asks for messages of these topics, which exist."""


class Pull(RequestFamily):
    """Handles PULL and FILTER_SET for one broker."""

    def __init__(
        self,
        store: OrderedStore,
        topics: TopicTable,
        statistics: Statistics,
        gate: PullGate,
        readers: TellsReaders,
        next_reads: NextReads,
    ) -> None:
        self.hold: Hold[PullInHand] = Hold()
        self.cold_reads = 0
        self._store = store
        self._topics = topics
        self._statistics = statistics
        self._filters: dict[Connection, dict[int, FilterSet]] = {}
        self._parked: dict[Connection, dict[int, ParkedPull[PullInHand]]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._gate = gate
        self._readers = readers
        self._next_reads = next_reads

    def handle(self, request: Request) -> None:
        """Answer one PULL, now, from the reader pool, or after a hold."""
        header = request.header(PullRequest)
        queues = rows(PullQueue, header.queues)
        if not 1 <= len(queues) <= PULL_QUEUES_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"a PULL names 1 to {PULL_QUEUES_MAX} queues")
        asked = PullInHand(request, header, queues)
        self._filter_of(asked)
        if asked.group:
            if len(asked.generations) not in (0, len(queues)):
                raise WireError("PullRequest: generations are one per queue, or none", Code.MISSING_FIELD)
            self._gate.admit_pull(asked.group)
            asked.place = self._gate.slow_reads_place(asked.group)
        if not (asked.group and self._readers.seen(request.connection, asked.group)):
            found = topics_to_read(self._topics, queues, request.connection.grants)
            self._readers.asked(request.connection, PULL, found, asked.group)
        if self._next_reads.is_copy:
            asked.hold_ms = 0  # what comes next is the leader's
        elif asked.replica_reads == ReplicaReads.PREFER:
            self._move(asked)
        if asked.hold_ms > 0 and not asked.moved and self._has_nothing(asked):
            self._park(asked)
        else:
            self._serve(asked, asked.hold_ms > 0)

    def set_filter(self, request: Request) -> None:
        """FILTER_SET: register or change a filter of this connection."""
        header = request.header(FilterSetRequest)
        filters = self._filters.setdefault(request.connection, {})
        if header.filter_id not in filters and len(filters) >= FILTERS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{FILTERS_MAX} filters on one connection")
        wanted = filters.setdefault(header.filter_id, FilterSet())
        wanted.change(rows(FilterTerm, header.add), rows(FilterTerm, header.remove))
        request.reply(FilterSetResponse(self._store.confirmed_position, self._store.epoch))

    def confirmed(self, batches: list[Batch]) -> None:
        """Messages became visible: answer the parked pulls that want them."""
        if not self.hold.size:
            return
        woken: list[ParkedPull[PullInHand]] = []
        for batch in batches:
            for run in batch.runs:
                topic = self._topics.get(run.topic)
                if topic is None or not topic.is_paused:
                    woken += self.hold.arrived(run.topic, run.queue_id, run.hashes)
        for parked in woken:
            self._answer_parked(parked, True)

    def topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        """Pulls that are parked on queues whose topic is resumed, may not be read or is gone look again."""
        if before is None or not self.hold.size:
            return
        is_shown = after is not None and after.is_readable and not (before.is_paused and not after.is_paused)
        first = after.read_queues if after is not None and is_shown else 0
        for queue_id in range(first, before.read_queues):
            for parked in self.hold.withdraw(before.name, queue_id):
                self._answer_parked(parked, True)

    def fenced(self, connection: Connection, group: str, queues: list[tuple[str, int]]) -> None:
        """A connection's leases on these queues ended: answer what it has parked on them."""
        ended = set(queues)
        for parked in list(self._parked.get(connection, {}).values()):
            asked = parked.owner
            if asked.group == group and any((q.topic, q.queue_id) in ended for q in asked.queues):
                self.hold.cancel(parked)
                self._answer_parked(parked, False)

    def group_paused(self, group: str, is_paused: bool) -> None:
        """A group was paused or resumed: its parked pulls look again."""
        waiting = [p for of_one in self._parked.values() for p in of_one.values()]
        for parked in waiting:
            if parked.owner.group == group and not parked.is_done:
                self.hold.cancel(parked)
                self._answer_parked(parked, True)

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.PULL: self.handle, RequestCode.FILTER_SET: self.set_filter}

    def numbers(self) -> Mapping[str, int]:
        return {"pulls_parked": self.hold.size, "pulls_cold_total": self.cold_reads}

    def closed(self, connection: Connection) -> None:
        """The connection closed: its filters and parked pulls go."""
        self._filters.pop(connection, None)
        for parked in self._parked.pop(connection, {}).values():
            self.hold.cancel(parked)

    def release_all(self) -> None:
        """Draining: answer everything that is parked with what there is."""
        for waiting in list(self._parked.values()):
            for parked in list(waiting.values()):
                self.hold.cancel(parked)
                self._answer_parked(parked, False)

    # Serving

    def _move(self, asked: PullInHand) -> None:
        """Note which queues are a replica's, for who prefers one: all that may be read and have more."""
        asked.replica = self._next_reads.next_at(asked.replica_reads, asked.place, None)
        if not asked.replica:
            return
        for at, queue in enumerate(asked.queues):
            moved = moved_read(self._store, self._topics, queue) if self._admit(asked, at) is None else None
            if moved is not None:
                asked.moved[at] = moved

    def _has_nothing(self, asked: PullInHand) -> bool:
        """Whether every queue may be read and is at its end: most pulls are, and a read costs more."""
        epoch = self._store.epoch
        for at, queue in enumerate(asked.queues):
            known = self._admit(asked, at)
            if isinstance(known, RemoteError):
                return False
            if known is None:
                if 0 < queue.log_epoch < epoch:
                    return False  # whether the offset is still what it was has to be looked up
                if queue.offset != self._store.bounds(queue.topic, queue.queue_id)[1]:
                    return False
        return True

    def _serve(self, asked: PullInHand, may_hold: bool) -> None:
        began_at = self._loop.time()
        reads = self._read(asked)
        if reads is None:
            self._serve_cold(asked, began_at)
        elif may_hold and _are_at_end(asked.queues, reads):
            self._park(asked)
        else:
            self._reply(asked, reads, began_at)

    def _read(self, asked: PullInHand) -> list[QueueRead | RemoteError] | None:
        """One result per queue from memory; None when one of them needs the disk."""
        reads: list[QueueRead | RemoteError] = []
        left = asked.max_bytes
        for at, queue in enumerate(asked.queues):
            known = self._admit(asked, at)
            if known is not None:
                reads.append(known)
                continue
            wanted = self._hash_filter(asked, queue.topic)
            read = self._store.read_queue(
                queue.topic, queue.queue_id, queue.log_epoch, queue.offset, left, PULL_MAX_RECORDS, wanted
            )
            if read is None:
                return None
            reads.append(read)
            left -= read.size_bytes
            if left <= 0:
                break
        return reads

    def _serve_cold(self, asked: PullInHand, began_at: float) -> None:
        request = asked.request
        self.cold_reads += 1
        plans = [
            (q, self._admit(asked, at), self._hash_filter(asked, q.topic))
            for at, q in enumerate(asked.queues)
        ]

        def read_all() -> list[QueueRead | RemoteError]:
            reads: list[QueueRead | RemoteError] = []
            left = asked.max_bytes
            for queue, known, wanted in plans:
                read = known or self._store.read_queue_cold(
                    queue.topic, queue.queue_id, queue.log_epoch, queue.offset, left, PULL_MAX_RECORDS, wanted
                )
                reads.append(read)
                if isinstance(read, QueueRead):
                    left -= read.size_bytes
                if left <= 0:
                    break
            return reads

        future = self._loop.run_in_executor(self._store.reader_pool, read_all)

        def done(finished: asyncio.Future[list[QueueRead | RemoteError]]) -> None:
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                reads = finished.result()
                # A lease may have ended meanwhile: its queue may be somebody else's by now.
                fenced = [self._fence(asked, at) or read for at, read in enumerate(reads)]
                self._reply(asked, fenced, began_at)
            elif isinstance(error, HoldMQError):
                request.refuse(error)
            else:
                request.refuse(RemoteError(Code.SYSTEM_ERROR, f"the read failed: {error}"))
                raise error

        future.add_done_callback(done)

    def _reply(self, asked: PullInHand, reads: list[QueueRead | RemoteError], began_at: float) -> None:
        took_us = int((self._loop.time() - began_at) * 1e6)
        pulled: list[PulledQueue] = []
        parts: list[memoryview] = []
        size = messages = 0
        at_replica = QueuesAtReplica(self._next_reads, asked.replica_reads, asked.place, asked.replica)
        for at, (queue, read) in enumerate(zip(asked.queues, reads, strict=False)):
            if isinstance(read, RemoteError):
                pulled.append(refused_queue(queue, read))
                continue
            if at in asked.moved:
                at_replica.moved(at)
            elif asked.replica_reads:
                at_replica.was_read(at, queue.offset, read)
            parts += read.parts
            size += read.size_bytes
            messages += read.count
            pulled.append(
                pulled_queue(self._statistics, queue, read, read.count, took_us, is_replay=asked.is_replay)
            )
            if read.count and asked.group:
                counts = self._statistics.of_group(asked.group, queue.topic)
                counts.taken(read.count, read.size_bytes, is_replay=asked.is_replay)
        if messages:
            source = self._statistics.of_connection(asked.request.connection)
            source.taken(messages, size, is_replay=asked.is_replay)
        answer = PullResponse(pulled, self._store.epoch, at_replica.replica, at_replica.indices)
        asked.request.reply(answer, parts, size)

    def _admit(self, asked: PullInHand, at: int) -> QueueRead | RemoteError | None:
        """The answer for a queue that is not to be read: refused, or of a paused group; None = read it."""
        queue = asked.queues[at]
        topic = topic_to_pull(self._topics, queue, asked.group, asked.request.connection.grants)
        if isinstance(topic, RemoteError):
            return topic
        if self._next_reads.is_copy and queue.log_epoch > self._store.epoch:
            return newer_epoch(queue)
        if at in asked.moved:
            return asked.moved[at]
        # As if nothing had come: what a paused topic keeps is read when it is resumed.
        known = self._at_end(queue) if topic.is_paused else self._fence(asked, at)
        return self._at_end(queue) if known is None and self._is_paused(asked) else known

    def _at_end(self, queue: PullQueue) -> QueueRead:
        first, end = self._store.bounds(queue.topic, queue.queue_id)
        return QueueRead(ReadStatus.AT_END, queue.offset, first, end)

    def _fence(self, asked: PullInHand, at: int) -> RemoteError | None:
        """The refusal of a queue that is read for a group without a valid lease."""
        if not asked.group:
            return None
        queue = asked.queues[at]
        generation = asked.generations[at] if asked.generations else 0
        connection = asked.request.connection
        if not self._gate.is_fenced(connection, asked.group, queue.topic, queue.queue_id, generation):
            return None
        return RemoteError(Code.GROUP_FENCED, f"{queue.topic}/{queue.queue_id} generation {generation}")

    def _is_paused(self, asked: PullInHand) -> bool:
        return bool(asked.group) and self._gate.is_paused(asked.group)

    # Filters

    def _filter_of(self, asked: PullInHand) -> FilterSet | None:
        if asked.filter_id is None:
            return None
        wanted = self._filters.get(asked.request.connection, {}).get(asked.filter_id)
        if wanted is None:
            raise RemoteError(Code.FILTER_UNKNOWN, f"filter {asked.filter_id} is not registered here")
        return wanted

    def _hash_filter(self, asked: PullInHand, topic: str) -> HashFilter | None:
        wanted = self._filter_of(asked)
        if wanted is None:
            return None
        parts = wanted.of_topic(topic)
        if any(p.all or p.mqtt is not None for p in parts):
            return None  # the tag itself decides, and the reader has it
        exact = {h for p in parts for h in p.exact}
        prefixes = {h for p in parts for h in p.prefix}
        return HashFilter(sorted(exact), sorted(prefixes))

    # Hold

    def _park(self, asked: PullInHand) -> None:
        # Many wait for long, and a topic's name is there already.
        asked.request.let_go()
        for at, queue in enumerate(asked.queues):
            topic = self._topics.get(queue.topic)
            if topic is not None and topic.name is not queue.topic:
                asked.queues[at] = PullQueue(topic.name, queue.queue_id, queue.log_epoch, queue.offset)
        deadline = self._loop.time() + asked.hold_ms / 1e3
        # Arrivals are nothing to a group that is paused.
        keys = () if self._is_paused(asked) else tuple({(q.topic, q.queue_id) for q in asked.queues})
        parked = ParkedPull(asked, keys, self._filter_of(asked), deadline)
        if not self.hold.park(parked):
            self._serve(asked, False)
            return
        self._parked.setdefault(asked.request.connection, {})[id(parked)] = parked
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)

    def _answer_parked(self, parked: ParkedPull[PullInHand], may_hold: bool) -> None:
        connection = parked.owner.request.connection
        waiting = self._parked.get(connection)
        if waiting is not None:
            waiting.pop(id(parked), None)
            if not waiting:
                del self._parked[connection]
        if not connection.is_closed:
            self._serve(parked.owner, may_hold)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        for parked in self.hold.expire(self._loop.time()):
            self._answer_parked(parked, False)
        deadline = self.hold.next_deadline()
        if deadline is not None and self._timer is None:
            self._set_timer(deadline)


def topic_to_pull(
    topics: TopicTable, queue: PullQueue | ColumnQueue, group: str, grants: Grants | None
) -> Topic | RemoteError:
    """The topic of a queue that may be pulled by this group ("" = none); else the refusal."""
    if grants is not None and not grants.may_consume(queue.topic):
        return grants.topic_denied(Action.CONSUME, queue.topic)
    topic = topics.get(queue.topic)
    if topic is None:
        return RemoteError(Code.TOPIC_UNKNOWN, queue.topic)
    if not 0 <= queue.queue_id < topic.read_queues:
        return RemoteError(Code.QUEUE_UNKNOWN, f"{queue.topic}/{queue.queue_id}")
    if not topic.is_readable or not may_pull(queue.topic, group):
        return RemoteError(Code.TOPIC_PERM, queue.topic)
    return topic


def topics_to_read(
    topics: TopicTable, queues: Iterable[PullQueue | ColumnQueue], grants: Grants | None
) -> list[str]:
    """The topics of these queues that exist and may be read under these grants, each once."""
    names = dict.fromkeys([queue.topic for queue in queues])
    found = [name for name in names if topics.get(name) is not None]
    return found if grants is None else [name for name in found if grants.may_consume(name)]


def refused_queue(queue: PullQueue | ColumnQueue, error: RemoteError) -> PulledQueue:
    """The row of a queue that may not be read."""
    return PulledQueue(queue.topic, queue.queue_id, error.code, queue.offset, 0, 0, 0, 0)


def pulled_queue(
    statistics: Statistics,
    queue: PullQueue | ColumnQueue,
    read: QueueRead,
    count: int,
    took_us: int,
    *,
    is_replay: bool,
) -> PulledQueue:
    """The row of a queue of which `count` records are sent, which go into the statistics."""
    if count:
        counts = statistics.of(queue.topic, queue.queue_id)
        counts.taken(count, read.size_bytes, is_replay=is_replay)
        counts.gets += 1
        counts.get_us += took_us
    return PulledQueue(
        queue.topic,
        queue.queue_id,
        _STATUS[read.status],
        read.next_offset,
        read.first_offset,
        read.end_offset,
        count,
        read.size_bytes,
    )


def _are_at_end(queues: list[PullQueue], reads: list[QueueRead | RemoteError]) -> bool:
    if len(reads) < len(queues):
        return False
    for queue, read in zip(queues, reads, strict=True):
        if not isinstance(read, QueueRead) or read.status is not ReadStatus.AT_END:
            return False
        if read.next_offset != queue.offset:
            return False
    return True
