"""Acknowledgements of the client for what was sent to it (3.4 to 3.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.session.events import WINDOW_OPENED, Event
from gateway.session.receiving import release
from holdmq.mqtt import PUBACK, PUBCOMP, PUBREC, PUBREL, PubRel, ReasonCode, encode

if TYPE_CHECKING:
    from gateway.session.session import Session


def take_acks(session: Session, packet_type: int, packet_ids: list[int], events: list[Event]) -> None:
    """PUBACK, PUBREC, PUBREL or PUBCOMP without a refusal in it."""
    if packet_type == PUBREL:
        release(session, packet_ids)
        return
    outbound = session.outbound
    if packet_type == PUBACK:
        if outbound is not None:
            outbound.settle(packet_ids)
    elif packet_type == PUBREC:
        for packet_id in packet_ids:
            take_pubrec(session, packet_id, 0)
    elif packet_type == PUBCOMP and outbound is not None:
        for packet_id in packet_ids:
            outbound.complete(packet_id)
    after_acks(session, events)


def after_acks(session: Session, events: list[Event]) -> None:
    """The client acknowledged something."""
    cursor = session.cursor
    if cursor is not None and not cursor.is_stale:
        cursor.is_stale = True
        session.context.stale.append(session)
    outbound = session.outbound
    if outbound is None:
        return
    if outbound.shared is not None:
        # Others share what waits: each message that there is room for is asked for.
        events.append(WINDOW_OPENED)
    elif (outbound.lag is not None or outbound.retained is not None) and outbound.is_half_open:
        events.append(WINDOW_OPENED)


def take_pubrec(session: Session, packet_id: int, reason_code: int) -> None:
    """PUBREC: its PUBREL leaves when the row says so, or at once if there is no row."""
    is_refused = reason_code >= 0x80
    outbound = session.outbound
    planned = None if outbound is None else outbound.receive(packet_id, is_refused=is_refused)
    if is_refused:
        return
    if planned is None:
        code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        session.send(encode(PubRel(packet_id, code), session.version))
    elif session.cursor is None:
        session.send(encode(PubRel(packet_id), session.version))
    else:
        session.cursor.release(packet_id)
        session.context.planning.append(session)
