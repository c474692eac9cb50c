"""The pull consumer: queues of topics, at offsets that the caller keeps.

Each broker has at most one PULL of this consumer in hand, for all its queues, held there until
something arrives; so has each replica that it names for queues far behind. Nothing is stored about a
position anywhere but in the caller's hands.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, NamedTuple, Self

import structlog

from holdmq.client.bounds import queue_bounds
from holdmq.client.cursors import AskedQueue, Position, Pulled, QueueCursor, ask, take_answer, wire_queues
from holdmq.client.lifecycle import RoutedConsumer
from holdmq.client.own_words import shorten
from holdmq.client.registered_filters import RegisteredFilters
from holdmq.client.replica_choice import ReadSource, ReplicaChoice
from holdmq.client.replica_links import ReplicaLink
from holdmq.client.route import Link, RouteTable
from holdmq.client.subscriptions import TagFilter
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError, UsageError
from holdmq.message import Message, TopicQueue
from holdmq.record.messages import decode_messages
from holdmq.rpc.connection import Connection, Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    HelloResponse,
    PulledQueue,
    PullRequest,
    PullResponse,
)
from holdmq.wire.replica_reads import ReplicaReads

POLL_MAX_BYTES: Final = 1 << 20
"""Records of one answer by default: one chunk of a broker's reads."""
POLL_HOLD_MS: Final = 1_000
BACK_HOLD_MS: Final = 100
"""How long a broker holds a PULL while other queues are read at its replicas: each asks it again soon."""
GRACE_S: Final = 5.0
"""How much later than its hold a broker may answer before a poll returns without it."""
PULL_TIMEOUT_S: Final = 15.0
"""How much later than its hold an answer counts as lost: cold reads come from a disk."""
REST_S: Final = 0.2
"""Pause after a broker or queue failed before it is asked again."""
UNREACHABLE_S: Final = 30.0
"""How long a broker may be away before polls that find nothing say so: it restarts in less."""
MISSING_REFRESH_S: Final = 1.0
"""How often routes are asked for while an assigned topic has none: it may just have been created."""
ASSIGN_TIMEOUT_S: Final = 10.0

Start = Literal["earliest", "latest"] | int
ReadReplicas = Literal["prefer", "allow", "never"]
"""Whether replicas that do not lead may answer: for all that they have, for what has left their leader's
memory, or for nothing."""


log = structlog.get_logger("holdmq.client")


class _Answer(NamedTuple):
    source: ReadSource
    asked: list[AskedQueue]
    reply: Reply | HoldMQError


