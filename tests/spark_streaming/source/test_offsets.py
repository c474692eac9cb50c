from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.message import TopicQueue
from spark_streaming.source.offsets import (
    FROM_FIRST,
    LOST,
    OffsetRange,
    SourceBounds,
    advance,
    check_offsets,
    cut_back,
    overtaken,
    parse_queue,
    ranges,
)


def queue(topic: str, queue_id: int = 0, broker: str = "b") -> TopicQueue:
    return TopicQueue(topic, broker, queue_id)


def test_a_queue_is_written_broker_topic_queue() -> None:
    assert parse_queue("broker-0/devices/3") == TopicQueue("devices", "broker-0", 3)
    assert str(TopicQueue("devices", "broker-0", 3)) == "broker-0/devices/3"
    assert parse_queue("broker-0") is None


@pytest.mark.parametrize("key", ["", "a/b", "a/b/c", "a//1", "/b/1", "a/b/1/2", "a/b/-1"])
def test_a_key_that_names_no_queue_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not broker/topic/queue"):
        parse_queue(key)


@pytest.mark.parametrize(
    "value", [[], "x", {"b/t/0": -1}, {"b/t/0": 1.5}, {"b/t/0": True}, {"b/t": 1}, {1: 1}]
)
def test_offsets_of_the_wrong_shape_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"expected|is not"):
        check_offsets(value)


def test_a_batch_takes_all_there_is_within_the_limit() -> None:
    bounds = {queue("t", 0): SourceBounds(0, 10), queue("t", 1): SourceBounds(5, 9)}
    assert advance({"b/t/0": 4}, bounds, {"b": 2}, 100) == {"b": 2, "b/t/0": 10, "b/t/1": 9}


def test_a_queue_that_was_not_known_is_read_from_its_first_record() -> None:
    start = {"b/t/0": 4}
    end = advance(start, {queue("new"): SourceBounds(7, 9), queue("t"): SourceBounds(0, 4)}, {}, None)
    assert ranges(start, end) == [OffsetRange(queue("new"), 0, FROM_FIRST, 9)]


def test_small_backlogs_are_taken_whole_and_large_ones_share_the_rest() -> None:
    bounds = {
        queue("live"): SourceBounds(0, 50),
        queue("a"): SourceBounds(0, 10_000),
        queue("z"): SourceBounds(0, 90_000),
    }
    end = advance({}, bounds, {}, 1_050)
    assert end == {"b/a/0": 500, "b/live/0": 50, "b/z/0": 500}


def test_more_queues_than_the_limit_has_records_still_move() -> None:
    bounds = {queue("t", i): SourceBounds(0, 5) for i in range(10)}
    start: dict[str, int] = {}
    for _ in range(50):
        following = advance(start, bounds, {}, 1)
        assert sum(following.values()) == sum(start.values()) + 1
        start = following
    assert set(start.values()) == {5}


def test_a_broker_that_does_not_answer_keeps_its_offsets_and_epoch() -> None:
    start = {"b": 1, "b/t/0": 4, "c": 2, "c/t/0": 7}
    assert advance(start, {queue("t"): SourceBounds(0, 9)}, {"b": 1}, None) == {**start, "b/t/0": 9}


def test_a_log_that_was_cut_takes_the_offset_back() -> None:
    bounds = {queue("t"): SourceBounds(0, 6)}
    assert cut_back({"b/t/0": 9}, bounds) == [OffsetRange(queue("t"), 0, 6, 9)]
    end = advance({"b": 1, "b/t/0": 9}, bounds, {"b": 2}, None)
    assert end == {"b": 2, "b/t/0": 6}
    # Where the cut was only the broker knows: it is asked from the old offset in the old epoch.
    assert ranges({"b": 1, "b/t/0": 9}, end) == [OffsetRange(queue("t"), 1, 9, 6)]


def test_what_retention_took_on_the_way_is_known_and_its_count_travels_in_the_offsets() -> None:
    bounds = {
        queue("t", 0): SourceBounds(7, 9),
        queue("t", 1): SourceBounds(7, 7),
        queue("t", 2): SourceBounds(7, 9),
    }
    start = {LOST: 2, "b/t/0": 4, "b/t/1": 1}
    end = advance(start, bounds, {}, None)
    assert overtaken(ranges(start, end), bounds) == [
        OffsetRange(queue("t", 0), 0, 4, 7),
        OffsetRange(queue("t", 1), 0, 1, 7),
    ]
    assert overtaken(ranges(end, end), bounds) == []
    # A target that retention passed, too: what lies behind it is the next batch's loss.
    near = {**end, "b/t/0": 5}
    assert overtaken(ranges(start, near), bounds)[0] == OffsetRange(queue("t", 0), 0, 4, 5)
    assert end[LOST] == 2
    assert parse_queue(LOST) is None
    assert check_offsets(end) == end
    assert [item.queue.queue_id for item in ranges(start, end)] == [0, 1, 2]


def test_a_range_carries_the_epoch_in_which_its_start_was_seen() -> None:
    assert ranges({"b": 3, "b/t/0": 1}, {"b": 4, "b/t/0": 5}) == [OffsetRange(queue("t"), 3, 1, 5)]


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 50), st.integers(0, 50))),
    st.dictionaries(st.integers(0, 20), st.integers(0, 100)),
    st.integers(1, 60),
)
def test_a_batch_never_takes_more_than_its_limit_and_never_stands_still(
    held: dict[int, tuple[int, int]], known: dict[int, int], limit: int
) -> None:
    bounds = {queue("t", i): SourceBounds(first, first + count) for i, (first, count) in held.items()}
    start = {str(q): min(known.get(q.queue_id, b.first), b.end) for q, b in bounds.items()}
    end = advance(start, bounds, {}, limit)
    backlog = sum(b.end - max(start[str(q)], b.first) for q, b in bounds.items())
    taken = sum(end[str(q)] - max(start[str(q)], b.first) for q, b in bounds.items())
    assert taken == min(limit, backlog)
    assert list(end) == sorted(end)
    assert check_offsets(json.loads(json.dumps(end))) == end
