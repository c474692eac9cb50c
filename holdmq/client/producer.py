"""The producer: messages to queues, batched per event-loop turn, stored once each.

What is sent in one turn of the loop leaves in one PRODUCE per broker (up to 1 MiB each).
Every message has a sequence in its queue; what a broker refuses for the moment, or does not answer,
is sent again with the same sequence until its deadline, so it is stored once and in order.
Only what a broker did not answer before it was gone for `reroute_s` may be stored twice.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Self

from holdmq.client.delay import due_text, encode_delayed
from holdmq.client.lanes import Chunk, Owner, SendResult, Terms
from holdmq.client.route import RouteTable, TopicRoute
from holdmq.client.sender import OUTSTANDING_MAX_BYTES, PRODUCE_MAX_BYTES, Sender
from holdmq.errors import BatchError, Code, HoldMQError, RemoteError, TransportError, UsageError
from holdmq.message import Message, TopicQueue
from holdmq.record import encode_message
from holdmq.rpc.security import Security
from holdmq.topics import queue_of_key, rank_queues, tag_fault, topic_fault

SEND_TIMEOUT_S: Final = 30.0
"""Deadline of a send, all retries included: a broker's restart fits in."""

Groups = dict[TopicQueue, list[int]]


class _Sending:
    """One `send` or `send_batch` call that waits."""

    __slots__ = ("future", "left", "results")

    def __init__(self, count: int, future: asyncio.Future[None]) -> None:
        self.results: list[SendResult | HoldMQError | None] = [None] * count
        self.left = count
        self.future = future

    def settle(self, index: int, result: SendResult | HoldMQError) -> None:
        if self.results[index] is None:
            self.results[index] = result
            self.left -= 1
            if self.left == 0 and not self.future.done():
                self.future.set_result(None)


