"""A worker's subscriptions: SUBSCRIBE and UNSUBSCRIBE done, and SUBACKs that wait for the brokers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from gateway.ground.counters import Counters
from gateway.ground.limits import SUBACK_WAIT_S
from gateway.session.events import Subscribing, Unsubscribing
from gateway.session.lag import Starts
from gateway.session.outbound import Granted
from gateway.session.session import CLOSED, Session
from holdmq.mqtt import ReasonCode, Subscription, plus_levels
from holdmq.mqtt.filters import SHARE_PREFIX
from holdmq.wire.session_headers import DROP_FILTER

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.deliver.replay import Replays
    from gateway.deliver.retained_answers import RetainedAnswers
    from gateway.deliver.shares import Shares
    from gateway.deliver.system_topics import SystemTopics
    from gateway.deliver.wanted import WantedFilters
    from gateway.session.outbound import Membership


class SubscriptionRows(Protocol):
    """Writes the rows of sessions that outlive their connections; False: too much waits already."""

    def store_filter(
        self, session: Session, name: str, granted: Granted, is_new: bool, on_written: Callable[[bool], None]
    ) -> bool:
        """Have a subscription's row written."""

    def store_state(self, session: Session, on_written: Callable[[bool], None]) -> bool:
        """Have the state as it is now written behind all that was asked for so far."""

    def drop_filter(self, session: Session, kind: str, name: str, on_written: Callable[[bool], None]) -> bool:
        """Have a subscription's row taken away."""


class _SubackWaiter:
    """A SUBACK that waits until `left` brokers have the filters, or until `deadline`: then `answer(self)`.

    `granted` are the filters, True: the session did not have it; `rows` those of them whose rows are written
    first, and `is_replay` says that the session's state is written behind these. `owed` are to be answered
    with retained messages; with `is_system` some may be the gateway's own topics.
    """

    __slots__ = (
        "answer",
        "codes",
        "deadline",
        "granted",
        "is_done",
        "is_replay",
        "is_system",
        "left",
        "owed",
        "packet_id",
        "reason",
        "rows",
        "session",
    )

    def __init__(
        self, session: Session, event: Subscribing, deadline: float, answer: Callable[[_SubackWaiter], None]
    ) -> None:
        self.session = session
        self.packet_id = event.packet_id
        self.codes = [code for code, _ in event.granted]
        self.reason = event.reason
        self.deadline = deadline
        self.answer = answer
        self.left = 0
        self.is_done = False
        self.granted: dict[str, bool] = {}
        self.owed: dict[str, None] = {}
        self.rows: dict[str, bool] = {}
        self.is_replay = False
        self.is_system = False

    def in_effect(self) -> None:
        """One more broker has the filters."""
        self.left -= 1
        if self.left <= 0:
            self.answer(self)


def owes_retained(subscription: Subscription, is_new: bool) -> bool:
    """Whether a subscription is answered with retained messages: by its retain handling, and if it is new.

    [MQTT-3.3.1-9], -10, -11. Shared ones never are (4.8.2).
    """
    handling = subscription.retain_handling
    is_wanted = handling == 0 or (handling == 1 and is_new)
    return is_wanted and not subscription.topic_filter.startswith(SHARE_PREFIX)


def _ignore(_is_written: bool) -> None:
    """One of several rows that are written together: the last one is waited for."""


