"""Catching up: sessions that left the live feed read the log from their own position.

A bounded number of readers serves them in turns: a turn opens a reader at the session's position
with the session's filters, delivers until the window or the socket is full or the live feed is
reached, and closes it. A subscriber that does not read holds no reader and no message.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from typing import TYPE_CHECKING, Final

from gateway.core.lag import Lag
from gateway.delivery import Delivery
from gateway.session.session import CLOSED, Session
from holdmq import telemetry
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Connection, Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import (
    ReadCloseRequest,
    ReadOpenRequest,
    ReadPosition,
    ReadRequest,
    ReadResponse,
)
from holdmq.wire.session_headers import SessionRecordsRequest, SessionRecordsResponse

if TYPE_CHECKING:
    from gateway.link import BrokerLink
    from gateway.worker import Worker

CATCHUP_READERS_MAX: Final = 64
"""Catch-up readers per worker (mqtt.md, Sessions): with their credit, 4 MiB on the way at most."""
CATCHUP_CREDIT_BYTES: Final = 64 << 10
CALL_TIMEOUT_S: Final = 10.0
AGAIN_MAX: Final = 1_000
"""Records asked for at a time: as many as a broker gives."""
AGAIN_S: Final = 0.5

log = telemetry.get_logger()


class _Turn:
    """One session being served from one broker; `filters` tells whether its reader knows all of them."""

    __slots__ = ("connection", "filters", "link", "reader_id", "session")

    def __init__(
        self,
        session: Session,
        link: BrokerLink,
        connection: Connection,
        reader_id: int,
        filters: tuple[int, int],
    ) -> None:
        self.session = session
        self.link = link
        self.connection = connection
        self.reader_id = reader_id
        self.filters = filters


class CatchUp:
    """Gives lagging sessions their turns."""

    def __init__(self, worker: Worker, delivery: Delivery) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._delivery = delivery
        self._queue: deque[Session] = deque()
        # Reader 0 is the live one.
        self._free = list(range(CATCHUP_READERS_MAX, 0, -1))

    @property
    def readers(self) -> int:
        """Catch-up readers open now."""
        return CATCHUP_READERS_MAX - len(self._free)

    def ready(self, session: Session) -> None:
        """A session's window or socket opened, or a broker came back: serve it when a reader is free."""
        outbound = session.outbound
        if outbound is None or outbound.lag is None or session.state == CLOSED:
            return
        lag = outbound.lag
        if lag.is_queued or lag.is_held or not lag.positions:
            return
        cursor = session.cursor
        is_again = cursor is not None and cursor.again is not None
        if not is_again and (outbound.is_socket_full or not outbound.is_half_open):
            return
        lag.is_queued = True
        self._queue.append(session)
        self._pump()

    def _pump(self) -> None:
        waiting = len(self._queue)
        while self._free and waiting:
            waiting -= 1
            session = self._queue.popleft()
            outbound = session.outbound
            if outbound is None or outbound.lag is None or session.state == CLOSED:
                continue
            if not self._begin(session):
                # Its brokers are away: it is queued again when one comes back (`broker_is_back`).
                outbound.lag.is_queued = False

    def _begin(self, session: Session) -> bool:
        assert session.outbound is not None
        outbound = session.outbound
        lag = outbound.lag
        assert lag is not None
        cursor = session.cursor
        for broker, position in lag.positions.items():
            link = self._worker.links.get(broker)
            if link is None or link.connection is None or not link.reader.is_open:
                continue
            if cursor is not None and cursor.again is not None and broker in cursor.again:
                self._send_again(session, link, link.connection, cursor.again[broker])
                return True
            if outbound.is_socket_full or not outbound.is_half_open:
                continue
            turn = _Turn(session, link, link.connection, self._free.pop(), self._filters(lag))
            link.connection.request(
                RequestCode.READ_OPEN,
                ReadOpenRequest(
                    turn.reader_id,
                    lag.epochs.get(broker, link.reader.log_epoch),
                    position,
                    self._worker.terms_of(session),
                ),
                functools.partial(self._opened, turn),
                CALL_TIMEOUT_S,
            )
            self._read(turn)
            return True
        return False

    def _filters(self, lag: Lag) -> tuple[int, int]:
        return lag.filters_added, self._worker.subscriptions.terms_version

    def _send_again(
        self, session: Session, link: BrokerLink, connection: Connection, packet_ids: list[int]
    ) -> None:
        """What was in flight when the session's connection ended comes before all that is new."""
        inflight = (session.outbound.inflight if session.outbound is not None else None) or {}
        placed = sorted(
            (planned.position, packet_id)
            for packet_id in packet_ids
            if (planned := inflight.get(packet_id)) is not None
        )
        part = placed[:AGAIN_MAX]
        if not part:
            self._sent_again(session, link.name, [])
            return
        lag = session.outbound.lag if session.outbound is not None else None
        log_epoch = link.reader.log_epoch if lag is None else lag.epochs.get(link.name, link.reader.log_epoch)

        def received(result: Reply | HoldMQError) -> None:
            if session.state == CLOSED:
                return
            if isinstance(result, HoldMQError):
                self._not_sent_again(session, link, connection, result)
                return
            answered = part[: max(1, result.header(SessionRecordsResponse).answered)]
            ids = [packet_id for _, packet_id in answered]
            self._delivery.resend(link, result.body, session, ids)
            self._sent_again(session, link.name, [packet_id for _, packet_id in placed[len(answered) :]])
            self._worker.settle()

        positions = [position for position, _ in part]
        connection.request(
            RequestCode.SESSION_RECORDS,
            SessionRecordsRequest(log_epoch, positions),
            received,
            CALL_TIMEOUT_S,
        )

    def _sent_again(self, session: Session, broker: str, left: list[int]) -> None:
        cursor = session.cursor
        if cursor is not None and cursor.again is not None:
            if left:
                cursor.again[broker] = left
            else:
                cursor.again.pop(broker, None)
                cursor.again = cursor.again or None
        if session.outbound is not None and session.outbound.lag is not None:
            session.outbound.lag.is_queued = False
        self.ready(session)

    def _not_sent_again(
        self, session: Session, link: BrokerLink, connection: Connection, error: HoldMQError
    ) -> None:
        log.warning("messages in flight cannot be sent again yet", broker=link.name, reason=str(error))
        if session.outbound is not None and session.outbound.lag is not None:
            session.outbound.lag.is_queued = False  # `reader_opened` queues it again
        if not connection.is_closed:
            self._loop.call_later(AGAIN_S, self.ready, session)

    def _opened(self, turn: _Turn, result: Reply | HoldMQError) -> None:
        outbound = turn.session.outbound
        lag = outbound.lag if outbound is not None else None
        broker = turn.link.name
        if turn.reader_id < 0 or lag is None or broker not in lag.positions:
            return
        if isinstance(result, Reply):
            opened = result.header(ReadPosition)
            lag.epochs[broker] = opened.log_epoch
            if opened.position > lag.positions[broker]:
                # Retention has passed the session: it goes on at the log's beginning.
                self._worker.counters.sessions_behind_total += 1
                lag.positions[broker] = opened.position
        elif isinstance(result, RemoteError) and result.code == Code.OFFSET_AHEAD:
            # The log was cut below this position: what comes now is new, wherever it lies.
            self._worker.counters.offset_ahead_total += 1
            position, log_epoch = result.ext_fields.get("position"), result.ext_fields.get("log_epoch")
            if not isinstance(position, int) or not isinstance(log_epoch, int):
                self._caught_up(turn, turn.link.reader.position or 0)
                return
            lag.positions[broker] = position
            lag.epochs[broker] = log_epoch
            for granted in outbound.subscriptions.values() if outbound is not None else ():
                if granted.starts is not None:
                    granted.starts.pop(broker, None)
            self._end(turn)

    def _read(self, turn: _Turn) -> None:
        turn.connection.request(
            RequestCode.READ,
            ReadRequest(turn.reader_id, CATCHUP_CREDIT_BYTES, 0),
            functools.partial(self._received, turn),
            CALL_TIMEOUT_S,
        )

    def _received(self, turn: _Turn, result: Reply | HoldMQError) -> None:
        if turn.reader_id < 0:
            return  # the turn ended by the answer to its opening
        session = turn.session
        outbound = session.outbound
        lag = outbound.lag if outbound is not None else None
        broker = turn.link.name
        if session.state == CLOSED or outbound is None or lag is None or broker not in lag.positions:
            self._end(turn)
            return
        if isinstance(result, HoldMQError):
            if turn.connection.is_closed:
                lag.is_queued = False  # `broker_is_back` queues it again
                self._end(turn, again=False)
            else:
                log.warning("a catch-up read failed", broker=broker, reason=str(result))
                self._end(turn)
            return
        if turn.filters != self._filters(lag):
            # The answer may lack what a filter wants that the reader does not know, and the live feed
            # leaves it to us: read it again with all filters.
            self._end(turn)
            return
        answer = result.header(ReadResponse)
        self._worker.counters.catchup_records_total += answer.records
        for outgoing in self._delivery.records(turn.link, result.body):
            position = outgoing.record.physical_offset
            if position < lag.positions[broker]:
                continue
            if not self._delivery.again(turn.link, outgoing, session):
                lag.positions[broker] = position
                lag.is_queued = False
                self._end(turn, again=False)
                self._worker.settle()
                return
        lag.positions[broker] = max(answer.position, lag.positions[broker])
        if answer.position >= (turn.link.reader.position or 0):
            self._caught_up(turn, answer.position)
        else:
            self._read(turn)
        self._worker.settle()

    def _caught_up(self, turn: _Turn, position: int) -> None:
        outbound = turn.session.outbound
        if outbound is not None and outbound.lag is not None:
            outbound.lag.caught_up(turn.link.name, position)
            if (turn.link.reader.position or 0) >= position:
                outbound.lag.floors.pop(turn.link.name, None)
            if outbound.lag.is_over:
                outbound.lag = None
                self._worker.counters.lagging_sessions -= 1
                for granted in outbound.subscriptions.values():
                    granted.starts = None
        self._end(turn)

    def _end(self, turn: _Turn, *, again: bool = True) -> None:
        """Close the turn's reader; `again`: the session may have another broker to catch up with."""
        if turn.reader_id < 0:
            return
        turn.connection.request(
            RequestCode.READ_CLOSE, ReadCloseRequest(turn.reader_id), _closed, CALL_TIMEOUT_S
        )
        self._free.append(turn.reader_id)
        turn.reader_id = -1
        outbound = turn.session.outbound
        if again and outbound is not None and outbound.lag is not None:
            outbound.lag.is_queued = False
            self.ready(turn.session)
        else:
            self._pump()


def _closed(_result: Reply | HoldMQError) -> None:
    """Whether it was still open does not matter: its id is opened anew when it is used again."""
