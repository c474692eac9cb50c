"""A worker's subscriptions: the trie, the brokers' filter sets, and SUBACKs that wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gateway.ground.counters import Counters
from gateway.ground.limits import SUBACK_WAIT_S
from gateway.ground.system_topics import is_system_filter
from gateway.session.events import Subscribing, Unsubscribing
from gateway.session.lag import Starts
from gateway.session.outbound import Granted
from gateway.session.session import CLOSED, Session
from holdmq.mqtt import FilterTrie, ReasonCode, Subscription, plus_levels
from holdmq.mqtt.filters import SHARE_PREFIX
from holdmq.names.topics import filter_terms, topic_of_filter
from holdmq.wire.headers import FilterTerm
from holdmq.wire.session_headers import DROP_FILTER

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.deliver.replay import Replays
    from gateway.deliver.retained_answers import RetainedAnswers
    from gateway.deliver.shares import Shares
    from gateway.deliver.system_topics import SystemTopics
    from gateway.session.memberships import Membership


Trees = tuple[tuple[str, int], ...]
"""Topics of routing rules, with their `key_levels`."""


class SubscriptionRows(Protocol):
    """Writes the rows of sessions that outlive their connections; False: too much waits already."""

    def store_filter(
        self, session: Session, name: str, granted: Granted, is_new: bool, on_written: Callable[[bool], None]
    ) -> bool:
        """Have a subscription's row written."""

    def store_starts(self, session: Session, names: list[str]) -> None:
        """Have these filters' rows say from where on they count, before any state that is asked for later."""

    def store_state(self, session: Session, on_written: Callable[[bool], None]) -> bool:
        """Have the state as it is now written behind all that was asked for so far."""

    def drop_filter(self, session: Session, kind: str, name: str, on_written: Callable[[bool], None]) -> bool:
        """Have a subscription's row taken away."""


