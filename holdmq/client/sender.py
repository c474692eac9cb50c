"""How a producer's lanes reach their brokers: one PRODUCE per broker and loop turn, retries, deadlines."""

from __future__ import annotations

import asyncio
import random
import struct
import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

from holdmq.client.lanes import Chunk, Lane, Run
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
from holdmq.rpc.connection import Connection, Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.frame import Buffer
from holdmq.wire.header import rows
from holdmq.wire.headers import HelloResponse, ProduceRequest, ProduceResponse, ProduceRun, RunResult

PRODUCE_MAX_BYTES: Final = 1 << 20
"""Records of one PRODUCE: large enough to fill the disk, small enough not to delay others."""
PRODUCE_TIMEOUT_S: Final = 10.0
"""How long one PRODUCE may go unanswered before it is sent again."""
OUTSTANDING_MAX_BYTES: Final = 32 << 20
"""Records in hand and not stored; past it senders wait. What a broker takes from one connection."""
TICK_S: Final = 0.05
"""How often deadlines and retries are looked at while anything is in hand."""

_U32: Final = struct.Struct(">I")
_COME_AGAIN: Final = frozenset(
    {
        Code.BUSY,
        Code.OUT_OF_SEQUENCE,
        Code.STORE_FULL,
        Code.STORE_FAILED,
        Code.SHUTTING_DOWN,
        Code.BODY_CRC,
    }
)
"""Refusals that leave the sequences free: the same run is sent again."""

Sent = list[tuple[Lane, Run]]


