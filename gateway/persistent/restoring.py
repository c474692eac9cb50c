"""A session that comes back: what its rows say is its again, and its delivery begins where it stood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from gateway.persistent.rows import LIVE_END, SessionWriter
from gateway.session.cursor import SessionCursor
from gateway.session.inbound import Inbound
from gateway.session.lag import Lag, Starts
from gateway.session.outbound import Granted, Planned
from gateway.session.received import ReceivedQueues
from gateway.session.session import Session
from holdmq.mqtt import Subscription
from holdmq.mqtt.filters import SHARE_PREFIX
from holdmq.service import telemetry
from holdmq.wire.session_headers import DROP_FILTER, Content, SessionOpened
from holdmq.wire.session_state import (
    FilterOptions,
    LogPlace,
    ReceivedRow,
    SessionState,
    decode_options,
    decode_state,
)

if TYPE_CHECKING:
    from gateway.access.access import Access
    from gateway.brokers.link import BrokerLink
    from gateway.deliver.catchup import CatchUp
    from gateway.deliver.retained_answers import RetainedAnswers
    from gateway.deliver.shares import Shares
    from gateway.deliver.subscriptions import Subscriptions
    from gateway.deliver.wanted import WantedFilters
    from gateway.ground.counters import Counters

log = telemetry.get_logger()


class Restoring:
    """Restores the sessions of one worker; `links` are the brokers by name."""

    def __init__(
        self,
        links: Mapping[str, BrokerLink],
        access: Access,
        rows: SessionWriter,
        wanted: WantedFilters,
        subscriptions: Subscriptions,
        shares: Shares,
        retained: RetainedAnswers,
        catchup: CatchUp,
        counters: Counters,
    ) -> None:
        self._links = links
        self._access = access
        self._rows = rows
        self._wanted = wanted
        self._subscriptions = subscriptions
        self._shares = shares
        self._retained = retained
        self._catchup = catchup
        self._counters = counters

    def discard(self, client_id: str, uid: int, filters: Iterable[str]) -> None:
        """A client began anew, as the session `uid`: nothing is kept for what its older one had."""
        self._shares.discarded(client_id, uid, filters)

    def restore(self, session: Session, content: Content, answer: SessionOpened) -> bool:
        """Give a session its filters, its place and what is in flight; whether it has to catch up."""
        state = decode_state(content.state)
        if session.cursor is None and (state.planned or state.received is not None):
            # A session that ends with this connection: what is under way comes to its end all the same.
            session.cursor = SessionCursor(answer.uid)
        if session.cursor is not None and state.received is not None:
            self._restore_received(session, session.cursor, state.received)
        every = [(name, decode_options(options)) for name, options in content.filters]
        shared = [(name, options) for name, options in every if name.startswith(SHARE_PREFIX)]
        filters = [(name, options) for name, options in every if not name.startswith(SHARE_PREFIX)]
        is_behind = bool(filters or state.planned)
        if is_behind:
            session.outgoing().next_id = state.next_id
            self._restore_planned(session, state)
            self._restore_filters(session, filters, state)
        self._retained.restore(session, state.retained, filters)
        self._restore_shared(session, shared, state)
        return is_behind

    def _restore_filters(
        self, session: Session, filters: list[tuple[str, FilterOptions]], state: SessionState
    ) -> None:
        """Give a session its own subscriptions, and its place in each broker's log."""
        lag = session.outgoing().lag = Lag()
        lag.holds += 1
        self._counters.lagging_sessions += 1
        places = self._places(state, filters)
        for broker, place in places.items():
            lag.begin_at(broker, place.position, place.log_epoch)
        for name, options in filters:
            handling = options.retain_handling
            wanted = Subscription(name, options.qos, options.no_local, options.retain_as_published, handling)
            granted = Granted(wanted, options.identifier)
            granted.starts = Starts()
            for broker, start in options.starts.items():
                # A start of another epoch than the place's may lie past what is left of the log.
                if broker in places and start.log_epoch == places[broker].log_epoch:
                    granted.starts.put(broker, start.position)
            left_out = self._access.filter_verdict(session, name)
            if not isinstance(left_out, tuple):
                self._forbid(session, name)
                continue
            granted.left_out = left_out or None
            self._subscriptions.restore(session, name, granted)

    def _restore_shared(
        self, session: Session, shared: list[tuple[str, FilterOptions]], state: SessionState
    ) -> None:
        """Give a session its shared subscriptions; what is in flight is known."""
        for name, options in shared:
            verdict = self._access.filter_verdict(session, name)
            if not isinstance(verdict, tuple) or verdict:
                self._forbid(session, name)
                continue
            wanted = Subscription(name, options.qos, False, options.retain_as_published)
            granted = Granted(wanted, options.identifier)
            self._shares.restore(session, name, granted, options.starts, state.places)

    def _forbid(self, session: Session, name: str) -> None:
        """A stored filter is not allowed any more."""
        self._counters.filters_revoked_total += 1
        log.info("a stored subscription is not allowed any more", client=session.client_id, filter=name)
        if session.cursor is not None:
            self._rows.drop_filter(session, DROP_FILTER, name, _ignore)

    @staticmethod
    def _restore_received(session: Session, cursor: SessionCursor, row: ReceivedRow) -> None:
        received = cursor.received = ReceivedQueues(cursor.uid, session.epoch, row)
        if received.recorded:
            session.inbound = Inbound()
            session.inbound.restore(received.recorded)

    def _restore_planned(self, session: Session, state: SessionState) -> None:
        cursor = session.cursor
        if not state.planned or cursor is None:
            return
        again: dict[str, list[int]] = {}
        inflight: dict[int, Planned | None] = {}
        for row in state.planned:
            planned = Planned(row.broker, row.position, row.flags, tuple(row.identifiers))
            planned.is_released = row.is_released
            planned.topic = row.topic
            inflight[row.packet_id] = planned
            if not row.is_released:
                again.setdefault(row.broker, []).append(row.packet_id)
        session.outgoing().inflight = inflight
        cursor.again = again or None

    def _places(self, state: SessionState, filters: list[tuple[str, FilterOptions]]) -> dict[str, LogPlace]:
        """Where to go on at each broker: where the row says, else where the first filter began, else at 0."""
        places = dict(state.places)
        starts: dict[str, list[LogPlace]] = {}
        for _, options in filters:
            for broker, start in options.starts.items():
                starts.setdefault(broker, []).append(start)
        for broker in {*starts, *self._links}:
            if broker not in places:
                places[broker] = min(starts.get(broker, [LogPlace(0, 0)]), key=lambda place: place.position)
        return {broker: place for broker, place in places.items() if place.position != LIVE_END}

    def resume(self, session: Session) -> None:
        """Send what is in flight again, and catch up once every broker feeds the filters live, too."""
        outbound = session.outbound
        assert outbound is not None
        for packet_id, planned in (outbound.inflight or {}).items():
            if planned is not None and planned.is_released:
                session.send_pubrel(packet_id)  # [MQTT-4.4.0-1]
        lag = outbound.lag
        assert lag is not None
        self._wanted.when_in_effect(partial(self._in_effect, session, lag))

    def _in_effect(self, session: Session, lag: Lag) -> None:
        lag.holds -= 1
        self._retained.resume(session)
        self._catchup.ready(session)


def _ignore(_is_written: bool) -> None:
    """A row that nobody waits for."""