class _SubackWaiter:
    """A SUBACK that waits until `left` brokers have the filters, or until `deadline`.

    If the session outlives its connection, `store` is called then, and answers when it is done; after a
    replay began, when its state says so too. `begin` is called when it was answered.
    """

    __slots__ = (
        "begin",
        "codes",
        "deadline",
        "is_done",
        "is_replay",
        "left",
        "packet_id",
        "reason",
        "session",
        "store",
        "system",
    )

    def __init__(self, session: Session, packet_id: int, codes: list[int], deadline: float) -> None:
        self.session = session
        self.packet_id = packet_id
        self.codes = codes
        self.deadline = deadline
        self.left = 0
        self.is_done = False
        self.is_replay = False
        self.reason = ""
        self.store: Callable[[], None] | None = None
        self.begin: Callable[[], None] | None = None
        self.system: Callable[[], None] | None = None

    def in_effect(self) -> None:
        """One more broker has the filters."""
        self.left -= 1
        if self.left <= 0:
            self.answer()

    def answer(self) -> None:
        """Send the SUBACK, once; the filters are stored first."""
        if self.is_done:
            return
        self.is_done = True
        # It refers to this waiter: left there, the session would be kept until a full collection of garbage.
        store, self.store = self.store, None
        if store is None:
            self.subscribed()
        else:
            store()

    def subscribed(self) -> None:
        """The filters are in effect, and written down if need be."""
        self.session.subscribed(self.packet_id, self.codes, self.reason)
        if self.system is not None:
            self.system()
        if self.begin is not None:
            self.begin()


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
    """The filters of this worker's sessions.

    `links` are the brokers by name; `key_levels(topic)` is a log topic's, 1 while it is not known.
    """

    def __init__(
        self,
        links: Mapping[str, BrokerLink],
        counters: Counters,
        key_levels: Callable[[str], int],
        now: Callable[[], float],
        rows: SubscriptionRows,
        close_when_settled: Callable[[Session], None],
    ) -> None:
        self._rows = rows
        self._close_when_settled = close_when_settled
        self.trie: FilterTrie[Session, Granted] = FilterTrie()
        self._links = links
        self._counters = counters
        self._key_levels = key_levels
        self._now = now
        self._levels: dict[str, int] = {}
        """`key_levels` with which terms were made, by log topic, where it is not 1: what is removed must be
        what was added, and keeping every filter's terms would cost an idle connection 200 bytes."""
        self._waiting: deque[_SubackWaiter] = deque()
        self.replays: Replays | None = None
        self.retained: RetainedAnswers | None = None
        self.system: SystemTopics | None = None
        self._find_trees: Callable[[], Trees] = tuple
        self._trees: Trees = ()
        self.system_filters = 0
        """Filters in the trie that the gateway itself answers."""
        self.shares: Shares | None = None
        self.terms_version = 0
        """Counts changes of what filters mean to brokers: terms made before are not enough."""

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
            if self.shares is not None and topic_filter.startswith(SHARE_PREFIX):
                if granted.left_out:
                    # What this client may not have would be lost to the others, or go round for ever.
                    event.granted[at] = ReasonCode.NOT_AUTHORIZED, None
                    continue
                is_new = topic_filter not in (outbound.shared or ())
                stored[topic_filter] = is_new or stored.get(topic_filter, False)
                members.append((self.shares.subscribe(session, topic_filter, granted), at))
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
            if self.trie.add(topic_filter, session, granted):
                self._want(topic_filter)
        self._counters.filters = len(self.trie)
        waiter = _SubackWaiter(
            session, event.packet_id, [code for code, _ in event.granted], self._now() + SUBACK_WAIT_S
        )
        waiter.reason = event.reason
        if owed and self.retained is not None:
            self.retained.owe(session, owed)
            waiter.begin = partial(self.retained.begin, session, owed)
        if self.system_filters and self.system is not None:
            waiter.system = partial(self.system.subscribed, session, stored)
        own = [name for name in stored if name in outbound.subscriptions]
        if event.starts and own and self.replays is not None:
            waiter.is_replay = True
            stored = dict.fromkeys(stored, True)
            self.replays.begin(session, own, event.starts)
        if session.cursor is not None and stored:
            waiter.store = partial(self._store, session, stored, waiter)
        for link in self._links.values():
            if not link.is_gone and link.reader.when_in_effect(waiter.in_effect):
                waiter.left += 1
        for member, at in members:
            assert self.shares is not None
            self.shares.join(member, waiter, at)
        if not waiter.left and self._links:
            waiter.answer()
        else:
            self._waiting.append(waiter)

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
        if self.shares is not None and self.shares.unsubscribe(session, topic_filter):
            return True
        outbound = session.outbound
        if outbound is None or outbound.subscriptions.pop(topic_filter, None) is None:
            return False
        outbound.plus_levels -= plus_levels(topic_filter)
        self._drop(topic_filter, session)
        if outbound.retained is not None:
            outbound.retained.forget(topic_filter)
        self._counters.filters = len(self.trie)
        return True

    def _store(self, session: Session, wanted: dict[str, bool], waiter: _SubackWaiter) -> None:
        """Have the rows of filters written (True: a new one), and then the SUBACK sent.

        Only now is it known from where on they count.
        """
        outbound = session.outbound
        if outbound is None or session.state == CLOSED:
            return

        def written(is_written: bool) -> None:
            if is_written:
                waiter.subscribed()
            else:
                self._close_when_settled(session)

        # What was unsubscribed meanwhile has no row.
        left = [
            (name, is_new, granted)
            for name, is_new in wanted.items()
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

    def restore(self, session: Session, topic_filter: str, granted: Granted) -> None:
        """A session that came back has this filter."""
        outbound = session.outgoing()
        if topic_filter not in outbound.subscriptions:
            self._counters.subscriptions += 1
            outbound.plus_levels += plus_levels(topic_filter)
        outbound.subscriptions[topic_filter] = granted
        if self.trie.add(topic_filter, session, granted):
            self._want(topic_filter)
        self._counters.filters = len(self.trie)

    def when_in_effect(self, on_effect: Callable[[], None]) -> None:
        """Call `on_effect` once every broker that can be reached has all filters so far, perhaps at once."""
        left = 1

        def one_more() -> None:
            nonlocal left
            left -= 1
            if not left:
                on_effect()

        for link in self._links.values():
            if link.connection is not None and link.reader.when_in_effect(one_more):
                left += 1
        one_more()

    def forget(self, session: Session) -> None:
        """The session ended: all its filters go."""
        if self.shares is not None:
            self.shares.forget(session)
        outbound = session.outbound
        if outbound is None:
            return
        for topic_filter in outbound.subscriptions:
            self._drop(topic_filter, session)
        outbound.subscriptions.clear()
        outbound.plus_levels = 0
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
        return self.terms_of_filters(outbound.subscriptions)

    def filters(self) -> Iterator[str]:
        """Every filter that brokers must know, once; nothing may change meanwhile."""
        return self.trie.filters()

    def terms_of_filters(self, topic_filters: Iterable[str]) -> list[FilterTerm]:
        """The terms of some filters, with their repeats: brokers count them."""
        return [term for topic_filter in topic_filters for term in self._make_terms(topic_filter)]

    def use_trees(self, find_trees: Callable[[], Trees]) -> None:
        """Look for every subscription in these topics, too; called before there is one."""
        self._find_trees = find_trees
        self._trees = find_trees()

    def routes_changed(self, topics: Iterable[str]) -> None:
        """Topics came, went or changed: terms of their filters depend on `key_levels`."""
        changed = {topic for topic in topics if self._key_levels(topic) != self._levels.get(topic, 1)}
        trees = self._find_trees()
        if not changed and trees == self._trees:
            return
        self.terms_version += 1
        affected = list(self.trie.filters())
        if trees == self._trees:
            affected = [f for f in affected if topic_of_filter(f) in changed]
        old = [self._make_terms(topic_filter) for topic_filter in affected]
        for topic in changed:
            self._levels[topic] = self._key_levels(topic)
        self._trees = trees
        for topic_filter, terms in zip(affected, old, strict=True):
            wanted = self._make_terms(topic_filter)
            added = [term for term in wanted if term not in terms]
            removed = [term for term in terms if term not in wanted]
            for link in self._links.values():
                link.reader.add(added)
                link.reader.remove(removed)

    def _want(self, topic_filter: str) -> None:
        self.system_filters += is_system_filter(topic_filter)
        terms = self._make_terms(topic_filter)
        for link in self._links.values():
            link.reader.add(terms)

    def _drop(self, topic_filter: str, session: Session) -> None:
        self._counters.subscriptions -= 1
        if self.trie.remove(topic_filter, session):
            self.system_filters -= is_system_filter(topic_filter)
            terms = self._make_terms(topic_filter)
            for link in self._links.values():
                link.reader.remove(terms)

    def _make_terms(self, topic_filter: str) -> list[FilterTerm]:
        if is_system_filter(topic_filter):
            return []  # no broker knows of these
        topic = topic_of_filter(topic_filter)
        return filter_terms(topic_filter, 1 if topic is None else self._levels.get(topic, 1), self._trees)
