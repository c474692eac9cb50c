"""Messages looked up: by id, by key, newest first, and everything since a time."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls
from holdmq.client.own_words import shorten
from holdmq.client.pull_consumer import PullConsumer, ReadReplicas
from holdmq.client.route import RouteTable, TopicRoute
from holdmq.errors import Code, HoldMQError, OffsetError, RemoteError, TransportError, UsageError, WireError
from holdmq.message import Message, MessageId, TopicQueue
from holdmq.names.tenants import tenant_of
from holdmq.record.codec import decode_record
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import HeartbeatRequest
from holdmq.wire.query_headers import (
    MessageBackwardsRequest,
    MessageBackwardsResponse,
    MessageFindRequest,
    MessageFindResponse,
    MessageGetRequest,
    OffsetAtRequest,
    OffsetAtResponse,
    QueueOffset,
)
from holdmq.wire.replica_reads import ReplicaReads

if TYPE_CHECKING:
    from holdmq.rpc.security import Security

TIMEOUT_S: Final = 10.0
"""Deadline of one look-up, retries included: it may have to wait for a cold disk."""
PAGE_MESSAGES: Final = 64
PAGE_BYTES: Final = 1 << 20
PAGE_MAX: Final = 1_000
LOOK_BACK_MAX: Final = 100_000
"""Messages of each queue that `newest` looks at, unless told otherwise: with a rare tag it would read all."""
PAGE_LOOK_BACK_MAX: Final = 10_000
"""Messages of each queue that one page looks at: with a rare tag it would take as long as the topic is."""
BROKERS_AT_ONCE: Final = 16
"""Queues asked at a time: a topic may have thousands."""
REPLAY_HOLD_MS: Final = 200
"""How long a poll of a replay waits: what it reads is there, or was rejected by its filter."""
REPLICA_S: Final = 5.0
"""How long a replica may take for a look-up; then its leader is asked."""


class MessagePage(NamedTuple):
    """A part of a search, newest first. `cursor`: ask again with it; None = there are no more.

    `is_complete` False and no cursor: some broker could not follow a key that so many messages have.
    """

    messages: list[Message]
    cursor: str | None
    is_complete: bool


class QueueAt(NamedTuple):
    """A queue at a time: the first offset stored then or later, and what it holds now."""

    offset: int
    first_offset: int
    end_offset: int
    log_epoch: int


class Messages(AdminCalls):
    """Looks messages up. Use it as `async with Messages(["host:9876"]) as messages`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. `read_replicas`: whether replicas of
    a broker that do not lead it may answer, as of `PullConsumer`; what is of the last seconds may be missing
    with `prefer`. Every call raises TransportError when a broker that it needs does not answer for
    `timeout_s`, and RemoteError when one refuses.
    """

    KIND = "messages"
    TIMEOUT_S = TIMEOUT_S

    def __init__(
        self,
        registries: Sequence[str] = (),
        *,
        client_id: str = "",
        role: str = "console",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        timeout_s: float | None = None,
        read_replicas: ReadReplicas = "allow",
        tenant: str = "",
    ) -> None:
        try:
            self._wanted = ReplicaReads.of(read_replicas)
        except ValueError as error:
            raise UsageError(f"read_replicas: {error}") from error
        self._read_replicas = read_replicas
        super().__init__(
            registries,
            client_id=client_id,
            role=role,
            routes=routes,
            security=security,
            cluster=cluster,
            timeout_s=timeout_s,
            tenant=tenant,
        )

    async def get(self, message_id: MessageId | str) -> Message:
        """The message that an id names, from the broker whose store it is in.

        Raises RemoteError: MESSAGE_UNKNOWN (the text says whether it never was, is gone, or its store is
        not here), CORRUPT, TOPIC_PERM; UsageError for what is no id.
        """
        wanted = MessageId.parse(message_id) if isinstance(message_id, str) else message_id
        broker = await self._broker_of(wanted)
        reply = await self._look_up(
            RequestCode.MESSAGE_GET, broker, lambda replicas: MessageGetRequest(str(wanted), replicas)
        )
        (message,) = _messages(reply, broker, 1)
        if self.tenant:
            if tenant_of(message.topic) != self.tenant:
                raise RemoteError(Code.MESSAGE_UNKNOWN, f"{wanted} is not of the tenant {self.tenant!r}")
            shorten(self.tenant, message)
        return message

    async def find(
        self,
        topic: str,
        key: str = "",
        *,
        unique_id: str = "",
        begin_ms: int = 0,
        end_ms: int | None = None,
        count: int = PAGE_MESSAGES,
        cursor: str | None = None,
    ) -> MessagePage:
        """A page of a topic's messages with this key, or this unique id, over all its brokers, newest first.

        Stored in [begin_ms, end_ms] (ms since the epoch). `cursor` is that of the page before. A message of
        the last half second may not be found yet.
        """
        if bool(key) == bool(unique_id):
            raise UsageError("give a key or a unique_id, and not both")
        asked = await self._search(topic, cursor)
        wanted = max(1, min(count, PAGE_MAX))

        async def ask(broker: str) -> tuple[MessageFindResponse, list[Message]]:
            def request(replicas: ReplicaReads) -> MessageFindRequest:
                text, before = key or unique_id, asked[broker]
                return MessageFindRequest(
                    topic, text, bool(unique_id), begin_ms, end_ms, before, wanted, replicas
                )

            reply = await self._look_up(RequestCode.MESSAGE_FIND, broker, request)
            answer = reply.header(MessageFindResponse)
            return answer, _messages(reply, broker, answer.records, self.tenant)

        answers = dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))
        found = [message for _, messages in answers.values() for message in messages]
        found.sort(key=_newest_first)
        taken = found[:wanted]
        going_on: dict[str, int | None] = {}
        for broker, (answer, messages) in answers.items():
            own = [message for message in taken if message.broker == broker]
            if len(own) < len(messages):
                going_on[broker] = _position(own[-1]) if own else asked[broker]
            elif answer.next_before is not None:
                going_on[broker] = answer.next_before
        is_complete = all(
            answer.is_complete or answer.next_before is not None for answer, _ in answers.values()
        )
        return MessagePage(taken, json.dumps(going_on) if going_on else None, is_complete)

    async def newest(
        self, topic: str, tag_filter: str | None = None, look_back_max: int = LOOK_BACK_MAX
    ) -> AsyncIterator[Message]:
        """A topic's messages, newest first by store time over all queues, for as long as they are asked for.

        `tag_filter`: an exact tag or an MQTT filter over the tag. At most `look_back_max` messages of each
        queue are looked at. Damaged messages are left out.
        """
        route = await self._route(topic)
        limit = asyncio.Semaphore(BROKERS_AT_ONCE)
        backwards = [_Backwards(self, queue, tag_filter, look_back_max) for queue in route.read_queues]

        async def begin(queue: _Backwards) -> None:
            async with limit:
                await queue.fill()

        await asyncio.gather(*map(begin, backwards))
        heap = [(_newest_first(q.found[0]), i) for i, q in enumerate(backwards) if q.found]
        heapq.heapify(heap)
        while heap:
            _, i = heap[0]
            yield backwards[i].found.popleft()
            if not backwards[i].found:
                await backwards[i].fill()
            if backwards[i].found:
                heapq.heapreplace(heap, (_newest_first(backwards[i].found[0]), i))
            else:
                heapq.heappop(heap)

    async def newest_page(
        self,
        topic: str,
        tag_filter: str | None = None,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        count: int = PAGE_MESSAGES,
        cursor: str | None = None,
        look_back_max: int = PAGE_LOOK_BACK_MAX,
    ) -> MessagePage:
        """A page of a topic's messages, newest first by store time over all queues, read backwards.

        Stored in [begin_ms, end_ms] (ms since the epoch). `tag_filter` as of `newest`; at most
        `look_back_max` messages of each queue are looked at for a page, so that one may be empty and not the
        last. `cursor` is that of the page before.
        """
        before = await self._places_before(topic, end_ms, cursor)
        limit = asyncio.Semaphore(BROKERS_AT_ONCE)
        backwards = [
            _Backwards(self, queue, tag_filter, look_back_max, offset, begin_ms)
            for queue, offset in before.items()
        ]

        async def begin(queue: _Backwards) -> None:
            async with limit:
                await queue.fill()

        await asyncio.gather(*map(begin, backwards))
        heap = [(_newest_first(q.found[0]), i) for i, q in enumerate(backwards) if q.found]
        heapq.heapify(heap)
        # A queue that was not read to its next match may have newer ones than what the others have.
        taken: list[Message] = []
        while heap and len(taken) < count:
            _, i = heapq.heappop(heap)
            taken.append(backwards[i].found.popleft())
            if not backwards[i].found:
                await backwards[i].fill()
            if backwards[i].found:
                heapq.heappush(heap, (_newest_first(backwards[i].found[0]), i))
            elif backwards[i].before is not None:
                break
        going_on = {str(queue): at.before for queue, at in zip(before, backwards, strict=True)}
        left = {queue: offset for queue, offset in going_on.items() if offset is not None}
        return MessagePage(taken, json.dumps(left) if left else None, True)

    async def _places_before(
        self, topic: str, end_ms: int | None, cursor: str | None
    ) -> dict[TopicQueue, int | None]:
        """Where to read backwards from, by queue; None = its end."""
        route = await self._route(topic)
        if cursor is not None:
            places = _cursor_of(cursor)
            queues = {str(queue): queue for queue in route.read_queues}
            if not places.keys() <= queues.keys():
                raise UsageError("the cursor is of another topic, or of queues that are not there any more")
            return {queues[name]: offset for name, offset in places.items()}
        if end_ms is None:
            return dict.fromkeys(route.read_queues)
        return {queue: at.offset for queue, at in (await self.offsets_at(topic, end_ms + 1)).items()}

    async def offsets_at(self, topic: str, time_ms: int) -> dict[TopicQueue, QueueAt]:
        """Where every queue of a topic stood at a time (ms since the epoch)."""
        route = await self._route(topic)
        brokers = list(dict.fromkeys(queue.broker for queue in route.read_queues))

        async def ask(broker: str) -> dict[TopicQueue, QueueAt]:
            reply = await self.call(RequestCode.OFFSET_AT, broker, OffsetAtRequest(topic, time_ms))
            answer = reply.header(OffsetAtResponse)
            return {
                TopicQueue(topic, broker, row.queue_id): QueueAt(
                    row.offset, row.first_offset, row.end_offset, answer.log_epoch
                )
                for row in rows(QueueOffset, answer.offsets)
            }

        found: dict[TopicQueue, QueueAt] = {}
        for part in await asyncio.gather(*map(ask, brokers)):
            found.update(part)
        return found

    async def replay(
        self, topic: str, from_ms: int, to_ms: int | None = None, tag_filter: str | None = None
    ) -> AsyncIterator[Message]:
        """A topic's messages stored from `from_ms` to before `to_ms` (None = now), each queue's in order.

        What comes while it runs is not read. `tag_filter` as of `PullConsumer`. Damaged messages, and those
        that retention takes meanwhile, are passed over.
        """
        begins = await self.offsets_at(topic, from_ms)
        ends = {queue: at.end_offset for queue, at in begins.items()}
        if to_ms is not None:
            ends = {queue: at.offset for queue, at in (await self.offsets_at(topic, to_ms)).items()}
        begins = {queue: at for queue, at in begins.items() if at.offset < ends.get(queue, 0)}
        if not begins:
            return
        async with PullConsumer(
            routes=self.routes,
            tag_filter=tag_filter,
            read_replicas=self._read_replicas,
            is_replay=True,
        ) as consumer:
            await consumer.assign(list(begins), 0)
            for queue, at in begins.items():
                await consumer.seek(queue, at.offset, at.log_epoch)
            while any(p.offset < ends[queue] for queue, p in consumer.positions().items()):
                try:
                    messages = await consumer.poll(hold_ms=REPLAY_HOLD_MS)
                except OffsetError as fault:
                    queue = next(queue for queue in begins if str(queue) == fault.queue)
                    await consumer.seek(queue, fault.next_offset)
                    continue
                for message in messages:
                    queue = TopicQueue(topic, message.broker or "", message.queue_id)
                    if message.queue_offset < ends[queue]:
                        yield message

    # Whom to ask

    async def _look_up(
        self, code: RequestCode, broker: str, header: Callable[[ReplicaReads], Header]
    ) -> Reply:
        """Ask a broker, then the replica that it names in its place, and the broker again if that fails."""
        try:
            return await self.call(code, broker, header(self._wanted))
        except RemoteError as error:
            replica = error.ext_fields.get("replica")
            if error.code != Code.ASK_REPLICA or not isinstance(replica, str):
                raise
        try:
            timeout_s = min(REPLICA_S, self.timeout_s)
            return await self.routes.replicas.call(replica, code, header(self._wanted), timeout_s)
        except HoldMQError:
            # Whatever it is: the leader may have it, and says for certain when it has not.
            return await self.call(code, broker, header(ReplicaReads.NEVER))

    async def _broker_of(self, message_id: MessageId) -> str:
        """The live broker whose store an id names."""
        await self.routes.refresh()
        silent: list[str] = []

        async def is_there(broker: str) -> bool:
            client = self.routes.link(broker).client
            try:
                if client.hello is None or client.connection is None:
                    await client.call(RequestCode.HEARTBEAT, HeartbeatRequest(), self.timeout_s)
            except HoldMQError:
                silent.append(broker)
                return False
            return client.hello is not None and client.hello.store_id == message_id.store_id

        brokers = list(self.routes.brokers())
        for broker, found in zip(brokers, await asyncio.gather(*map(is_there, brokers)), strict=True):
            if found:
                return broker
        if silent:
            raise TransportError(
                f"message {message_id} may be at a broker that does not answer: {', '.join(silent)}"
            )
        raise RemoteError(
            Code.MESSAGE_UNKNOWN,
            f"message {message_id} is in store {message_id.store_id.hex()}, which no live broker has",
        )

    async def _search(self, topic: str, cursor: str | None) -> dict[str, int | None]:
        """Which brokers to ask, and before which of their log positions."""
        if cursor is None:
            route = await self._route(topic)
            return {queue.broker: None for queue in route.read_queues}
        known = _cursor_of(cursor)
        route = await self._route(topic)
        if not known.keys() <= {queue.broker for queue in route.read_queues}:
            raise UsageError("the cursor is of another topic, or of brokers that are not there any more")
        return known

    async def _route(self, topic: str) -> TopicRoute:
        self.routes.start()
        route = await self.routes.topic(topic)
        if route is None:
            raise RemoteError(Code.TOPIC_UNKNOWN, f"there is no topic {topic!r}")
        return route


class _Backwards:
    """One queue read backwards; `found` are messages that were read and not yet taken."""

    __slots__ = (
        "_begin_ms", "_is_done", "_left", "_messages", "_offset", "_position", "_queue", "_tag_filter",
        "found",
    )  # fmt: skip

    def __init__(
        self,
        messages: Messages,
        queue: TopicQueue,
        tag_filter: str | None,
        look_back: int,
        offset: int | None = None,
        begin_ms: int = 0,
    ) -> None:
        self.found: deque[Message] = deque()
        self._messages = messages
        self._queue = queue
        self._tag_filter = tag_filter
        self._offset = offset
        self._position: int | None = None
        self._begin_ms = begin_ms
        self._left = look_back
        self._is_done = offset == 0

    @property
    def before(self) -> int | None:
        """Where to go on behind what was taken; None = nothing is left."""
        if self.found:
            return self.found[0].queue_offset + 1
        return None if self._is_done else self._offset

    async def fill(self) -> None:
        """Read on until something is found, or nothing is left."""
        count = PAGE_MESSAGES if self._tag_filter is None else PAGE_MAX
        while not self.found and not self._is_done and self._left > 0:
            reply = await self._read(min(count, self._left))
            answer = reply.header(MessageBackwardsResponse)
            read = _messages(reply, self._queue.broker, answer.records, self._messages.tenant)
            if read:
                self._position = _position(read[-1])
            self.found.extend(message for message in read if message.store_ms >= self._begin_ms)
            self._left -= count
            self._offset = answer.next_offset
            self._is_done = answer.next_offset is None or len(self.found) < len(read)

    async def _read(self, count: int) -> Reply:
        def request(replicas: ReplicaReads) -> MessageBackwardsRequest:
            topic, _, queue_id = self._queue
            return MessageBackwardsRequest(
                topic,
                queue_id,
                self._offset,
                count,
                PAGE_BYTES,
                self._tag_filter,
                replicas,
                self._position,
            )

        return await self._messages._look_up(RequestCode.MESSAGE_BACKWARDS, self._queue.broker, request)


def _messages(reply: Reply, broker: str, count: int, tenant: str = "") -> list[Message]:
    """The messages in an answer's body, in the tenant's words. Raises WireError when they are not so many."""
    found: list[Message] = []
    at = 0
    while at < len(reply.body):
        record = decode_record(reply.body, at)
        message = record.to_message(broker)
        shorten(tenant, message)
        found.append(message)
        at += record.total_size
    if len(found) != count:
        raise WireError(f"an answer of {count} messages has {len(found)}")
    return found


def _cursor_of(text: str) -> dict[str, int | None]:
    """What a page's cursor says. Raises UsageError."""
    try:
        known = json.loads(text)
        if not isinstance(known, dict) or not all(
            v is None or (type(v) is int and 0 <= v < 1 << 63) for v in known.values()
        ):
            raise ValueError(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{text[:200]!r} is no cursor of a page of messages") from None
    return known


def _position(message: Message) -> int:
    return -1 if message.message_id is None else message.message_id.physical_offset


def _newest_first(message: Message) -> tuple[int, int]:
    return -message.store_ms, -_position(message)
