"""Filters of pulls and readers: which messages may interest a connection.

A filter is a set of terms (wire.headers.FilterTerm); a message passes when any term passes.
Everything here may answer "perhaps" for a message that does not match: the reader always
tests again. It never answers "no" for one that does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from holdmq.errors import Code, UsageError, WireError
from holdmq.mqtt.trie import FilterTrie
from holdmq.names.tenants import SEPARATOR
from holdmq.wire.headers import FilterTerm, TermKind

TERMS_MAX: Final = 4_000_000
"""Terms of one reader: for a worker's million MQTT filters, each in its topic, the shared one and trees."""

STEPS_MAX: Final = 4_096
"""Levels of MQTT filters that are compared with one tag, some 0.1 ms: half of what one client may have, and
what honest ones do not need together. What takes more passes, and the reader tests it, as it always does."""

Hashes = npt.NDArray[np.uint64]

_ALL_READERS: Final = 0
"""The only key in a trie of filters: who wants what is the reader's affair."""


class TopicFilter:
    """The terms that name one topic (or every topic): counted, as two subscriptions may share one.

    `mqtt` has the MQTT filters over the tag, each behind a level `t` that stands for the topic: `#` then
    matches no tag at all too [MQTT-4.7.1-2], and a tag that begins with $ is nothing special. None = there
    is none.
    """

    __slots__ = ("all", "exact", "mqtt", "prefix")

    def __init__(self) -> None:
        self.all = 0
        self.exact: Counter[int] = Counter()
        self.prefix: Counter[int] = Counter()
        self.mqtt: FilterTrie[int, int] | None = None

    def change(self, term: FilterTerm, by: int) -> int:
        """Add (by = 1) or take away (by = -1) a term; by how many different terms this changed.

        Taking away one that is not there changes nothing.
        """
        if term.kind == TermKind.TOPIC:
            before, self.all = self.all, max(0, self.all + by)
            return bool(self.all) - bool(before)
        if term.kind == TermKind.TAG:
            return _count(self.exact, term.hash, by)
        if term.kind == TermKind.PREFIX:
            return _count(self.prefix, term.hash >> 32, by)
        if term.kind == TermKind.MQTT:
            return self._change_mqtt(f"t/{term.filter}", by)
        raise WireError(f"filter term kind {term.kind} is not known", Code.MISSING_FIELD)

    def _change_mqtt(self, text: str, by: int) -> int:
        trie = self.mqtt
        before = 0 if trie is None else trie.get(text, _ALL_READERS) or 0
        left = max(0, before + by)
        if left:
            if trie is None:
                trie = FilterTrie()
            try:
                trie.add(text, _ALL_READERS, left)
            except UsageError as error:
                raise WireError(str(error), Code.TAG_INVALID) from error
            self.mqtt = trie
        elif trie is not None:
            trie.remove(text, _ALL_READERS)
            self.mqtt = trie if len(trie) else None
        return bool(left) - bool(before)

    @property
    def is_empty(self) -> bool:
        return not (self.all or self.exact or self.prefix or self.mqtt)

    @property
    def needs_tags(self) -> bool:
        """Whether hashes alone cannot decide."""
        return self.mqtt is not None and not self.all

    def indices_by_hash(self, hashes: Hashes | None, count: int) -> list[int]:
        """Which of `count` messages pass an exact or prefix term."""
        if hashes is None:
            return list(range(count)) if 0 in self.exact else []
        exact, prefix = self.exact, self.prefix
        if prefix:
            return [i for i, h in enumerate(hashes.tolist()) if h in exact or h >> 32 in prefix]
        return [i for i, h in enumerate(hashes.tolist()) if h in exact] if exact else []

    def passes_tag(self, tag: str | None) -> bool:
        """Whether an MQTT term may match the tag (None = a message without tag)."""
        trie = self.mqtt
        return trie is not None and trie.may_match(b"t" if tag is None else b"t/" + tag.encode(), STEPS_MAX)

    @property
    def steps(self) -> int:
        """What the last tag took: nodes visited and levels compared, at most some more than STEPS_MAX."""
        return 0 if self.mqtt is None else self.mqtt.steps


def _count(counter: Counter[int], key: int, by: int) -> int:
    before = len(counter)
    left = counter.get(key, 0) + by
    if left > 0:
        counter[key] = left
    else:
        counter.pop(key, None)
    return len(counter) - before


class FilterSet:
    """The terms of one reader or one registered filter. Of topics that are `is_hidden` nothing passes."""

    __slots__ = ("_any", "_size", "_topics", "is_hidden", "terms_max")

    def __init__(self, terms_max: int = TERMS_MAX) -> None:
        self.terms_max = terms_max
        self.is_hidden: Callable[[str], bool] | None = None
        self._size = 0
        self._topics: dict[str, TopicFilter] = {}
        self._any = TopicFilter()

    def __len__(self) -> int:
        return self._size

    def change(self, add: Iterable[FilterTerm], remove: Iterable[FilterTerm]) -> None:
        """Add and remove terms; each added term is removed once for each time that it was added.

        Raises WireError (LIMIT_EXCEEDED) when there would be more than `terms_max`; nothing is changed then.
        """
        add = list(add)
        if self._size + len(add) > self.terms_max:
            raise WireError(f"more than {self.terms_max} filter terms", Code.LIMIT_EXCEEDED)
        for term in add:
            self._size += self._topic_filter(term.topic).change(term, 1)
        for term in remove:
            wanted = self._topic_filter(term.topic)
            self._size += wanted.change(term, -1)
            if term.topic and wanted.is_empty:
                del self._topics[term.topic]

    def _topic_filter(self, topic: str) -> TopicFilter:
        return self._topics.setdefault(topic, TopicFilter()) if topic else self._any

    def of_topic(self, topic: str) -> Sequence[TopicFilter]:
        """The parts that may pass a message of this topic; empty = none can.

        Terms for every topic include neither system topics, as no MQTT client may see them, nor tenants'
        topics, which the terms for every topic of their tenant (`acme%`) do.
        """
        if self.is_hidden is not None and self.is_hidden(topic):
            return ()
        own = self._topics.get(topic)
        tenant, separator, _ = topic.partition(SEPARATOR)
        if separator:
            every = self._topics.get(tenant + separator) if tenant else None
        else:
            every = None if self._any.is_empty else self._any
        if every is None:
            return () if own is None else (own,)
        return (every,) if own is None else (own, every)

    def may_pass_any(self, topic: str, hashes: Hashes | None) -> bool:
        """Whether one of these messages of a topic may pass, judged by hashes alone."""
        for part in self.of_topic(topic):
            if part.all or part.mqtt is not None:
                return True
            if hashes is None:
                if 0 in part.exact:
                    return True
            elif part.indices_by_hash(hashes, len(hashes)):
                return True
        return False
