"""How a producer's lanes reach their brokers: one PRODUCE per broker and loop turn, retries, deadlines.

What happens to messages whose broker does not take them::

    refused for the moment        resent with the same sequences; those without a key go to another broker
    another replica leads         resent to it with the same sequences, over the connection that follows
    broker rests (slow, silent)   what was not sent and has no key goes to another broker
    broker away for `patience_s`  everything goes to the next in rank, but for named queues and the keys of
    (unconnected, or silent)      ordered topics; what was unanswered may then be stored twice
    queue gone                    everything goes where it belongs by the new route, in order
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from holdmq.client.choice import Choice
from holdmq.client.faults import BUSY_LATENCY_MS, FAILED_LATENCY_MS, SILENT_MIN_S, Faults
from holdmq.client.lanes import ChunkRun, Lane, SendChunk
from holdmq.client.room import OUTSTANDING_MAX_BYTES, Room
from holdmq.client.route import Link, RouteTable
from holdmq.errors import (
    BusyError,
    Code,
    HoldMQError,
    RecordError,
    RemoteError,
    RequestTimeout,
    TransportError,
    WireError,
)
from holdmq.message import TopicQueue
from holdmq.produce import PRODUCE_MAX_BYTES
from holdmq.produce.body import produce_body
from holdmq.produce.pauses import pause_s
from holdmq.produce.refusals import MAYBE_STORED, is_sent_again, leaves_gap
from holdmq.rpc.connection import Connection, Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.frame import Buffer
from holdmq.wire.header import rows
from holdmq.wire.headers import HelloResponse, ProduceRequest, ProduceResponse, ProduceRun, RunResult

PRODUCE_TIMEOUT_S: Final = 10.0
"""How long one PRODUCE may go unanswered before it is sent again."""
TICK_S: Final = 0.05
"""How often deadlines and retries are looked at while anything is in hand."""
LATE_MIN_S: Final = 0.5
"""A tick this late: the process did not run, and what answers came meanwhile was not read."""

_UNWELL: Final = frozenset(
    {Code.STORE_FULL, Code.STORE_FAILED, Code.STORE_READ_ONLY, Code.SHUTTING_DOWN, Code.SYSTEM_ERROR}
)
"""Refusals after which others are better asked for a while."""

Sent = list[tuple[Lane, ChunkRun]]

log = structlog.get_logger("holdmq.client")


class Sender:
    """All lanes of one producer, on one event loop.

    `choice` says where messages go, `faults` what is known of the brokers, `room` bounds what is in hand.
    Counters: `produces`, `resends`, `reroutes` (messages that went to another queue than their first).
    """

    def __init__(
        self,
        routes: RouteTable,
        producer_id: int,
        outstanding_max_bytes: int = OUTSTANDING_MAX_BYTES,
    ) -> None:
        self.produces = 0
        self.resends = 0
        self.reroutes = 0
        self._loop = asyncio.get_running_loop()
        self.room = Room(outstanding_max_bytes, self._keep_time)
        self.faults = Faults()
        self.choice = Choice(routes, self.faults, self._loop.time)
        self._routes = routes
        self._producer_id = producer_id
        self._lanes: dict[TopicQueue, Lane] = {}
        self._dirty: dict[str, dict[TopicQueue, Lane]] = {}
        self._moving: dict[str, deque[tuple[TopicQueue, SendChunk]]] = {}
        """Topics with a queue that is gone: what comes meanwhile waits behind what is moved."""
        self._is_flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        routes.on_up.append(self._link_up)
        routes.on_routes.append(self._routes_changed)

    # Intake

    async def admit(self, chunks: Sequence[tuple[TopicQueue, SendChunk]], deadline: float) -> None:
        """Take room for these chunks, then send them to their queues together. Raises as `Room.take`."""

        def enqueue() -> None:
            for queue, chunk in chunks:
                self.enqueue(queue, chunk)

        await self.room.take(sum(len(chunk.records) for _, chunk in chunks), deadline, enqueue)

    def enqueue(self, queue: TopicQueue, chunk: SendChunk) -> None:
        """Send this chunk, whose room was taken, to a queue when the loop's turn ends.

        It goes where its messages belong by now, if that changed while it waited for room.
        """
        if self.faults.is_away(queue.broker) and self.choice.has_refuge(queue):
            route = self._routes.get(queue.topic)
            if _may_move(chunk, route is not None and route.order):
                self._redispatch([chunk])
                return
        held = self._moving.get(queue.topic) if self._moving else None
        if held is not None and not chunk.is_free:
            held.append((queue, chunk))
            return
        self._enqueue(queue, chunk)

    def _enqueue(self, queue: TopicQueue, chunk: SendChunk) -> None:
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane(queue)
        lane.waiting.append(chunk)
        self._mark(lane)
        self._keep_time()

    def close(self, error: HoldMQError) -> None:
        """Fail everything in hand with `error`."""
        for lane in self._lanes.values():
            for chunk in [chunk for run in lane.sent for chunk in run.chunks] + list(lane.waiting):
                chunk.fail(error)
        for held in self._moving.values():
            for _, chunk in held:
                chunk.fail(error)
        self.room.close(error)
        self._lanes.clear()
        self._dirty.clear()
        self._moving.clear()
        self.choice.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._routes.on_up.remove(self._link_up)
        self._routes.on_routes.remove(self._routes_changed)

    # Sending

    def _mark(self, lane: Lane) -> None:
        dirty = self._dirty.get(lane.queue.broker)
        if dirty is None:
            dirty = self._dirty[lane.queue.broker] = {}
        dirty[lane.queue] = lane
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_all)

    def _flush_all(self) -> None:
        self._is_flush_due = False
        for broker in list(self._dirty):
            self._flush(broker)

    def _link_up(self, link: Link, _connection: Connection, _hello: HelloResponse) -> None:
        self.faults.connected(link.name)
        self._reroute_all()
        self._flush(link.name)
        self._keep_time()

    def _flush(self, broker: str) -> None:
        """Send what may go to a broker; without a connection it stays until there is one."""
        try:
            link = self._routes.link(broker)
        except TransportError:
            return  # a broker that nobody knows any more: the tick finds other queues
        connection, hello = link.client.connection, link.client.hello
        if connection is None or hello is None:
            return
        batch: Sent = []
        size = 0
        for lane in list(self._dirty.pop(broker, {}).values()):
            self._refuse_too_large(lane, hello.record_max_bytes)
            self._refuse_too_small(lane, hello.message_bytes_min)
            while lane.may_send:
                run = lane.next_run(PRODUCE_MAX_BYTES - size, not batch)
                if run is None:
                    self._produce(link, connection, hello, batch)
                    batch, size = [], 0
                    continue
                batch.append((lane, run))
                size += run.size_bytes
        if batch:
            self._produce(link, connection, hello, batch)

    def _refuse_too_large(self, lane: Lane, record_max_bytes: int) -> None:
        if not record_max_bytes or not any(c.largest > record_max_bytes for c in lane.waiting):
            return
        for chunk in [c for c in lane.waiting if c.largest > record_max_bytes]:
            lane.waiting.remove(chunk)
            reason = f"a record of {chunk.largest} bytes; the broker's record_max_bytes is {record_max_bytes}"
            self._fail(chunk, RecordError(reason, Code.RECORD_TOO_LARGE))

    def _refuse_too_small(self, lane: Lane, message_bytes_min: int) -> None:
        if not message_bytes_min:
            return
        for chunk in [c for c in lane.waiting if c.smallest_body < message_bytes_min]:
            lane.waiting.remove(chunk)
            reason = (
                f"a message of {chunk.smallest_body} bytes; "
                f"the broker's message_bytes_min is {message_bytes_min}"
            )
            self._fail(chunk, RecordError(reason, Code.MESSAGE_TOO_SMALL))

    def _produce(self, link: Link, connection: Connection, hello: HelloResponse, batch: Sent) -> None:
        count = 0
        sizes: list[bytes] = []
        records: list[Buffer] = []
        wire_runs: list[ProduceRun] = []
        for lane, run in batch:
            queue = lane.queue
            lane.in_flight += 1
            count += run.count
            wire_runs.append(
                ProduceRun(queue.topic, queue.queue_id, run.count, self._producer_id, lane.epoch, run.first)
            )
            for chunk in run.chunks:
                sizes.append(chunk.sizes)
                records.append(chunk.records)
        body = produce_body(count, sizes, records)
        self.produces += 1
        sent_at = self._loop.time()
        self.faults.sent(link.name, sent_at)

        def on_reply(reply: Reply | HoldMQError) -> None:
            self._heard(link.name, reply, sent_at)
            self._answered(batch, reply, hello.store_id, connection)

        connection.request(
            RequestCode.PRODUCE,
            ProduceRequest(
                body.crc,
                wire_runs,
                want_positions=any(run.wants_positions for _, run in batch),
                delayed=[index for index, (_, run) in enumerate(batch) if run.is_delayed],
            ),
            on_reply,
            PRODUCE_TIMEOUT_S,
            body.parts,
            body.length_bytes,
        )

    # Answers

    def _heard(self, broker: str, reply: Reply | HoldMQError, sent_at: float) -> None:
        now = self._loop.time()
        if isinstance(reply, TransportError):
            self.faults.unheard(broker)
            self.faults.observe(broker, FAILED_LATENCY_MS, now)
        else:
            self.faults.answered(broker, now - sent_at, now)
            if isinstance(reply, HoldMQError):
                self._refusal_seen(broker, reply.code, now)

    def _refusal_seen(self, broker: str, code: Code, now: float) -> None:
        if code in (Code.BUSY, Code.NOT_ENOUGH_REPLICAS):
            self.faults.observe(broker, BUSY_LATENCY_MS, now)
        elif code in _UNWELL:
            self.faults.observe(broker, FAILED_LATENCY_MS, now)

    def _answered(
        self, batch: Sent, reply: Reply | HoldMQError, store_id: bytes, connection: Connection
    ) -> None:
        for lane, _ in batch:
            lane.in_flight -= 1
        if isinstance(reply, HoldMQError):
            self._refused_whole(batch, reply)
            return
        try:
            answer = reply.header(ProduceResponse)
            results = rows(RunResult, answer.results)
            if len(results) != len(batch):
                raise WireError(f"{len(results)} results for {len(batch)} runs")
        except WireError as error:
            self._refused_whole(batch, error)
            return
        positions = answer.positions or []
        lead_lost: str | None = None
        for i, ((lane, run), result) in enumerate(zip(batch, results, strict=True)):
            if result.status == Code.OK:
                own = positions[i] if i < len(positions) and isinstance(positions[i], list) else []
                self._stored(lane, run, result.base_offset, store_id, own)
            else:
                if result.status == Code.NOT_LEADER:
                    lead_lost = result.remark
                self._refused(
                    lane, run, RemoteError.of_status(result.status, result.remark), answer.retry_after_ms
                )
        if lead_lost is not None:
            connection.lead_lost(lead_lost)

    def _stored(
        self, lane: Lane, run: ChunkRun, base_offset: int, store_id: bytes, positions: list[int]
    ) -> None:
        if run not in lane.sent:
            return
        lane.stored(run)
        run.stored(lane.queue, base_offset, store_id, positions)
        if lane.waiting:
            self._mark(lane)
        self.room.give_back(run.size_bytes)

    def _refused(self, lane: Lane, run: ChunkRun, error: RemoteError, retry_after_ms: int) -> None:
        if run not in lane.sent:
            return
        lane.last_error = error
        self._refusal_seen(lane.queue.broker, error.code, self._loop.time())
        if is_sent_again(error.code):
            if error.code in MAYBE_STORED:
                run.note_unsure()
            if error.code == Code.OUT_OF_SEQUENCE and lane.sent[0] is run and lane.attempts:
                # All that came before is stored and this was resent first: nothing can be missing
                # but what the broker forgot. It is known not to be stored, so new numbers are safe.
                lane.is_gapped = True
            self._stall(lane, retry_after_ms)
            return
        if error.code == Code.QUEUE_UNKNOWN:
            # No sequence is consumed where no queue is: everything gets new ones where it belongs.
            lane.gone_at = self._loop.time()
            self._moving.setdefault(lane.queue.topic, deque())
            self._routes.refresh_soon()
            return
        lane.sent.remove(run)
        lane.is_gapped |= leaves_gap(error.code)
        if error.code == Code.PRODUCER_FENCED:
            self._stall(lane, 0)
        if error.code == Code.TOPIC_UNKNOWN:
            self._routes.refresh_soon()
        for chunk in run.chunks:
            chunk.fail(error)
        self.room.give_back(run.size_bytes)

    def _refused_whole(self, batch: Sent, error: HoldMQError) -> None:
        is_unheard = isinstance(error, (TransportError, WireError))
        is_final = not error.retriable and not is_unheard
        for lane, run in batch:
            if run not in lane.sent:
                continue
            if is_unheard or error.code in MAYBE_STORED:
                run.note_unsure()
            if isinstance(error, RemoteError):
                lane.last_error = error
            if is_final:
                # Nothing of the request was looked at: the broker still expects its sequences.
                lane.sent.remove(run)
                lane.is_gapped = True
                for chunk in run.chunks:
                    chunk.fail(error)
                self.room.give_back(run.size_bytes)
            self._stall(lane, error.retry_after_ms if isinstance(error, BusyError) else 0)

    def _stall(self, lane: Lane, retry_after_ms: int) -> None:
        phase = random.random()  # noqa: S311 # jitter guards nothing
        lane.stall(self._loop.time(), pause_s(lane.attempts, retry_after_ms, phase))
        self._keep_time()

    def _fail(self, chunk: SendChunk, error: HoldMQError) -> None:
        chunk.fail(error)
        self.room.give_back(len(chunk.records))

    # Time

    def _keep_time(self) -> None:
        if self._timer is None:
            self._timer_at = self._loop.time() + TICK_S
            self._timer = self._loop.call_at(self._timer_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        late_s = now - self._timer_at
        if late_s > LATE_MIN_S:
            self.faults.slept(late_s)
        self._watch_brokers(now)
        for lane in list(self._lanes.values()):
            self._expire(lane, now)
            if lane.gone_at is not None or lane.is_empty:
                continue
            if self.faults.is_away(lane.queue.broker):
                self._reroute(lane)
            elif self.faults.is_resting(lane.queue.broker, now):
                self._spread(lane)
            if lane.may_resend(now):
                self._resend(lane)
            elif lane.may_send:
                self._mark(lane)
        for topic in list(self._moving):
            self._move_on(topic, now)
        if not self.room.is_idle:
            self._keep_time()

    def _watch_brokers(self, now: float) -> None:
        """A broker that is silent is slow first, and away after `patience_s`, as one without a connection."""
        for broker in {lane.queue.broker for lane in self._lanes.values() if not lane.is_empty}:
            state = self.faults.of(broker)
            silence_s = self.faults.silence_s(broker, now)
            if silence_s >= SILENT_MIN_S and state.rest_until <= now:
                self.faults.observe(broker, silence_s * 1000, now)
            is_silent = silence_s >= self._routes.patience_s(broker)
            if not state.is_away and (is_silent or self._routes.is_resting(broker, now)):
                state.is_away = True
                log.warning("a broker is away", broker=broker, reason=self._why(broker, now))

    def _why(self, broker: str, now: float) -> str:
        """What is known of a broker that does not take messages."""
        try:
            client = self._routes.link(broker).client
        except TransportError as error:
            return str(error)
        if client.connection is None:
            return f"no connection to broker {broker!r} ({client.last_error or client.address})"
        silence_s = self.faults.silence_s(broker, now)
        if silence_s >= SILENT_MIN_S:
            return f"broker {broker!r} has not answered for {silence_s:.1f} s"
        return ""

    def _expire(self, lane: Lane, now: float) -> None:
        reason = ""
        if any(chunk.terms.deadline <= now for chunk in lane.waiting):
            reason = self._reason(lane, now)
            expired = [chunk for chunk in lane.waiting if chunk.terms.deadline <= now]
            for chunk in expired:
                lane.waiting.remove(chunk)
                self._fail(chunk, RequestTimeout(f"{lane.queue}: not stored before the deadline{reason}"))
        for run in lane.sent:
            for chunk in run.chunks:
                if chunk.terms.deadline <= now and not chunk.is_settled:
                    reason = reason or self._reason(lane, now)
                    text = f"{lane.queue}: no answer before the deadline; it may be stored{reason}"
                    chunk.fail(RequestTimeout(text))
        if lane.sent and not lane.in_flight and all(run.is_given_up for run in lane.sent):
            # Nobody waits for them, so they are not sent again, and their numbers will be missing.
            self._drop(lane.begin_epoch())

    def _reason(self, lane: Lane, now: float) -> str:
        why = self._why(lane.queue.broker, now) or str(lane.last_error or "")
        return f": {why}" if why else ""

    def _resend(self, lane: Lane) -> None:
        try:
            link = self._routes.link(lane.queue.broker)
        except TransportError:
            return
        connection, hello = link.client.connection, link.client.hello
        if connection is None or hello is None:
            return
        if lane.is_gapped:
            lane.attempts += 1
            self._drop(lane.begin_epoch())
            self._mark(lane)
            return
        batch: Sent = []
        size = 0
        for run in lane.runs_to_resend():
            if batch and size + run.size_bytes > PRODUCE_MAX_BYTES:
                self._produce(link, connection, hello, batch)
                batch, size = [], 0
            batch.append((lane, run))
            size += run.size_bytes
            self.resends += 1
        if batch:
            self._produce(link, connection, hello, batch)

    def _drop(self, chunks: list[SendChunk]) -> None:
        for chunk in chunks:
            self.room.give_back(len(chunk.records))

    # Elsewhere

    def _routes_changed(self, _topics: frozenset[str]) -> None:
        self._reroute_all()

    def _reroute_all(self) -> None:
        """Where lanes of a broker that is away may go now they go at once, before anything new does."""
        for lane in list(self._lanes.values()):
            if not lane.is_empty and lane.gone_at is None and self.faults.is_away(lane.queue.broker):
                self._reroute(lane)

    def _spread(self, lane: Lane) -> None:
        """What needs no certain queue, and is surely not stored, leaves a broker that rests."""
        if self.choice.has_other(lane.queue):
            self._redispatch(lane.take_free())

    def _reroute(self, lane: Lane) -> None:
        """The broker is away: what need not go there goes elsewhere, in order.

        What was sent and never answered goes too, and may then be stored twice: at least once is
        the promise, and UNIQ_KEY tells. While nobody else has the topic everything stays as it is.
        """
        if not self.choice.has_refuge(lane.queue):
            return
        route = self._routes.get(lane.queue.topic)
        is_ordered = route is not None and route.order
        chunks = [chunk for run in lane.sent for chunk in run.chunks] + list(lane.waiting)
        if not any(_may_move(chunk, is_ordered) for chunk in chunks):
            return
        self._disconnect(lane.queue.broker)
        if lane.in_flight:
            return  # their answers come first
        staying: deque[SendChunk] = deque()
        leaving: list[SendChunk] = []
        for chunk in lane.take_all():
            (leaving if _may_move(chunk, is_ordered) else staying).append(chunk)
        lane.waiting = staying
        self._redispatch(leaving)

    def _disconnect(self, broker: str) -> None:
        """End a connection that is silent, so that nothing is in flight on it any more."""
        try:
            connection = self._routes.link(broker).client.connection
        except TransportError:
            return
        if connection is not None:
            connection.close(TransportError(f"broker {broker!r} does not answer"))

    def _move_on(self, topic: str, now: float) -> None:
        """Send what was meant for queues that are gone where it belongs, then what came after it."""
        held = self._moving[topic]
        for queue, chunk in [entry for entry in held if entry[1].terms.deadline <= now]:
            held.remove((queue, chunk))
            self._fail(chunk, RequestTimeout("the message's queue was not found before its deadline"))
        gone = [lane for lane in self._lanes.values() if lane.gone_at is not None and lane.topic == topic]
        if any(lane.in_flight or self._routes.refreshed_at <= (lane.gone_at or 0.0) for lane in gone):
            return
        del self._moving[topic]
        for lane in gone:
            lane.gone_at = None
            self._redispatch(lane.take_all())
        for queue, chunk in held:
            if chunk.terms.is_tied:
                self._enqueue(queue, chunk)
            else:
                self._redispatch([chunk])

    def _redispatch(self, chunks: Iterable[SendChunk]) -> None:
        """Give chunks the queues that their messages have now; those of a named queue fail."""
        for chunk in chunks:
            if chunk.is_settled:
                self.room.give_back(len(chunk.records))
                continue
            try:
                groups = self._queues_of(chunk)
            except RemoteError as error:
                self._fail(chunk, error)
                continue
            self.reroutes += chunk.count
            for queue, places in groups.items():
                self._enqueue(queue, chunk.moved(places, queue.queue_id))

    def _queues_of(self, chunk: SendChunk) -> dict[TopicQueue, list[int]]:
        """Which of a chunk's messages go where; RemoteError if nowhere."""
        topic = chunk.topic
        if chunk.terms.is_tied:
            raise RemoteError(Code.QUEUE_UNKNOWN, f"topic {topic!r} has no such queue any more")
        if chunk.terms.key is not None or chunk.keys is None:
            return {self.choice.of(topic, chunk.terms.key): list(range(chunk.count))}
        return self.choice.spread((topic, key) for key in chunk.keys)


def _may_move(chunk: SendChunk, is_ordered: bool) -> bool:
    return not chunk.terms.is_tied and not (is_ordered and chunk.is_keyed)
