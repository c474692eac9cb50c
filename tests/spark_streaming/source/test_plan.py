from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdmq.message import TopicQueue
from spark_streaming.source.offsets import FROM_FIRST, OffsetRange
from spark_streaming.source.plan import PARTITION_RECORDS_MIN, split


def one(queue_id: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicQueue("t", "b", queue_id), 7, start, end)


def test_nothing_to_read_is_no_partition() -> None:
    assert split([], 4) == []


def test_little_work_is_one_task_whatever_the_cores() -> None:
    wanted = [one(i, 0, 10) for i in range(8)]
    assert split(wanted, 4) == [wanted]


def test_a_range_of_a_cut_log_is_planned_too() -> None:
    assert split([one(0, 9, 6), one(1, 0, 1)], 2) == [[one(0, 9, 6), one(1, 0, 1)]]


def test_one_long_queue_is_shared_by_all_cores() -> None:
    end = 4 * PARTITION_RECORDS_MIN
    first, second = split([one(0, 0, end)], 2)
    assert first == [one(0, 0, end // 2)]
    # In the middle of a queue the epoch of its start says nothing.
    assert second == [one(0, end // 2, end)._replace(epoch=0)]


def test_a_queue_read_from_its_first_is_cut_where_its_records_are() -> None:
    end = 10**9
    queue = TopicQueue("t", "b", 0)
    wanted = one(0, FROM_FIRST, end)
    parts = split([wanted], 2, {queue: end - 2 * PARTITION_RECORDS_MIN})
    assert parts[0] == [wanted._replace(end=end - PARTITION_RECORDS_MIN)]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 5 * PARTITION_RECORDS_MIN)), max_size=12),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_partitions_cover_every_record_once_and_are_balanced(
    runs: list[tuple[int, int]], cores: int, least: int
) -> None:
    wanted = [one(i, start, start + size) for i, (start, size) in enumerate(runs)]
    parts = split(wanted, cores, None, min(least, cores))
    assert len(parts) <= cores
    assert len(parts) >= min(least, cores, sum(size for _, size in runs))
    joined: dict[TopicQueue, list[tuple[int, int]]] = {}
    for part in parts:
        for item in part:
            joined.setdefault(item.queue, []).append((item.start, item.end))
    for item in wanted:
        pieces = joined[item.queue]
        assert pieces[0][0] == item.start
        assert pieces[-1][1] == item.end
        assert all(a[1] == b[0] and a[0] < a[1] for a, b in itertools.pairwise(pieces))
    sizes = [sum(item.end - item.start for item in part) for part in parts]
    assert not sizes or max(sizes) <= -(-sum(sizes) // len(sizes))
