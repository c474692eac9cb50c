"""Which subscribers does a topic have: cost by the topic's levels and its matches, not by the filters.

Four tables, each looked at only when it holds something:

- *exact*: filters without wildcard, by their text; a topic costs one look-up;
- *below*: `<levels>/#` without `+`, by the part before `/#`; a topic costs one look-up for each
  of its levels at which such a filter ends;
- *all*: the filter `#`;
- *tree*: filters with `+`, a tree by level. A topic visits the nodes whose levels so far match it,
  so what differs is never looked at.

The tree has a node where filters end or part; the levels between are the node's `rest`, compared
in one go. So a match visits at most two nodes for each filter, however deep, and compares at most
as many levels as all filters with `+` have together (`steps`): who bounds those of a client bounds
what its filters cost a publish. What more than `steps_budget` steps found, as many clients' filters
together can make it, is remembered for that topic until a filter with `+` comes or goes.

    cmd/7/+/set        root ── cmd, rest 7/+/set
    cmd/7/+/get        root ── cmd, rest 7/+ ─┬─ set
                                              └─ get

A filter's subscribers are one tuple while there is one, and a dictionary when there are more; a
node of the tree has a dictionary of children from its second child on. So a million filters with
a subscriber each cost about 200 bytes a filter, with `+` about 350, and 8 more for each level.
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
STEPS_BUDGET: Final = 4_096
"""Steps, some 0.1 ms, of which the outcome is remembered: half of what one client's filters can cost."""
DEAR_TOPICS_MAX: Final = 256
DEAR_PAIRS_MAX: Final = 65_536
"""What is remembered: topics, and subscribers of them all, 8 bytes each."""
STEPS_UNBOUND: Final = 1 << 60
"""As many as it takes."""

_PLUS: Final = b"+"
_HASH: Final = b"#"


class _Node(Generic[K, V]):
    """One place of the tree: a level, by which its parent knows it, and the `rest` that must follow.

    A level of `rest` is None for `+`. `here` are the subscribers of the filter that ends behind them,
    `below` those of the filter that goes on with `#`. One named child is (`level`, `child`), several
    are `children`. But for the root, a node has subscribers or at least two children.
    """

    __slots__ = ("below", "child", "children", "here", "level", "plus", "rest")

    def __init__(self, rest: tuple[bytes | None, ...] | None) -> None:
        self.rest = rest
        self.here: tuple[K, V] | dict[K, tuple[K, V]] | None = None
        self.below: tuple[K, V] | dict[K, tuple[K, V]] | None = None
        self.plus: _Node[K, V] | None = None
        self.level: bytes = b""
        self.child: _Node[K, V] | None = None
        self.children: dict[bytes, _Node[K, V]] | None = None

    def get(self, level: bytes | None) -> _Node[K, V] | None:
        if level is None:
            return self.plus
        if self.children is not None:
            return self.children.get(level)
        return self.child if self.level == level else None

    def put(self, level: bytes | None, node: _Node[K, V]) -> None:
        """Make `node` the child of this level, in the place of the one that was there."""
        if level is None:
            self.plus = node
        elif self.children is not None:
            self.children[level] = node
        elif self.child is None or self.level == level:
            self.level = level
            self.child = node
        else:
            self.children = {self.level: self.child, level: node}
            self.level = b""
            self.child = None

    def drop(self, level: bytes | None) -> None:
        if level is None:
            self.plus = None
        elif self.children is None:
            self.level = b""
            self.child = None
        else:
            del self.children[level]
            if len(self.children) == 1:
                self.level, self.child = self.children.popitem()
                self.children = None

    def named(self) -> list[tuple[bytes | None, _Node[K, V]]]:
        """Return every child with its level."""
        found: list[tuple[bytes | None, _Node[K, V]]] = []
        if self.plus is not None:
            found.append((None, self.plus))
        if self.child is not None:
            found.append((self.level, self.child))
        if self.children is not None:
            found += self.children.items()
        return found

    @property
    def has_subscribers(self) -> bool:
        return self.here is not None or self.below is not None


