"""Publishes of the client: taken, counted, answered in order, released (3.3 to 3.7, 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.ground.entries import TopicEntry
from gateway.ground.receipts import CLOSE, PublishReceipt
from gateway.session.events import Event
from gateway.session.inbound import RECORDED, Inbound
from holdmq.mqtt import (
    MQTT_5,
    PUBACK,
    PUBREC,
    MqttError,
    PubAck,
    PubComp,
    PublishRun,
    PubRec,
    ReasonCode,
    encode,
    encode_acks,
    encode_pubcomps,
    encode_pubrecs,
    encode_short_ack,
)

if TYPE_CHECKING:
    from gateway.session.session import Session


def take_publishes(session: Session, run: PublishRun[TopicEntry], events: list[Event]) -> None:
    """Check a run of PUBLISH, count what is owed for it, and hand on what is new of it."""
    counters = session.context.counters
    owed = 0
    for message in run.messages:
        if message[1] != 2:
            owed = _count(session, run)
            break
        owed += 1
    else:
        counters.messages_in_qos1_total += owed
    if owed:
        inbound = session.inbound
        if inbound is None:
            inbound = session.inbound = Inbound()
        inbound.count += owed
        inbound.unsettled += owed
        if inbound.count > session.context.limits.receive_max and session.version == MQTT_5:
            raise MqttError(  # 3.3.4, [MQTT-4.9.0-1]
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                f"{inbound.count} publishes are unacknowledged, past the receive maximum",
            )
    elif session.inbound is None:
        session.inbound = Inbound()
    if run.messages:
        events.append(run)


def _count(session: Session, run: PublishRun[TopicEntry]) -> int:
    """Count publishes of mixed QoS and take repeats of unreleased QoS 2 out of the run."""
    counters = session.context.counters
    flags = [message[1] for message in run.messages]
    qos0 = sum(not flag & 6 for flag in flags)
    counters.messages_in_qos0_total += qos0
    qos2 = sum(flag & 6 == 4 for flag in flags)
    counters.messages_in_qos1_total += len(flags) - qos0 - qos2
    if not qos2:
        return len(flags) - qos0
    inbound = session.inbound
    if inbound is None:
        inbound = session.inbound = Inbound()
    messages, run.messages = run.messages, []
    repeats: list[int] = []
    for message in messages:
        if message[1] & 6 == 4 and inbound.is_repeat(message[2]):
            repeats.append(message[2])
        else:
            run.messages.append(message)
    if repeats:
        counters.messages_repeated_total += len(repeats)
        unreleased = inbound.unreleased or {}
        # [MQTT-4.3.3-9], -10: answered again without a second append; one that the log does not
        # have yet is answered when it has.
        session.send(encode_pubrecs([i for i in repeats if unreleased.get(i) == RECORDED]))
    counters.messages_in_qos2_total += qos2 - len(repeats)
    return len(flags) - qos0 - len(repeats)


def answer_settled(session: Session, receipt: PublishReceipt) -> None:
    """Answer what is settled at the head of the chain (gateway.ground.receipts)."""
    inbound = session.inbound
    if inbound is None or inbound.is_unanswerable or inbound.head is not receipt:
        return
    while (settled := inbound.take_settled()) is not None:
        outcome = settled.outcome or 0
        if outcome & CLOSE:
            inbound.is_unanswerable = True
            session.context.unserved.append(session)  # nothing later may be answered
            return
        count = settled.count
        inbound.unsettled -= count
        if settled.packet_type == PUBREC:
            inbound.recorded(settled)
            if outcome:
                inbound.count -= count
        else:
            inbound.count -= count
        if outcome and session.version == MQTT_5:
            kind = PubAck if settled.packet_type == PUBACK else PubRec
            for packet_id in settled.packet_ids:
                session.send(encode(kind(packet_id, outcome), MQTT_5))
        # 3.x has no way to refuse: acknowledged, dropped and counted (mqtt.md, Security).
        elif settled.more is None:
            session.send(encode_short_ack(settled.packet_type, settled.packet_id))
        else:
            session.send(encode_acks(settled.packet_type, settled.packet_ids))


def release(session: Session, packet_ids: list[int]) -> None:
    """PUBREL: forget the packet ids, answer PUBCOMP, if need be when the session's row says it."""
    inbound = session.inbound
    known = {i for i in packet_ids if inbound is not None and inbound.release(i)}
    cursor = session.cursor
    if cursor is not None and cursor.received is not None:
        for packet_id in packet_ids:
            # What is not known here may have been received on an earlier connection.
            is_right = packet_id in known or not cursor.received.is_whole
            code = 0 if is_right else int(ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
            cursor.received.release(packet_id, code)
        session.context.planning.append(session)
        return
    if len(known) == len(packet_ids):
        session.send(encode_pubcomps(packet_ids))  # [MQTT-4.3.3-11]
        return
    for packet_id in packet_ids:
        code = 0 if packet_id in known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        session.send(encode(PubComp(packet_id, code), session.version))


def complete(session: Session, completed: dict[int, int]) -> None:
    """The row says that these are released: PUBCOMP."""
    if not any(completed.values()):
        session.send(encode_pubcomps(list(completed)))
        return
    for packet_id, code in completed.items():
        session.send(encode(PubComp(packet_id, code), session.version))


def unreleased_of(session: Session) -> dict[int, bool] | None:
    """The packet ids of QoS 2 publishes that wait for PUBREL → whether the log surely has them."""
    return None if session.inbound is None else session.inbound.unreleased
