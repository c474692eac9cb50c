"""Consumer groups: membership, leases on queues, settings.

Members are told of changes by GROUP_CHANGED, all changes of a turn of the loop in one message. All
deadlines (of members and of leases) share one timer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol, TypeVar

import structlog

from broker.groups.core.leases import Ended, LeaseKey, Leases
from broker.groups.core.members import GroupMember, Members
from broker.groups.core.offsets import OffsetTable
from broker.groups.core.settings import GroupSetting, check_mode, check_name
from broker.groups.news import GroupNews
from broker.groups.offset_file import OffsetFile
from broker.groups.offsets import OffsetAt, OffsetRequests
from broker.groups.settings import GroupSettings, unless_failed
from broker.groups.shared_handover import SharedMembers, forgetting, hand_over
from broker.kernel.events import Event
from broker.kernel.request_family import HelloOf, RequestFamily
from broker.retry.core.moves import RetryPolicy
from broker.state.state_file import StateFile
from broker.topics.core.table import TopicTable
from holdmq.config.model import BrokerSection
from holdmq.errors import Code, HoldMQError, RemoteError, WireError
from holdmq.names.search import names_found
from holdmq.names.topics import TEMPORARY_SUFFIX
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    CLUSTERING,
    SHARED,
    GroupJoinRequest,
    GroupListRequest,
    GroupListResponse,
    GroupMembersResponse,
    GroupPauseRequest,
    GroupRequest,
    GroupSubscription,
    GroupUpdateRequest,
    LeasedQueue,
    MemberRow,
    QueueLeaseRequest,
    QueueLeaseResponse,
    QueueReleaseRequest,
    ReleasedQueue,
    WantedQueue,
)
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty
from holdmq.wire.offset_headers import OffsetReport
from storage.api.store import OrderedStore

QUEUES_MAX: Final = 16_384
"""Queues of one QUEUE_LEASE or QUEUE_RELEASE: what a PULL may name, too."""
MEMBER_EXPIRY_S: Final = 60.0
"""Silence after which a member is none: three times the interval at which clients repeat their join."""
GROUP_COLUMNS: Final = ("", "group", "mode", "members")
"""What GROUP_LIST is asked for instead of whole rows ("")."""
STALL_S: Final = 1.0
"""A timer that is later than this was held up by this process, not by its members."""

FencedQueues = list[tuple[str, int]]
DropRetries = Callable[[str, Callable[[HoldMQError | None], None]], None]
T = TypeVar("T")

log = structlog.get_logger("holdmq.broker")


class MemberReaders(Protocol):
    """Told of what members read (broker.readers)."""

    def subscribe(self, connection: Connection, kind: str, group: str, topics: Iterable[str]) -> None:
        """A member of a group reads these topics until it leaves, and those that it had before no more."""

    def unsubscribe(self, connection: Connection, group: str) -> None:
        """End what a member reads: it left."""


class Groups(RequestFamily):
    """Handles GROUP_*, QUEUE_LEASE and QUEUE_RELEASE for one broker; `offsets` is the part beside it.

    `hello_of` says who is at the other end; `shared` tells of members that did not join here; `drop_retries`
    gives up what waits for a group's next try, before the group is deleted; `readers` are told of members.

    `leases_ended(connection, group, queues)` happens when leases end, `paused(group, is_paused)` and
    `deleted(group)` after that is durable, `handed_over(group)` when a group was shared, and its offsets say
    how far it is from now on.
    """

    def __init__(
        self,
        settings: BrokerSection,
        group_settings: GroupSettings,
        offsets_file: StateFile,
        store: OrderedStore,
        topics: TopicTable,
        offset_at: OffsetAt,
        *,
        shared: SharedMembers,
        hello_of: HelloOf,
        drop_retries: DropRetries,
        readers: MemberReaders,
        is_state_in_log: bool,
    ) -> None:
        self.settings = group_settings
        self.members: Members[Connection] = Members(MEMBER_EXPIRY_S, settings.group_members_max)
        self.leases: Leases[Connection] = Leases(settings.queue_lease_s)
        table = OffsetTable()
        self.offset_file = OffsetFile(
            offsets_file,
            table,
            store,
            settings.offset_save_interval_s,
            self.members.groups,
            is_state_in_log,
        )
        self.offsets = OffsetRequests(
            store,
            topics,
            table,
            self.offset_file,
            self.settings,
            self.leases,
            offset_at,
            settings.offset_commit == "sync",
            consumers=self,
            shared=shared,
        )
        self.leases_ended: Event[[Connection, str, FencedQueues]] = Event()
        self.paused: Event[[str, bool]] = Event()
        self.deleted: Event[[str]] = Event()
        self.handed_over: Event[[str]] = Event()
        self._shared = shared
        self._hello_of = hello_of
        self._drop_retries = drop_retries
        self._readers = readers
        self.news = GroupNews(self.members, self.get)
        self._store = store
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def reconfigure(self, settings: BrokerSection) -> None:
        """Take other values of the broker's keys for groups; a lease that is held lasts as it was granted."""
        self.settings.table.reconfigure(settings.groups_max, settings.auto_create_groups)
        self.members.group_max = settings.group_members_max
        self.leases.lease_s = settings.queue_lease_s
        self.offset_file.reconfigure(settings.offset_save_interval_s)
        self.offsets.is_sync = settings.offset_commit == "sync"

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.GROUP_JOIN: self.join,
            RequestCode.GROUP_LEAVE: self.leave,
            RequestCode.GROUP_MEMBERS: self.list_members,
            RequestCode.GROUP_LIST: self.list_groups,
            RequestCode.GROUP_UPDATE: self.update,
            RequestCode.GROUP_DELETE: self.delete,
            RequestCode.GROUP_PAUSE: self.pause,
            RequestCode.QUEUE_LEASE: self.lease,
            RequestCode.QUEUE_RELEASE: self.release,
        }

    def numbers(self) -> Mapping[str, int]:
        return {
            "groups": len(self.settings.table.groups),
            "group_members": len(self.members),
            "group_members_expired_total": self.members.expired,
            "group_changes_told_total": self.news.told,
            "group_changes_waiting": self.settings.waiting,
            "group_write_failures_total": self.settings.failures,
            "queue_leases": len(self.leases),
            "queue_leases_wanted": self.leases.wants,
            "queue_leases_granted_total": self.leases.granted,
            "queue_leases_refused_total": self.leases.refused,
            "queue_leases_expired_total": self.leases.expired,
        }

    # Life

    def load(self, has_records: bool, accept_backup: bool) -> None:
        """Read both files (blocking); the store is open. StorageError when it must not start."""
        self.settings.load(has_records, accept_backup)
        self.offset_file.load(has_records, accept_backup)
        self.leases.start_above(self.offset_file.generation)
        self.members.start_above(self.offset_file.generation)

    def start(self) -> None:
        """Begin to save offsets at intervals."""
        self.offset_file.start()

    async def close(self) -> None:
        """Save what there is to save; connections are closed, the store is still open."""
        self.news.close()
        if self._timer is not None:
            self._timer.cancel()
        await self.offset_file.close()
        await self._loop.run_in_executor(None, self.settings.close)

    def closed(self, connection: Connection) -> None:
        """A connection is gone: so are its memberships, and its leases are free at once."""
        left = self.members.close(connection)
        self._ended(self.leases.end_owner(connection), "its connection closed")
        for member in left:
            self._left(member, "its connection closed")

    # What other parts ask

    def get(self, name: str) -> GroupSetting | None:
        """A group's settings; a temporary group is known while it has members."""
        group = self.settings.table.groups.get(name)
        if group is None and name.endswith(TEMPORARY_SUFFIX) and self._count(name):
            return GroupSetting(name, self.members.mode(name) or SHARED)
        return group

    def require(self, name: str) -> GroupSetting:
        group = self.get(name)
        if group is None:
            raise RemoteError(Code.GROUP_UNKNOWN, f"group {name!r} does not exist here")
        return group

    def ensure(self, name: str, mode: str, done: Callable[[HoldMQError | None], None]) -> None:
        """Call `done` when the group exists durably in this mode, created if need be.

        Raises GROUP_INVALID, GROUP_DISABLED, MODE_CONFLICT, BUSY.
        """
        check_name(name)
        check_mode(mode)
        for conflicting in (self.members.mode(name), self._shared.mode(name)):
            if conflicting and conflicting != mode:
                raise RemoteError(
                    Code.MODE_CONFLICT,
                    f"group {name!r} has members that consume in mode {conflicting}, not {mode}",
                )
        group = self.settings.table.groups.get(name)
        if group is not None:
            group.check_consumes(mode)
        if name.endswith(TEMPORARY_SUFFIX):
            done(None)
            return
        join = partial(self.settings.change, lambda groups: self.settings.table.plan_join(groups, name, mode))
        if mode == CLUSTERING and self._shared.topics(name):
            done = forgetting(self.handed_over.happened, name, done)
            if group is not None and group.mode == SHARED:
                hand_over(name, self._shared, self.offsets, unless_failed(partial(join, done), done))
                return
        if group is not None and group.mode == mode:
            done(None)
        else:
            join(done)

    def _count(self, name: str) -> int:
        return self.members.count(name) + self._shared.count(name)

    def subscribed_topics(self, name: str) -> set[str]:
        return {s.topic for member in self.members.of(name) for s in member.subscriptions}

    def check_unused(self, name: str) -> None:
        members = self.members.count(name)
        if members or self._shared.mode(name):
            raise RemoteError(Code.GROUP_IN_USE, f"group {name!r} has members: stop them first")

    def end_leases(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        ended = [self.leases.end(LeaseKey(group, topic, queue_id)) for queue_id in queue_ids]
        self._ended([e for e in ended if e is not None], "its offset was reset", tells_holder=True)

    def queue_deleted(self, topic: str, queue_id: int) -> None:
        """A queue, perhaps with its topic, is gone: so are the offsets in it and the leases on it."""
        self.offsets.queue_deleted(topic, queue_id)
        self._ended(self.leases.end_queue(topic, queue_id), "its queue was deleted")

    def admit_pull(self, group: str) -> None:
        """Raise GROUP_UNKNOWN or GROUP_DISABLED when a group must not pull."""
        self.require(group).check_consumes(self.members.mode(group))

    def retry_policy(self, group: str) -> RetryPolicy | None:
        """How a group's failed messages are retried; None = there is no such group."""
        known = self.get(group)
        if known is None:
            return None
        return RetryPolicy(known.retry_queue_nums, known.retry_max_times, known.delay_levels_ms)

    def is_paused(self, group: str) -> bool:
        """Whether a group's pulls are to get nothing: those that wait, too, when it may not consume."""
        known = self.settings.table.groups.get(group)
        return known is not None and (known.is_paused or not known.consume_enable)

    def slow_reads_place(self, group: str) -> int:
        """Which of the replicas in sync answers a group that is far behind, from 1 on; 0 = the leader."""
        known = self.settings.table.groups.get(group)
        return 1 if known is None else known.which_broker_when_consume_slowly

    def is_fenced(
        self, connection: Connection, group: str, topic: str, queue_id: int, generation: int
    ) -> bool:
        """Whether a pull of this queue has no valid lease; `generation` 0 = none, right for broadcast."""
        if not generation and self.members.mode(group) != CLUSTERING:
            return False
        key = LeaseKey(group, topic, queue_id)
        return not self.leases.is_valid(connection, key, generation, self._loop.time())

    # Membership

    def join(self, request: Request) -> None:
        """GROUP_JOIN: answered when the group is durable."""
        header = request.header(GroupJoinRequest)
        subscriptions = rows(GroupSubscription, header.subscriptions)
        self.members.check_wishes(subscriptions, header.strategy, header.room)
        self._expire()

        def ensured(error: HoldMQError | None) -> None:
            try:
                if error is not None:
                    raise error
                if not request.connection.is_closed:
                    self._join(request, header, subscriptions)
            except HoldMQError as refusal:
                request.refuse(refusal)

        known = self.members.get(request.connection, header.group)
        if known is not None and known.mode == header.mode:
            group = self.require(header.group)
            group.check_consumes(header.mode)
            self._join(request, header, subscriptions)
        else:
            self.ensure(header.group, header.mode, ensured)

    def _join(
        self, request: Request, header: GroupJoinRequest, subscriptions: list[GroupSubscription]
    ) -> None:
        connection, group = request.connection, header.group
        hello = self._hello_of(connection)
        client_id = hello.client_id if hello is not None else connection.address
        joined = self.members.join(
            connection,
            client_id,
            group,
            header.mode,
            header.strategy,
            subscriptions,
            self._loop.time(),
            time.time_ns() // 1_000_000,
            header.room,
        )
        if joined.replaced is not None:
            log.warning(
                "a client joined again on another connection, which takes the place of the first",
                group=group,
                client_id=client_id,
                first=joined.replaced.owner.address,
                second=connection.address,
            )
            self._readers.unsubscribe(joined.replaced.owner, group)
            self._ended(
                self.leases.end_owner(joined.replaced.owner, group), "its client has a newer connection"
            )
        if joined.is_new:
            log.info(
                "a member joined",
                group=group,
                client_id=client_id,
                mode=header.mode,
                members=self.members.count(group),
                peer=connection.address,
            )
        if joined.is_change:
            self._readers.subscribe(connection, header.mode, group, (s.topic for s in subscriptions))
            self.news.check_alike(joined.member)
            self.news.tell(group, for_all=True)
        state = self.news.state(self.require(group), connection)
        joined.member.told_version = state.version
        request.reply(state)
        self._set_timer()

    def leave(self, request: Request) -> None:
        """GROUP_LEAVE: a member that leaves gives its leases back."""
        group = request.header(GroupRequest).group
        member = self.members.leave(request.connection, group)
        self._ended(self.leases.end_owner(request.connection, group), "its member left")
        if member is not None:
            self._left(member, "it left")
        request.reply(Empty())

    def _left(self, member: GroupMember[Connection], why: str) -> None:
        group = member.group
        self._readers.unsubscribe(member.owner, group)
        count = self.members.count(group)
        log.info("a member is gone", group=group, client_id=member.client_id, why=why, members=count)
        if count:
            self.news.tell(group, for_all=True)
            return
        self.news.forget(group)
        if group.endswith(TEMPORARY_SUFFIX):
            self.offsets.group_deleted(group)

    def list_members(self, request: Request) -> None:
        """Answer GROUP_MEMBERS with a group's members and leases."""
        group = self.require(request.header(GroupRequest).group)
        found = self._shared.members(group.name)
        for member in self.members.of(group.name):
            hello = self._hello_of(member.owner)
            found.append(
                MemberRow(
                    member.client_id,
                    member.owner.address,
                    member.owner.context or "",
                    hello.software if hello is not None else "",
                    member.mode,
                    member.strategy,
                    member.joined_ms,
                    self.leases.count(member.owner, group.name),
                    member.subscriptions,
                    member.room,
                )
            )
        request.reply(GroupMembersResponse(found))

    # Leases

    def lease(self, request: Request) -> None:
        """QUEUE_LEASE: grant, renew or refuse each queue."""
        header = request.header(QueueLeaseRequest)
        wanted = _bounded(rows(WantedQueue, header.queues))
        self._expire()
        now = self._loop.time()
        member = self.members.get(request.connection, header.group)
        if member is None:
            raise RemoteError(
                Code.GROUP_UNKNOWN, f"this connection is no member of group {header.group!r}: join it first"
            )
        if member.mode != CLUSTERING:
            raise RemoteError(Code.MODE_CONFLICT, f"members in mode {member.mode} lease no queues")
        group = self.require(header.group)
        group.check_consumes(CLUSTERING)
        self.members.renew(request.connection, header.group, now)
        answered = [self._lease(member, group, queue, now) for queue in wanted]
        # Whoever has the shard next knows nothing of these leases: they end before it can serve.
        lease_s = min(self.leases.lease_s, self._store.owned_for_s())
        request.reply(QueueLeaseResponse(answered, int(lease_s * 1000)))
        self._set_timer()

    def _lease(
        self, member: GroupMember[Connection], group: GroupSetting, queue: WantedQueue, now: float
    ) -> LeasedQueue:
        refused = LeasedQueue(queue.topic, queue.queue_id, Code.OK, 0, -1, self._store.epoch, "")
        topic = self._topics.get(queue.topic)
        if topic is None:
            return refused._replace(status=Code.TOPIC_UNKNOWN)
        if not 0 <= queue.queue_id < topic.read_queues:
            return refused._replace(status=Code.QUEUE_UNKNOWN)
        if topic.name.startswith("%") and topic.name != f"%RETRY%{group.name}":
            return refused._replace(status=Code.NOT_PERMITTED)
        key = LeaseKey(group.name, queue.topic, queue.queue_id)
        grant = self.leases.acquire(member.owner, member.client_id, key, queue.generation, now)
        if grant.is_full:
            return refused._replace(status=Code.LIMIT_EXCEEDED)
        if not grant.generation:
            code = Code.GROUP_FENCED if grant.is_fenced else Code.BUSY
            return refused._replace(status=code, holder=grant.holder or "")
        offset = self.offsets.start_of(group, queue.topic, queue.queue_id)
        return refused._replace(generation=grant.generation, offset=offset, holder=member.client_id)

    def release(self, request: Request) -> None:
        """QUEUE_RELEASE: report, give back, and tell who waits for it."""
        header = request.header(QueueReleaseRequest)
        given = _bounded(rows(ReleasedQueue, header.queues))
        self._expire()
        reports = [
            OffsetReport(q.topic, q.queue_id, q.generation, q.offset, q.log_epoch)
            for q in given
            if q.generation
        ]
        self.offsets.apply(request.connection, header.group, reports)
        ended = [
            self.leases.release(request.connection, LeaseKey(header.group, q.topic, q.queue_id), q.generation)
            for q in given
        ]
        self._ended([e for e in ended if e is not None], "it was released")
        request.reply(Empty())

    def _ended(self, ended: list[Ended[Connection]], why: str, *, tells_holder: bool = False) -> None:
        """Answer what was pulled under leases that ended, and tell those who want the queues."""
        fenced: dict[tuple[Connection, str], FencedQueues] = {}
        freed_for: dict[str, set[Connection]] = {}
        for lease, wanted_by in ended:
            key = lease.key
            fenced.setdefault((lease.owner, key.group), []).append((key.topic, key.queue_id))
            told = {*wanted_by, lease.owner} if tells_holder else set(wanted_by)
            if told:
                freed_for.setdefault(key.group, set()).update(told)
        for (owner, group), queues in fenced.items():
            log.debug("leases ended", group=group, peer=owner.address, queues=len(queues), why=why)
            self.leases_ended.happened(owner, group, queues)
        for group, owners in freed_for.items():
            self.members.raise_version(group)
            self.news.tell(group, freed_for=owners)

    # Deadlines

    def _expire(self) -> None:
        """End what was not renewed. Who let a lease expire and says nothing else hangs: a member no more."""
        now = self._loop.time()
        self._forgive_stall(now)
        late = self.leases.expire(now)
        silent = self.members.expire(now)
        for lease, _ in late:
            member = self.members.get(lease.owner, lease.key.group)
            if member is not None and member.renewed_at + self.leases.lease_s <= now:
                self.members.leave(member.owner, member.group)
                silent.append(member)
        for member in silent:
            late += self.leases.end_owner(member.owner, member.group)
        self._ended(late, "it was not renewed in time")
        for member in silent:
            self._left(member, "it was silent for too long")

    def _set_timer(self) -> None:
        deadlines = [d for d in (self.leases.next_deadline(), self.members.next_deadline()) if d is not None]
        if not deadlines:
            return
        at = min(deadlines)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._expire()
        self._timer = None
        self._set_timer()

    def _forgive_stall(self, now: float) -> None:
        """A timer that is late says that this process stood still: nobody could renew meanwhile."""
        late_s = now - self._timer_at
        if self._timer is None or late_s <= STALL_S:
            return
        self._timer_at = now
        # And time to say so, once they are heard again.
        longer_s = late_s + self.leases.lease_s / 2
        log.warning("this broker stood still; leases and members have so much longer", seconds=longer_s)
        self.leases.postpone(longer_s)
        self.members.postpone(longer_s)

    # Settings

    def list_groups(self, request: Request) -> None:
        """Answer GROUP_LIST with the settings of groups."""
        asked = request.header(GroupListRequest)
        if asked.column not in GROUP_COLUMNS:
            raise WireError(f"column: one of {', '.join(GROUP_COLUMNS[1:])}", Code.MISSING_FIELD)
        groups = dict(self.settings.table.groups)
        for name in (*self.members.groups(), *self._shared.groups()):
            if name not in groups:
                groups[name] = self.require(name)
        found = [
            name for name in names_found(groups, asked.names, asked.search) if request.connection.sees(name)
        ]
        if not asked.column:
            request.reply(GroupListResponse([groups[name].row(self._count(name)) for name in found]))
            return
        values: list[int | str] = list(found)
        if asked.column == "mode":
            values = [groups[name].mode for name in found]
        elif asked.column == "members":
            values = [self._count(name) for name in found]
        request.reply(GroupListResponse([], found, values))

    def update(self, request: Request) -> None:
        """GROUP_UPDATE: answered when it is durable."""
        header = request.header(GroupUpdateRequest)
        was_paused = self.is_paused(header.group)

        def updated() -> None:
            if self.is_paused(header.group) != was_paused:
                self._tell_paused(header.group)

        self._change(request, header.group, lambda g: self.settings.table.plan_update(g, header), updated)

    def pause(self, request: Request) -> None:
        """GROUP_PAUSE: answered when it is durable."""
        header = request.header(GroupPauseRequest)

        def paused() -> None:
            log.warning("a group was paused" if header.pause else "a group was resumed", group=header.group)
            self._tell_paused(header.group)

        self._change(
            request,
            header.group,
            lambda g: self.settings.table.plan_pause(g, header.group, header.pause),
            paused,
        )

    def settings_changed(self, name: str) -> None:
        """A group has settings that were not asked for here: its members are told."""
        self._tell_settings(name)
        if self.is_paused(name):
            self._tell_paused(name)

    def is_unused(self, name: str) -> bool:
        """Whether a group has neither members nor offsets here."""
        return not self._count(name) and not self.offsets.has_begun(name)

    def _tell_settings(self, name: str) -> None:
        self.members.raise_version(name)
        if self.members.count(name):
            self.news.tell(name, for_all=True)

    def _tell_paused(self, group: str) -> None:
        self.paused.happened(group, self.is_paused(group))

    def _change(
        self,
        request: Request,
        name: str,
        plan: Callable[[dict[str, GroupSetting]], None],
        and_then: Callable[[], None],
    ) -> None:
        def changed(error: HoldMQError | None) -> None:
            if error is not None:
                request.refuse(error)
                return
            self._tell_settings(name)
            and_then()
            request.reply(GroupListResponse([self.require(name).row(self._count(name))]))

        self.settings.change(plan, changed)

    def delete(self, request: Request) -> None:
        """GROUP_DELETE: answered when neither file has the group any more."""
        name = request.header(GroupRequest).group
        self.require(name)
        self.check_unused(name)

        def deleted(error: HoldMQError | None) -> None:
            try:
                if error is not None:
                    raise error
                self.offsets.group_deleted(name)
                log.warning("a group was deleted", group=name, peer=request.connection.address)
                self.deleted.happened(name)
                self.offsets.reply_durable(request, Empty())
            except HoldMQError as refusal:
                request.refuse(refusal)

        forget = partial(self.settings.change, lambda groups: self.settings.table.plan_delete(groups, name))
        self._drop_retries(name, unless_failed(partial(forget, deleted), request.refuse))


def _bounded(queues: list[T]) -> list[T]:
    if len(queues) > QUEUES_MAX:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"one request names at most {QUEUES_MAX} queues")
    return queues
