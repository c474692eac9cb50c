"""One broker as a worker sees it: its producer, its live reader, and the connection under both."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Final

from gateway.brokers.core.producer import PENDING_MAX_BYTES, BrokerProducer, ProduceBatch
from gateway.brokers.reader import FilterSource, LiveFeed, LiveReader
from gateway.brokers.turn import Turn
from gateway.ground.clock import wall_ms
from gateway.ground.counters import Counters
from gateway.ground.targets import HeldSocket, ProducerLink
from holdmq.errors import BusyError, HoldMQError, RemoteError, RequestTimeout, TransportError, WireError
from holdmq.mqtt import ReasonCode
from holdmq.produce import new_producer_id
from holdmq.rpc.connection import Connection, Reply
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import HeartbeatRequest, HelloResponse, ProduceRequest, ProduceResponse, RunResult

PRODUCE_TIMEOUT_S: Final = 30.0
"""A broker that takes longer is taken for gone: the connection is closed, and the batch sent again."""
RESUME_BELOW_BYTES: Final = PENDING_MAX_BYTES // 2
"""Sockets are read again once a broker owes fewer answers."""
STUCK_LOGGED_MAX: Final = 8
"""Queues named in one line: a broker that hangs has thousands."""

log = telemetry.get_logger()


class BrokerLink(ProducerLink):
    """Sends what the producer has at the end of each turn, and holds back sockets that it cannot serve."""

    __slots__ = (
        "_flush_due",
        "_loop",
        "_on_stale_route",
        "_retry",
        "_turn",
        "clock_ahead_ms",
        "connection",
        "held",
        "is_routed",
        "name",
        "producer",
        "reader",
    )

    def __init__(
        self,
        name: str,
        turn: Turn,
        filters: FilterSource,
        feed: LiveFeed,
        counters: Counters,
        on_stale_route: Callable[[], None],
    ) -> None:
        self._turn = turn
        self._on_stale_route = on_stale_route
        self._loop = asyncio.get_running_loop()
        self._flush_due = False
        self._retry: asyncio.TimerHandle | None = None
        self.name = name
        self.connection: Connection | None = None
        self.is_routed = True
        """Whether a registry calls this broker live."""
        self.clock_ahead_ms = 0
        """The broker's clock minus ours: message expiry counts on the broker's."""
        self.producer = BrokerProducer(new_producer_id(), self)
        self.reader = LiveReader(self, turn, filters, feed, counters)
        self.held: dict[HeldSocket, None] = {}
        """Connections whose sockets are not read until this broker takes more."""

    # Connection

    def up(self, connection: Connection, hello: HelloResponse) -> None:
        """A connection is there: resend, read on."""
        self.connection = connection
        self.clock_ahead_ms = hello.now_ms - wall_ms()
        self.producer.record_max_bytes = hello.record_max_bytes
        self.producer.connected()
        self.reader.connected(connection)
        self.flush()
        self.release()

    def down(self) -> None:
        """The connection is gone."""
        self.connection = None
        self.producer.disconnected()
        self.reader.disconnected()

    @property
    def is_gone(self) -> bool:
        """Whether nobody knows this broker any more: it is not waited for."""
        return self.connection is None and not self.is_routed

    def heartbeat(self, state: dict[str, object]) -> None:
        """Tell the broker what this worker does (shown by CONNECTION_LIST)."""
        if self.connection is not None:
            self.connection.send_one_way(RequestCode.HEARTBEAT, HeartbeatRequest(state))

    # Producing

    def added(self, size_bytes: int) -> None:
        """Ingress added records: they leave when this turn of the loop ends."""
        self.producer.added(size_bytes)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what may be sent."""
        self._flush_due = False
        now = self._loop.time()
        producer = self.producer
        connection = self.connection
        if connection is None:
            return
        while (batch := producer.next_batch(now)) is not None:
            body = batch.encode()
            runs = batch.produce_runs(producer.producer_id, producer.epoch)
            header = ProduceRequest(body.crc, runs, delayed=batch.delayed(), noted=batch.noted())
            connection.request(
                RequestCode.PRODUCE,
                header,
                functools.partial(self._produced, batch),
                PRODUCE_TIMEOUT_S,
                body.parts,
                body.length_bytes,
            )
        if producer.retry_at > now and self._retry is None:
            self._retry = self._loop.call_at(producer.retry_at, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self.flush()

    def _produced(self, batch: ProduceBatch, result: Reply | HoldMQError) -> None:
        producer = self.producer
        now = self._loop.time()
        if isinstance(result, Reply):
            try:
                answer = result.header(ProduceResponse)
                producer.answered(batch, rows(RunResult, answer.results), answer.retry_after_ms, now)
            except WireError as error:
                self._connect_again(f"broker {self.name} answers PRODUCE with what is no answer: {error}")
                return
            if producer.must_reroute:
                producer.must_reroute = False
                self._on_stale_route()
            if producer.lead_lost:
                remark, producer.lead_lost = producer.lead_lost, ""
                if self.connection is not None:
                    self.connection.lead_lost(remark)
        elif isinstance(result, RequestTimeout):
            self._connect_again(str(result))
            return
        elif not isinstance(result, RemoteError):
            return  # the connection is gone: `down` follows and keeps the batch
        else:
            retry_after_ms = result.retry_after_ms if isinstance(result, BusyError) else 0
            log.warning("a produce batch was refused", broker=self.name, reason=str(result))
            producer.refused(batch, result.code, retry_after_ms, now)
        # First the broker's next work, then the answers to all these clients: both go on at once.
        self.flush()
        self._turn.answer(producer.take_settled())
        if self.held and not producer.is_full:
            self.release()

    def _connect_again(self, reason: str) -> None:
        """Whether the broker has what is in flight is unknown: another connection finds out."""
        if self.connection is not None:
            log.warning("a broker does not answer; connecting again", broker=self.name, reason=reason)
            self.connection.close(TransportError(reason))

    # Holding sockets

    def hold(self, socket: HeldSocket) -> None:
        """Do not read this socket until the broker takes more."""
        self.held[socket] = None

    def each_second(self, now: float, *, patience_s: float, is_resting: bool) -> None:
        """Give up queues that take nothing for `patience_s`, and what waits for a broker that rests."""
        stuck = self.producer.stuck(now - patience_s)
        if stuck:
            log.warning(
                "a broker takes nothing for these queues; their connections are closed",
                broker=self.name,
                queues=[f"{target.topic}/{target.queue_id}" for target in stuck[:STUCK_LOGGED_MAX]],
                count=len(stuck),
            )
            self.producer.abandon(stuck, now)
            self.flush()
            self._turn.answer(self.producer.take_settled())
            self.release()
        if self.connection is None and is_resting:
            for socket in list(self.held):
                socket.close(ReasonCode.SERVER_BUSY, "broker_unavailable", f"broker {self.name} is away")
            self.held.clear()

    def release(self) -> None:
        """Read the held sockets again, if the broker has room."""
        if self.producer.is_connected and self.producer.pending_bytes <= RESUME_BELOW_BYTES:
            held, self.held = self.held, {}
            for socket in held:
                socket.broker_is_back()
