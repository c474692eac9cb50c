"""What sessions of a worker want of brokers: the trie of their filters, and the terms that brokers know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gateway.ground.counters import Counters
from gateway.ground.system_topics import is_system_filter
from gateway.session.outbound import Granted
from gateway.session.session import Session
from holdmq.mqtt import FilterTrie
from holdmq.names.topics import filter_terms, topic_of_filter
from holdmq.wire.headers import FilterTerm

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink

Trees = tuple[tuple[str, int], ...]
"""Topics of routing rules, with their `key_levels`."""


class WantedFilters:
    """The filters of this worker's sessions, in the trie and at the brokers `links`.

    `key_levels(topic)` is a log topic's, 1 while it is not known; every filter is looked for in the topics
    of `find_trees()`, too. `system_filters` counts those that the gateway itself answers, `terms_version`
    changes of what filters mean to brokers: terms made before are not enough.
    """

    def __init__(
        self,
        links: Mapping[str, BrokerLink],
        counters: Counters,
        key_levels: Callable[[str], int],
        find_trees: Callable[[], Trees],
    ) -> None:
        self.trie: FilterTrie[Session, Granted] = FilterTrie()
        self.system_filters = 0
        self.terms_version = 0
        self._links = links
        self._counters = counters
        self._key_levels = key_levels
        self._levels: dict[str, int] = {}
        """`key_levels` with which terms were made, by log topic, where it is not 1: what is removed must be
        what was added, and keeping every filter's terms would cost an idle connection 200 bytes."""
        self._find_trees = find_trees
        self._trees = find_trees()

    def add(self, topic_filter: str, session: Session, granted: Granted) -> None:
        """A session wants this from now on, as granted; brokers hear of a filter that nobody had."""
        if self.trie.add(topic_filter, session, granted):
            self.system_filters += is_system_filter(topic_filter)
            terms = self._make_terms(topic_filter)
            for link in self._links.values():
                link.reader.add(terms)
        self._counters.filters = len(self.trie)

    def remove(self, topic_filter: str, session: Session) -> None:
        """A session wants this no more."""
        if self.trie.remove(topic_filter, session):
            self.system_filters -= is_system_filter(topic_filter)
            terms = self._make_terms(topic_filter)
            for link in self._links.values():
                link.reader.remove(terms)
        self._counters.filters = len(self.trie)

    def filters(self) -> Iterator[str]:
        """Every filter that brokers must know, once; nothing may change meanwhile."""
        return self.trie.filters()

    def terms_of(self, session: Session) -> list[FilterTerm]:
        """All terms of one session's filters."""
        outbound = session.outbound
        assert outbound is not None
        return self.terms_of_filters(outbound.subscriptions)

    def terms_of_filters(self, topic_filters: Iterable[str]) -> list[FilterTerm]:
        """The terms of some filters, with their repeats: brokers count them."""
        return [term for topic_filter in topic_filters for term in self._make_terms(topic_filter)]

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

    def _make_terms(self, topic_filter: str) -> list[FilterTerm]:
        if is_system_filter(topic_filter):
            return []  # no broker knows of these
        topic = topic_of_filter(topic_filter)
        return filter_terms(topic_filter, 1 if topic is None else self._levels.get(topic, 1), self._trees)
