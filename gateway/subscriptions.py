"""A worker's subscriptions: the trie, the brokers' filter sets, and SUBACKs that wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from gateway.core.counters import Counters
from gateway.limits import SUBACK_WAIT_S
from gateway.session.events import Subscribing, Unsubscribing
from gateway.session.outbound import Granted
from gateway.session.session import Session
from holdmq.mqtt import FilterTrie, ReasonCode
from holdmq.topics import filter_terms, topic_of_filter
from holdmq.wire.headers import FilterTerm

if TYPE_CHECKING:
    from gateway.link import BrokerLink


class _Waiter:
    """A SUBACK that waits until `left` brokers have the filters, or until `deadline`."""

    __slots__ = ("codes", "deadline", "is_done", "left", "packet_id", "session")

    def __init__(self, session: Session, packet_id: int, codes: list[int], deadline: float) -> None:
        self.session = session
        self.packet_id = packet_id
        self.codes = codes
        self.deadline = deadline
        self.left = 0
        self.is_done = False

    def in_effect(self) -> None:
        """One more broker has the filters."""
        self.left -= 1
        if self.left <= 0:
            self.answer()

    def answer(self) -> None:
        """Send the SUBACK, once."""
        if not self.is_done:
            self.is_done = True
            self.session.subscribed(self.packet_id, self.codes)


class Subscriptions:
    """Who of this worker's sessions wants what.

    `links` are the brokers by name; `key_levels(topic)` is a log topic's, 1 while it is not known.
    """

    def __init__(
        self,
        links: Mapping[str, BrokerLink],
        counters: Counters,
        key_levels: Callable[[str], int],
        now: Callable[[], float],
    ) -> None:
        self.trie: FilterTrie[Session, Granted] = FilterTrie()
        self._links = links
        self._counters = counters
        self._key_levels = key_levels
        self._now = now
        self._levels: dict[str, int] = {}
        """`key_levels` with which terms were made, by log topic, where it is not 1: what is removed must be
        what was added, and keeping every filter's terms would cost an idle connection 200 bytes."""
        self._waiting: deque[_Waiter] = deque()
        self.terms_version = 0
        """Counts changes of what filters mean to brokers: terms made before are not enough."""

    def subscribe(self, session: Session, event: Subscribing) -> None:
        """Add the granted filters; the SUBACK follows when every broker has them, at most 2 s later."""
        outbound = session.outbound
        assert outbound is not None
        for code, subscription in event.granted:
            if subscription is None or code >= ReasonCode.UNSPECIFIED_ERROR:
                continue
            topic_filter = subscription.topic_filter
            granted = Granted(subscription, event.identifier)
            known = outbound.subscriptions.get(topic_filter)
            if known is not None:  # [MQTT-3.8.4-3]: replaced, its start is kept
                granted.starts = known.starts
            else:
                self._counters.subscriptions += 1
                if outbound.lag is not None and outbound.lag.positions:
                    outbound.lag.filters_added += 1
                    granted.starts = {name: link.reader.position or 0 for name, link in self._links.items()}
            outbound.subscriptions[topic_filter] = granted
            if self.trie.add(topic_filter, session, granted):
                self._want(topic_filter)
        self._counters.filters = len(self.trie)
        waiter = _Waiter(
            session, event.packet_id, [code for code, _ in event.granted], self._now() + SUBACK_WAIT_S
        )
        for link in self._links.values():
            if not link.is_gone and link.reader.when_in_effect(waiter.in_effect):
                waiter.left += 1
        if not waiter.left and self._links:
            waiter.answer()
        else:
            self._waiting.append(waiter)

    def unsubscribe(self, session: Session, event: Unsubscribing) -> None:
        """Take filters away and answer at once: nothing more is delivered for them [MQTT-3.10.4-2]."""
        outbound = session.outbound
        codes: list[int] = []
        for topic_filter in event.topic_filters:
            if outbound is None or outbound.subscriptions.pop(topic_filter, None) is None:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                continue
            self._drop(topic_filter, session)
            codes.append(ReasonCode.SUCCESS)
        self._counters.filters = len(self.trie)
        session.unsubscribed(event.packet_id, codes)

    def forget(self, session: Session) -> None:
        """The session ended: all its filters go."""
        outbound = session.outbound
        if outbound is None:
            return
        for topic_filter in outbound.subscriptions:
            self._drop(topic_filter, session)
        outbound.subscriptions.clear()
        self._counters.filters = len(self.trie)

    def expire(self, now: float) -> None:
        """Answer the SUBACKs that have waited long enough for a silent broker."""
        waiting = self._waiting
        while waiting and (waiting[0].is_done or waiting[0].deadline <= now):
            waiter = waiting.popleft()
            if not waiter.is_done:
                self._counters.suback_late_total += 1
                waiter.answer()

    def terms_of(self, session: Session) -> list[FilterTerm]:
        """All terms of one session's filters."""
        outbound = session.outbound
        assert outbound is not None
        return [term for topic_filter in outbound.subscriptions for term in self._make_terms(topic_filter)]

    def all_terms(self) -> list[FilterTerm]:
        """The terms that a new broker must be given, with their repeats."""
        return [term for topic_filter in self.trie.filters() for term in self._make_terms(topic_filter)]

    def routes_changed(self, topics: Iterable[str]) -> None:
        """Topics came, went or changed: terms of their filters depend on `key_levels`."""
        changed = {topic for topic in topics if self._key_levels(topic) != self._levels.get(topic, 1)}
        if not changed:
            return
        self.terms_version += 1
        affected = [f for f in self.trie.filters() if topic_of_filter(f) in changed]
        old = [self._make_terms(topic_filter) for topic_filter in affected]
        for topic in changed:
            self._levels[topic] = self._key_levels(topic)
        for topic_filter, terms in zip(affected, old, strict=True):
            for link in self._links.values():
                link.reader.add(self._make_terms(topic_filter))
                link.reader.remove(terms)

    def _want(self, topic_filter: str) -> None:
        terms = self._make_terms(topic_filter)
        for link in self._links.values():
            link.reader.add(terms)

    def _drop(self, topic_filter: str, session: Session) -> None:
        self._counters.subscriptions -= 1
        if self.trie.remove(topic_filter, session):
            terms = self._make_terms(topic_filter)
            for link in self._links.values():
                link.reader.remove(terms)

    def _make_terms(self, topic_filter: str) -> list[FilterTerm]:
        topic = topic_of_filter(topic_filter)
        return filter_terms(topic_filter, 1 if topic is None else self._levels.get(topic, 1))
