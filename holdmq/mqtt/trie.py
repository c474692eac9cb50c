"""Which subscribers does a topic have: cost by the topic's levels and its matches, not by the filters.

Four tables, each looked at only when it holds something:

- *exact*: filters without wildcard, by their text; a topic costs one look-up;
- *below*: `<levels>/#` without `+`, by the part before `/#`; a topic costs one look-up for each
  of its levels at which such a filter ends;
- *all*: the filter `#`;
- *tree*: filters with `+`, a tree by level. A topic visits the nodes whose levels so far match it,
  so what differs is never looked at. Its worst case is many filters that agree with the topic in
  all levels but their last: bound the levels of a filter, and the filters of a client.

A filter's subscribers are one tuple while there is one, and a dictionary when there are more, so
that 1,000,000 filters of a subscriber each cost their texts, a tuple and a dictionary slot each.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from holdmq.errors import UsageError
from holdmq.mqtt.filters import check_filter
from holdmq.mqtt.reasons import MqttError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_PLUS: Final = b"+"
_HASH: Final = b"#"
_HERE: Final = b""


class _Node(Generic[K, V]):
    """One level of the tree: the levels under it, and the filters that end here (`_HERE`, `_HASH`)."""

    __slots__ = ("children", "entries")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[K, V]] = {}
        self.entries: dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]] = {}


class FilterTrie(Generic[K, V]):
    """Subscribers by topic filter, one table per worker; `len()` is the number of distinct filters.

    A subscriber is a `key` (hashable: a session, a share group) with a `value` (its options) for
    each filter. Filters are `ParsedFilter.topic_filter`s: the caller takes `$share/<name>/` off
    and makes the group the key.
    """

    __slots__ = ("_all", "_below", "_depths", "_exact", "_filters", "_root")

    def __init__(self) -> None:
        self._filters = 0
        self._exact: dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]] = {}
        self._below: dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]] = {}
        self._all: dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]] = {}
        self._root: _Node[K, V] = _Node()
        # How many filters of `_below` end after one level, two levels …
        self._depths: list[int] = []

    def __len__(self) -> int:
        return self._filters

    def add(self, topic_filter: str, key: K, value: V) -> bool:
        """Subscribe `key`, or replace its value. True when nobody had this filter before.

        Raises UsageError for a text that is no topic filter.
        """
        try:
            raw = check_filter(topic_filter).encode()
        except (MqttError, UnicodeEncodeError) as error:
            raise UsageError(f"not a topic filter: {error}") from None
        table, name = self._place(raw)
        pair = (key, value)
        entry = table.get(name)
        if entry is None:
            table[name] = pair
            self._filters += 1
            if table is self._below:
                self._count_depth(name, 1)
            return True
        if not isinstance(entry, tuple):
            entry[key] = pair
        elif entry[0] == key:
            table[name] = pair
        else:
            table[name] = {entry[0]: entry, key: pair}
        return False

    def remove(self, topic_filter: str, key: K) -> bool:
        """Unsubscribe `key`. True when nobody has this filter any more; False also if it was not there."""
        raw = topic_filter.encode()
        found = self._find(raw)
        if found is None:
            return False
        table, name = found
        entry = table[name]
        if not isinstance(entry, tuple):
            entry.pop(key, None)
            if len(entry) == 1:
                table[name] = next(iter(entry.values()))
            return False
        if entry[0] != key:
            return False
        del table[name]
        self._filters -= 1
        if table is self._below:
            self._count_depth(name, -1)
        elif _PLUS in raw:
            self._prune(raw)
        return True

    def get(self, topic_filter: str, key: K) -> V | None:
        """Return the value with which `key` subscribed to exactly this filter, or None."""
        found = self._find(topic_filter.encode())
        if found is None:
            return None
        entry = found[0][found[1]]
        if isinstance(entry, tuple):
            return entry[1] if entry[0] == key else None
        pair = entry.get(key)
        return None if pair is None else pair[1]

    def match(self, topic: bytes) -> list[tuple[K, V]]:
        """Return `(key, value)` of every subscription whose filter matches the topic name `topic`.

        A key appears once for each of its filters that match; the order means nothing. Filters
        that begin with a wildcard do not match topics that begin with `$` [MQTT-4.7.2-1].
        """
        found: list[tuple[K, V]] = []
        entry = self._exact.get(topic)
        if entry is not None:
            _collect(entry, found)
        if self._all and topic[:1] != b"$":
            _collect(self._all[_HASH], found)
        if self._depths:
            self._match_below(topic, found)
        if self._root.children:
            self._match_tree(topic, found)
        return found

    def filters(self) -> Iterator[str]:
        """Iterate over the distinct filters, in no order; the trie must not change meanwhile."""
        yield from (raw.decode() for raw in self._exact)
        yield from (raw.decode() + "/#" for raw in self._below)
        if self._all:
            yield "#"
        waiting = [(b"", self._root)]
        while waiting:
            path, node = waiting.pop()
            for name in node.entries:
                yield (path + name if name else path[:-1]).decode()
            waiting += ((path + level + b"/", child) for level, child in node.children.items())

    def _match_below(self, topic: bytes, found: list[tuple[K, V]]) -> None:
        start = 0
        for count in self._depths:
            at = topic.find(b"/", start)
            if count:
                # `sport/#` matches `sport` too (4.7.1.2): the last level is looked up as well.
                entry = self._below.get(topic[:at] if at >= 0 else topic)
                if entry is not None:
                    _collect(entry, found)
            if at < 0:
                break
            start = at + 1

    def _match_tree(self, topic: bytes, found: list[tuple[K, V]]) -> None:
        nodes = [self._root]
        plus_allowed = topic[:1] != b"$"  # [MQTT-4.7.2-1]
        for level in topic.split(b"/"):
            following: list[_Node[K, V]] = []
            for node in nodes:
                children = node.children
                if not children:
                    continue
                child = children.get(level)
                if child is not None:
                    following.append(child)
                if plus_allowed:
                    child = children.get(_PLUS)
                    if child is not None:
                        following.append(child)
            if not following:
                return
            for node in following:
                entry = node.entries.get(_HASH)
                if entry is not None:
                    _collect(entry, found)
            nodes = following
            plus_allowed = True
        for node in nodes:
            entry = node.entries.get(_HERE)
            if entry is not None:
                _collect(entry, found)

    def _place(self, raw: bytes) -> tuple[dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]], bytes]:
        """Return the table and the name under which the filter `raw` is, or is to be, kept."""
        if _PLUS in raw:
            node = self._root
            levels = raw.split(b"/")
            last = levels.pop() if levels[-1] == _HASH else _HERE
            for level in levels:
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
                node = child
            return node.entries, last
        if raw == _HASH:
            return self._all, raw
        if raw.endswith(b"/#"):
            return self._below, raw[:-2]
        return self._exact, raw

    def _find(self, raw: bytes) -> tuple[dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]], bytes] | None:
        """Return where the filter `raw` is kept, or None; makes no nodes."""
        if _PLUS in raw:
            node = self._root
            for level in raw.removesuffix(b"/#").split(b"/"):
                child = node.children.get(level)
                if child is None:
                    return None
                node = child
        table, name = self._place(raw)
        return (table, name) if name in table else None

    def _prune(self, raw: bytes) -> None:
        """Drop the nodes on the way to `raw` that lead nowhere any more."""
        path: list[tuple[_Node[K, V], bytes]] = []
        node = self._root
        for level in raw.removesuffix(b"/#").split(b"/"):
            path.append((node, level))
            node = node.children[level]
        while path and not node.children and not node.entries:
            node, level = path.pop()
            del node.children[level]

    def _count_depth(self, prefix: bytes, change: int) -> None:
        depth = prefix.count(b"/")
        depths = self._depths
        if depth >= len(depths):
            depths += [0] * (depth + 1 - len(depths))
        depths[depth] += change
        while depths and not depths[-1]:
            depths.pop()


def _collect(entry: tuple[K, V] | dict[K, tuple[K, V]], found: list[tuple[K, V]]) -> None:
    if isinstance(entry, tuple):
        found.append(entry)
    else:
        found.extend(entry.values())
