"""Retained messages that were in flight when a connection ended are sent again before all that is new.

What is kept of a topic may be newer by now, and the log may have lost the record; its owner finds the
version that was sent in either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gateway.brokers.link import BrokerLink
from gateway.deliver.retained_delivery import RetainedDelivery
from gateway.ground.counters import Counters
from gateway.session.outbound import Outbound
from gateway.session.session import CLOSED, Session
from holdmq.errors import HoldMQError
from holdmq.rpc.connection import Connection, Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.retained_headers import (
    RetainedGetRequest,
    RetainedGetResponse,
    RetainedRow,
    RetainedVersion,
    with_values,
)

AGAIN_MAX: Final = 1_000
"""Messages asked for at a time: as many as a broker gives."""
CALL_TIMEOUT_S: Final = 10.0

Sent = Callable[[set[int]], None]
Failed = Callable[[HoldMQError], None]


def retained_among(outbound: Outbound, packet_ids: Sequence[int]) -> list[int]:
    """Of these packet ids those whose messages were sent as retained ones, in the order of sending."""
    wanted = set(packet_ids)
    return [
        packet_id
        for packet_id, planned in (outbound.inflight or {}).items()
        if packet_id in wanted and planned is not None and planned.topic and not planned.is_released
    ]


class RetainedAgain:
    """Asks owners for retained messages by topic and version."""

    def __init__(self, delivery: RetainedDelivery, counters: Counters, settle: Callable[[], None]) -> None:
        self._delivery = delivery
        self._counters = counters
        self._settle = settle

    def begin(
        self,
        session: Session,
        link: BrokerLink,
        connection: Connection,
        packet_ids: Sequence[int],
        sent: Sent,
        failed: Failed,
    ) -> None:
        """Send these again, or a part; then `sent` is told which, or `failed` why none."""
        outbound = session.outbound
        assert outbound is not None
        part = [
            (packet_id, planned)
            for packet_id in packet_ids[:AGAIN_MAX]
            if (planned := (outbound.inflight or {}).get(packet_id)) is not None
        ]

        def received(result: Reply | HoldMQError) -> None:
            if session.state == CLOSED:
                return
            if isinstance(result, HoldMQError):
                failed(result)
                return
            answer = result.header(RetainedGetResponse)
            found = {
                (row.topic, row.version): value
                for row, value in with_values(rows(RetainedRow, answer.rows), result.body)
            }
            answered = part[: max(1, answer.answered)]
            inflight = outbound.inflight or {}
            for packet_id, planned in answered:
                if inflight.get(packet_id) is not planned or planned.is_released:
                    continue
                value = found.get((planned.topic, planned.position))
                if value is None or not self._delivery.resend(link, session, packet_id, planned, value):
                    del inflight[packet_id]
                    self._counters.messages_planned_lost_total += value is None
            sent({packet_id for packet_id, _ in answered})
            self._settle()

        connection.request(
            RequestCode.RETAINED_GET,
            RetainedGetRequest([RetainedVersion(planned.topic, planned.position) for _, planned in part]),
            received,
            CALL_TIMEOUT_S,
        )
