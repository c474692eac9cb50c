"""A group member's leases: which it wants, asks for, holds and gives back. Sans-IO.

::

            wanted by the allocation         granted
    (none) ──────────────────────────► WANTED ──────► HELD
       ▲                                 ▲              │ not wanted any more: Stop, hand out nothing more
       │ answered                        │ lost: Drop   ▼
    RELEASING ◄──────────────────────────┼─────────── DRAINING
               in-flight work done, or   └─ (from HELD; a DRAINING one that is lost is gone)
               `release_wait_s` passed: Release

A lease is lost when the broker says so, when its connection closes, or when it was not renewed in
time, counted from when the renewal was *sent*: the member stops before the broker gives the queue away.
Times are seconds on any clock that never goes back. Source: broker.md, Three ways to consume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from holdmq.client.allocation import NO_ROOMS, Rooms, Strategy, queues_of_member
from holdmq.errors import Code
from holdmq.message import TopicQueue
from holdmq.names.tenants import in_tenant
from holdmq.wire.group_headers import LeasedQueue, WantedQueue

ASK_AGAIN_S: Final = 1.0
"""How soon a lease that was refused is asked for again, unless a push says that it is free."""
JOIN_AGAIN_S: Final = 1.0
"""How soon a join that failed is tried again."""
JOIN_REFRESH_S: Final = 5.0
"""How often membership is repeated: what a lost push would have told is then known."""
RENEWALS_PER_LEASE: Final = 4
"""A lease survives three renewals that are lost."""
LEASES_MAX: Final = 10_000
"""Leases of one member at one broker: fewer than a QUEUE_LEASE may name. What is past it stays wanted."""
RELEASE_WAIT_S: Final = 60.0
"""How long handlers may finish what they have of a queue that goes to another member."""


class Phase(Enum):
    """See the module's drawing."""

    WANTED = "wanted"
    HELD = "held"
    DRAINING = "draining"
    RELEASING = "releasing"


class HeldLease:
    """One queue. `expires_at`: from then on its messages must not be handed out."""

    __slots__ = ("due_at", "expires_at", "generation", "phase", "queue")

    def __init__(self, queue: TopicQueue, due_at: float) -> None:
        self.queue = queue
        self.phase = Phase.WANTED
        self.generation = 0
        self.expires_at = 0.0
        self.due_at = due_at
        """WANTED: ask then. DRAINING: release then at the latest."""


class Join(NamedTuple):
    """Send GROUP_JOIN; then call `joined` or `join_failed`."""

    broker: str


class Ask(NamedTuple):
    """Send QUEUE_LEASE; then call `leased` or `lease_failed`."""

    broker: str
    queues: list[WantedQueue]
    version: int


class Start(NamedTuple):
    """The queue is ours: consume from `offset` (-1 = the group has none)."""

    lease: HeldLease
    generation: int
    offset: int
    log_epoch: int


class Stop(NamedTuple):
    """Hand out nothing more of the queue, and call `drained` when what was handed out is finished."""

    queue: TopicQueue


class Drop(NamedTuple):
    """The lease is lost: hand out nothing more, report nothing."""

    queue: TopicQueue
    reason: str


class ReleaseLease(NamedTuple):
    """Report and give back this lease with QUEUE_RELEASE; then call `released`."""

    queue: TopicQueue
    generation: int


Action = Join | Ask | Start | Stop | Drop | ReleaseLease


class _Broker:
    __slots__ = (
        "asked",
        "asked_at",
        "is_again",
        "is_joining",
        "join_at",
        "members",
        "renew_at",
        "rooms",
        "version",
    )

    def __init__(self, now: float) -> None:
        self.version = -1
        """Of the last GroupState; -1 = no member there yet."""
        self.members: tuple[str, ...] = ()
        self.rooms: Mapping[str, str] = {}
        """Of those members that said theirs."""
        self.is_joining = False
        self.join_at = now
        self.asked: dict[TopicQueue, int] | None = None
        """Queues and generations of the QUEUE_LEASE that is out; None = none is."""
        self.asked_at = 0.0
        self.is_again = False
        """Something became free while a question was out."""
        self.renew_at = 0.0


