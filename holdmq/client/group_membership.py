"""A consumer's membership of its group at every broker: joins, leases, releases, over real connections.

`holdmq.client.rebalance` decides; this sends what it says and tells it what came back. One timer for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from holdmq.client.allocation import Strategy
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.rebalance import RELEASE_WAIT_S, Ask, Drop, Join, Rebalance, ReleaseLease, Start, Stop
from holdmq.client.route import Link, RouteTable
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError, UsageError
from holdmq.message import TopicQueue
from holdmq.rpc.connection import Connection, Reply, Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    GroupJoinRequest,
    GroupRequest,
    GroupState,
    GroupSubscription,
    LeasedQueue,
    QueueLeaseRequest,
    QueueLeaseResponse,
    QueueReleaseRequest,
    ReleasedQueue,
)
from holdmq.wire.header import rows

TIMEOUT_S: Final = 5.0
"""Joins, leases and releases are answered from memory, or after one write of a small file."""
LEAVE_TIMEOUT_S: Final = 2.0
_GONE: Final = frozenset({Code.GROUP_UNKNOWN, Code.GROUP_FENCED})
"""Refusals of a lease that mean: you are no member here."""

log = structlog.get_logger("holdmq.client")


class GroupMembership:
    """One member of one group, at every broker that has queues of `set_queues`.

    Callbacks: `on_start(start)` and `on_drop(queue)` when a lease begins and is lost; `on_stop(queue)`:
    hand out nothing more, call `core.drained` and `act` when its work is done; `on_release(queue,
    generation)` returns what is reported with a lease that is given back; `on_state(broker, is_paused)`: what
    a broker says of the group; `on_refused(error)`: a broker does not take us, or the strategy failed.
    `room`: the machine room that all members are told; "" = none.
    """

    def __init__(
        self,
        routes: RouteTable,
        group: str,
        mode: str,
        strategy: Strategy,
        on_start: Callable[[Start], None],
        on_stop: Callable[[TopicQueue], None],
        on_drop: Callable[[TopicQueue], None],
        on_release: Callable[[TopicQueue, int], ProcessQueue | None],
        on_state: Callable[[str, bool], None],
        on_refused: Callable[[HoldMQError], None],
        release_wait_s: float = RELEASE_WAIT_S,
        room: str = "",
    ) -> None:
        self.core = Rebalance(routes.client_id, strategy, release_wait_s, routes.tenant)
        self.subscriptions: list[GroupSubscription] = []
        self.members: dict[str, list[str]] = {}
        """The group's members, by broker."""
        self._routes = routes
        self._group = group
        self._mode = mode
        self._strategy = strategy
        self._room = room
        self._on_start = on_start
        self._on_stop = on_stop
        self._on_drop = on_drop
        self._on_release = on_release
        self._on_state = on_state
        self._on_refused = on_refused
        self._said = ""
        self._connections: dict[str, Connection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._is_acting = False
        self._idle = asyncio.Event()

    def attach(self) -> None:
        """Begin to follow connections; `follow` says to which brokers."""
        self._routes.on_up.append(self._up)
        self._routes.on_down.append(self._down)
        self._routes.on_push.append(self._pushed)
        self._routes.on_brokers.append(self._brokers_changed)
        self._brokers_changed()

    def follow(self, brokers: Iterable[str]) -> None:
        """Be a member at these brokers too, as soon as they are connected."""
        for broker in brokers:
            try:
                link = self._routes.link(broker)
            except TransportError:
                continue
            connection = link.client.connection
            if connection is not None and broker not in self._connections:
                self._connect(broker, connection)

    def set_queues(self, queues: Iterable[TopicQueue]) -> None:
        """All queues that the group consumes."""
        self.core.set_queues(queues, self._loop.time())
        self.act()

    def subscribe(self, subscriptions: list[GroupSubscription]) -> None:
        """What this member reads, for all to see."""
        self.subscriptions = subscriptions
        self.core.rejoin(self._loop.time())
        self.act()

    def is_member(self, broker: str) -> bool:
        """Whether this broker has taken us as a member."""
        return broker in self.members

    async def close(self, timeout_s: float) -> bool:
        """Give back every lease as its work ends, then leave; False = not all were within `timeout_s`."""
        self.core.close(self._loop.time())
        self.act()
        is_idle = True
        try:
            async with asyncio.timeout(timeout_s):
                while not self.core.is_idle:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            is_idle = False
        await asyncio.gather(
            *(
                connection.call(RequestCode.GROUP_LEAVE, GroupRequest(self._group), LEAVE_TIMEOUT_S)
                for connection in self._connections.values()
            ),
            return_exceptions=True,  # who cannot be told finds out when the connection closes
        )
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._routes.on_up.remove(self._up)
        self._routes.on_down.remove(self._down)
        self._routes.on_push.remove(self._pushed)
        self._routes.on_brokers.remove(self._brokers_changed)
        self._connections.clear()
        return is_idle

    def act(self) -> None:
        """Do what the core wants done (after each call of it)."""
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while actions := self.core.actions():
                releases: dict[str, list[ReleaseLease]] = {}
                for action in actions:
                    if isinstance(action, Start):
                        self._on_start(action)
                    elif isinstance(action, Stop):
                        self._on_stop(action.queue)
                    elif isinstance(action, Drop):
                        log.warning("a queue's lease is lost", group=self._group, queue=str(action.queue),
                                    reason=action.reason)  # fmt: skip
                        self._on_drop(action.queue)
                    elif isinstance(action, Join):
                        self._join(action.broker)
                    elif isinstance(action, Ask):
                        self._ask(action)
                    else:
                        releases.setdefault(action.queue.broker, []).append(action)
                for broker, of_broker in releases.items():
                    self._release(broker, of_broker)
        finally:
            self._is_acting = False
        if self.core.is_idle:
            self._idle.set()
        if self.core.fault is not None:
            self._refused(UsageError(f"strategy {self._strategy.name} failed: {self.core.fault}"))
        self._set_timer()

    def _refused(self, error: HoldMQError) -> None:
        if str(error) != self._said:  # once, not with every try
            self._said = str(error)
            log.error("no member of a group", group=self._group, reason=str(error))
        self._on_refused(error)

    # Connections

    def _up(self, link: Link, connection: Connection, _hello: object) -> None:
        self._connect(link.name, connection)

    def _connect(self, broker: str, connection: Connection) -> None:
        self._connections[broker] = connection
        self.core.broker_up(broker, self._loop.time())
        self.act()

    def _down(self, link: Link, _reason: HoldMQError) -> None:
        self._connections.pop(link.name, None)
        self.members.pop(link.name, None)
        self.core.broker_down(link.name, self._loop.time())
        self.act()

    def _brokers_changed(self) -> None:
        self.core.set_rooms(self._routes.rooms(), self._loop.time())
        self.act()

    def _pushed(self, link: Link, request: Request) -> bool:
        if request.command.code != RequestCode.GROUP_CHANGED:
            return False
        state = request.header(GroupState)
        if state.group != self._group or link.name not in self._connections:
            return False
        self._take_state(link.name, state)
        self.act()
        return True

    def _take_state(self, broker: str, state: GroupState) -> None:
        self.members[broker] = state.members
        self.core.joined(broker, state.version, state.members, state.freed, self._loop.time(), state.rooms)
        self._on_state(broker, state.is_paused)

    # Requests

    def _join(self, broker: str) -> None:
        connection = self._connections[broker]

        def on_reply(reply: Reply | HoldMQError) -> None:
            if self._connections.get(broker) is not connection:
                return
            now = self._loop.time()
            try:
                if isinstance(reply, HoldMQError):
                    raise reply
                state = reply.header(GroupState)
            except HoldMQError as error:
                self.core.join_failed(broker, now)
                if not isinstance(error, TransportError):
                    self._refused(error)
            else:
                self.core.join_answered(broker, now)
                self._take_state(broker, state)
            self.act()

        request = GroupJoinRequest(
            self._group, self._mode, self.subscriptions, self._strategy.name, self._room
        )
        connection.request(RequestCode.GROUP_JOIN, request, on_reply, TIMEOUT_S)

    def _ask(self, ask: Ask) -> None:
        broker = ask.broker
        connection = self._connections[broker]

        def on_reply(reply: Reply | HoldMQError) -> None:
            if self._connections.get(broker) is not connection:
                return
            now = self._loop.time()
            try:
                if isinstance(reply, HoldMQError):
                    raise reply
                answer = reply.header(QueueLeaseResponse)
                self.core.leased(broker, rows(LeasedQueue, answer.queues), answer.lease_ms / 1000, now)
            except HoldMQError as error:
                is_member = not (isinstance(error, RemoteError) and error.code in _GONE)
                if not isinstance(error, TransportError):
                    log.warning("leases are refused", broker=broker, group=self._group, reason=str(error))
                self.core.lease_failed(broker, is_member, now)
            self.act()

        request = QueueLeaseRequest(self._group, ask.queues, ask.version)
        connection.request(RequestCode.QUEUE_LEASE, request, on_reply, TIMEOUT_S)

    def _release(self, broker: str, releases: list[ReleaseLease]) -> None:
        released: list[ReleasedQueue] = []
        for queue, generation in releases:
            process = self._on_release(queue, generation)
            offset, epoch = (-1, 0) if process is None else (process.floor, process.log_epoch)
            released.append(ReleasedQueue(queue.topic, queue.queue_id, generation, offset, epoch))

        def on_reply(_reply: Reply | HoldMQError) -> None:
            # Refused or lost: then the lease ends by itself, and what was not reported is consumed again.
            now = self._loop.time()
            for queue, generation in releases:
                self.core.released(queue, generation, now)
            self.act()

        connection = self._connections.get(broker)
        if connection is None:
            on_reply(TransportError(f"no connection to {broker}"))
            return
        request = QueueReleaseRequest(self._group, released)
        connection.request(RequestCode.QUEUE_RELEASE, request, on_reply, TIMEOUT_S)

    # Time

    def _set_timer(self) -> None:
        deadline = self.core.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        # A timer may ring a clock tick early; a deadline that is handled too early would ring again at once.
        self.core.handle_deadline(self._loop.time() + 0.002)
        self.act()