class FilterTrie(Generic[K, V]):
    """Subscribers by topic filter, one table per worker; `len()` is the number of distinct filters.

    A subscriber is a `key` (hashable: a session, a share group) with a `value` (its options) for
    each filter. Filters are `ParsedFilter.topic_filter`s: the caller takes `$share/<name>/` off
    and makes the group the key.
    """

    __slots__ = (
        "_all",
        "_below",
        "_dear",
        "_dear_pairs",
        "_depths",
        "_exact",
        "_filters",
        "_has_tree",
        "_names",
        "_root",
        "_steps_budget",
        "steps",
    )

    def __init__(self, steps_budget: int = STEPS_BUDGET) -> None:
        self._filters = 0
        self._exact: dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]] = {}
        self._below: dict[bytes, tuple[K, V] | dict[K, tuple[K, V]]] = {}
        self._all: tuple[K, V] | dict[K, tuple[K, V]] | None = None
        self._root: _Node[K, V] = _Node(None)
        self._has_tree = False
        self._names: dict[bytes, bytes] = {}
        # How many filters of `_below` end after one level, two levels …
        self._depths: list[int] = []
        self._steps_budget = steps_budget
        self._dear: dict[bytes, list[tuple[K, V]]] = {}
        self._dear_pairs = 0
        self.steps = 0
        """Nodes visited and levels compared in the tree by the last match that looked there."""

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
        self._forget_dear(raw)
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
        self._forget_dear(raw)
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
            self._match_plus(topic, found)
        return found

    def may_match(self, topic: bytes, steps_max: int) -> bool:
        """Whether a filter matches `topic`; True is "perhaps" when it takes more than `steps_max` to know.

        It makes at most as many steps more as one filter has levels.
        """
        self.steps = 0
        found: list[tuple[K, V]] = []
        if topic in self._exact or (self._all is not None and topic[:1] != b"$"):
            return True
        if self._depths:
            self._match_below(topic, found)
        is_known = not self._has_tree or bool(found) or self._match_tree(topic, found, steps_max)
        return bool(found) or not is_known

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
            for level, child in node.named():
                names = [_PLUS if name is None else name for name in (level, *(child.rest or ()), b"")]
                waiting.append((path + b"/".join(names), child))

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

    def _match_plus(self, topic: bytes, found: list[tuple[K, V]]) -> None:
        """Add the tree's matches to `found`, as they are remembered or by looking."""
        known = self._dear.get(topic) if self._dear else None
        if known is not None:
            self.steps = 0
            found += known
            return
        before = len(found)
        self._match_tree(topic, found, STEPS_UNBOUND)
        if self.steps > self._steps_budget:
            self._remember(topic, found[before:])

    def _match_tree(self, topic: bytes, found: list[tuple[K, V]], steps_max: int) -> bool:
        """Add the tree's matches to `found`; False: there may be more, behind more than `steps_max` steps."""
        levels = topic.split(b"/")
        count = len(levels)
        plus_allowed = topic[:1] != b"$"  # [MQTT-4.7.2-1]
        # Places that are to be visited yet: nodes, and how many levels lead to each.
        nodes: list[_Node[K, V]] = []
        places: list[int] = []
        node = self._root
        at = 0
        steps = 0
        while True:
            steps += 1
            following: _Node[K, V] | None = None
            rest = node.rest
            if rest is not None:
                size = len(rest)
                if at + size > count:
                    at = -1
                else:
                    steps += size
                    at = _behind(rest, levels, at)
            if at >= 0:
                if node.below is not None:
                    _collect(node.below, found)
                if at == count:
                    if node.here is not None:
                        _collect(node.here, found)
                else:
                    level = levels[at]
                    at += 1
                    children = node.children
                    if children is not None:
                        following = children.get(level)
                    elif node.level == level:
                        following = node.child
                    plus = node.plus
                    if plus is not None and plus_allowed:
                        if following is None:
                            following = plus
                        else:
                            nodes.append(plus)
                            places.append(at)
                    plus_allowed = True
            if steps > steps_max:
                self.steps = steps
                return False
            if following is not None:
                node = following
            elif nodes:
                node = nodes.pop()
                at = places.pop()
            else:
                self.steps = steps
                return True

    def _path(self, raw: bytes) -> list[tuple[_Node[K, V], bytes | None]]:
        """The nodes to the one where `raw` ends, from the root on, each with the level that leads on from it.

        The end is in the last pair, with level None; [] when nothing ends or parts there.
        """
        want = _levels(raw)
        count = len(want)
        path: list[tuple[_Node[K, V], bytes | None]] = []
        node = self._root
        at = 0
        while at < count:
            level = want[at]
            path.append((node, level))
            child = node.get(level)
            if child is None:
                return []
            at += 1
            for name in child.rest or ():
                if at >= count or want[at] != name:
                    return []
                at += 1
            node = child
        path.append((node, None))
        return path

    def _make_end(self, raw: bytes) -> _Node[K, V]:
        """The node where the filter `raw` ends, made if need be."""
        names = self._names
        want: list[bytes | None] = []
        for level in _levels(raw):
            name = level
            if level is not None:
                name = names.get(level)
                if name is None:
                    name = level
                    if len(names) < NAMES_MAX and len(level) <= NAME_BYTES_MAX:
                        names[level] = level
            want.append(name)
        count = len(want)
        node = self._root
        at = 0
        while at < count:
            level = want[at]
            at += 1
            child = node.get(level)
            if child is None:
                child = _Node(_rest(want[at:]))
                node.put(level, child)
                return child
            rest = child.rest or ()
            common = 0
            while common < len(rest) and at < count and rest[common] == want[at]:
                common += 1
                at += 1
            if common < len(rest):
                # The filters part, or this one ends, inside the other's rest.
                upper: _Node[K, V] = _Node(_rest(list(rest[:common])))
                upper.put(rest[common], child)
                child.rest = _rest(list(rest[common + 1 :]))
                node.put(level, upper)
                child = upper
            node = child
        return node

    def _remember(self, topic: bytes, pairs: list[tuple[K, V]]) -> None:
        """Keep what the tree found for a topic, in the place of the oldest ones."""
        if len(pairs) > DEAR_PAIRS_MAX:
            return
        dear = self._dear
        dear[topic] = pairs
        self._dear_pairs += len(pairs)
        while len(dear) > DEAR_TOPICS_MAX or self._dear_pairs > DEAR_PAIRS_MAX:
            self._dear_pairs -= len(dear.pop(next(iter(dear))))

    def _forget_dear(self, raw: bytes) -> None:
        """The filter `raw` changes: what was remembered of the tree may be wrong."""
        if self._dear and _PLUS in raw:
            self._dear = {}
            self._dear_pairs = 0

    def _get(self, raw: bytes) -> tuple[K, V] | dict[K, tuple[K, V]] | None:
        """Return the subscribers of exactly the filter `raw`, or None."""
        if _PLUS in raw:
            path = self._path(raw)
            if not path:
                return None
            node = path[-1][0]
            return node.below if raw.endswith(_HASH) else node.here
        if raw == _HASH:
            return self._all
        if raw.endswith(b"/#"):
            return self._below.get(raw[:-2])
        return self._exact.get(raw)

    def _set(self, raw: bytes, entry: tuple[K, V] | dict[K, tuple[K, V]]) -> None:
        """Make `entry` the subscribers of the filter `raw`."""
        if _PLUS in raw:
            node = self._make_end(raw)
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
            path = self._path(raw)
            node = path.pop()[0]
            if raw.endswith(_HASH):
                node.below = None
            else:
                node.here = None
            # A node that is needed no more goes; its parent may be needed no more then, to part two.
            while path and not node.has_subscribers:
                parent, level = path.pop()
                left = node.named()
                if len(left) > 1:
                    break
                if left:
                    below, child = left[0]
                    child.rest = _rest([*(node.rest or ()), below, *(child.rest or ())])
                    parent.put(level, child)
                    break
                parent.drop(level)
                node = parent
            self._has_tree = bool(self._root.named())
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


def _behind(rest: tuple[bytes | None, ...], levels: list[bytes], at: int) -> int:
    """Where `levels`, of which there are enough, go on behind `rest`; -1 when from `at` on are others."""
    for name in rest:
        if name is not None and name != levels[at]:
            return -1
        at += 1
    return at


def _levels(raw: bytes) -> list[bytes | None]:
    """The levels of a filter with `+` but for a last `#`; None = `+`."""
    return [None if level == _PLUS else level for level in raw.removesuffix(b"/#").split(b"/")]


def _rest(levels: list[bytes | None]) -> tuple[bytes | None, ...] | None:
    return tuple(levels) if levels else None
