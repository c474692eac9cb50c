"""The pulls of a push consumer: held at the brokers, for every queue that has room in hand.

A broker may hold several PULLs of a consumer, each for the queues that no other one asks for: a queue
that was just leased, or has room again, need not wait until a held one ends. A queue that is far behind is
pulled from the replica that its broker names, under the lease that the broker gave; it expires here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import structlog

from holdmq.client.process_queue import ProcessQueue
from holdmq.client.registered_filters import RegisteredFilters
from holdmq.client.replica_choice import ReadSource, ReplicaChoice
from holdmq.client.replica_links import ReplicaLink
from holdmq.client.route import Link, RouteTable
from holdmq.client.subscriptions import TagFilter
from holdmq.errors import CODES, Code, HoldMQError, RemoteError, TransportError, WireError
from holdmq.message import TopicQueue
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    PulledQueue,
    PullQueue,
    PullRequest,
    PullResponse,
)
from holdmq.wire.replica_reads import ReplicaReads

HOLD_MS: Final = 5_000
HOLD_MIN_S: Final = 0.05
"""A held PULL may end a little late: those that wait for its end must not spin."""
PULL_MAX_BYTES: Final = 1 << 20
"""Records of one answer: one chunk of a broker's reads."""
PULL_QUEUES_MAX: Final = 1_000
"""Queues of one PULL: fewer than brokers take."""
PULLS_MAX: Final = 8
"""PULLs that one broker holds for one consumer; past it a queue waits until one ends (HOLD_MS)."""
PULL_TIMEOUT_S: Final = 15.0
"""How much later than its hold an answer counts as lost: cold reads come from a disk."""
REST_S: Final = 0.2
"""Pause after a broker or queue failed before it is asked again."""
BUFFER_MAX_BYTES: Final = 64 << 20
"""Records in hand: what 100 MB/s bring while handlers stand still for half a second."""
BUFFER_MAX_MESSAGES: Final = 100_000

log = structlog.get_logger("holdmq.client")


class _AskedLease(NamedTuple):
    process: ProcessQueue
    turn: int
    offset: int


