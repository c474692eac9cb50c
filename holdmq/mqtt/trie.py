"""Which subscribers does a topic have: cost by the topic's levels and its matches, not by the filters.

Four tables, each looked at only when it holds something:

- *exact*: filters without wildcard, by their text; a topic costs one look-up;
- *below*: `<levels>/#` without `+`, by the part before `/#`; a topic costs one look-up for each
  of its levels at which such a filter ends;
- *all*: the filter `#`;
- *tree*: filters with `+`, a tree by level. A topic visits the nodes whose levels so far match it,
  so what differs is never looked at. Its worst case is many filters that agree with the topic in
  all levels but their last: bound the levels of a filter, and the filters of a client.

A filter's subscribers are one tuple while there is one, and a dictionary when there are more; a
node of the tree has a dictionary of children from its second child on. So a million filters with
a subscriber each cost about 200 bytes a filter, with `+` about 100 more for each level of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from holdmq.errors import UsageError
from holdmq.mqtt.filters import check_filter
from holdmq.mqtt.reasons import MqttError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

NAMES_MAX: Final = 1_024
"""Names of levels in the tree that filters share: a fleet has few but those of its devices."""
NAME_BYTES_MAX: Final = 64

_PLUS: Final = b"+"
_HASH: Final = b"#"


class _Node(Generic[K, V]):
    """One level of the tree.

    `here` are the subscribers of the filter that ends at this level, `below` those of the filter
    that goes on with `#`. One named child is (`level`, `child`), several are `children`.
    """

    __slots__ = ("below", "child", "children", "here", "level", "plus")

    def __init__(self) -> None:
        self.here: tuple[K, V] | dict[K, tuple[K, V]] | None = None
        self.below: tuple[K, V] | dict[K, tuple[K, V]] | None = None
        self.plus: _Node[K, V] | None = None
        self.level: bytes = b""
        self.child: _Node[K, V] | None = None
        self.children: dict[bytes, _Node[K, V]] | None = None

    def get(self, level: bytes) -> _Node[K, V] | None:
        if level == _PLUS:
            return self.plus
        if self.children is not None:
            return self.children.get(level)
        return self.child if self.level == level else None

    def get_or_make(self, level: bytes) -> _Node[K, V]:
        node = self.get(level)
        if node is not None:
            return node
        node = _Node()
        if level == _PLUS:
            self.plus = node
        elif self.children is not None:
            self.children[level] = node
        elif self.child is None:
            self.level = level
            self.child = node
        else:
            self.children = {self.level: self.child, level: node}
            self.level = b""
            self.child = None
        return node

    def drop(self, level: bytes) -> None:
        if level == _PLUS:
            self.plus = None
        elif self.children is None:
            self.level = b""
            self.child = None
        else:
            del self.children[level]
            if len(self.children) == 1:
                self.level, self.child = self.children.popitem()
                self.children = None

    def named(self) -> list[tuple[bytes, _Node[K, V]]]:
        """Return every child with its level, `+` included."""
        found = [] if self.plus is None else [(_PLUS, self.plus)]
        if self.child is not None:
            found.append((self.level, self.child))
        if self.children is not None:
            found += self.children.items()
        return found

    def is_empty(self) -> bool:
        return (
            self.here is None
            and self.below is None
            and self.plus is None
            and self.child is None
            and self.children is None
        )


class FilterTrie(Generic[K, V]):
    """Subscribers by topic filter, one table per worker; `len()` is the number of distinct filters.

    A subscriber is a `key` (hashable: a session, a share group) with a `value` (its options) for
    each filter. Filters are `ParsedFilter.topic_filter`s: the caller takes `$share/<name>/` off
    and makes the group the key.
    """

    __slots__ = ("_all", "_below", "_depths", "_exact", "_filters", "_has_tree", "_names", "_root")

    def __init__(self) -> None:
        self._filters = 0
        self._exact: dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]] = {}
        self._below: dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]] = {}
        self._all: tuple[K, V] | dict[K, tuple[K, V]] | None = None
        self._root: _Node[K, V] = _Node()
        self._has_tree = False
        self._names: dict[bytes, bytes] = {}
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
        entry = self._get(raw)
        pair = (key, value)
        if entry is None or (isinstance(entry, tuple) and entry[0] == key):
            self._set(raw, pair)
        elif isinstance(entry, tuple):
            self._set(raw, {entry[0]: entry, key: pair})
        else:
            entry[key] = pair
        if entry is not None:
            return False
        self._filters += 1
        return True

    def remove(self, topic_filter: str, key: K) -> bool:
        """Unsubscribe `key`. True when nobody has this filter any more; False also if it was not there."""
        raw = topic_filter.encode()
        entry = self._get(raw)
        if entry is None:
            return False
        if not isinstance(entry, tuple):
            entry.pop(key, None)
            if len(entry) == 1:
                self._set(raw, next(iter(entry.values())))
            return False
        if entry[0] != key:
            return False
        self._drop(raw)
        self._filters -= 1
        return True

    def get(self, topic_filter: str, key: K) -> V | None:
        """Return the value with which `key` subscribed to exactly this filter, or None."""
        entry = self._get(topic_filter.encode())
        if entry is None:
            return None
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
        if self._all is not None and topic[:1] != b"$":
            _collect(self._all, found)
        if self._depths:
            self._match_below(topic, found)
        if self._has_tree:
            self._match_tree(topic, found)
        return found

    def filters(self) -> Iterator[str]:
        """Iterate over the distinct filters, in no order; the trie must not change meanwhile."""
        yield from (raw.decode() for raw in self._exact)
        yield from (raw.decode() + "/#" for raw in self._below)
        if self._all is not None:
            yield "#"
        waiting = [(b"", self._root)]
        while waiting:
            path, node = waiting.pop()
            if node.here is not None:
                yield path[:-1].decode()
            if node.below is not None:
                yield path.decode() + "#"
            waiting += [(path + level + b"/", child) for level, child in node.named()]

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
                if children is not None:
                    child = children.get(level)
                elif node.level == level:
                    child = node.child
                else:
                    child = None
                if child is not None:
                    following.append(child)
                    if child.below is not None:
                        _collect(child.below, found)
                child = node.plus
                if child is not None and plus_allowed:
                    following.append(child)
                    if child.below is not None:
                        _collect(child.below, found)
            if not following:
                return
            nodes = following
            plus_allowed = True
        for node in nodes:
            if node.here is not None:
                _collect(node.here, found)

    def _get(self, raw: bytes) -> tuple[K, V] | dict[K, tuple[K, V]] | None:
        """Return the subscribers of exactly the filter `raw`, or None."""
        if _PLUS in raw:
            node: _Node[K, V] | None = self._root
            for level in raw.removesuffix(b"/#").split(b"/"):
                node = None if node is None else node.get(level)
            if node is None:
                return None
            return node.below if raw.endswith(_HASH) else node.here
        if raw == _HASH:
            return self._all
        if raw.endswith(b"/#"):
            return self._below.get(raw[:-2])
        return self._exact.get(raw)

    def _set(self, raw: bytes, entry: tuple[K, V] | dict[K, tuple[K, V]]) -> None:
        """Make `entry` the subscribers of the filter `raw`."""
        if _PLUS in raw:
            node = self._root
            names = self._names
            for level in raw.removesuffix(b"/#").split(b"/"):
                name = names.get(level)
                if name is None:
                    name = level
                    if len(names) < NAMES_MAX and len(level) <= NAME_BYTES_MAX:
                        names[level] = level
                node = node.get_or_make(name)
            if raw.endswith(_HASH):
                node.below = entry
            else:
                node.here = entry
            self._has_tree = True
        elif raw == _HASH:
            self._all = entry
        elif raw.endswith(b"/#"):
            if raw[:-2] not in self._below:
                self._count_depth(raw[:-2], 1)
            self._below[raw[:-2]] = entry
        else:
            self._exact[raw] = entry

    def _drop(self, raw: bytes) -> None:
        """Forget the filter `raw`, and the nodes that lead nowhere then."""
        if _PLUS in raw:
            path: list[tuple[_Node[K, V], bytes]] = []
            node = self._root
            for level in raw.removesuffix(b"/#").split(b"/"):
                path.append((node, level))
                node = node.get_or_make(level)
            if raw.endswith(_HASH):
                node.below = None
            else:
                node.here = None
            while path and node.is_empty():
                node, level = path.pop()
                node.drop(level)
            self._has_tree = not self._root.is_empty()
        elif raw == _HASH:
            self._all = None
        elif raw.endswith(b"/#"):
            del self._below[raw[:-2]]
            self._count_depth(raw[:-2], -1)
        else:
            del self._exact[raw]

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