class Sender:
    """All lanes of one producer, on one event loop.

    `redispatch(chunks)` is called with chunks that their queue will never take (a wrong route, a
    broker that is gone): it gives each another queue or fails it. Counters: `outstanding_bytes`,
    `room_waits`, `produces`, `resends`.
    """

    def __init__(
        self,
        routes: RouteTable,
        producer_id: int,
        redispatch: Callable[[list[Chunk]], None],
        outstanding_max_bytes: int = OUTSTANDING_MAX_BYTES,
    ) -> None:
        self.outstanding_bytes = 0
        self.room_waits = 0
        self.produces = 0
        self.resends = 0
        self._routes = routes
        self._producer_id = producer_id
        self._redispatch = redispatch
        self._outstanding_max_bytes = outstanding_max_bytes
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[TopicQueue, Lane] = {}
        self._dirty: dict[str, dict[TopicQueue, Lane]] = {}
        self._misrouted: list[Chunk] = []
        self._misrouted_at = 0.0
        self._room: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        routes.on_up.append(self._link_up)

    # Intake

    async def wait_for_room(self, size_bytes: int, deadline: float) -> None:
        """Take `size_bytes` of the bound, in the order of callers; RequestTimeout at loop time `deadline`.

        Every byte taken comes back through `enqueue` and the end of its chunk, or `give_back`.
        """
        if not self._room and self._fits(size_bytes):
            self.outstanding_bytes += size_bytes
            return
        self.room_waits += 1
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._room.append((size_bytes, waiter))
        self._keep_time()
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(size_bytes)
            else:
                self._room = deque(entry for entry in self._room if entry[1] is not waiter)
                self._let_in()
            if isinstance(error, TimeoutError):
                raise RequestTimeout(
                    f"{self.outstanding_bytes} bytes wait to be stored; no room before the deadline"
                ) from None
            raise

    def give_back(self, size_bytes: int) -> None:
        """These bytes are no longer in hand."""
        self.outstanding_bytes -= size_bytes
        self._let_in()
        if not self.outstanding_bytes:
            while self._idle:
                waiter = self._idle.popleft()
                if not waiter.done():
                    waiter.set_result(None)

    def enqueue(self, queue: TopicQueue, chunk: Chunk) -> None:
        """Send this chunk, whose room was taken, to a queue when the loop's turn ends."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane(queue)
        lane.waiting.append(chunk)
        self._mark(lane)
        self._keep_time()

    async def drain(self, timeout_s: float | None) -> None:
        """Wait until nothing is in hand, at most `timeout_s` (None: chunks end by their own deadlines)."""
        if self.outstanding_bytes:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiter)
            await asyncio.wait([waiter], timeout=timeout_s)

    def close(self, error: HoldMQError) -> None:
        """Fail everything in hand with `error`."""
        for lane in self._lanes.values():
            for chunk in [chunk for run in lane.sent for chunk in run.chunks] + list(lane.waiting):
                chunk.fail(error)
        for chunk in self._misrouted:
            chunk.fail(error)
        for _, waiter in self._room:
            if not waiter.done():
                waiter.set_exception(error)
        self._room.clear()
        self._lanes.clear()
        self._dirty.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._routes.on_up.remove(self._link_up)

    def _fits(self, size_bytes: int) -> bool:
        return (
            not self.outstanding_bytes or self.outstanding_bytes + size_bytes <= self._outstanding_max_bytes
        )

    def _let_in(self) -> None:
        while self._room and self._fits(self._room[0][0]):
            size_bytes, waiter = self._room.popleft()
            if not waiter.done():
                self.outstanding_bytes += size_bytes
                waiter.set_result(None)

    # Sending

    def _mark(self, lane: Lane) -> None:
        self._dirty.setdefault(lane.queue.broker, {})[lane.queue] = lane
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_all)

    def _flush_all(self) -> None:
        self._is_flush_due = False
        for broker in list(self._dirty):
            self._flush(broker)

    def _link_up(self, link: Link, _connection: Connection, _hello: HelloResponse) -> None:
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
            while lane.may_send:
                run = lane.next_run(PRODUCE_MAX_BYTES - size, not batch)
                if run is None:
                    self._produce(connection, hello, batch)
                    batch, size = [], 0
                    continue
                batch.append((lane, run))
                size += run.size_bytes
        if batch:
            self._produce(connection, hello, batch)

    def _refuse_too_large(self, lane: Lane, record_max_bytes: int) -> None:
        if not record_max_bytes or not any(max(c.sizes) > record_max_bytes for c in lane.waiting):
            return
        for chunk in [c for c in lane.waiting if max(c.sizes) > record_max_bytes]:
            lane.waiting.remove(chunk)
            reason = (
                f"a record of {max(chunk.sizes)} bytes; the broker's record_max_bytes is {record_max_bytes}"
            )
            self._fail(chunk, RecordError(reason, Code.RECORD_TOO_LARGE))

    def _produce(self, connection: Connection, hello: HelloResponse, batch: Sent) -> None:
        sizes: list[int] = []
        records: list[Buffer] = []
        wire_runs: list[ProduceRun] = []
        for lane, run in batch:
            queue = lane.queue
            lane.in_flight += 1
            wire_runs.append(
                ProduceRun(queue.topic, queue.queue_id, run.count, self._producer_id, lane.epoch, run.first)
            )
            for chunk in run.chunks:
                sizes += chunk.sizes
                records.append(chunk.records)
        head = _U32.pack(len(sizes)) + struct.pack(f">{len(sizes)}I", *sizes)
        crc, length = zlib.crc32(head), len(head)
        for part in records:
            crc = zlib.crc32(part, crc)
            length += len(part)
        self.produces += 1

        def on_reply(reply: Reply | HoldMQError) -> None:
            self._answered(batch, reply, hello.store_id)

        connection.request(
            RequestCode.PRODUCE,
            ProduceRequest(
                crc,
                wire_runs,
                want_positions=True,
                delayed=[index for index, (_, run) in enumerate(batch) if run.is_delayed],
            ),
            on_reply,
            PRODUCE_TIMEOUT_S,
            [head, *records],
            length,
        )

    # Answers

    def _answered(self, batch: Sent, reply: Reply | HoldMQError, store_id: bytes) -> None:
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
        for i, ((lane, run), result) in enumerate(zip(batch, results, strict=True)):
            if result.status == Code.OK:
                own = positions[i] if i < len(positions) and isinstance(positions[i], list) else []
                self._stored(lane, run, result.base_offset, store_id, own)
            else:
                self._refused(lane, run, _error_of(result), answer.retry_after_ms)

    def _stored(self, lane: Lane, run: Run, base_offset: int, store_id: bytes, positions: list[int]) -> None:
        if run not in lane.sent:
            return
        lane.sent.remove(run)
        lane.attempts = 0
        run.stored(lane.queue, base_offset, store_id, positions)
        if lane.waiting:
            self._mark(lane)
        self.give_back(run.size_bytes)

    def _refused(self, lane: Lane, run: Run, error: RemoteError, retry_after_ms: int) -> None:
        if run not in lane.sent:
            return
        if error.code in _COME_AGAIN:
            if error.code == Code.OUT_OF_SEQUENCE and lane.sent[0] is run and lane.attempts:
                # All that came before is stored and this was resent first: nothing can be missing
                # but what the broker forgot. It is known not to be stored, so new numbers are safe.
                lane.is_gapped = True
            self._stall(lane, retry_after_ms)
            return
        lane.sent.remove(run)
        if error.code == Code.PRODUCER_FENCED:
            lane.is_gapped = True
            self._stall(lane, 0)
        if error.code == Code.QUEUE_UNKNOWN:
            # No sequence is consumed where no queue is: the messages get new ones where they belong.
            self._misrouted += run.chunks
            self._misrouted_at = self._loop.time()
            self._routes.refresh_soon()
            return
        if error.code == Code.TOPIC_UNKNOWN:
            self._routes.refresh_soon()
        for chunk in run.chunks:
            chunk.fail(error)
        self.give_back(run.size_bytes)

    def _refused_whole(self, batch: Sent, error: HoldMQError) -> None:
        is_final = not error.retriable and not isinstance(error, (TransportError, WireError))
        for lane, run in batch:
            if run not in lane.sent:
                continue
            if is_final:
                # Nothing of the request was looked at: the broker still expects its sequences.
                lane.sent.remove(run)
                lane.is_gapped = True
                for chunk in run.chunks:
                    chunk.fail(error)
                self.give_back(run.size_bytes)
            self._stall(lane, error.retry_after_ms if isinstance(error, BusyError) else 0)

    def _stall(self, lane: Lane, retry_after_ms: int) -> None:
        jitter = random.uniform(0.5, 1.5)
        lane.stall(self._loop.time(), lane.pause_s(retry_after_ms, jitter))
        self._keep_time()

    def _fail(self, chunk: Chunk, error: HoldMQError) -> None:
        chunk.fail(error)
        self.give_back(len(chunk.records))

    # Time

    def _keep_time(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        for lane in list(self._lanes.values()):
            self._expire(lane, now)
            if lane.may_resend(now):
                self._resend(lane)
            if not lane.is_empty and self._routes.is_resting(lane.queue.broker, now):
                self._reroute(lane)
            elif lane.may_send:
                self._mark(lane)
        self._expire_misrouted(now)
        if self._misrouted and self._routes.refreshed_at > self._misrouted_at:
            chunks, self._misrouted = self._misrouted, []
            self._redispatch(chunks)
        if self.outstanding_bytes or self._room:
            self._keep_time()

    def _expire(self, lane: Lane, now: float) -> None:
        late = RequestTimeout(f"{lane.queue}: not stored before the deadline")
        if any(chunk.terms.deadline <= now for chunk in lane.waiting):
            expired = [chunk for chunk in lane.waiting if chunk.terms.deadline <= now]
            for chunk in expired:
                lane.waiting.remove(chunk)
                self._fail(chunk, late)
        for run in lane.sent:
            for chunk in run.chunks:
                if chunk.terms.deadline <= now and not chunk.is_settled:
                    chunk.fail(
                        RequestTimeout(f"{lane.queue}: no answer before the deadline; it may be stored")
                    )
        if lane.sent and not lane.in_flight and all(run.is_given_up for run in lane.sent):
            # Nobody waits for them, so they are not sent again, and their numbers will be missing.
            self._drop(lane.begin_epoch())
            lane.is_stalled = False

    def _expire_misrouted(self, now: float) -> None:
        for chunk in [chunk for chunk in self._misrouted if chunk.terms.deadline <= now]:
            self._misrouted.remove(chunk)
            self._fail(chunk, RequestTimeout("the message's queue was not found before its deadline"))

    def _resend(self, lane: Lane) -> None:
        try:
            link = self._routes.link(lane.queue.broker)
        except TransportError:
            return
        connection, hello = link.client.connection, link.client.hello
        if connection is None or hello is None:
            return
        if lane.is_gapped:
            self._drop(lane.begin_epoch())
        batch: Sent = []
        size = 0
        for run in lane.runs_to_resend():
            if batch and size + run.size_bytes > PRODUCE_MAX_BYTES:
                self._produce(connection, hello, batch)
                batch, size = [], 0
            batch.append((lane, run))
            size += run.size_bytes
            self.resends += 1
        if batch:
            self._produce(connection, hello, batch)

    def _drop(self, runs: list[Run]) -> None:
        for run in runs:
            self.give_back(run.size_bytes)

    def _reroute(self, lane: Lane) -> None:
        """The broker is gone for long: what need not go there goes elsewhere, in order.

        What was sent and never answered goes too, and may then be stored twice: at least once is
        the promise, and UNIQ_KEY tells. Messages of a named queue wait, and what follows them.
        """
        unanswered = [chunk for run in lane.sent for chunk in run.chunks]
        chunks: list[Chunk] = []
        if unanswered and not lane.in_flight and not any(chunk.terms.is_tied for chunk in unanswered):
            lane.sent.clear()
            lane.begin_epoch()
            lane.is_stalled = False
            for chunk in unanswered:
                if chunk.is_settled:
                    self.give_back(len(chunk.records))
                else:
                    chunks.append(chunk)
        if not lane.sent:
            chunks += [chunk for chunk in lane.waiting if not chunk.terms.is_tied]
            lane.waiting = deque(chunk for chunk in lane.waiting if chunk.terms.is_tied)
        if chunks:
            self._redispatch(chunks)


def _error_of(result: RunResult) -> RemoteError:
    try:
        code = Code(result.status)
    except ValueError:
        return RemoteError(Code.SYSTEM_ERROR, f"status {result.status}: {result.remark}")
    return RemoteError(code, result.remark)