class Rebalance:
    """The leases of one member of one group. Call a method, then do what `actions` returns.

    `tenant`: whose words topics are in. The strategy is given whole names: some of a group's members may have
    the setting and some not, and all must divide alike.
    """

    def __init__(
        self,
        client_id: str,
        strategy: Strategy,
        release_wait_s: float = RELEASE_WAIT_S,
        tenant: str = "",
    ) -> None:
        self.client_id = client_id
        self.leases: dict[TopicQueue, HeldLease] = {}
        self.lost = 0
        self.fault: Exception | None = None
        """Why the strategy's last answer cannot be used: leases stay as they are. None = it can."""
        self._strategy = strategy
        self._tenant = tenant
        self._release_wait_s = release_wait_s
        self._queues: frozenset[TopicQueue] = frozenset()
        self._broker_rooms: Mapping[str, str] = {}
        self._brokers: dict[str, _Broker] = {}
        self._is_closing = False
        self._actions: list[Action] = []

    # What happens

    def actions(self) -> list[Action]:
        """What to do now, in order; each is returned once."""
        actions, self._actions = self._actions, []
        return actions

    def set_queues(self, queues: Iterable[TopicQueue], now: float) -> None:
        """All queues of the subscribed topics, as routes have them."""
        new = frozenset(queues)
        if new != self._queues:
            self._queues = new
            self._rebalance(now)

    def set_rooms(self, rooms: Mapping[str, str], now: float) -> None:
        """Machine rooms of the brokers that said theirs, as routes have them."""
        if rooms != self._broker_rooms:
            self._broker_rooms = dict(rooms)
            self._rebalance(now)

    def broker_up(self, broker: str, now: float) -> None:
        """There is a new connection to a broker with queues of ours."""
        self.broker_down(broker, now)
        self._brokers[broker] = _Broker(now)
        self._join(broker, now)

    def broker_down(self, broker: str, now: float) -> None:
        """The connection is lost, and with it every lease at this broker."""
        if self._brokers.pop(broker, None) is None:
            return
        for lease in self._leases_at(broker):
            self._lose(lease, now, "the connection to its broker was lost")
        self._rebalance(now)

    def rejoin(self, now: float) -> None:
        """Subscriptions changed: say so to every broker."""
        for broker in self._brokers:
            self._join(broker, now)

    def joined(
        self,
        broker: str,
        version: int,
        members: Sequence[str],
        freed: bool,
        now: float,
        rooms: Mapping[str, str] = NO_ROOMS.of_members,
    ) -> None:
        """A GroupState came, as an answer or by itself; older ones than the last change nothing."""
        known = self._brokers.get(broker)
        if known is None or version < known.version:
            return
        if freed:
            self._freed(broker, known, now)
        known.version = version
        known.members = tuple(members)
        known.rooms = rooms
        self._rebalance(now)

    def join_answered(self, broker: str, now: float) -> None:
        """GROUP_JOIN was answered (call `joined` too)."""
        known = self._brokers.get(broker)
        if known is not None:
            known.is_joining = False
            known.join_at = now + JOIN_REFRESH_S

    def join_failed(self, broker: str, now: float) -> None:
        """GROUP_JOIN was refused or not answered."""
        known = self._brokers.get(broker)
        if known is not None:
            known.is_joining = False
            known.join_at = now + JOIN_AGAIN_S

    def leased(self, broker: str, answers: Sequence[LeasedQueue], lease_s: float, now: float) -> None:
        """QUEUE_LEASE was answered; queues that the answer leaves out count as refused."""
        known = self._brokers.get(broker)
        if known is None or known.asked is None:
            return
        asked, known.asked = known.asked, None
        known.renew_at = known.asked_at + lease_s / RENEWALS_PER_LEASE
        retry_at = now if known.is_again else now + ASK_AGAIN_S
        known.is_again = False
        by_queue = {TopicQueue(row.topic, broker, row.queue_id): row for row in answers}
        for queue, generation in asked.items():
            row = by_queue.get(queue)
            granted = row if row is not None and row.generation > 0 and row.status == Code.OK else None
            self._answered(queue, generation, granted, known.asked_at + lease_s, retry_at, now)
        self._ask(broker, now)

    def lease_failed(self, broker: str, is_member: bool, now: float) -> None:
        """QUEUE_LEASE was refused as a whole or not answered; not `is_member`: join again first."""
        known = self._brokers.get(broker)
        if known is None or known.asked is None:
            return
        known.asked = None
        known.renew_at = now + ASK_AGAIN_S
        for lease in self._leases_at(broker):
            if lease.phase is Phase.WANTED:
                lease.due_at = now + ASK_AGAIN_S
        if not is_member:
            known.version = -1
            self._join(broker, now)

    def fenced(self, queue: TopicQueue, generation: int, now: float) -> None:
        """A PULL under this generation was refused."""
        lease = self.leases.get(queue)
        if lease is not None and lease.generation == generation:
            self._lose(lease, now, "another generation of the lease exists")
            self._ask(queue.broker, now)

    def drained(self, queue: TopicQueue) -> None:
        """What was handed out of a stopped queue is finished."""
        lease = self.leases.get(queue)
        if lease is not None and lease.phase is Phase.DRAINING:
            self._release(lease)

    def released(self, queue: TopicQueue, generation: int, now: float) -> None:
        """QUEUE_RELEASE was answered, or never will be: who releases, consumes no more either way."""
        lease = self.leases.get(queue)
        if lease is not None and lease.phase is Phase.RELEASING and lease.generation == generation:
            del self.leases[queue]
            self._rebalance(now)

    def close(self, now: float) -> None:
        """Want nothing any more: every lease drains and is released."""
        self._is_closing = True
        self._rebalance(now)

    @property
    def is_idle(self) -> bool:
        """Whether no lease is held or on its way back."""
        return all(lease.phase is Phase.WANTED for lease in self.leases.values())

    # Time

    def next_deadline(self) -> float | None:
        """When `handle_deadline` must be called; None = not before something else happens."""
        times: list[float] = []
        for name, broker in self._brokers.items():
            if not broker.is_joining and not self._is_closing:
                times.append(broker.join_at)
            if broker.asked is None and broker.version >= 0 and any(self._held_at(name)):
                times.append(broker.renew_at)
        for lease in self.leases.values():
            if lease.phase is Phase.WANTED:
                at = self._brokers.get(lease.queue.broker)
                if at is not None and at.asked is None and at.version >= 0:
                    times.append(lease.due_at)
            elif lease.phase is not Phase.RELEASING:
                times.append(lease.expires_at)
                if lease.phase is Phase.DRAINING:
                    times.append(lease.due_at)
        return min(times, default=None)

    def handle_deadline(self, now: float) -> None:
        """Renew, ask again, join again, and let go of what expired."""
        for lease in list(self.leases.values()):
            if lease.phase in (Phase.HELD, Phase.DRAINING) and lease.expires_at <= now:
                generation = lease.generation
                self._lose(lease, now, "it could not be renewed in time")
                # The broker may have counted from later on: others need not wait for that.
                self._actions.append(ReleaseLease(lease.queue, generation))
            elif lease.phase is Phase.DRAINING and lease.due_at <= now:
                self._release(lease)
        for name, broker in self._brokers.items():
            if not self._is_closing and not broker.is_joining and broker.join_at <= now:
                self._join(name, now)
            self._ask(name, now)

    # Inside

    def _rebalance(self, now: float) -> None:
        wanted: set[TopicQueue] = set()
        if not self._is_closing:
            members_at = {n: b.members for n, b in self._brokers.items() if b.version >= 0}
            try:
                by_whole = {
                    queue._replace(topic=in_tenant(self._tenant, queue.topic)): queue
                    for queue in self._queues
                }
                mine = queues_of_member(self.client_id, self._strategy, by_whole, members_at, self._rooms())
                wanted = {by_whole[queue] for queue in mine}
                self.fault = None
            except Exception as error:  # noqa: BLE001 - a strategy may be anybody's function
                self.fault = error
                wanted = set(self.leases)
        for queue in sorted(wanted - self.leases.keys()):
            self.leases[queue] = HeldLease(queue, now)
        for queue, lease in list(self.leases.items()):
            if queue in wanted:
                continue
            if lease.phase is Phase.WANTED:
                del self.leases[queue]
            elif lease.phase is Phase.HELD:
                lease.phase = Phase.DRAINING
                lease.due_at = now + self._release_wait_s
                self._actions.append(Stop(queue))
        for broker in self._brokers:
            self._ask(broker, now)

    def _rooms(self) -> Rooms:
        # Of this member, too, only what brokers tell: then all members know the same.
        of_members: dict[str, str] = {}
        for broker in self._brokers.values():
            of_members.update(broker.rooms)
        return Rooms(self._broker_rooms, of_members)

    def _join(self, broker: str, now: float) -> None:
        known = self._brokers[broker]
        if not known.is_joining and not self._is_closing:
            known.is_joining = True
            known.join_at = now + JOIN_REFRESH_S
            self._actions.append(Join(broker))

    def _freed(self, broker: str, known: _Broker, now: float) -> None:
        known.is_again = known.asked is not None
        for lease in self._leases_at(broker):
            if lease.phase is Phase.WANTED:
                lease.due_at = now

    def _ask(self, broker: str, now: float) -> None:
        known = self._brokers.get(broker)
        if known is None or known.asked is not None or known.version < 0:
            return
        due: list[HeldLease] = []
        held: list[HeldLease] = []
        for lease in self._leases_at(broker):
            if lease.phase is Phase.WANTED and lease.due_at <= now:
                due.append(lease)
            elif lease.phase in (Phase.HELD, Phase.DRAINING):
                held.append(lease)
        if not due and not (held and known.renew_at <= now):
            return
        asked = (held + due)[:LEASES_MAX]
        for lease in due[max(0, LEASES_MAX - len(held)) :]:
            lease.due_at = now + ASK_AGAIN_S
        known.asked = {lease.queue: lease.generation for lease in asked}
        known.asked_at = now
        rows = [WantedQueue(a.queue.topic, a.queue.queue_id, a.generation) for a in asked]
        self._actions.append(Ask(broker, rows, known.version))

    def _answered(
        self,
        queue: TopicQueue,
        generation: int,
        granted: LeasedQueue | None,
        expires_at: float,
        retry_at: float,
        now: float,
    ) -> None:
        lease = self.leases.get(queue)
        if lease is None or lease.phase is Phase.RELEASING:
            if granted is not None and granted.generation != generation:
                # Granted anew after it was given up: hand it back as it came.
                self._actions.append(ReleaseLease(queue, granted.generation))
            return
        if lease.generation != generation:
            return
        if granted is None:
            if lease.phase is Phase.WANTED:
                lease.due_at = retry_at
            else:
                self._lose(lease, now, "the broker gave it away")
            return
        if granted.generation != lease.generation:
            if lease.phase is not Phase.WANTED:
                self._lose(lease, now, "its offset was reset")
                if self.leases.get(queue) is not lease:  # it was on its way out
                    self._actions.append(ReleaseLease(queue, granted.generation))
                    return
            lease.phase = Phase.HELD
            lease.generation = granted.generation
            self._actions.append(Start(lease, granted.generation, granted.offset, granted.log_epoch))
        lease.expires_at = expires_at

    def _release(self, lease: HeldLease) -> None:
        lease.phase = Phase.RELEASING
        self._actions.append(ReleaseLease(lease.queue, lease.generation))

    def _lose(self, lease: HeldLease, now: float, reason: str) -> None:
        queue = lease.queue
        if lease.phase in (Phase.HELD, Phase.DRAINING):
            self.lost += 1
            self._actions.append(Drop(queue, reason))
        if lease.phase is Phase.HELD or lease.phase is Phase.WANTED:
            lease.phase = Phase.WANTED
            lease.generation = 0
            lease.due_at = now
        else:
            del self.leases[queue]

    def _leases_at(self, broker: str) -> list[HeldLease]:
        return [lease for lease in self.leases.values() if lease.queue.broker == broker]

    def _held_at(self, broker: str) -> Iterable[bool]:
        return (
            lease.phase in (Phase.HELD, Phase.DRAINING)
            for lease in self.leases.values()
            if lease.queue.broker == broker
        )
