"""The producer: messages to queues, batched per event-loop turn, stored once each.

What is sent in one turn of the loop leaves in one PRODUCE per broker (up to 1 MiB each).
Every message has a sequence in its queue; what a broker refuses for the moment, or does not answer,
is sent again with the same sequence until its deadline, so it is stored once and in order.
Only what a broker did not answer before it was away for `reroute_s` may be stored twice.
`sender` says what happens to messages whose broker does not take them; see docs/producer.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Self

import numpy as np

from holdmq.client.delay import due_text
from holdmq.client.lanes import ChunkOwner, Key, SendChunk, SendResult, Terms
from holdmq.client.lifecycle import RoutedClient
from holdmq.client.owners import Bodies, Many, One, OneWay, StoredRun
from holdmq.client.records import Packing, encode, encode_bodies, is_plain, unique_id
from holdmq.client.room import OUTSTANDING_MAX_BYTES
from holdmq.client.route import REROUTE_S, RouteTable
from holdmq.client.sender import Sender
from holdmq.errors import BatchError, HoldMQError, TransportError, UsageError
from holdmq.message import Message, TopicQueue
from holdmq.names.tenants import in_tenant
from holdmq.names.topics import tag_fault, topic_fault
from holdmq.produce import PRODUCE_MAX_BYTES, new_producer_id
from holdmq.record.codec import FIXED_SIZE
from holdmq.record.compression import BODY_MAX_BYTES, COMPRESS_LEVEL, COMPRESS_MIN_BYTES
from holdmq.rpc.security import Security

SEND_TIMEOUT_S: Final = 30.0
"""Deadline of a send, all retries included: a broker's restart fits in."""

TAGS_KNOWN_MAX: Final = 65_536
"""Tags that were looked at and are good (about 100 bytes each)."""
BODIES_MAX: Final = 65_536
"""Bodies of one PRODUCE: small ones would make megabytes of results otherwise."""

_ENVELOPE_BYTES: Final = FIXED_SIZE + 60
"""What a plain record takes beside its body, about: a short topic, a tag, a unique id."""


