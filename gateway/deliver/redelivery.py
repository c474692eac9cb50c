"""What was in flight when a connection ended is sent again before all that is new [MQTT-4.4.0-1]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.brokers.link import BrokerLink
from gateway.deliver.delivery import LiveDelivery
from gateway.deliver.retained_again import RetainedAgain, retained_among
from gateway.session.session import CLOSED, Session
from holdmq.errors import HoldMQError
from holdmq.rpc.connection import Connection, Reply
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.session_headers import SessionRecordsRequest, SessionRecordsResponse

AGAIN_MAX: Final = 1_000
"""Records asked for at a time: as many as a broker gives."""
AGAIN_S: Final = 0.5
"""Pause after a refusal."""
CALL_TIMEOUT_S: Final = 10.0

log = telemetry.get_logger()


def is_due(session: Session, broker: str | None = None) -> bool:
    """Whether something of this broker (None: of any) must be sent again first."""
    again = session.cursor.again if session.cursor is not None else None
    return again is not None and (broker is None or broker in again)


class Redelivery:
    """Asks brokers for records by their positions. `done(session)` is called when its turn is over."""

    def __init__(
        self,
        delivery: LiveDelivery,
        retained: RetainedAgain,
        settle: Callable[[], None],
        done: Callable[[Session], None],
    ) -> None:
        self._delivery = delivery
        self._retained = retained
        self._settle = settle
        self._done = done
        self._loop = asyncio.get_running_loop()

    def begin(self, session: Session, link: BrokerLink, connection: Connection) -> None:
        """Send what is in flight from one broker again, a part of it, and call `done`."""
        cursor, outbound = session.cursor, session.outbound
        assert cursor is not None
        assert outbound is not None
        inflight = outbound.inflight or {}
        again = (cursor.again or {}).get(link.name, ())
        kept = retained_among(outbound, again)
        if kept:
            self._retained.begin(
                session,
                link,
                connection,
                kept,
                lambda sent: self._sent(session, link.name, [i for i in again if i not in sent]),
                partial(self._failed, session, link, connection),
            )
            return
        placed = sorted(
            (planned.position, packet_id)
            for packet_id in again
            if (planned := inflight.get(packet_id)) is not None
        )
        part = placed[:AGAIN_MAX]
        if not part:
            self._sent(session, link.name, [])
            return
        lag, log_epoch = outbound.lag, link.reader.log_epoch
        if lag is not None:
            log_epoch = lag.log_epoch_at(link.name, log_epoch)

        def received(result: Reply | HoldMQError) -> None:
            if session.state == CLOSED:
                return
            if isinstance(result, HoldMQError):
                self._failed(session, link, connection, result)
                return
            count = max(1, result.header(SessionRecordsResponse).answered)
            ids = [packet_id for _, packet_id in part[:count]]
            self._delivery.resend(link, result.body, session, ids)
            self._sent(session, link.name, [packet_id for _, packet_id in placed[len(ids) :]])
            self._settle()

        connection.request(
            RequestCode.SESSION_RECORDS,
            SessionRecordsRequest(log_epoch, [position for position, _ in part]),
            received,
            CALL_TIMEOUT_S,
        )

    def _sent(self, session: Session, broker: str, left: list[int]) -> None:
        cursor = session.cursor
        if cursor is not None and cursor.again is not None:
            if left:
                cursor.again[broker] = left
            else:
                cursor.again.pop(broker, None)
                cursor.again = cursor.again or None
        self._done(session)

    def _failed(self, session: Session, link: BrokerLink, connection: Connection, error: HoldMQError) -> None:
        log.warning("messages in flight cannot be sent again yet", broker=link.name, reason=str(error))
        if connection.is_closed:
            if session.outbound is not None and session.outbound.lag is not None:
                session.outbound.lag.is_queued = False  # the reader's opening queues it again
        else:
            self._loop.call_later(AGAIN_S, self._done, session)
