from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from holdmq.message import TopicQueue
from holdmq.wire.column_headers import COLUMNS_TAGS_MAX
from spark_streaming.source.offsets import FROM_FIRST, OffsetRange, SourceBounds
from spark_streaming.source.pushdown import Pushed, narrow, push

MOMENT = dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC)
MOMENT_MS = 1_700_000_000_123
MICROSECOND = dt.timedelta(microseconds=1)


def queue(topic: str = "t", queue_id: int = 0, broker: str = "b") -> TopicQueue:
    return TopicQueue(topic, broker, queue_id)


def test_equality_of_names_is_answered_and_not_left_to_spark() -> None:
    filters: list[Filter] = [
        EqualTo(("topic",), "t"),
        In(("broker",), ("b", None, "c")),
        EqualTo(("queue",), 1),
        IsNotNull(("tag",)),
        In(("tag",), ("x", "y")),
        EqualTo(("tag",), "y"),
        IsNotNull(("body",)),
    ]
    pushed, left = push(filters)
    assert left == []
    assert pushed.has(queue("t", 1, "c"))
    assert not any(pushed.has(q) for q in (queue("u", 1), queue("t", 2), queue("t", 1, "d")))
    assert pushed.tags(None) == {"y"}
    assert pushed.tags(frozenset(("y", "z"))) == {"y"}
    assert pushed.tags(frozenset(("z",))) == frozenset()
    assert Pushed().tags(frozenset(("z",))) == {"z"}


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("topic",), "t")),
        EqualNullSafe(("tag",), "x"),
        StringStartsWith(("tag",), "x"),
        EqualTo(("tag",), None),
        EqualTo(("topic",), 5),
        EqualTo(("tag",), "not utf-8: \ufffd"),
        In(("tag",), tuple(str(i) for i in range(COLUMNS_TAGS_MAX + 1))),
        EqualTo(("tag", "inner"), "x"),
        GreaterThan(("topic",), "t"),
        IsNotNull(("tag",)),
        EqualTo(("body_size",), 5),
        In(("offset",), (1, 2)),
        EqualTo(("store_time",), dt.datetime(2023, 11, 14)),  # noqa: DTZ001 - the zone is missing
    ],
)
def test_what_is_not_answered_is_spark_s(one: Filter) -> None:
    assert push([one]) == (Pushed(), [one])


@pytest.mark.parametrize(
    ("kind", "first", "end"),
    [
        (GreaterThan, 8, None),
        (GreaterThanOrEqual, 7, None),
        (LessThan, 0, 7),
        (LessThanOrEqual, 0, 8),
        (EqualTo, 7, 8),
    ],
)
def test_bounds_of_offsets_become_ranges_and_are_tested_again(
    kind: type[Any], first: int, end: int | None
) -> None:
    one = kind(("offset",), 7)
    assert push([one]) == (Pushed(offset_first=first, offset_end=end), [one])


@pytest.mark.parametrize(
    ("kind", "value", "first", "end"),
    [
        (GreaterThan, MOMENT, MOMENT_MS + 1, None),
        (GreaterThan, MOMENT + MICROSECOND, MOMENT_MS + 1, None),
        (GreaterThanOrEqual, MOMENT, MOMENT_MS, None),
        (GreaterThanOrEqual, MOMENT + MICROSECOND, MOMENT_MS + 1, None),
        (LessThan, MOMENT, None, MOMENT_MS),
        (LessThan, MOMENT + MICROSECOND, None, MOMENT_MS + 1),
        (LessThanOrEqual, MOMENT, None, MOMENT_MS + 1),
        (LessThanOrEqual, MOMENT + MICROSECOND, None, MOMENT_MS + 1),
        (EqualTo, MOMENT, MOMENT_MS, MOMENT_MS + 1),
        (EqualTo, MOMENT + MICROSECOND, MOMENT_MS + 1, MOMENT_MS + 1),
    ],
)
def test_bounds_of_store_times_are_whole_milliseconds(
    kind: type[Any], value: dt.datetime, first: int | None, end: int | None
) -> None:
    one = kind(("store_time",), value)
    assert push([one]) == (Pushed(store_first_ms=first, store_end_ms=end), [one])


def test_the_narrowest_of_several_bounds_counts() -> None:
    hour = dt.timedelta(hours=1)
    pushed, _ = push(
        [
            GreaterThan(("offset",), 3),
            GreaterThan(("offset",), 1),
            LessThan(("offset",), 9),
            LessThan(("offset",), 12),
            GreaterThanOrEqual(("store_time",), MOMENT),
            GreaterThanOrEqual(("store_time",), MOMENT - hour),
            LessThan(("store_time",), MOMENT + hour),
            LessThan(("store_time",), MOMENT + 2 * hour),
        ]
    )
    assert pushed == Pushed({}, 4, 9, MOMENT_MS, MOMENT_MS + 3_600_000)


def test_ranges_are_narrowed_where_a_filter_ends_inside_them() -> None:
    wanted = [
        OffsetRange(queue(), 3, 10, 20),
        OffsetRange(queue("u"), 3, FROM_FIRST, 20),
        OffsetRange(queue("v"), 3, 9, 6),
    ]
    bounds = {queue(): SourceBounds(5, 30), queue("u"): SourceBounds(5, 30), queue("v"): SourceBounds(0, 6)}
    assert narrow(wanted, Pushed(), bounds, {}, {}) == wanted
    assert narrow(wanted, Pushed({"topic": frozenset("t")}), bounds, {}, {}) == wanted[:1]
    # In the middle of a queue the epoch of its start says nothing.
    assert narrow(wanted[:2], Pushed(offset_first=12, offset_end=15), bounds, {}, {}) == [
        OffsetRange(queue(), 0, 12, 15),
        OffsetRange(queue("u"), 0, 12, 15),
    ]
    assert narrow(wanted[:2], Pushed(offset_first=5), bounds, {}, {}) == wanted[:2]
    assert narrow(wanted, Pushed(offset_first=25), bounds, {}, {}) == wanted[2:]
    at_times = narrow(wanted[:2], Pushed(), bounds, {queue(): 11}, {queue("u"): 8})
    assert at_times == [OffsetRange(queue(), 0, 11, 20), OffsetRange(queue("u"), 3, FROM_FIRST, 8)]