class Producer(RoutedClient):
    """Sends messages. Use it as `async with Producer(["host:9876"]) as producer`, on one event loop.

    `registries`: host:port of every registry. `routes`: share this RouteTable instead, which the
    caller starts and closes. `security`: credentials and TLS. Bodies above `compress_min_bytes`
    (0 = none) travel and lie compressed (zlib, `compress_level` 1 to 9) where that makes them smaller;
    consumers get what was sent.
    `send_timeout_s`: the deadline of a send, all retries included. `reroute_s`: how long the keys of a broker
    that does not answer wait for it. `tenant`: topics are named in its words, "" = in whole names.
    `numbers` has the counters.
    """

    def __init__(
        self,
        registries: Sequence[str] = (),
        *,
        client_id: str = "",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        send_timeout_s: float = SEND_TIMEOUT_S,
        reroute_s: float = REROUTE_S,
        outstanding_max_bytes: int = OUTSTANDING_MAX_BYTES,
        compress_min_bytes: int = COMPRESS_MIN_BYTES,
        compress_level: int = COMPRESS_LEVEL,
        tenant: str = "",
    ) -> None:
        if not 1 <= compress_level <= 9 or compress_min_bytes < 0:
            raise UsageError("compress_level is 1 to 9, compress_min_bytes 0 (never) or more")
        self.producer_id = new_producer_id()
        self.client_id = client_id or f"producer-{self.producer_id:016x}"
        super().__init__(registries, self.client_id, routes, security, cluster, tenant, reroute_s=reroute_s)
        self.sender: Sender | None = None
        self._send_timeout_s = send_timeout_s
        self._outstanding_max_bytes = outstanding_max_bytes
        self._packing = Packing(compress_min_bytes, compress_level, self.tenant)
        self._ids = 0
        self._born_ms = 0
        self._topics_known: set[str] = set()
        self._tags_known: set[str] = set()
        self._turnstiles: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        self._one_way = OneWay()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def _finish(self, timeout_s: float | None) -> None:
        if self.sender is not None:
            await self.sender.room.drain(timeout_s)
            self.sender.close(TransportError("the producer was closed before the message was stored"))

    async def send(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
        delay_ms: int | None = None,
        due: datetime | int | None = None,
        delay_level: int = 0,
    ) -> SendResult:
        """Store a message and return where it is; it is confirmed as the broker's flush policy says.

        The queue is `queue` if given, else that of `key`, else that of the message's first own key,
        else the next in turn. Messages of one queue keep the order in which they were sent. Fills
        the message's `unique_id` and `born_ms` where they are unset. Waits while
        `outstanding_max_bytes` are in hand.

        A message with `delay_ms`, `due` (ms since the epoch, or a datetime with a time zone) or `delay_level`
        (1 to 18) is kept by the broker and appears in its queue then; the result has no offset yet.

        Raises UsageError or RecordError for a message that cannot be stored, RequestTimeout when
        it is not known to be stored after `timeout_s` (None = the producer's), RemoteError when the
        broker refuses it for good, TransportError when there is no route to the topic.
        """
        later = due_text(delay_ms, due, delay_level)
        return await (await self._post(message, key, queue, timeout_s, later))

    async def send_async(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
        delay_ms: int | None = None,
        due: datetime | int | None = None,
        delay_level: int = 0,
    ) -> asyncio.Future[SendResult]:
        """Put a message in hand and return a future of what `send` would return or raise.

        Waits for nothing but the topic's route and room below `outstanding_max_bytes`: a caller that goes on
        with the next message has many on their way without a task for each. Raises what `send` raises
        before a message is on its way.
        """
        return await self._post(message, key, queue, timeout_s, due_text(delay_ms, due, delay_level))

    async def send_one_way(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Put a message in hand and forget it: what becomes of it is only counted (`numbers`) and logged.

        It is retried, and keeps its order, as any other. For what may be lost when a broker is away; see
        `send_async` for what may not. Raises what `send_async` raises.
        """
        terms = self._terms(key, queue, timeout_s)
        await self._put(self._one_way, message, terms, queue)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        key: Key | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
        delay_ms: int | None = None,
        due: datetime | int | None = None,
        delay_level: int = 0,
    ) -> list[SendResult]:
        """Store many messages at once; results are in their order. See `send`.

        Messages of a topic without any key go to one queue together. When some could not be
        stored raises BatchError, after all of them are settled.
        """
        if not messages:
            return []
        terms = self._terms(key, queue, timeout_s, due_text(delay_ms, due, delay_level))
        sender = self._start()
        if self._are_plain(messages, terms):
            return await self._send_plain(messages, terms, queue)
        for message in messages:
            self._prepare(message, queue)
        for topic in dict.fromkeys(message.topic for message in messages):
            await self._know(topic, terms.deadline)
        sending = Many(len(messages), asyncio.get_running_loop().create_future())
        if queue is not None:
            groups = {queue: list(range(len(messages)))}
        else:
            groups = sender.choice.spread((message.topic, _key_of(message, key)) for message in messages)
        chunks = [
            (target, chunk)
            for target, indices in groups.items()
            for chunk in self._encode(sending, messages, indices, target, terms)
        ]
        await sender.admit(chunks, terms.deadline)
        return await _all_stored(sending)

    def _are_plain(self, messages: Sequence[Message], terms: Terms) -> bool:
        """Whether messages differ in their bodies alone, and no body is to be compressed."""
        if terms.due is not None:
            return False
        topic, tag = messages[0].topic, messages[0].tag
        least = self._packing.min_bytes or BODY_MAX_BYTES
        return all(
            message.topic == topic and message.tag == tag and is_plain(message) and len(message.body) <= least
            for message in messages
        )

    async def _send_plain(
        self, messages: Sequence[Message], terms: Terms, queue: TopicQueue | None
    ) -> list[SendResult]:
        sender = self._start()
        topic, tag = messages[0].topic, messages[0].tag
        self._check(topic, tag, queue)
        await self._know(topic, terms.deadline)
        target = queue or sender.choice.of(topic, terms.key)
        sending = Many(len(messages), asyncio.get_running_loop().create_future())
        bodies = [message.body for message in messages]
        chunks: list[SendChunk] = []
        begin = 0
        while begin < len(bodies):
            end = _end_of_part(bodies, begin)
            first = self._ids
            chunk = self._encode_part(sending, topic, tag, bodies, range(begin, end), target, terms)
            for i in range(begin, end):
                messages[i].unique_id = unique_id(self.producer_id, first + i - begin)
                messages[i].born_ms = self._born_ms
            chunks.append(chunk)
            begin = end
        await sender.admit([(target, chunk) for chunk in chunks], terms.deadline)
        return await _all_stored(sending)

    async def send_bodies(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tag: str | None = None,
        key: Key | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[StoredRun]:
        """Store many messages that differ in nothing but their bodies: the fastest way to send.

        All go to one queue, in their order (in two parts if that queue's broker goes away). Returns where
        they are, in the order of the bodies: as a rule one StoredRun per MiB. Their unique ids are the
        producer's and consecutive; log positions are not asked for. Raises as `send_batch`.
        """
        terms = self._terms(key, queue, timeout_s)
        sender = self._start()
        self._check(topic, tag, queue)
        sending = Bodies(len(bodies), asyncio.get_running_loop().create_future())
        begin = 0
        target = queue
        while begin < len(bodies):
            await self._know(topic, terms.deadline)
            if target is None or terms.key is not None:
                target = queue or sender.choice.of(topic, terms.key)
            end = _end_of_part(bodies, begin)
            try:
                chunk = self._encode_part(sending, topic, tag, bodies, range(begin, end), target, terms)
                await sender.admit([(target, chunk)], terms.deadline)
            except HoldMQError as error:
                # What came before it is on its way.
                sending.errors[begin] = len(bodies) - begin, error
                sending.settled(len(bodies) - begin)
                break
            begin = end
        if bodies:
            await sending.future
        if sending.errors:
            raise BatchError(list(sending.results()))
        return [sending.runs[index] for index in sorted(sending.runs)]

    def numbers(self) -> dict[str, int]:
        """Counters since the start: requests, resends, messages that changed their queue, and so on."""
        sender = self.sender
        found = {
            "one_way_stored_total": self._one_way.stored_messages,
            "one_way_failed_total": self._one_way.failed_messages,
        }
        if sender is not None:
            found |= {
                "outstanding_bytes": sender.room.taken_bytes,
                "room_waits_total": sender.room.waits,
                "produces_total": sender.produces,
                "resends_total": sender.resends,
                "reroutes_total": sender.reroutes,
                "broker_rests_total": sender.faults.rests,
            }
        return found

    def _start(self) -> Sender:
        if self._is_closed:
            raise UsageError("the producer is closed")
        loop = asyncio.get_running_loop()
        if self.sender is None:
            self._loop = loop
            self.routes.start()
            self.sender = Sender(self.routes, self.producer_id, self._outstanding_max_bytes)
        elif loop is not self._loop:
            raise UsageError("a producer belongs to the event loop that it was first used on")
        return self.sender

    def _terms(
        self, key: Key | None, queue: TopicQueue | None, timeout_s: float | None, due: str | None = None
    ) -> Terms:
        self._start()
        assert self._loop is not None
        deadline_s = self._send_timeout_s if timeout_s is None else timeout_s
        return Terms(self._loop.time() + deadline_s, key, queue is not None, due)

    async def _post(
        self,
        message: Message,
        key: Key | None,
        queue: TopicQueue | None,
        timeout_s: float | None,
        due: str | None,
    ) -> asyncio.Future[SendResult]:
        terms = self._terms(key, queue, timeout_s, due)
        assert self._loop is not None
        owner = One(self._loop.create_future())
        await self._put(owner, message, terms, queue)
        return owner.future

    async def _put(self, owner: ChunkOwner, message: Message, terms: Terms, queue: TopicQueue | None) -> None:
        """Have one message on its way; the owner is told what becomes of it."""
        sender = self.sender
        assert sender is not None
        choice = sender.choice
        topic = message.topic
        self._prepare(message, queue)
        if topic in self._turnstiles or not choice.knows(topic):
            await self._know(topic, terms.deadline)
        keys = message.keys[:1] if terms.key is None and message.keys else None
        target = queue or choice.of(topic, _key_of(message, terms.key))
        record = encode(message, target.queue_id, self._packing, terms.due)
        size = len(record)
        chunk = SendChunk(owner, topic, (0,), record, size.to_bytes(4, "big"), keys, terms)
        if sender.room.try_take(size):
            sender.enqueue(target, chunk)
        else:
            await sender.admit([(target, chunk)], terms.deadline)

    # Routes

    def _is_known(self, topic: str) -> bool:
        route = self.routes.get(topic)
        return route is not None and bool(route.write_queues)

    async def _know(self, topic: str, deadline: float) -> None:
        """Have a route of a topic, creating it if need be; callers go on in the order in which they came."""
        if topic not in self._turnstiles and self._is_known(topic):
            return
        lock, waiting = self._turnstiles.setdefault(topic, (asyncio.Lock(), []))
        waiting.append(None)
        try:
            async with lock:
                if not self._is_known(topic):
                    left_s = deadline - asyncio.get_running_loop().time()
                    await self.routes.ensure_topic(topic, timeout_s=max(0.001, left_s))
        finally:
            waiting.pop()
            if not waiting:
                del self._turnstiles[topic]

    # Encoding

    def _prepare(self, message: Message, queue: TopicQueue | None) -> None:
        """Refuse what no client may send, and fill what is the producer's to fill."""
        self._check(message.topic, message.tag, queue)
        if message.unique_id is None:
            message.unique_id = unique_id(self.producer_id, self._ids)
            self._ids += 1
        if not message.born_ms:
            message.born_ms = time.time_ns() // 1_000_000

    def _check(self, topic: str, tag: str | None, queue: TopicQueue | None) -> None:
        if topic not in self._topics_known:
            fault = topic_fault(topic)
            if fault is not None:
                raise UsageError(fault)
            self.routes.check_name(topic)
            self._topics_known.add(topic)
        if tag is not None and tag not in self._tags_known:
            fault = tag_fault(tag)
            if fault is not None:
                raise UsageError(fault)
            if len(self._tags_known) >= TAGS_KNOWN_MAX:
                self._tags_known.clear()
            self._tags_known.add(tag)
        if queue is not None and (queue.topic != topic or not 0 <= queue.queue_id < 1 << 31):
            raise UsageError(f"a message of topic {topic!r} cannot go to queue {queue}")

    def _encode(
        self,
        owner: ChunkOwner,
        messages: Sequence[Message],
        indices: Sequence[int],
        target: TopicQueue,
        terms: Terms,
    ) -> list[SendChunk]:
        """Records of messages of one queue, in chunks that fit a PRODUCE."""
        chunks: list[SendChunk] = []
        records: list[bytes] = []
        first = size = 0
        for place, index in enumerate(indices):
            record = encode(messages[index], target.queue_id, self._packing, terms.due)
            if records and size + len(record) > PRODUCE_MAX_BYTES:
                chunks.append(self._chunk(owner, messages, indices[first:place], records, target, terms))
                records, first, size = [], place, 0
            records.append(record)
            size += len(record)
        chunks.append(self._chunk(owner, messages, indices[first:], records, target, terms))
        return chunks

    def _chunk(
        self,
        owner: ChunkOwner,
        messages: Sequence[Message],
        indices: Sequence[int],
        records: list[bytes],
        target: TopicQueue,
        terms: Terms,
    ) -> SendChunk:
        keys: list[Key | None] | None = None
        if terms.key is None:
            own = [messages[index].keys for index in indices]
            if any(own):
                keys = [found[0] if found else None for found in own]
        sizes = np.fromiter(map(len, records), ">u4", len(records)).tobytes()
        return SendChunk(owner, target.topic, indices, b"".join(records), sizes, keys, terms)

    def _encode_part(
        self,
        owner: ChunkOwner,
        topic: str,
        tag: str | None,
        bodies: Sequence[bytes],
        part: range,
        target: TopicQueue,
        terms: Terms,
    ) -> SendChunk:
        """Bodies of one queue as one chunk; compressed ones are made one by one."""
        own = bodies[part.start : part.stop]
        least = self._packing.min_bytes
        if least and max(map(len, own)) > least:
            messages = [Message(topic, body, tag) for body in own]
            for message in messages:
                self._prepare(message, None)
            encoded = [encode(message, target.queue_id, self._packing) for message in messages]
            sizes = np.fromiter(map(len, encoded), ">u4", len(encoded)).tobytes()
            return SendChunk(owner, topic, part, b"".join(encoded), sizes, None, terms)
        self._born_ms = time.time_ns() // 1_000_000
        whole = in_tenant(self.tenant, topic)
        made = encode_bodies(whole, target.queue_id, tag, own, self.producer_id, self._ids, self._born_ms)
        self._ids += len(own)
        return SendChunk(owner, topic, part, made.records, made.sizes, None, terms, made.largest)


async def _all_stored(sending: Many) -> list[SendResult]:
    await sending.future
    results = [result for result in sending.results if result is not None]
    stored = [result for result in results if isinstance(result, SendResult)]
    if len(stored) < len(results):
        raise BatchError(list(results))
    return stored


def _end_of_part(bodies: Sequence[bytes], begin: int) -> int:
    """Up to where bodies from `begin` on fit one PRODUCE; one always does."""
    count = len(bodies)
    # As a rule all do, and that is seen without a step for each.
    if (
        not begin
        and count <= BODIES_MAX
        and sum(map(len, bodies)) <= PRODUCE_MAX_BYTES - count * _ENVELOPE_BYTES
    ):
        return count
    size_bytes = 0
    end = begin
    last = min(len(bodies), begin + BODIES_MAX)
    while end < last:
        size_bytes += len(bodies[end]) + _ENVELOPE_BYTES
        if size_bytes > PRODUCE_MAX_BYTES and end > begin:
            break
        end += 1
    return end


def _key_of(message: Message, key: Key | None) -> Key | None:
    """The key that says where a message goes: the caller's, else its first own; None = any queue will do."""
    return key if key is not None else (message.keys[0] if message.keys else None)
