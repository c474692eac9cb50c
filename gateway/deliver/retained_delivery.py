"""One retained message to one session: as its subscription says, and again if it was not acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.ground.counters import Counters
from gateway.ground.mounts import said_topic
from gateway.session.outbound import Granted, Planned
from gateway.session.session import Session
from holdmq.errors import HoldMQError
from holdmq.mqtt import DUP, MQTT_5, RETAIN, delivery_properties, encode_publish, matches
from holdmq.service import telemetry
from holdmq.wire.retained_headers import RetainedMessage, RetainedRow, decode_retained

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink

UNSENDABLE: Final = (HoldMQError, UnicodeError)
"""What a row raises that is no retained message, or that no packet can carry."""
LOGGED_MAX: Final = 20
"""Lines about such rows in the life of a worker: they come again with every subscription."""

log = telemetry.get_logger()


class RetainedDelivery:
    """Sends retained messages; `wall_ms` is the wall clock."""

    def __init__(self, counters: Counters, wall_ms: Callable[[], int]) -> None:
        self._counters = counters
        self._wall_ms = wall_ms
        self._logged = 0

    def send(
        self, link: BrokerLink, session: Session, granted: Granted, row: RetainedRow, value: memoryview
    ) -> bool:
        """Send a message to who just subscribed; False when its window or socket is full.

        True also for what this subscription is not to get: its own [MQTT-3.8.3-3], what has expired
        [MQTT-3.3.2-5], or has no room at the client [MQTT-3.1.2-25].
        """
        outbound = session.outbound
        assert outbound is not None
        try:
            message = decode_retained(value)
            left_s = message.left_s(self._wall_ms() + link.clock_ahead_ms)
            if left_s == 0 or (granted.no_local and message.client_id == session.client_id):
                return True
            if granted.left_out is not None and any(matches(name, row.topic) for name in granted.left_out):
                return True
            # 3.3.1.3 (3.1.1: [MQTT-3.3.1-8]); retain as published is about what is forwarded [MQTT-3.3.1-12].
            flags = min(message.qos, granted.qos) << 1 | RETAIN
            identifiers = () if granted.identifier is None else (granted.identifier,)
            head, tail = _encode(session, row.topic, message, flags, left_s, identifiers)
        except UNSENDABLE as error:
            self._malformed(link, row, error)
            return True
        if session.packet_max and len(head) + len(tail) + 2 > session.packet_max:
            self._counters.messages_dropped_size_total += 1
            return True
        if outbound.is_socket_full:
            return False
        if not flags & 6:
            session.send(head)
            outbound.messages += 1
            self._counters.messages_out_qos0_total += 1
        elif not session.push(head, tail, link.name, row.version, flags, identifiers, row.topic):
            return False
        elif flags & 4:
            self._counters.messages_out_qos2_total += 1
        else:
            self._counters.messages_out_qos1_total += 1
        self._counters.retained_out_total += 1
        return True

    def resend(
        self, link: BrokerLink, session: Session, packet_id: int, planned: Planned, value: memoryview
    ) -> bool:
        """Send a message again that is in flight [MQTT-4.4.0-1]; False: it can be sent no more.

        One that has expired is not, but with QoS 2 [MQTT-4.3.3-7].
        """
        try:
            message = decode_retained(value)
            left_s = message.left_s(self._wall_ms() + link.clock_ahead_ms)
            if left_s == 0 and not planned.flags & 4:
                return False
            flags = planned.flags | DUP  # [MQTT-3.3.1-1]
            head, tail = _encode(session, planned.topic, message, flags, left_s, planned.identifiers)
        except UNSENDABLE as error:
            self._malformed(link, RetainedRow(planned.topic, planned.position, len(value)), error)
            return False
        session.send_publish(head, packet_id, tail)
        self._counters.messages_again_total += 1
        return True

    def _malformed(self, link: BrokerLink, row: RetainedRow, error: Exception) -> None:
        self._counters.messages_malformed_total += 1
        if self._logged < LOGGED_MAX:
            self._logged += 1
            log.error(
                "a retained message cannot be sent",
                broker=link.name,
                topic=row.topic,
                position=row.version,
                reason=str(error),
            )


def _encode(
    session: Session,
    topic: str,
    message: RetainedMessage,
    flags: int,
    left_s: int | None,
    identifiers: tuple[int, ...],
) -> tuple[bytes, bytes]:
    is_v5 = session.version == MQTT_5
    block = delivery_properties(message.block, left_s, identifiers) if is_v5 else b""
    return encode_publish(MQTT_5 if is_v5 else 4, said_topic(topic.encode()), message.payload, flags, block)
