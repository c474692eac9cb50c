"""Which messages a worker gets next, and what becomes of those that failed. No IO: time is an argument.

A job is one message, or as many as a handler takes at once, all of one queue. Concurrent: jobs of any queue,
in turn. Ordered: one job of a queue at a time, and one that failed goes before all others of its queue once
its pause has passed.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from holdmq.client.own_words import shorten
from holdmq.client.process_queue import ProcessQueue, TakenRecord
from holdmq.client.rebalance import HeldLease
from holdmq.client.subscriptions import TagFilter
from holdmq.errors import HoldMQError
from holdmq.message import Message, TopicQueue
from holdmq.record.codec import decode_record, tag_of_record
from holdmq.record.origin import RETRY_PREFIX, value_in

LATER_MAX: Final = 1_000
"""Failed messages that wait here for their next try; past it nothing new is handed out."""
LOOK_AGAIN_S: Final = 1.0
"""How soon a failed message is looked at again whose queue is paused."""
LOOK_MAX: Final = 1_000
"""Records looked at in one go that no subscription wants: then other queues get their turn."""

log = structlog.get_logger("holdmq.client")


class HandedJob:
    """Messages of one queue in a worker's hands, in their order, and how often their handler failed here."""

    __slots__ = ("failures", "messages", "process", "taken")

    def __init__(self, process: ProcessQueue, taken: list[TakenRecord], messages: list[Message]) -> None:
        self.process = process
        self.taken = taken
        self.messages = messages
        self.failures = 0

    @property
    def first(self) -> Message:
        """The only message, or the one that was stored first."""
        return self.messages[0]


