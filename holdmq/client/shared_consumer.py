"""The shared consumer: any member of its group gets any message, until one of them acknowledges it.

There is no rebalance: members come and go, and more of them than queues is normal. With a handler it pushes;
without one the caller pulls, and acknowledges. At least once: what is not acknowledged within the
invisible time, or was in flight on a lost connection, comes again, to any member.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, cast

import structlog

from holdmq.client.begun_topics import BegunTopics
from holdmq.client.first_groups import FirstGroupClaims
from holdmq.client.lifecycle import CONCURRENCY, FirstStart, GroupConsumer
from holdmq.client.names import check_topic
from holdmq.client.route import Link, RouteTable
from holdmq.client.shared_member import REST_S, SharedMember, SharedMessage
from holdmq.client.subscriptions import TagFilter
from holdmq.client.workers import Handler, Outcome, Workers, check_batch_max
from holdmq.errors import HoldMQError, TransportError, UsageError
from holdmq.rpc.connection import Connection
from holdmq.rpc.security import Security
from holdmq.wire.group_headers import GroupSubscription
from holdmq.wire.headers import HelloResponse
from holdmq.wire.shared_headers import EARLIEST, LATEST, SharedOpenRequest

READY_MAX: Final = 1_024
"""Messages in flight here, per broker, when the caller pulls."""
PUSH_HOLD_MS: Final = 30_000
INVISIBLE_S: Final = 30.0
GRACE_S: Final = 1.0
"""How much later than its hold a broker may answer before a pull returns without it."""

SharedHandler = Callable[[SharedMessage], Awaitable[bool | None] | bool | None]
"""As `holdmq.client.workers.Handler`: after False, or an exception, the message comes again."""
SharedFailed = Iterable[SharedMessage]
SharedBatchHandler = Callable[
    [list[SharedMessage]], Awaitable[SharedFailed | bool | None] | SharedFailed | bool | None
]
"""As `holdmq.client.workers.BatchHandler`, of messages of any queues."""

log = structlog.get_logger("holdmq.client")


class _SharedJob(NamedTuple):
    messages: list[SharedMessage]

    @property
    def first(self) -> SharedMessage:
        return self.messages[0]


class SharedConsumer(GroupConsumer):
    """A member of a `shared` group: `async with SharedConsumer(["host:9876"], "billing", ["meters"]) as c`.

    `topics`: names, or names with filters (`holdmq.client.subscriptions`); all members of a group must want
    the same. `handler(message)`: a coroutine function, or a plain one, which runs on a thread; without one
    call `pull`. `batch_max` above 1 (to 1,000): it is given a list of messages, as many as are there and at
    most so many, and may return those that failed. `start`: where the group's first start in a topic is,
    None = as `Consumer` has it; later ones go on where it was.

    `retry_delay_s`: after how long a message that its handler failed with comes again (0 to a year).
    `ready_max`: messages in flight here at most, per broker (default: twice `concurrency` with a handler,
    else READY_MAX). `invisible_s` (0.1 to 43,200): how long a message may take; for more, `extend` it.
    `routes`: share this RouteTable in place of `registries`. `security`: credentials and TLS. `tenant`:
    topics and the group are named in its words.
    """

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        topics: Iterable[str] | Mapping[str, str],
        handler: SharedHandler | SharedBatchHandler | None = None,
        *,
        batch_max: int = 1,
        start: FirstStart | None = None,
        invisible_s: float = INVISIBLE_S,
        ready_max: int = 0,
        concurrency: int = CONCURRENCY,
        retry_delay_s: float = 0.0,
        client_id: str = "",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        tenant: str = "",
    ) -> None:
        if isinstance(topics, str):
            raise UsageError("topics must be a list of names, or names with filters")
        named = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, "*")
        if not named:
            raise UsageError("a consumer needs a topic")
        for topic in named:
            check_topic(topic)
        check_batch_max(batch_max)
        if isinstance(start, datetime):
            raise UsageError("a shared group begins latest or earliest, not at a time")
        client_id = client_id or f"shared-{secrets.token_hex(8)}"
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
        self.handled = self.failed = self.expired = 0
        self._subscriptions = [
            GroupSubscription(topic, TagFilter(text).text) for topic, text in named.items()
        ]
        self._named = list(named)
        self._start = start
        self._begun: dict[str, list[str]] = {}
        self._invisible_ms = round(invisible_s * 1000)
        self._batch_max = batch_max
        self._ready_max = ready_max or (READY_MAX if handler is None else 2 * concurrency * batch_max)
        self._retry_delay_ms = round(retry_delay_s * 1000)
        self._members: dict[str, SharedMember] = {}
        self._ready: deque[SharedMessage] = deque()
        self._workers: Workers[_SharedJob] | None = None
        if handler is not None:
            self._workers = Workers(
                cast("Handler", handler),
                concurrency,
                self._take,
                self._settled,
                takes_many=batch_max > 1,
            )
        self._acks: set[asyncio.Future[None]] = set()
        self._is_first = True

    # Life

    @property
    def _topics(self) -> Collection[str]:
        return self._named

    async def _open(self) -> None:
        """Open nothing: all is at the brokers."""

    async def _before_join(self) -> None:
        # Brokers that are told so let the first group begin where its topics say.
        await FirstGroupClaims(self.routes, self.group).claim(self._named)
        # A broker that joined, or got a topic, while nobody of the group was there is new to it.
        self._begun = await BegunTopics(self.routes, self.group).new_at(self._named)

    def _join(self) -> None:
        self.routes.on_down.append(self._link_down)
        self._join_brokers()
        # Brokers and topics that come later belong to what the group wanted from the start.
        self._is_first = False

    def _has_begun(self) -> bool:
        self._raise_refusal()
        return all(member.is_open for member in self._members.values())

    async def _leave(self, timeout_s: float) -> None:
        if self._link_down in self.routes.on_down:
            self.routes.on_down.remove(self._link_down)
        self._ready.clear()
        if self._workers is not None:
            late = await self._workers.close(timeout_s)
            if late:
                log.warning("handlers did not end in time", group=self.group, handlers=late)
        if self._acks:
            await asyncio.wait(self._acks, timeout=timeout_s)
        for member in self._members.values():
            member.close()

    def _raise_refusal(self) -> None:
        for member in self._members.values():
            if member.error is not None:
                raise member.error

    def numbers(self) -> dict[str, int]:
        """Gauges, and counters whose names end in `_total`."""
        members = self._members.values()
        return {
            "brokers": sum(member.is_open for member in members),
            "messages_ready": len(self._ready),
            "handlers_running": 0 if self._workers is None else self._workers.running,
            "handled_total": self.handled,
            "failed_total": self.failed,
            "expired_total": self.expired,
            "acknowledged_total": sum(member.acknowledged for member in members),
            "acks_refused_total": sum(member.refused for member in members),
            "undecodable_total": sum(member.undecodable for member in members),
        }

    # Pulling

    async def pull(self, messages_max: int = 64, hold_ms: int = 1_000) -> list[SharedMessage]:
        """Return the next messages, in flight here from now on; [] if none came within `hold_ms`.

        Acknowledge them, or give them back. Raises RemoteError when a broker refuses this member.
        """
        if self._workers is not None:
            raise UsageError("this consumer has a handler, which gets the messages")
        if self._keeper is None or self._is_closed:
            raise UsageError("the consumer is not started, or closed")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + hold_ms / 1000
        asked: set[SharedMember] = set()
        is_first = True
        while True:
            found = self._take_ready(messages_max)
            if found:
                return found
            self._changed.clear()
            now = loop.time()
            if now < deadline or is_first:
                left_ms = max(0, round((deadline - now) * 1000))
                asked |= self._ask(messages_max, left_ms)
            is_first = False
            # A broker that was asked answers at the end of its hold: a moment after ours.
            is_due = any(member in asked and member.is_pulling for member in self._members.values())
            until = deadline + GRACE_S if is_due else deadline
            if now >= until:
                return []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until if is_due else min(until, now + REST_S)):
                    await self._changed.wait()

    def _take_ready(self, messages_max: int) -> list[SharedMessage]:
        found: list[SharedMessage] = []
        while self._ready and len(found) < messages_max:
            message = self._ready.popleft()
            if self._is_live(message):
                found.append(message)
        return found

    def _ask(self, messages_max: int, hold_ms: int) -> set[SharedMember]:
        """Ask the brokers that are not asked; which these are. Raises what one of them refuses with."""
        self._raise_refusal()
        return {member for member in self._members.values() if member.pull(messages_max, hold_ms)}

    async def ack(self, *messages: SharedMessage) -> None:
        """Done with these messages: returns when the log has it.

        Raises RemoteError (RECEIPT_UNKNOWN) if the time of one was over before, TransportError without a
        connection: they may come again. The others are acknowledged all the same.
        """
        futures = [member.ack(own) for member, own in _by_member(messages).items()]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def nack(self, *messages: SharedMessage, delay_s: float = 0.0) -> None:
        """Give messages back: they come again after `delay_s` (0 to a year), to any member.

        Their attempts rise; past the group's retry_max_times they go to the dead letters. Raises as `ack`.
        """
        for member, own in _by_member(messages).items():
            await member.nack(own, round(delay_s * 1000))

    async def extend(self, *messages: SharedMessage, invisible_s: float) -> None:
        """Keep messages in flight until `invisible_s` (0.1 to 43,200) from now. Raises as `ack`."""
        for member, own in _by_member(messages).items():
            await member.extend(own, round(invisible_s * 1000))

    # Pushing

    def _take(self) -> _SharedJob | None:
        found = self._take_ready(self._batch_max)
        return _SharedJob(found) if found else None

    def _is_live(self, message: SharedMessage) -> bool:
        """Whether a message is still this member's: else somebody else gets it."""
        receipt = message.receipt
        if receipt is not None and receipt.member.is_valid(message):
            return True
        self.expired += 1
        return False

    async def _settled(self, job: _SharedJob, outcome: Outcome) -> None:
        failed = set(map(id, job.messages if outcome is False else () if outcome is True else outcome))
        self.failed += len(failed)
        self.handled += len(job.messages) - len(failed)
        by_member: dict[SharedMember, tuple[list[SharedMessage], list[SharedMessage]]] = {}
        for message in job.messages:
            if not message.is_settled and message.receipt is not None:
                parts = by_member.setdefault(message.receipt.member, ([], []))
                parts[id(message) in failed].append(message)
        for member, (done, again) in by_member.items():
            if done:
                future = member.ack(done)
                self._acks.add(future)
                future.add_done_callback(self._acknowledged)
            if again:
                try:
                    await member.nack(again, self._retry_delay_ms)
                except HoldMQError as error:
                    log.debug("messages could not be given back; their time ends", reason=str(error))

    def _acknowledged(self, future: asyncio.Future[None]) -> None:
        self._acks.discard(future)
        if not future.cancelled() and future.exception() is not None:
            # Counted by the member; the message comes again.
            log.debug("an acknowledgement was refused", reason=str(future.exception()))

    # Brokers

    def _messages_came(self, messages: list[SharedMessage]) -> None:
        self._ready.extend(messages)
        if self._workers is not None:
            self._workers.wake(-(-len(messages) // self._batch_max))

    def _state_changed(self) -> None:
        self._changed.set()
        if self._workers is not None:
            self._push_pulls()

    def _push_pulls(self) -> None:
        """With a handler every broker always has a pull in hand; it answers when there is room here."""
        if self._is_closed:
            return
        for member in self._members.values():
            member.pull(self._ready_max, PUSH_HOLD_MS)

    def _join_brokers(self) -> None:
        """Be a member at every broker that has one of the topics."""
        wanted: set[str] = set()
        for topic in self._topics:
            route = self.routes.get(topic)
            if route is not None:
                wanted.update(queue.broker for queue in route.read_queues)
        for broker in sorted(wanted - self._members.keys()):
            request = SharedOpenRequest(
                self.group,
                self._subscriptions,
                self._ready_max,
                self._invisible_ms,
                (self._start or LATEST) if self._is_first else EARLIEST,
                is_own_start=self._start is not None,
                begun=self._begun.get(broker, []),
            )
            member = SharedMember(broker, request, self._messages_came, self._state_changed, self.tenant)
            self._members[broker] = member
            try:
                link = self.routes.link(broker)
            except TransportError:
                continue
            if link.client.connection is not None:
                member.up(link.client.connection)

    def _link_up(self, link: Link, connection: Connection, hello: HelloResponse) -> None:
        member = self._members.get(link.name)
        if member is not None:
            member.up(connection)

    def _link_down(self, link: Link, _reason: HoldMQError) -> None:
        member = self._members.get(link.name)
        if member is not None:
            member.down()

    def _routes_changed(self, changed: frozenset[str]) -> None:
        if not self._is_closed and not self._is_first:
            self._join_brokers()
            self._changed.set()

    async def _go_on(self) -> None:
        """Go on pulling where a pull had to rest."""
        if self._workers is not None:
            self._push_pulls()


def _by_member(messages: Iterable[object]) -> dict[SharedMember, list[SharedMessage]]:
    found: dict[SharedMember, list[SharedMessage]] = {}
    for message in messages:
        if not isinstance(message, SharedMessage):
            name = type(message).__name__
            raise UsageError(
                f"messages are given one by one, as ack(*messages), and delay_s by name; not {name}"
            )
        if message.receipt is None:
            raise UsageError("a message that no shared consumer delivered cannot be settled")
        found.setdefault(message.receipt.member, []).append(message)
    return found
