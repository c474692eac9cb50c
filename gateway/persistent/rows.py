"""The rows of sessions that outlive their connections: what is written down of each, and what waits for that.

Filters are stored before SUBACK, QoS 2 plans before PUBLISH, PUBRECs before PUBREL; the owner of a session
(gateway.persistent.owner) has them. Source: mqtt.md, Sessions are cursors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from gateway.deliver.retained_answers import RetainedAnswers
from gateway.session.cursor import WrittenState
from gateway.session.outbound import Granted
from gateway.session.received import QUEUES_MAX, ReceivedQueues
from gateway.session.session import CLOSED, Session, close_connection
from holdmq.mqtt import ReasonCode
from holdmq.wire.session_headers import PUT_FILTER, PUT_STATE
from holdmq.wire.session_state import FilterOptions, LogPlace, PlannedRow, SessionState

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.publish.ingress import Unbound
    from gateway.session.session import SessionContext

LIVE_END: Final = -1
"""As a start: where the broker's log ended when it was first read, which nobody knew then."""


class SessionWriter:
    """Has the rows of one worker's sessions written by their owners; `links` are the brokers by name."""

    def __init__(self, links: Mapping[str, BrokerLink], context: SessionContext, turn: Turn) -> None:
        self._links = links
        self._context = context
        self._turn = turn

    def bind(self, session: Session, unbound: Unbound, known: Callable[[], None]) -> None:
        """Have the row say where QoS 2 publishes to a topic go, before the first one goes there."""
        cursor = session.cursor
        assert cursor is not None
        if cursor.received is None:
            cursor.received = ReceivedQueues(cursor.uid, session.epoch)
        if cursor.received.bind(unbound.topic, unbound.queue, known):
            self._context.planning.append(session)
            return
        close_connection(
            session,
            ReasonCode.QUOTA_EXCEEDED,
            "publish_topics",
            f"QoS 2 publishes to more than {QUEUES_MAX} first levels",
        )

    def store_filter(
        self, session: Session, name: str, granted: Granted, is_new: bool, on_written: Callable[[bool], None]
    ) -> bool:
        """Have a subscription's row written; False: too much waits."""
        owner = session.owner
        assert owner is not None
        starts: dict[str, LogPlace] = {}
        if is_new or (granted.starts is not None and not granted.starts.is_empty):
            for broker, link in self._links.items():
                known = None if granted.starts is None else granted.starts.get(broker)
                reader = link.reader
                position = known
                if position is None:
                    position = LIVE_END if reader.position is None else reader.live_from
                starts[broker] = LogPlace(reader.log_epoch, position)
        options = FilterOptions(
            granted.qos,
            granted.no_local,
            granted.retain_as_published,
            granted.retain_handling,
            granted.identifier,
            starts,
            RetainedAnswers.number_of(session, name),
        )
        return owner.change(session, PUT_FILTER, name, options.encode(), on_written)

    def store_starts(self, session: Session, names: list[str]) -> None:
        """Have these filters' rows say from where on they count, before any state that is asked for later."""
        outbound = session.outbound
        for name in names if outbound is not None else ():
            assert outbound is not None
            if not self.store_filter(session, name, outbound.subscriptions[name], False, _ignore):
                self._turn.close_when_settled(session)
                return

    def store_state(self, session: Session, on_written: Callable[[bool], None]) -> bool:
        """Have the state as it is now written behind all that was asked for so far; False: too much waits."""
        owner = session.owner
        assert owner is not None
        return owner.change(session, PUT_STATE, "", self.state_of(session), on_written)

    def drop_filter(self, session: Session, kind: str, name: str, on_written: Callable[[bool], None]) -> bool:
        """Have a subscription's row taken away; False: too much waits."""
        owner = session.owner
        assert owner is not None
        return owner.change(session, kind, name, b"", on_written)

    def state_of(self, session: Session, *, is_over: bool = False) -> bytes:
        """A session's state as its row has it; `is_over`: at the end of its connection."""
        outbound, cursor = session.outbound, session.cursor
        assert cursor is not None
        places: dict[str, LogPlace] = {}
        lag = outbound.lag if outbound is not None else None
        for broker, link in self._links.items():
            reader = link.reader
            position, log_epoch = reader.position, reader.log_epoch
            if lag is not None and (behind := lag.position_at(broker)) is not None:
                position, log_epoch = behind, lag.log_epoch_at(broker, log_epoch)
            elif lag is not None and (floor := lag.floor_at(broker)) is not None:
                position = floor
            if position is not None:
                places[broker] = LogPlace(log_epoch, position)
        for broker, behind in lag.positions.items() if lag is not None else ():
            if broker not in places and lag is not None:
                places[broker] = LogPlace(lag.log_epoch_at(broker, 0), behind)
        cursor.written_at = sum(place.position for place in places.values())
        planned = [
            PlannedRow(packet_id, p.broker, p.position, p.flags, list(p.identifiers), p.is_released, p.topic)
            for packet_id, p in ((outbound.inflight if outbound is not None else None) or {}).items()
            # QoS 1 of a shared subscription is another session's when this connection ends.
            if p is not None and (p.member is None or p.flags & 4)
        ]
        received = None
        if cursor.received is not None:
            received = cursor.received.row(session.unreleased, is_over=is_over)
        next_id = outbound.next_id if outbound is not None else 1
        retained = RetainedAnswers.state_of(session)
        return SessionState(places, planned, next_id, received, retained).encode()

    def state_written(self, session: Session, written: WrittenState) -> None:
        """The row has a state: what waited for it leaves."""
        if session.state == CLOSED:
            return
        for head, packet_id, tail in written.publishes:
            session.send_publish(head, packet_id, tail)
        inflight = session.outbound.inflight if session.outbound is not None else None
        for _, packet_id, _ in written.publishes if inflight is not None else ():
            planned = inflight.get(packet_id) if inflight is not None else None
            if planned is not None and planned.member is not None:
                # From now on it is this session's as every other one.
                planned.member.settled(planned)
                planned.member = None
        for packet_id in written.released:
            session.send_pubrel(packet_id)
        write, received = written.received, session.cursor.received if session.cursor is not None else None
        if write is not None and received is not None:
            received.written(write)
            if write.completed:
                session.completed(write.completed)
            for bound in write.bound:
                bound()


def _ignore(_is_written: bool) -> None:
    """A row that nobody waits for: what is told behind it says how it went."""
