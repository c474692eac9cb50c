"""A member of a group that shares out queues: what it has of them, and how it comes and goes.

In `clustering` the group shares the messages, queue by queue, under the brokers' leases, and brokers
keep its offsets. In `broadcast` every member gets every message and keeps its positions in a file.
Who handles the messages is the subclass's: `Consumer` calls a handler, `GroupPullConsumer` is polled.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import structlog

from holdmq.client.allocation import Allocate, Strategy, strategy_of
from holdmq.client.bounds import queue_bounds
from holdmq.client.cursors import Position
from holdmq.client.group_membership import GroupMembership
from holdmq.client.group_progress import BrokerProgress, FileProgress
from holdmq.client.group_pulls import GroupPulls
from holdmq.client.hand_out import HandedJob, HandOut
from holdmq.client.lifecycle import MISSING_S, FirstStart, GroupConsumer, StartAt, end
from holdmq.client.names import check_topic
from holdmq.client.offset_store import OffsetStore
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.rebalance import Start
from holdmq.client.route import RouteTable
from holdmq.client.settling import Failure, JobSettling
from holdmq.client.subscriptions import TagFilter
from holdmq.client.workers import check_batch_max
from holdmq.errors import Code, HoldMQError, RemoteError, UsageError
from holdmq.message import TopicQueue
from holdmq.names.rooms import room_fault
from holdmq.record.origin import retry_topic
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import BROADCAST, CLUSTERING, GroupSubscription
from holdmq.wire.offset_headers import TO_EARLIEST, TO_LATEST, TO_OFFSET, OffsetResetRequest

REPORT_S: Final = 5.0
"""How often progress is reported: what a crash makes come again is at most what was done since."""
PREPARE_AGAIN_S: Final = 1.0

Mode = Literal["clustering", "broadcast"]

log = structlog.get_logger("holdmq.client")


class QueueMember(GroupConsumer):
    """A member from `start` on. The subclass is told of work by `_offered`, and takes it by `_take`.

    Its settings are those of `Consumer`.
    """

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        topics: Iterable[str] | Mapping[str, str],
        *,
        mode: Mode,
        batch_max: int,
        start: StartAt | None,
        ordered: bool,
        concurrency: int,
        strategy: str | Strategy | Allocate,
        client_id: str,
        routes: RouteTable | None,
        security: Security | None,
        cluster: str,
        buffer_max_bytes: int,
        buffer_max_messages: int,
        offsets_directory: str | Path,
        report_s: float,
        suspend_s: float,
        release_wait_s: float,
        room: str,
        tenant: str,
    ) -> None:
        if mode not in (CLUSTERING, BROADCAST):
            raise UsageError(f"mode {mode!r} is not clustering or broadcast (shared has its own consumer)")
        if (fault := room_fault(room)) is not None:
            raise UsageError(fault)
        self.mode = mode
        self._room = room
        default_id = socket.gethostname() if mode == BROADCAST else f"consumer-{secrets.token_hex(8)}"
        client_id = client_id or (routes.client_id if routes is not None else default_id)
        if routes is not None and routes.client_id != client_id:
            raise UsageError(f"the shared routes are of client {routes.client_id!r}, not {client_id!r}")
        super().__init__(
            registries,
            group,
            client_id,
            routes,
            security,
            cluster,
            tenant,
            start=start,
            concurrency=concurrency,
        )
        self._is_clustering = mode == CLUSTERING
        self._ordered = ordered
        self._report_s = report_s
        self._report_at = 0.0
        self._keep_s = min(MISSING_S, report_s)
        self._filters: dict[str, TagFilter] = {}
        self._queues: dict[TopicQueue, ProcessQueue] = {}
        self._strategy = strategy_of(strategy)
        self._release_wait_s = release_wait_s
        self._buffer = (buffer_max_bytes, buffer_max_messages)
        store = None
        if mode == BROADCAST:
            store = OffsetStore(offsets_directory, client_id, group, tenant=self.tenant)
        self._progress: BrokerProgress | FileProgress = (
            BrokerProgress(self.routes, group, start)
            if store is None
            else FileProgress(self.routes, group, start, store)
        )
        self._ready: set[tuple[str, str]] = set()
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._refusal: HoldMQError | None = None
        check_batch_max(batch_max)
        self._hand_out = HandOut(
            self._queues, self._filters, ordered, self._room_made, batch_max, self.tenant
        )
        self._settling = JobSettling(
            self.routes,
            group,
            self._queues,
            self._hand_out,
            failure=_failure(self._is_clustering, ordered),
            suspend_s=suspend_s,
            on_settled=self._settled,
            wake=self._offered,
        )
        self._pulls: GroupPulls
        self._membership: GroupMembership
        if isinstance(topics, str):
            raise UsageError("topics must be a list of names, or names with filters")
        for topic, text in topics.items() if isinstance(topics, Mapping) else ((t, "*") for t in topics):
            self.subscribe(topic, text)

    # Who handles the messages

    @abstractmethod
    def _offered(self, jobs: int) -> None:
        """`_take` may give so many jobs more."""

    @abstractmethod
    def _running(self) -> int:
        """How many handlers run, or messages are in the caller's hands."""

    @abstractmethod
    async def _stop_work(self, timeout_s: float) -> int:
        """Take nothing more, while the queues are still this member's; how many jobs are late."""

    @abstractmethod
    async def _end_work(self, timeout_s: float) -> int:
        """Wait for what is in hand, as the queues are given back; how many jobs are late."""

    # Life

    def subscribe(self, topic: str, tag_filter: str = "*") -> None:
        """Want messages of a topic too, before `start`; a repeat replaces the filter.

        Raises UsageError for what can be no topic or filter.
        """
        if self._keeper is not None:
            raise UsageError("subscribe before start: a member's topics are those of its group")
        check_topic(topic)
        self._filters[topic] = TagFilter(tag_filter)

    @property
    def _topics(self) -> Collection[str]:
        return self._filters

    async def _open(self) -> None:
        await self._progress.open()
        if self._is_clustering and not self._ordered:
            self._filters[retry_topic(self.group)] = TagFilter()

    def _join(self) -> None:
        for topic in self._filters:
            if topic != retry_topic(self.group):
                self._progress.first_seen(topic)
        self._make_parts()
        self._report_at = asyncio.get_running_loop().time() + self._report_s
        self._membership.subscribe(self._subscriptions())
        self._membership.attach()
        self._sync_queues()

    def _has_begun(self) -> bool:
        if self._refusal is not None and not self._refusal.retriable:
            raise self._refusal
        return self._is_prepared()

    async def _leave(self, timeout_s: float) -> None:
        if self._keeper is None:
            await self._end_work(0)
            await self._progress.close(self._queues)
            return
        deadline = asyncio.get_running_loop().time() + timeout_s
        self._pulls.close()
        await end(self._preparing.values())
        late = await self._stop_work(timeout_s)
        if not await self._membership.close(timeout_s):
            log.warning("handlers are not done; what they have is delivered again", group=self.group)
        left_s = max(0.1, deadline - asyncio.get_running_loop().time())
        late += await self._end_work(left_s)
        if late:
            log.warning("handlers did not end in time", group=self.group, handlers=late)
        self._settling.close()
        await self._progress.close(self._queues)

    # Control and numbers

    def pause(self) -> None:
        """Hand out nothing until `resume`; queues stay this member's. Handlers that run go on."""
        self._check_started()
        self._hand_out.is_paused = True
        self._pulls.is_paused = True

    def resume(self) -> None:
        """Pull again what a `pause` stopped."""
        self._check_started()
        self._hand_out.is_paused = False
        self._pulls.is_paused = False
        self._pulls.pull_soon()
        self._offer_all()

    async def seek(self, queue: TopicQueue, to: FirstStart | int, timeout_s: float = 10.0) -> None:
        """Consume one of this member's queues from elsewhere: earliest, latest, or an offset.

        In clustering it is the group that moves, durably: the broker's reset ends the lease and
        this member asks for it anew. Raises UsageError for a queue that is not this member's.
        """
        process = self._queues.get(queue)
        if process is None:
            raise UsageError(f"queue {queue} is not this member's now")
        if isinstance(to, int) and to < 0:
            raise UsageError(f"offset {to} is below 0")
        if self._is_clustering:
            where = TO_OFFSET if isinstance(to, int) else {"earliest": TO_EARLIEST, "latest": TO_LATEST}[to]
            value = to if isinstance(to, int) else 0
            request = OffsetResetRequest(self.group, queue.topic, where, value, [queue.queue_id])
            await self.routes.link(queue.broker).client.call(RequestCode.OFFSET_RESET, request, timeout_s)
            self._fenced(process)
            return
        bounds = (await queue_bounds(self.routes, [queue], timeout_s)).get(queue)
        if bounds is None:
            raise RemoteError(Code.QUEUE_UNKNOWN, str(queue))
        ends = {"earliest": bounds.first_offset, "latest": bounds.end_offset}
        offset = to if isinstance(to, int) else ends[to]
        self._drop(queue)
        self._begin(ProcessQueue(queue, 0, offset, bounds.log_epoch))

    def positions(self) -> dict[TopicQueue, Position]:
        """This member's queues, and below which offset everything in them is done."""
        return {queue: Position(p.log_epoch, p.floor) for queue, p in self._queues.items()}

    def members(self) -> dict[str, list[str]]:
        """The group's members by broker, as this one knows them."""
        self._check_started()
        return dict(self._membership.members)

    def numbers(self) -> dict[str, int]:
        """Gauges, and counters whose names end in `_total`."""
        self._check_started()
        processes = self._queues.values()
        return {
            "queues": len(self._queues),
            "messages_waiting": sum(p.waiting for p in processes),
            "bytes_waiting": sum(p.waiting_bytes for p in processes),
            "handlers_running": self._running(),
            "retries_waiting": self._hand_out.later,
            "handled_total": self._settling.handled,
            "failed_total": self._settling.failed,
            "sent_back_total": self._settling.sent_back,
            "given_up_total": self._settling.given_up,
            "undecodable_total": self._hand_out.undecodable,
            "skipped_total": self._pulls.skipped,
            "leases_lost_total": self._membership.core.lost,
            "report_failures_total": self._progress.failures,
        }

    def _check_started(self) -> None:
        if self._keeper is None:
            raise UsageError("the consumer is not started")

    # Queues

    def _make_parts(self) -> None:
        self._pulls = GroupPulls(
            self.routes,
            self.group,
            self._queues,
            self._filters,
            self._records_came,
            self._fenced,
            *self._buffer,
        )
        self._membership = GroupMembership(
            self.routes,
            self.group,
            self.mode,
            self._strategy,
            self._start,
            self._stop,
            self._drop,
            self._release,
            self._state_came,
            self._refused,
            self._release_wait_s,
            self._room,
        )

    def _subscriptions(self) -> list[GroupSubscription]:
        return [GroupSubscription(topic, wanted.text) for topic, wanted in sorted(self._filters.items())]

    def _wanted(self) -> list[TopicQueue]:
        found: list[TopicQueue] = []
        for topic in self._filters:
            route = self.routes.get(topic)
            found += route.read_queues if route is not None else ()
        return found

    def _is_prepared(self) -> bool:
        return all((q.broker, q.topic) in self._ready for q in self._wanted())

    def _routes_changed(self, changed: frozenset[str]) -> None:
        if not changed.isdisjoint(self._filters):
            self._sync_queues()

    def _link_up(self, link: object, connection: object, hello: object) -> None:
        self._pulls.pull_soon()
        self._sync_queues()

    def _sync_queues(self) -> None:
        """Bring membership, and broadcast's queues, in line with the routes."""
        wanted = self._wanted()
        self._membership.follow(sorted({queue.broker for queue in wanted}))
        for broker in sorted({q.broker for q in wanted if (q.broker, q.topic) not in self._ready}):
            if broker not in self._preparing and self._membership.is_member(broker):
                task = asyncio.get_running_loop().create_task(self._prepare(broker))
                self._preparing[broker] = task
        ready = [queue for queue in wanted if (queue.broker, queue.topic) in self._ready]
        if self._is_clustering:
            self._membership.set_queues(ready)
        else:
            self._sync_broadcast(ready)

    async def _prepare(self, broker: str) -> None:
        topics = {q.topic for q in self._wanted() if q.broker == broker}
        topics = {topic for topic in topics if (broker, topic) not in self._ready}
        try:
            await self._progress.prepare(broker, topics)
        except HoldMQError as error:
            log.warning("where to begin is not known yet", broker=broker, group=self.group, reason=str(error))
            await asyncio.sleep(PREPARE_AGAIN_S)
        else:
            self._ready.update((broker, topic) for topic in topics)
        del self._preparing[broker]
        self._sync_queues()
        self._changed.set()

    def _sync_broadcast(self, queues: list[TopicQueue]) -> None:
        assert isinstance(self._progress, FileProgress)
        for queue in self._queues.keys() - set(queues):
            self._drop(queue)
        for queue in queues:
            if queue not in self._queues:
                position = self._progress.position(queue)
                self._begin(ProcessQueue(queue, 0, position.offset, position.log_epoch, not position.offset))

    def _begin(self, process: ProcessQueue) -> None:
        self._queues[process.queue] = process
        self._pulls.pull_soon()

    def _start(self, start: Start) -> None:
        queue = start.lease.queue
        process = ProcessQueue(
            queue, start.generation, max(0, start.offset), start.log_epoch, is_fresh=start.offset < 0
        )
        self._hand_out.add(process, start.lease)
        self._begin(process)

    def _stop(self, queue: TopicQueue) -> None:
        process = self._queues[queue]
        process.is_stopped = True
        process.discard()
        self._hand_out.forget(process)
        if not process.running:
            self._membership.core.drained(queue)

    def _drop(self, queue: TopicQueue) -> None:
        process = self._queues.pop(queue, None)
        if process is not None:
            process.is_stopped = True
            process.discard()
            self._hand_out.forget(process)

    def _release(self, queue: TopicQueue, generation: int) -> ProcessQueue | None:
        process = self._queues.get(queue)
        if process is None or process.generation != generation:
            return None
        del self._queues[queue]
        self._pulls.pull_soon()  # the others' share has grown
        return process

    def _fenced(self, process: ProcessQueue) -> None:
        now = asyncio.get_running_loop().time()
        self._membership.core.fenced(process.queue, process.generation, now)
        self._membership.act()

    def _state_came(self, broker: str, is_paused: bool) -> None:
        paused = self._hand_out.paused_brokers
        if is_paused != (broker in paused):
            log.info("a group was paused or resumed", group=self.group, broker=broker, is_paused=is_paused)
            if is_paused:
                paused.add(broker)
            else:
                paused.discard(broker)
                self._offer_all()
        if not self._is_prepared():
            self._sync_queues()

    def _refused(self, error: HoldMQError) -> None:
        self._refusal = error
        self._changed.set()

    # Messages

    def _records_came(self, process: ProcessQueue) -> None:
        self._offered(self._hand_out.offer(process))

    def _offer_all(self) -> None:
        self._offered(sum(self._hand_out.offer(process) for process in self._queues.values()))

    def _room_made(self, process: ProcessQueue) -> None:
        if not process.is_asked and self._pulls.has_room(process):
            self._pulls.pull_soon()

    def _take(self) -> HandedJob | None:
        # Not the loop's time, which uvloop keeps for a turn: the process may have stood still meanwhile.
        return self._hand_out.take(time.monotonic())

    def _settled(self, process: ProcessQueue) -> None:
        if process.is_stopped and not process.running and self._queues.get(process.queue) is process:
            self._membership.core.drained(process.queue)
            self._membership.act()
        current = self._queues.get(process.queue)
        if current is not None and self._hand_out.offer(current):
            self._offered(1)

    # Progress

    async def _go_on(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._report_at:
            self._report_at = now + self._report_s
            await self._progress.report(self._queues)

    def _missed(self) -> Collection[str]:
        if self._settling.sent_back:
            return self._filters
        return self._filters.keys() - {retry_topic(self.group)}


def _failure(is_clustering: bool, ordered: bool) -> Failure:
    if ordered:
        return Failure.RETRY_HERE
    return Failure.SEND_BACK if is_clustering else Failure.GIVE_UP