class HandOut:
    """Takes messages from `queues` (the caller's dict, which it changes).

    `on_room(process)`: records left a queue's buffer. `filters` are by topic. A queue is handed out only
    while its lease lasts (`add` without one: for ever). `batch_max`: messages of a job at most. `tenant`: in
    whose words topics are said.
    """

    def __init__(
        self,
        queues: Mapping[TopicQueue, ProcessQueue],
        filters: Mapping[str, TagFilter],
        is_ordered: bool,
        on_room: Callable[[ProcessQueue], None],
        batch_max: int = 1,
        tenant: str = "",
    ) -> None:
        self.is_paused = False
        self.paused_brokers: set[str] = set()
        self.undecodable = 0
        self.filtered = 0
        self._queues = queues
        self._filters = filters
        self._is_ordered = is_ordered
        self._on_room = on_room
        self._batch_max = batch_max
        self._tenant = tenant
        self._ready: deque[ProcessQueue] = deque()
        self._in_ready: set[int] = set()
        self._leases: dict[TopicQueue, HeldLease] = {}
        self._later: list[tuple[float, int, HandedJob]] = []
        self._count = itertools.count()
        self._busy: dict[TopicQueue, int] = {}
        """Ordered: jobs of a queue that are in hand, those of an earlier lease too."""

    @property
    def later(self) -> int:
        """Failed jobs that wait for their next try."""
        return len(self._later)

    @property
    def has_more(self) -> bool:
        """After `take` gave nothing: whether that is because much in a row was not wanted."""
        return bool(self._ready) and not self.is_paused

    def add(self, process: ProcessQueue, lease: HeldLease | None) -> None:
        """A queue may be handed out."""
        if lease is None:
            self._leases.pop(process.queue, None)
        else:
            self._leases[process.queue] = lease

    def offer(self, process: ProcessQueue) -> int:
        """A queue may have something to hand out; how many workers it could keep busy."""
        if id(process) not in self._in_ready and process.has_next:
            self._in_ready.add(id(process))
            self._ready.append(process)
        if self._is_ordered:
            return 0 if self._busy.get(process.queue) else int(process.has_next)
        return -(-process.waiting // self._batch_max) if process.has_next else 0

    def take(self, now: float) -> HandedJob | None:
        """The next job for a worker; None = nothing may be handed out now."""
        if self.is_paused:
            return None
        job = self._take_later(now)
        if job is not None or len(self._later) >= LATER_MAX:
            return job
        for _ in range(len(self._ready)):
            process = self._ready.popleft()
            self._in_ready.discard(id(process))
            if not self._may_hand_out(process, now):
                continue
            job = self._next(process)
            if process.has_next and (job is None or not self._is_ordered):
                self._in_ready.add(id(process))
                self._ready.append(process)
            if job is not None:
                process.running += 1
                if self._is_ordered:
                    self._busy[process.queue] = self._busy.get(process.queue, 0) + 1
                return job
        return None

    def finished(self, job: HandedJob) -> None:
        """A job is over for good; call `offer` too."""
        for taken in job.taken:
            job.process.finish(taken.offset)
        self.let_go(job)

    def keep(self, job: HandedJob, indexes: Sequence[int]) -> None:
        """Of a job's messages, all but these (at least one) are over for good."""
        kept = set(indexes)
        for index, taken in enumerate(job.taken):
            if index not in kept:
                job.process.finish(taken.offset)
        job.taken = [job.taken[index] for index in indexes]
        job.messages = [job.messages[index] for index in indexes]

    def let_go(self, job: HandedJob) -> None:
        """A job is out of its worker's hands."""
        process = job.process
        process.running -= 1
        if self._is_ordered:
            left = self._busy[process.queue] - 1
            if left:
                self._busy[process.queue] = left
            else:
                del self._busy[process.queue]

    def retry(self, job: HandedJob, at: float) -> None:
        """Hand a failed job out again at this time; ordered: its queue waits for that."""
        job.failures += 1
        for message in job.messages:
            message.reconsume_times += 1
        self.let_go(job)
        heapq.heappush(self._later, (at, next(self._count), job))
        if self._is_ordered:
            self._busy[job.process.queue] = self._busy.get(job.process.queue, 0) + 1

    def forget(self, process: ProcessQueue) -> None:
        """A queue is stopped or lost: its failed jobs are not tried again here."""
        gone = [entry for entry in self._later if entry[2].process is process]
        if gone:
            self._later = [entry for entry in self._later if entry[2].process is not process]
            heapq.heapify(self._later)
            if self._is_ordered:
                self._busy.pop(process.queue, None)
        if self._queues.get(process.queue) in (None, process):
            self._leases.pop(process.queue, None)

    def next_retry(self) -> float | None:
        """When a failed job is due; None = none waits."""
        return self._later[0][0] if self._later else None

    # Inside

    def _take_later(self, now: float) -> HandedJob | None:
        while self._later and self._later[0][0] <= now:
            job = self._later[0][2]
            if self._may_hand_out(job.process, now, is_retry=True):
                heapq.heappop(self._later)
                job.process.running += 1
                return job
            heapq.heapreplace(self._later, (now + LOOK_AGAIN_S, next(self._count), job))
        return None

    def _may_hand_out(self, process: ProcessQueue, now: float, is_retry: bool = False) -> bool:
        queue = process.queue
        if self._queues.get(queue) is not process or process.is_stopped:
            return False
        if queue.broker in self.paused_brokers:
            return False
        lease = self._leases.get(queue)
        if lease is not None and lease.expires_at <= now:
            return False
        return is_retry or not (self._is_ordered and self._busy.get(queue))

    def _next(self, process: ProcessQueue) -> HandedJob | None:
        wanted = self._filters[process.queue.topic]
        records: list[TakenRecord] = []
        messages: list[Message] = []
        for _ in range(LOOK_MAX):
            taken = process.take()
            if taken is None:
                break
            message = self._message(process.queue, taken, wanted)
            if message is None:
                process.finish(taken.offset)
                continue
            records.append(taken)
            messages.append(message)
            if len(messages) >= self._batch_max:
                break
        self._on_room(process)
        return HandedJob(process, records, messages) if messages else None

    def _message(self, queue: TopicQueue, taken: TakenRecord, wanted: TagFilter) -> Message | None:
        try:
            if not wanted.is_everything and not wanted.passes(tag_of_record(taken.records, taken.at)):
                self.filtered += 1
                return None
            record = decode_record(taken.records, taken.at)
            message = record.to_message(queue.broker)
        except (HoldMQError, UnicodeDecodeError) as error:
            # Brokers refuse such records; one that is there all the same must not hold up the others.
            self.undecodable += 1
            log.error("a record cannot be decoded", queue=str(queue), offset=taken.offset, reason=str(error))
            return None
        if queue.topic.startswith(RETRY_PREFIX):
            message.topic = value_in(record.properties, "REAL_TOPIC") or message.topic
        if self._tenant:
            shorten(self._tenant, message)
        return message