class GroupPulls:
    """Keeps `queues` (the caller's dict, which it changes) supplied; call `pull_soon` after every change.

    `on_put(process)` is called when records came, `on_fenced(process)` when the broker says that
    its lease is another's. `filters` are by topic.
    """

    def __init__(
        self,
        routes: RouteTable,
        group: str,
        queues: Mapping[TopicQueue, ProcessQueue],
        filters: Mapping[str, TagFilter],
        on_put: Callable[[ProcessQueue], None],
        on_fenced: Callable[[ProcessQueue], None],
        buffer_max_bytes: int = BUFFER_MAX_BYTES,
        buffer_max_messages: int = BUFFER_MAX_MESSAGES,
        hold_ms: int = HOLD_MS,
    ) -> None:
        self.is_paused = False
        self.skipped = 0
        """Offsets passed over because nothing can be read there any more."""
        self.answers = 0
        self._routes = routes
        self._group = group
        self._queues = queues
        self._filters = filters
        self._on_put = on_put
        self._on_fenced = on_fenced
        self._buffer_max_bytes = buffer_max_bytes
        self._buffer_max_messages = buffer_max_messages
        self._hold_ms = hold_ms
        self._held: dict[ReadSource, dict[int, float]] = {}
        self._pull_number = 0
        self._rest: dict[str, float] = {}
        self._choice = ReplicaChoice(ReplicaReads.ALLOW)
        self._registered = RegisteredFilters(routes, self._filter_failed)
        routes.replicas.on_up.append(self.pull_soon)
        self._is_soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    def pull_soon(self) -> None:
        """Queues were added, have room again, or may be asked again."""
        if not self._is_soon and not self._is_closed:
            self._is_soon = True
            self._loop.call_soon(self._pull_all)

    def close(self) -> None:
        """Stop the pulls and pull nothing more."""
        if not self._is_closed:
            self._routes.replicas.on_up.remove(self.pull_soon)
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    @property
    def room_bytes(self) -> int:
        """What one queue may have waiting when it is pulled: half its share, as a pull may bring as much."""
        return max(1, self._buffer_max_bytes // (2 * max(1, len(self._queues))))

    def has_room(self, process: ProcessQueue) -> bool:
        """Whether a queue may be pulled."""
        messages = max(1, self._buffer_max_messages // max(1, len(self._queues)))
        return process.waiting < messages and process.waiting_bytes < self.room_bytes

    # Asking

    def _pull_all(self) -> None:
        self._is_soon = False
        if self._is_closed or self.is_paused:
            return
        now = self._loop.time()
        again_at = float("inf")
        ready: dict[ReadSource, list[ProcessQueue]] = {}
        for queue, process in self._queues.items():
            if process.is_asked or process.is_stopped or not self.has_room(process):
                continue
            source = self._choice.source(queue, now)
            rest_until = process.rest_until
            if not source.replica:
                rest_until = max(rest_until, self._rest.get(queue.broker, 0.0))
            if rest_until > now:
                again_at = min(again_at, rest_until)
            else:
                ready.setdefault(source, []).append(process)
        for source, processes in ready.items():
            again_at = min(again_at, self._pull(source, processes, now))
        if again_at < float("inf"):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(again_at, self.pull_soon)

    def _pull(self, source: ReadSource, processes: list[ProcessQueue], now: float) -> float:
        """Ask, if there is a connection; the time at which to look again."""
        held = self._held.setdefault(source, {})
        if len(held) >= PULLS_MAX:
            return float("inf")
        link: Link | ReplicaLink
        if source.replica:
            link = self._routes.replicas.link(source.replica)
            if link.is_failing(now):
                self._choice.failed(source.replica, now)
                return now
        else:
            try:
                link = self._routes.link(source.broker)
            except TransportError:
                return float("inf")
        connection = link.client.connection
        if connection is None:
            # A broker's return starts the queues anew; a replica is not waited for.
            return now + REST_S if source.replica else float("inf")
        # A large answer may cover only the first queues: each gets its turn to be first.
        self._pull_number += 1
        number = self._pull_number
        start = number % len(processes)
        processes = (processes[start:] + processes[:start])[:PULL_QUEUES_MAX]
        asked = [_AskedLease(p, p.turn, p.next_offset) for p in processes]
        for process in processes:
            process.is_asked = True
        hold_s = 0.0 if source.replica else self._hold_ms / 1000
        if held and hold_s:
            # End with the next that ends: then one PULL asks for the queues of both.
            hold_s = min(hold_s, max(HOLD_MIN_S, min(held.values()) - now))
        held[number] = now + hold_s

        def on_reply(reply: Reply | HoldMQError) -> None:
            held.pop(number, None)
            if not held and self._held.get(source) is held:
                del self._held[source]
            self._answered(source, asked, reply)
            self.pull_soon()

        topics = {queue.topic for queue in self._queues if queue.broker == source.broker}
        wanted = {topic: self._filters[topic] for topic in topics}
        request = PullRequest(
            [PullQueue(p.queue.topic, p.queue.queue_id, p.log_epoch, p.next_offset) for p in processes],
            min(PULL_MAX_BYTES, self.room_bytes),
            round(hold_s * 1000),
            self._registered.on(link, connection, wanted),
            self._group,
            [p.generation for p in processes] if any(p.generation for p in processes) else [],
            source.wanted,
        )
        connection.request(RequestCode.PULL, request, on_reply, hold_s + PULL_TIMEOUT_S)
        return float("inf")

    # Answers

    def _answered(self, source: ReadSource, asked: list[_AskedLease], reply: Reply | HoldMQError) -> None:
        for process, turn, _ in asked:
            if process.turn == turn:
                process.is_asked = False
        try:
            if isinstance(reply, HoldMQError):
                raise reply
            header = reply.header(PullResponse)
            answers = rows(PulledQueue, header.queues)
            if len(answers) > len(asked) or sum(a.length_bytes for a in answers) != len(reply.body):
                raise WireError("a PULL answer that does not fit its question or its body")
            now = self._loop.time()
            named = set(header.at_replica)
            for at, ((process, turn, offset), row) in enumerate(zip(asked, answers, strict=False)):
                if process.turn == turn and self._queues.get(process.queue) is process:
                    replica = header.replica if at in named else ""
                    self._choice.took(source, process.queue, offset, row, replica, now)
            self._take(source, asked, answers, header.log_epoch, reply.body)
            self.answers += 1
        except HoldMQError as error:
            if source.replica:
                # Whatever it is, the leader answers.
                self._registered.forget(self._routes.replicas.link(source.replica).name)
                self._choice.failed(source.replica, self._loop.time())
            else:
                self._failed(source.broker, error)

    def _filter_failed(self, link: str, error: HoldMQError) -> None:
        # A replica that does not know the filter refuses the pull as well.
        if any(queue.broker == link for queue in self._queues):
            self._failed(link, error)

    def _failed(self, broker: str, error: HoldMQError) -> None:
        self._rest[broker] = self._loop.time() + REST_S
        if isinstance(error, RemoteError) and error.code == Code.FILTER_UNKNOWN:
            self._registered.forget(broker)
        elif not isinstance(error, TransportError):
            log.warning("a broker refuses to be read", broker=broker, group=self._group, reason=str(error))

    def _take(
        self,
        source: ReadSource,
        asked: list[_AskedLease],
        answers: list[PulledQueue],
        log_epoch: int,
        body: memoryview,
    ) -> None:
        at = 0
        for (process, turn, offset), row in zip(asked, answers, strict=False):
            queue = process.queue
            if (row.topic, row.queue_id) != (queue.topic, queue.queue_id):
                raise WireError(f"a PULL answer names {row.topic}/{row.queue_id} in place of {queue}")
            records = body[at : at + row.length_bytes]
            at += row.length_bytes
            if process.turn != turn or self._queues.get(queue) is not process:
                continue
            if row.status == Code.OK:
                process.put(records, row.records, row.next_offset, log_epoch)
                if row.records:
                    self._on_put(process)
            elif not source.replica:
                self._refused(process, offset, row, log_epoch)

    def _refused(self, process: ProcessQueue, offset: int, row: PulledQueue, log_epoch: int) -> None:
        queue = str(process.queue)
        if row.status == Code.GROUP_FENCED:
            self._on_fenced(process)
        elif row.status == Code.OFFSET_BEHIND and process.is_fresh:
            process.jump(row.next_offset, log_epoch)
        elif row.status in (Code.OFFSET_BEHIND, Code.OFFSET_AHEAD, Code.CORRUPT):
            self.skipped += max(0, row.next_offset - offset)
            log.error("nothing can be read at a group's position; going on elsewhere",
                      group=self._group, queue=queue, offset=offset, next_offset=row.next_offset,
                      reason=CODES[Code(row.status)].meaning)  # fmt: skip
            process.jump(row.next_offset, log_epoch)
        else:
            process.rest_until = self._loop.time() + REST_S
            if row.status in (Code.TOPIC_UNKNOWN, Code.QUEUE_UNKNOWN):
                self._routes.refresh_soon()
            elif row.status != Code.TOPIC_PAUSED:
                log.warning("a queue cannot be read", group=self._group, queue=queue, status=row.status)