class Producer:
    """Sends messages. Use it as `async with Producer(["host:9876"]) as producer`, on one event loop.

    `registries`: host:port of every registry. `routes`: share this RouteTable instead, which the
    caller starts and closes. `sender` has the counters.
    """

    def __init__(
        self,
        registries: Sequence[str] = (),
        *,
        client_id: str = "",
        routes: RouteTable | None = None,
        security: Security | None = None,
        send_timeout_s: float = SEND_TIMEOUT_S,
        outstanding_max_bytes: int = OUTSTANDING_MAX_BYTES,
    ) -> None:
        self._owns_routes = False
        self.producer_id = secrets.randbits(63)
        self.client_id = client_id or f"producer-{self.producer_id:016x}"
        if routes is None:
            routes = RouteTable(registries, self.client_id, security=security)
            self._owns_routes = True
        self.routes = routes
        self.sender: Sender | None = None
        self._send_timeout_s = send_timeout_s
        self._outstanding_max_bytes = outstanding_max_bytes
        self._ids = 0
        self._turn = secrets.randbits(16)
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait for what is in hand (`timeout_s`, None = each send's own deadline), then disconnect.

        Sends that are not stored by then fail with TransportError. Closing again changes nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self.sender is not None:
            await self.sender.drain(timeout_s)
            self.sender.close(TransportError("the producer was closed before the message was stored"))
        if self._owns_routes:
            await self.routes.close()

    async def send(
        self,
        message: Message,
        *,
        key: bytes | str | None = None,
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
        result = (await self._send((message,), key, queue, timeout_s, later))[0]
        if isinstance(result, SendResult):
            return result
        raise result

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        key: bytes | str | None = None,
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
        later = due_text(delay_ms, due, delay_level)
        results = await self._send(messages, key, queue, timeout_s, later) if messages else []
        stored = [result for result in results if isinstance(result, SendResult)]
        if len(stored) < len(results):
            raise BatchError(list(results))
        return stored

    def _start(self) -> Sender:
        if self._is_closed:
            raise UsageError("the producer is closed")
        loop = asyncio.get_running_loop()
        if self.sender is None:
            self._loop = loop
            self.routes.start()
            self.sender = Sender(self.routes, self.producer_id, self._redispatch, self._outstanding_max_bytes)
        elif loop is not self._loop:
            raise UsageError("a producer belongs to the event loop that it was first used on")
        return self.sender

    async def _send(
        self,
        messages: Sequence[Message],
        key: bytes | str | None,
        queue: TopicQueue | None,
        timeout_s: float | None,
        due: str | None = None,
    ) -> list[SendResult | HoldMQError]:
        sender = self._start()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._send_timeout_s if timeout_s is None else timeout_s)
        for message in messages:
            _check(message, queue)
        for topic in dict.fromkeys(message.topic for message in messages):
            known = self.routes.get(topic)
            if known is None or not known.write_queues:
                await self.routes.ensure_topic(topic, timeout_s=max(0.001, deadline - loop.time()))
        sending = _Sending(len(messages), loop.create_future())
        terms = Terms(deadline, key, queue is not None, due)
        groups = {queue: list(range(len(messages)))} if queue is not None else self._group(messages, key)
        chunks = [
            (target, chunk)
            for target, indices in groups.items()
            for chunk in self._encode(sending, [messages[i] for i in indices], indices, target, terms)
        ]
        await sender.wait_for_room(sum(len(chunk.records) for _, chunk in chunks), deadline)
        for target, chunk in chunks:
            sender.enqueue(target, chunk)
        await sending.future
        return [result for result in sending.results if result is not None]

    # Choosing queues

    def _group(self, messages: Iterable[Message], key: bytes | str | None) -> Groups:
        """Indices of messages by queue; RemoteError (TOPIC_UNKNOWN) for a topic without queues."""
        groups: Groups = {}
        in_turn: dict[str, TopicQueue] = {}
        for index, message in enumerate(messages):
            route = self.routes.get(message.topic)
            if route is None or not route.write_queues:
                raise RemoteError(Code.TOPIC_UNKNOWN, f"topic {message.topic!r} has no queue to write to")
            own = key if key is not None else (message.keys[0] if message.keys else None)
            if own is not None:
                target = self._queue_of(route, own)
            else:
                chosen = in_turn.get(message.topic)
                if chosen is None:
                    chosen = in_turn[message.topic] = self._next_queue(route)
                target = chosen
            groups.setdefault(target, []).append(index)
        return groups

    def _queue_of(self, route: TopicRoute, key: bytes | str) -> TopicQueue:
        queues = [(queue.broker, queue.queue_id) for queue in route.write_queues]
        broker, queue_id = queue_of_key(key, queues)
        now = asyncio.get_running_loop().time()
        if self.routes.is_resting(broker, now):
            ranked = rank_queues(key, queues)
            broker, queue_id = next((q for q in ranked if not self.routes.is_resting(q[0], now)), ranked[0])
        return TopicQueue(route.topic, broker, queue_id)

    def _next_queue(self, route: TopicRoute) -> TopicQueue:
        """The next queue in turn, of brokers that are connected (or were not tried yet) if there are any."""
        self._turn += 1
        queues = route.write_queues
        for i in range(len(queues)):
            queue = queues[(self._turn + i) % len(queues)]
            if self.routes.is_available(queue.broker):
                return queue
        return queues[self._turn % len(queues)]

    def _redispatch(self, chunks: list[Chunk]) -> None:
        """Give chunks whose queue is gone the queues that their messages have now."""
        sender = self.sender
        assert sender is not None
        for chunk in chunks:
            try:
                if chunk.terms.is_tied:
                    topic = chunk.messages[0].topic
                    raise RemoteError(Code.QUEUE_UNKNOWN, f"topic {topic!r} has no such queue any more")
                groups = self._group(chunk.messages, chunk.terms.key)
            except RemoteError as error:
                chunk.fail(error)
                sender.give_back(len(chunk.records))
                continue
            for target, places in groups.items():
                messages = [chunk.messages[i] for i in places]
                indices = [chunk.indices[i] for i in places]
                for moved in self._encode(chunk.owner, messages, indices, target, chunk.terms):
                    sender.enqueue(target, moved)

    # Encoding

    def _encode(
        self,
        owner: Owner,
        messages: Sequence[Message],
        indices: Sequence[int],
        target: TopicQueue,
        terms: Terms,
    ) -> list[Chunk]:
        """Records of messages of one queue, in chunks that fit a PRODUCE; a record's size never changes."""
        now_ms = time.time_ns() // 1_000_000
        chunks: list[Chunk] = []
        records: list[bytes] = []
        first = size = 0
        for i, message in enumerate(messages):
            if message.unique_id is None:
                self._ids += 1
                message.unique_id = f"{self.producer_id:016x}-{self._ids}"
            if not message.born_ms:
                message.born_ms = now_ms
            if terms.due is None:
                record = encode_message(message, target.queue_id, now_ms)
            else:
                record = encode_delayed(message, target.queue_id, now_ms, terms.due)
            if records and size + len(record) > PRODUCE_MAX_BYTES:
                chunks.append(Chunk(owner, indices[first:i], messages[first:i], records, terms))
                records, first, size = [], i, 0
            records.append(record)
            size += len(record)
        chunks.append(Chunk(owner, indices[first:], messages[first:], records, terms))
        return chunks


def _check(message: Message, queue: TopicQueue | None) -> None:
    fault = topic_fault(message.topic)
    if fault is None and message.tag is not None:
        fault = tag_fault(message.tag)
    if fault is None and queue is not None and queue.topic != message.topic:
        fault = f"a message of topic {message.topic!r} cannot go to queue {queue}"
    if fault is not None:
        raise UsageError(fault)
