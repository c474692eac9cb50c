"""Filters of a query that the source answers itself, so that what they reject is never read.

Equality of ``topic``, ``broker``, ``queue`` and ``tag`` is answered exactly, and Spark does not test it
again. Bounds of ``offset`` and ``store_time`` become ranges of offsets and are tested by Spark, too.
Everything else is Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from holdmq.message import TopicQueue
from holdmq.wire.column_headers import COLUMNS_TAGS_MAX
from spark_streaming.source.offsets import FROM_FIRST, OffsetRange, SourceBounds

_EXACT: Final = {"topic": str, "broker": str, "queue": int, "tag": str}
"""Columns whose equality is answered exactly, and the type of their values."""
_NEVER_NULL: Final = frozenset(
    ("topic", "broker", "queue", "offset", "store_time", "born_time", "body_size", "body")
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


class Pushed(NamedTuple):
    """What is wanted of the columns: one of these values (no key = any), and values in [first, end)."""

    values: Mapping[str, frozenset[Any]] = {}
    offset_first: int = 0
    offset_end: int | None = None
    store_first_ms: int | None = None
    store_end_ms: int | None = None

    def has(self, queue: TopicQueue) -> bool:
        """Whether a queue is read at all."""
        own = {"topic": queue.topic, "broker": queue.broker, "queue": queue.queue_id}
        return all(value in self.values.get(name, (value,)) for name, value in own.items())

    def tags(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The tags of these that are wanted; None = all."""
        pushed = self.values.get("tag")
        if pushed is None:
            return wanted
        return pushed if wanted is None else pushed & wanted


def push(filters: Sequence[Filter]) -> tuple[Pushed, list[Filter]]:
    """Return what is answered, and the filters that Spark has to test."""
    pushed = Pushed()
    left: list[Filter] = []
    for one in filters:
        following = _push_one(pushed, one)
        if following is None or not _is_exact(one):
            left.append(one)
        pushed = following or pushed
    return pushed, [one for one in left if not _is_implied(one, pushed)]


def _push_one(pushed: Pushed, one: Filter) -> Pushed | None:
    """What is wanted with one more filter; None = it is not understood."""
    if not isinstance(one, (EqualTo, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        return None
    name = one.attribute[0] if len(one.attribute) == 1 else ""
    if name in _EXACT:
        return _push_values(pushed, name, one)
    if isinstance(one, In):
        return None
    if name == "offset" and isinstance(one.value, int):
        first, end = _bounds(one, one.value, one.value + 1)
        return pushed._replace(
            offset_first=max(pushed.offset_first, first or 0),
            offset_end=_tightest(min, pushed.offset_end, end),
        )
    if name == "store_time" and isinstance(one.value, datetime) and one.value.tzinfo is not None:
        # A store time is a whole ms; the value may lie between two.
        floor, rest = divmod(one.value - _EPOCH, _MS)
        first, end = _bounds(one, floor + bool(rest), floor + 1)
        return pushed._replace(
            store_first_ms=_tightest(max, pushed.store_first_ms, first),
            store_end_ms=_tightest(min, pushed.store_end_ms, end),
        )
    return None


def _is_exact(one: Filter) -> bool:
    return isinstance(one, (EqualTo, In)) and one.attribute[0] in _EXACT


def _is_implied(one: Filter, pushed: Pushed) -> bool:
    """Whether a filter holds for every row anyway."""
    if not isinstance(one, IsNotNull) or len(one.attribute) != 1:
        return False
    return one.attribute[0] in _NEVER_NULL or one.attribute[0] in pushed.values


def _push_values(pushed: Pushed, name: str, one: Filter) -> Pushed | None:
    if isinstance(one, EqualTo):
        values: Collection[Any] = (one.value,)
    elif isinstance(one, In):
        values = [value for value in one.value if value is not None]
    else:
        return None
    if not all(isinstance(value, _EXACT[name]) for value in values):
        return None
    # What is no UTF-8 in a tag is shown to Spark as U+FFFD, but a broker compares bytes.
    if name == "tag" and (len(values) > COLUMNS_TAGS_MAX or any("\ufffd" in value for value in values)):
        return None
    both = frozenset(values) & pushed.values.get(name, frozenset(values))
    return pushed._replace(values={**pushed.values, name: both})


def _bounds(one: Filter, ceiling: int, after: int) -> tuple[int | None, int | None]:
    """First and end of what passes a filter: `ceiling` is the first value ≥ its own, `after` the next."""
    if isinstance(one, GreaterThan):
        return after, None
    if isinstance(one, GreaterThanOrEqual):
        return ceiling, None
    if isinstance(one, LessThan):
        return None, ceiling
    if isinstance(one, LessThanOrEqual):
        return None, after
    return ceiling, after


def _tightest(choose: Callable[[list[int]], int], *bounds: int | None) -> int | None:
    known = [bound for bound in bounds if bound is not None]
    return choose(known) if known else None


def narrow(
    wanted: Iterable[OffsetRange],
    pushed: Pushed,
    bounds: Mapping[TopicQueue, SourceBounds],
    firsts: Mapping[TopicQueue, int],
    ends: Mapping[TopicQueue, int],
) -> list[OffsetRange]:
    """Return what is left of ranges: `firsts` and `ends` are the offsets at the bounds of store times.

    A queue that is not in one of them has no bound there.
    """
    found = []
    for item in wanted:
        queue = item.queue
        if not pushed.has(queue):
            continue
        if max(item.start, 0) > item.end:
            found.append(item)  # of a log that was cut: only its broker knows what is new
            continue
        known = bounds.get(queue, SourceBounds(0, 0)).first
        start = known if item.start == FROM_FIRST else item.start
        first = max(start, pushed.offset_first, firsts.get(queue, 0))
        end = min(item.end, ends.get(queue, item.end))
        if pushed.offset_end is not None:
            end = min(end, pushed.offset_end)
        if first >= end:
            continue
        # A start that no filter moved stays what it was: the first record, or one of an epoch.
        found.append(item._replace(end=end) if first == start else OffsetRange(queue, 0, first, end))
    return found
