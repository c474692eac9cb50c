"""Readers of topics: one table for every way of reading that names its topics.

A *subscriber* said so and reads until it takes it back or its connection closes: a member of a group, in any
mode, has topics and may be busy with what it has. A reader that *asks* is one as long as it goes on asking: a
pull for no group, a reader in bulk (Spark), a look-up. Its connection proves nothing, as a process keeps that
for other work. Time is an argument, in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

SILENT_S: Final = 600.0
"""A reader that asks is none after so much silence: five times the longest hold (120 s), and longer than the
pause between two triggers of a Spark query as a rule."""
ASKING_MAX: Final = 100_000
"""(Reader, topic) pairs of those that ask, some 400 bytes each: ten for each of 10,000 connections. Those
past it count for their topics, and are not named."""
EXPIRED_PER_TURN: Final = 1_000
"""Readers that one `expire` ends: about a millisecond."""

Owner = TypeVar("Owner")


class SubscriberKey(NamedTuple, Generic[Owner]):
    """One membership; `member_id` tells those of one connection and group apart, if it may have several."""

    owner: Owner
    group: str
    member_id: int = 0


class _AskingKey(NamedTuple, Generic[Owner]):
    owner: Owner
    kind: str
    group: str
    topic: str


class TopicReader(Generic[Owner]):
    """One reader of `topics`. `kind` is one of holdmq.wire.reader_headers; `group` "" = none."""

    __slots__ = ("group", "kind", "owner", "seen_at", "since_at", "topics")

    def __init__(
        self, owner: Owner, kind: str, group: str, topics: Collection[str], since_at: float, seen_at: float
    ) -> None:
        self.owner = owner
        self.kind = kind
        self.group = group
        self.topics = topics
        self.since_at = since_at
        self.seen_at = seen_at


class ReaderTable(Generic[Owner]):
    """All readers at one broker. Calls that end readers return the topics that nobody reads any more."""

    def __init__(self, silent_s: float = SILENT_S, asking_max: int = ASKING_MAX) -> None:
        self.silenced = 0
        """Readers that asked, and were silent for too long."""
        self.unnamed = 0
        """Times that a reader asked which had no place in the table."""
        self._silent_s = silent_s
        self._asking_max = asking_max
        self._subscribers: dict[SubscriberKey[Owner], TopicReader[Owner]] = {}
        # Asking moves to the end: the first is the one that was silent longest.
        self._asking: dict[_AskingKey[Owner], TopicReader[Owner]] = {}
        self._subscribed_by: dict[Owner, set[SubscriberKey[Owner]]] = {}
        self._asked_by: dict[Owner, set[_AskingKey[Owner]]] = {}
        self._of_topic: dict[str, set[TopicReader[Owner]]] = {}
        # Topics that readers without a place ask for, and when one did last: no more than there are topics.
        self._others: dict[str, float] = {}

    @property
    def subscribers(self) -> int:
        """How many subscribers there are."""
        return len(self._subscribers)

    @property
    def asking(self) -> int:
        """How many (reader, topic) pairs there are of those that ask."""
        return len(self._asking)

    # Subscribers

    def subscribe(self, key: SubscriberKey[Owner], kind: str, topics: Iterable[str], now: float) -> list[str]:
        """Read these topics, in place of what the key subscribed to before; returns what it left alone."""
        wanted = frozenset(topics)
        known = self._subscribers.get(key)
        since_at = now if known is None else known.since_at
        reader = TopicReader(key.owner, kind, key.group, wanted, since_at, now)
        self._subscribers[key] = reader
        self._subscribed_by.setdefault(key.owner, set()).add(key)
        self._enter(reader)
        return [] if known is None else self._leave(known)

    def unsubscribe(self, key: SubscriberKey[Owner]) -> list[str]:
        """End a membership; one that is not known changes nothing."""
        reader = self._subscribers.pop(key, None)
        if reader is None:
            return []
        _discard(self._subscribed_by, key.owner, key)
        return self._leave(reader)

    def seen(self, key: SubscriberKey[Owner], now: float) -> bool:
        """A subscriber reads; False = it is none."""
        reader = self._subscribers.get(key)
        if reader is None:
            return False
        reader.seen_at = now
        return True

    # Those that ask

    def asked(self, owner: Owner, kind: str, group: str, topic: str, now: float) -> None:
        """Count a connection that asks for messages of a topic, which exists, among its readers."""
        key = _AskingKey(owner, kind, group, topic)
        reader = self._asking.pop(key, None)
        if reader is None:
            if len(self._asking) >= self._asking_max:
                self.unnamed += 1
                self._others[topic] = now
                return
            reader = TopicReader(owner, kind, group, (topic,), now, now)
            self._asked_by.setdefault(owner, set()).add(key)
            self._enter(reader)
        self._asking[key] = reader
        reader.seen_at = now

    def expire(self, now: float) -> list[str]:
        """End readers that were silent for too long, EXPIRED_PER_TURN at most: see `next_deadline`."""
        late: list[_AskingKey[Owner]] = []
        for key, reader in self._asking.items():
            if reader.seen_at + self._silent_s > now or len(late) >= EXPIRED_PER_TURN:
                break
            late.append(key)
        self.silenced += len(late)
        unread = [topic for key in late for topic in self._end_asking(key)]
        for topic in [t for t, seen_at in self._others.items() if seen_at + self._silent_s <= now]:
            del self._others[topic]
            unread += self._unread_of((topic,))
        return unread

    def next_deadline(self) -> float | None:
        """When `expire` should be called; None = nobody asks."""
        found = list(self._others.values())
        found += [reader.seen_at for reader in islice(self._asking.values(), 1)]
        return min(found) + self._silent_s if found else None

    # Ends

    def close(self, owner: Owner) -> list[str]:
        """A connection is gone, and all that it read with it."""
        unread: list[str] = []
        for subscriber in list(self._subscribed_by.get(owner, ())):
            unread += self.unsubscribe(subscriber)
        for asking in list(self._asked_by.get(owner, ())):
            unread += self._end_asking(asking)
        return unread

    def forget(self, topic: str) -> None:
        """A topic is gone: who asked for it does no more; subscribers wait for one of its name."""
        self._others.pop(topic, None)
        for reader in list(self._of_topic.get(topic, ())):
            key = _AskingKey(reader.owner, reader.kind, reader.group, topic)
            if self._asking.get(key) is reader:
                self._end_asking(key)

    # Who reads

    def is_read(self, topic: str) -> bool:
        """Whether anybody reads a topic."""
        return topic in self._of_topic or topic in self._others

    def of(self, topic: str) -> list[TopicReader[Owner]]:
        """The readers of a topic that have a place in the table, first come first."""
        return sorted(self._of_topic.get(topic, ()), key=lambda reader: reader.since_at)

    def has_others(self, topic: str) -> bool:
        """Whether readers without a place ask for a topic, too."""
        return topic in self._others

    def asked_by(self, owner: Owner) -> Iterator[TopicReader[Owner]]:
        """What one connection asks for."""
        return (self._asking[key] for key in self._asked_by.get(owner, ()))

    def _enter(self, reader: TopicReader[Owner]) -> None:
        for topic in reader.topics:
            self._of_topic.setdefault(topic, set()).add(reader)

    def _leave(self, reader: TopicReader[Owner]) -> list[str]:
        for topic in reader.topics:
            _discard(self._of_topic, topic, reader)
        return self._unread_of(reader.topics)

    def _unread_of(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if not self.is_read(topic)]

    def _end_asking(self, key: _AskingKey[Owner]) -> list[str]:
        reader = self._asking.pop(key)
        _discard(self._asked_by, key.owner, key)
        return self._leave(reader)


K = TypeVar("K")
V = TypeVar("V")


def _discard(sets: dict[K, set[V]], key: K, value: V) -> None:
    """Take a value out of a set, and the set out of the dict with its last."""
    found = sets[key]
    found.discard(value)
    if not found:
        del sets[key]