class Subscriptions:
    """The subscriptions of this worker's sessions. `links` are the brokers by name."""

    def __init__(
        self,
        wanted: WantedFilters,
        links: Mapping[str, BrokerLink],
        rows: SubscriptionRows,
        retained: RetainedAnswers,
        shares: Shares,
        replays: Replays,
        system: SystemTopics,
        counters: Counters,
        now: Callable[[], float],
        close_when_settled: Callable[[Session], None],
    ) -> None:
        self._wanted = wanted
        self._links = links
        self._rows = rows
        self._retained = retained
        self._shares = shares
        self._replays = replays
        self._system = system
        self._counters = counters
        self._now = now
        self._close_when_settled = close_when_settled
        self._waiting: deque[_SubackWaiter] = deque()

    def subscribe(self, session: Session, event: Subscribing) -> None:
        """Add the granted filters; the SUBACK follows when every broker has them, at most 2 s later."""
        outbound = session.outbound
        assert outbound is not None
        outbound.decided(event.fresh)
        stored: dict[str, bool] = {}
        owed: dict[str, None] = {}
        members: list[tuple[Membership, int]] = []
        for at, (code, subscription) in enumerate(event.granted):
            if subscription is None or code >= ReasonCode.UNSPECIFIED_ERROR:
                continue
            topic_filter = subscription.topic_filter
            granted = Granted(subscription, event.identifier)
            if event.left_out is not None:
                granted.left_out = event.left_out.get(topic_filter)
            if topic_filter.startswith(SHARE_PREFIX):
                if granted.left_out:
                    # What this client may not have would be lost to the others, or go round for ever.
                    event.granted[at] = ReasonCode.NOT_AUTHORIZED, None
                    continue
                is_new = topic_filter not in (outbound.shared or ())
                stored[topic_filter] = is_new or stored.get(topic_filter, False)
                members.append((self._shares.subscribe(session, topic_filter, granted), at))
                continue
            known = outbound.subscriptions.get(topic_filter)
            stored[topic_filter] = known is None or stored.get(topic_filter, False)
            if owes_retained(subscription, known is None):
                owed[topic_filter] = None
            if known is not None:  # [MQTT-3.8.4-3]: replaced, its start is kept
                granted.starts = known.starts
            else:
                self._counters.subscriptions += 1
                outbound.plus_levels += plus_levels(topic_filter)
                if outbound.lag is not None and outbound.lag.is_behind:
                    outbound.lag.filters_added += 1
                    granted.starts = Starts()
                    for name, link in self._links.items():
                        granted.starts.put(name, link.reader.live_from)
            outbound.subscriptions[topic_filter] = granted
            self._wanted.add(topic_filter, session, granted)
        waiter = _SubackWaiter(session, event, self._now() + SUBACK_WAIT_S, self._answer)
        waiter.granted = stored
        if owed:
            self._retained.owe(session, owed)
            waiter.owed = owed
        waiter.is_system = self._wanted.system_filters > 0
        own = [name for name in stored if name in outbound.subscriptions]
        if event.starts and own:
            waiter.is_replay = True
            self._replays.begin(session, own, event.starts)
        if session.cursor is not None:
            waiter.rows = dict.fromkeys(stored, True) if waiter.is_replay else stored
        for link in self._links.values():
            if not link.is_gone and link.reader.when_in_effect(waiter.in_effect):
                waiter.left += 1
        for member, at in members:
            self._shares.join(member, waiter, at)
        if not waiter.left and self._links:
            self._answer(waiter)
        else:
            self._waiting.append(waiter)

    def _answer(self, waiter: _SubackWaiter) -> None:
        """Send the SUBACK, once; the filters are stored first."""
        if waiter.is_done:
            return
        waiter.is_done = True
        if waiter.rows:
            self._store(waiter)
        else:
            self._subscribed(waiter)

    def _subscribed(self, waiter: _SubackWaiter) -> None:
        """The filters are in effect, and written down if need be."""
        session = waiter.session
        session.subscribed(waiter.packet_id, waiter.codes, waiter.reason)
        if waiter.is_system:
            self._system.subscribed(session, waiter.granted)
        if waiter.owed:
            self._retained.begin(session, waiter.owed)

    def _store(self, waiter: _SubackWaiter) -> None:
        """Have the rows of filters written (True: a new one), and then the SUBACK sent.

        Only now is it known from where on they count.
        """
        session = waiter.session
        outbound = session.outbound
        if outbound is None or session.state == CLOSED:
            return

        def written(is_written: bool) -> None:
            if is_written:
                self._subscribed(waiter)
            else:
                self._close_when_settled(session)

        # What was unsubscribed meanwhile has no row.
        left = [
            (name, is_new, granted)
            for name, is_new in waiter.rows.items()
            if (granted := outbound.granted(name)) is not None
        ]
        if not left:
            written(True)
            return
        for at, (name, is_new, granted) in enumerate(left, 1):
            done = written if at == len(left) and not waiter.is_replay else _ignore
            if not self._rows.store_filter(session, name, granted, is_new, done):
                self._close_when_settled(session)
                return
        if waiter.is_replay and not self._rows.store_state(session, written):
            self._close_when_settled(session)

    def unsubscribe(self, session: Session, event: Unsubscribing) -> None:
        """Take filters away and answer at once: nothing more is delivered for them [MQTT-3.10.4-2]."""
        codes: list[int] = []
        gone: list[str] = []
        for topic_filter in event.topic_filters:
            if self._take_away(session, topic_filter):
                gone.append(topic_filter)
                codes.append(ReasonCode.SUCCESS)
            else:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
        if session.cursor is None or not gone:
            session.unsubscribed(event.packet_id, codes)
            return

        def written(is_written: bool) -> None:
            if is_written:
                session.unsubscribed(event.packet_id, codes)
            else:
                self._close_when_settled(session)

        for topic_filter in gone:
            done = written if topic_filter is gone[-1] else _ignore
            if not self._rows.drop_filter(session, DROP_FILTER, topic_filter, done):
                self._close_when_settled(session)
                return

    def revoke(self, session: Session, topic_filter: str) -> None:
        """Take a filter away that the client may not have any more: nothing more is delivered for it."""
        if not self._take_away(session, topic_filter) or session.cursor is None:
            return
        if not self._rows.drop_filter(session, DROP_FILTER, topic_filter, _ignore):
            self._close_when_settled(session)

    def _take_away(self, session: Session, topic_filter: str) -> bool:
        """Deliver nothing more for a filter, shared or not; whether the session had it."""
        if self._shares.unsubscribe(session, topic_filter):
            return True
        outbound = session.outbound
        if outbound is None or outbound.subscriptions.pop(topic_filter, None) is None:
            return False
        outbound.plus_levels -= plus_levels(topic_filter)
        self._drop(topic_filter, session)
        if outbound.retained is not None:
            outbound.retained.forget(topic_filter)
        return True

    def restore(self, session: Session, topic_filter: str, granted: Granted) -> None:
        """A session that came back has this filter."""
        outbound = session.outgoing()
        if topic_filter not in outbound.subscriptions:
            self._counters.subscriptions += 1
            outbound.plus_levels += plus_levels(topic_filter)
        outbound.subscriptions[topic_filter] = granted
        self._wanted.add(topic_filter, session, granted)

    def forget(self, session: Session) -> None:
        """The session ended: all its filters go."""
        self._shares.forget(session)
        outbound = session.outbound
        if outbound is None:
            return
        for topic_filter in outbound.subscriptions:
            self._drop(topic_filter, session)
        outbound.subscriptions.clear()
        outbound.plus_levels = 0

    def _drop(self, topic_filter: str, session: Session) -> None:
        self._counters.subscriptions -= 1
        self._wanted.remove(topic_filter, session)

    def expire(self, now: float) -> None:
        """Answer the SUBACKs that have waited long enough for a silent broker."""
        waiting = self._waiting
        while waiting and (waiting[0].is_done or waiting[0].deadline <= now):
            waiter = waiting.popleft()
            if not waiter.is_done:
                self._counters.suback_late_total += 1
                self._answer(waiter)