class PullConsumer(RoutedConsumer):
    """Reads queues. Use it as `async with PullConsumer(["host:9876"]) as consumer`, on one event loop.

    `tags`: only messages with one of these tags; `tag_filter`: only messages whose tag an MQTT
    filter matches (`42/#`; without a tag only `#` matches). Not both. `routes`: share this
    RouteTable, which the caller starts and closes, in place of `registries`. `security`: credentials
    and TLS. `read_replicas`: whether replicas of a broker that do not lead it may answer (`allow`: what has
    left their leader's memory; `prefer`: whatever they have; `never`). `is_replay`: it reads again what was,
    which brokers count apart from what consumers pull. `tenant`: topics are named in its words.
    """

    def __init__(
        self,
        registries: Sequence[str] = (),
        *,
        client_id: str = "",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        tags: Collection[str] | None = None,
        tag_filter: str | None = None,
        read_replicas: ReadReplicas = "allow",
        is_replay: bool = False,
        tenant: str = "",
    ) -> None:
        self._is_replay = is_replay
        try:
            self._choice = ReplicaChoice(ReplicaReads.of(read_replicas))
        except ValueError as error:
            raise UsageError(f"read_replicas: {error}") from error
        self.client_id = client_id or f"consumer-{secrets.token_hex(8)}"
        self._filter = TagFilter.of(tags, tag_filter)
        super().__init__(registries, self.client_id, routes, security, cluster, tenant)
        self._cursors: dict[TopicQueue, QueueCursor] = {}
        self._topics: set[str] = set()
        self._registered = RegisteredFilters(self.routes, self._filter_failed)
        self._pulling: dict[ReadSource, int] = {}
        self._rest: dict[str, float] = {}
        self._answers: deque[_Answer] = deque()
        self._errors: deque[HoldMQError] = deque()
        self._arrived = asyncio.Event()
        self.undecodable = 0
        self._polls = 0
        self._is_polling = False

    async def __aenter__(self) -> Self:
        self._start()
        return self

    # Assignment and positions

    async def assign(
        self,
        topics: Iterable[str | TopicQueue],
        start: Start = "latest",
        timeout_s: float = ASSIGN_TIMEOUT_S,
    ) -> None:
        """Read these queues, in place of what was assigned before, from `start` on.

        A topic's name stands for all its queues: those that appear later are read from their
        beginning, and so is a topic that does not exist yet. `start`: earliest, latest, or an
        offset. Raises TransportError when a broker does not answer within `timeout_s`.
        """
        self._start()
        wanted = list(topics)
        names = {topic for topic in wanted if isinstance(topic, str)}
        queues = [queue for queue in wanted if isinstance(queue, TopicQueue)]
        self.routes.follow(names | {queue.topic for queue in queues})
        await self.routes.refresh(timeout_s)
        for name in names:
            route = self.routes.get(name)
            queues += route.read_queues if route is not None else ()
        cursors = await self._cursors_at(dict.fromkeys(queues), start, timeout_s)
        self._forget()
        self._topics = names
        self._cursors = cursors
        self._routes_changed(frozenset(names))

    async def seek(
        self, queue: TopicQueue, start: Start, log_epoch: int = 0, timeout_s: float = ASSIGN_TIMEOUT_S
    ) -> None:
        """Read an assigned queue from `start` on; `log_epoch` is that of a saved offset (0 = no claim)."""
        cursor = self._cursors.get(queue)
        if cursor is None:
            raise UsageError(f"queue {queue} is not assigned to this consumer")
        if isinstance(start, int):
            cursor.seek(start, log_epoch)
            return
        found = (await self._cursors_at([queue], start, timeout_s))[queue]
        cursor.seek(found.offset, found.log_epoch)

    def positions(self) -> dict[TopicQueue, Position]:
        """The next offset of every assigned queue, with its log epoch: what to save."""
        return {queue: Position(cursor.log_epoch, cursor.offset) for queue, cursor in self._cursors.items()}

    def lag(self) -> dict[TopicQueue, int]:
        """Messages between position and end of the queues that were read, as of their last answer."""
        return {
            queue: max(0, cursor.end_offset - cursor.offset)
            for queue, cursor in self._cursors.items()
            if cursor.end_offset >= 0
        }

    async def _cursors_at(
        self, queues: Iterable[TopicQueue], start: Start, timeout_s: float
    ) -> dict[TopicQueue, QueueCursor]:
        if isinstance(start, int):
            if start < 0:
                raise UsageError(f"offset {start} is below 0")
            return {queue: QueueCursor(start) for queue in queues}
        if start not in ("earliest", "latest"):
            raise UsageError(f"start {start!r} is not earliest, latest or an offset")
        wanted = list(queues)
        bounds = await queue_bounds(self.routes, wanted, timeout_s)
        cursors: dict[TopicQueue, QueueCursor] = {}
        for queue in wanted:
            known = bounds.get(queue)
            if known is None:
                cursors[queue] = QueueCursor(0, is_fresh=True)
            else:
                offset = known.first_offset if start == "earliest" else known.end_offset
                cursors[queue] = QueueCursor(offset, known.log_epoch, is_fresh=start == "earliest")
        return cursors

    # Polling

    async def poll(self, max_bytes: int = POLL_MAX_BYTES, hold_ms: int = POLL_HOLD_MS) -> list[Message]:
        """Return the next messages, in order within each queue; [] if none came within `hold_ms`.

        `max_bytes` bounds the records of one broker's answer (but one record always comes). Raises
        OffsetError for a queue that cannot be read at its position, which stays: `seek` to go on;
        TransportError when nothing came and a broker has been away for UNREACHABLE_S; RemoteError
        when a broker refuses for good.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + hold_ms / 1000
        while True:
            self._raise_fault()
            left_ms = max(0, round((deadline - loop.time()) * 1000))
            parts = await self.poll_raw(max_bytes, left_ms)
            messages = [message for part in parts for message in self._decode(part)]
            if messages:
                return messages
            if loop.time() >= deadline:
                self._raise_fault()
                return []

    def _raise_fault(self) -> None:
        for cursor in self._cursors.values():
            if cursor.fault is not None:
                raise cursor.fault

    async def poll_raw(self, max_bytes: int = POLL_MAX_BYTES, hold_ms: int = POLL_HOLD_MS) -> list[Pulled]:
        """Return the next records as they lie in the log (with whole names), by queue; see `poll`.

        Records may be among them that the consumer's filter rejects: test their tags. Queues that
        cannot be read at their position are parts with that status; they are returned once, and
        not read until `seek`.
        """
        self._start()
        if self._is_polling:
            raise UsageError("a consumer is polled by one task at a time")
        self._is_polling = True
        try:
            return await self._poll(max_bytes, hold_ms)
        finally:
            self._is_polling = False

    async def _poll(self, max_bytes: int, hold_ms: int) -> list[Pulled]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + hold_ms / 1000
        self._polls += 1
        is_asked = False
        while True:
            parts = self._take_answers()
            if parts:
                return parts
            if self._errors:
                raise self._errors.popleft()
            self._arrived.clear()
            now = loop.time()
            retry_at = float("inf")
            if now < deadline or not is_asked:
                retry_at = self._pull_all(max_bytes, max(0, round((deadline - now) * 1000)), now)
                is_asked = True
            until = deadline
            if self._polls in self._pulling.values():
                until = deadline + GRACE_S
            if now >= until:
                self._raise_if_unreachable(now)
                return []
            try:
                async with asyncio.timeout_at(min(until, retry_at)):
                    await self._arrived.wait()
            except TimeoutError:
                continue

    def _pull_all(self, max_bytes: int, hold_ms: int, now: float) -> float:
        """Ask every broker that is not asked; return the loop time at which one can be asked again."""
        retry_at = float("inf")
        if any(self.routes.get(topic) is None for topic in self._topics):
            retry_at = now + MISSING_REFRESH_S
            if self.routes.refreshed_at + MISSING_REFRESH_S <= now:
                self.routes.refresh_soon()
        by_source: dict[ReadSource, list[tuple[TopicQueue, QueueCursor]]] = {}
        for queue, cursor in self._cursors.items():
            by_source.setdefault(self._choice.source(queue, now), []).append((queue, cursor))
            if cursor.rest_until > now:
                retry_at = min(retry_at, cursor.rest_until)
        for source, cursors in by_source.items():
            if source in self._pulling:
                continue
            rest_until = 0.0 if source.replica else self._rest.get(source.broker, 0.0)
            if rest_until > now:
                retry_at = min(retry_at, rest_until)
                continue
            asked = ask(cursors, now)
            if asked:
                # A large answer may cover only the first queues: each gets its turn to be first.
                start = self._polls % len(asked)
                retry_at = min(
                    retry_at, self._pull(source, asked[start:] + asked[:start], max_bytes, hold_ms, now)
                )
        return retry_at

    def _pull(
        self, source: ReadSource, asked: list[AskedQueue], max_bytes: int, hold_ms: int, now: float
    ) -> float:
        """Ask, if there is a connection; the loop time at which to look again."""
        link: Link | ReplicaLink
        if source.replica:
            link = self.routes.replicas.link(source.replica)
            if link.is_failing(now):
                self._choice.failed(source.replica, now)
                return now
        else:
            try:
                link = self.routes.link(source.broker)
            except TransportError:
                return float("inf")
        connection = link.client.connection
        if connection is None:
            # on_up wakes the poll; a replica is not waited for.
            return now + REST_S if source.replica else float("inf")
        topics = {queue.topic for queue in self._cursors if queue.broker == source.broker}
        filter_id = self._registered.on(link, connection, dict.fromkeys(topics, self._filter))
        poll = self._pulling[source] = self._polls
        if source.replica:
            hold_ms = 0
        elif self._choice.is_under_way:
            # The queue that comes back next waits until this one ends.
            hold_ms = min(hold_ms, BACK_HOLD_MS)

        def on_reply(reply: Reply | HoldMQError) -> None:
            if self._pulling.get(source) == poll:
                del self._pulling[source]
            self._answers.append(_Answer(source, asked, reply))
            self._arrived.set()

        request = PullRequest(
            wire_queues(asked),
            max_bytes,
            hold_ms,
            filter_id,
            replica_reads=source.wanted,
            is_replay=self._is_replay,
        )
        connection.request(RequestCode.PULL, request, on_reply, hold_ms / 1000 + PULL_TIMEOUT_S)
        return float("inf")

    def _take_answers(self) -> list[Pulled]:
        parts: list[Pulled] = []
        now = asyncio.get_running_loop().time()
        rest_until = now + REST_S
        while self._answers:
            answer = self._answers.popleft()
            source = answer.source
            try:
                if isinstance(answer.reply, HoldMQError):
                    raise answer.reply
                header = answer.reply.header(PullResponse)
                answers = rows(PulledQueue, header.queues)
                outcome = take_answer(
                    answer.asked,
                    answers,
                    header.log_epoch,
                    answer.reply.body,
                    rest_until,
                    bool(source.replica),
                )
            except HoldMQError as error:
                self._failed(source, error, now)
                continue
            named = set(header.at_replica)
            for at, (asked, row) in enumerate(zip(answer.asked, answers, strict=False)):
                if asked.turn == asked.cursor.turn:
                    replica = header.replica if at in named else ""
                    self._choice.took(source, asked.queue, asked.offset, row, replica, now)
            parts += outcome.parts
            if outcome.is_route_wrong:
                self.routes.refresh_soon()
            if outcome.error is not None:
                self._errors.append(outcome.error)
        return parts

    def _failed(self, source: ReadSource, error: HoldMQError, now: float) -> None:
        if source.replica:
            # Whatever it is, the leader answers.
            self._registered.forget(self.routes.replicas.link(source.replica).name)
            self._choice.failed(source.replica, now)
            return
        self._rest[source.broker] = now + REST_S
        if isinstance(error, RemoteError) and error.code == Code.FILTER_UNKNOWN:
            self._registered.forget(source.broker)
        elif not error.retriable:
            self._errors.append(error)

    def _raise_if_unreachable(self, now: float) -> None:
        for broker in {queue.broker for queue in self._cursors}:
            try:
                link = self.routes.link(broker)
            except TransportError:
                continue  # the route table drops its queues
            if link.down_since is not None and now - link.down_since >= UNREACHABLE_S:
                raise TransportError(f"broker {broker!r} is unreachable: {link.client.last_error}")

    # Filters

    def _decode(self, part: Pulled) -> list[Message]:
        messages, undecodable = decode_messages(bytes(part.records), part.queue.broker)
        for one in undecodable:
            # Brokers refuse such records; one that is there all the same must not hide the others.
            self.undecodable += 1
            log.error("a record cannot be decoded", queue=str(part.queue), reason=one.reason)
        if self.tenant:
            for message in messages:
                shorten(self.tenant, message)
        if self._filter.is_everything:
            return messages
        return [message for message in messages if self._filter.passes(message.tag)]

    def _filter_failed(self, link: str, error: HoldMQError) -> None:
        # A replica that does not know the filter refuses the pull as well.
        if any(queue.broker == link for queue in self._cursors):
            self._answers.append(_Answer(ReadSource(link, "", ReplicaReads.NEVER), [], error))
            self._arrived.set()

    # Inside

    def _start(self) -> None:
        if self._is_closed:
            raise UsageError("the consumer is closed")
        if not self._is_attached:
            self.routes.start()
            self._attach()
            self.routes.replicas.on_up.append(self._arrived.set)

    async def _finish(self, timeout_s: float | None) -> None:
        if self._is_attached:
            self.routes.replicas.on_up.remove(self._arrived.set)
        await super()._finish(timeout_s)

    def _forget(self) -> None:
        """Void the questions that are out."""
        for queue, cursor in self._cursors.items():
            cursor.turn += 1
            self._choice.forget(queue)
        self._pulling.clear()
        self._errors.clear()

    def _link_up(self, link: Link, connection: Connection, hello: HelloResponse) -> None:
        self._arrived.set()

    def _routes_changed(self, changed: frozenset[str]) -> None:
        """Take up queues that appeared in assigned topics, let go of those that are gone."""
        for topic in changed & self._topics:
            route = self.routes.get(topic)
            there = set(route.read_queues) if route is not None else set()
            for queue in [q for q in self._cursors if q.topic == topic and q not in there]:
                self._cursors.pop(queue).turn += 1
                self._choice.forget(queue)
            for queue in sorted(there):
                self._cursors.setdefault(queue, QueueCursor(0, is_fresh=True))
        self._arrived.set()
