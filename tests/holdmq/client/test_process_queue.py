from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdmq.client.process_queue import SPAN_MAX, ProcessQueue
from holdmq.message import TopicQueue
from holdmq.record.codec import encode_record

QUEUE = TopicQueue("t", "b", 0)


def records(*offsets: int) -> memoryview:
    parts = []
    for offset in offsets:
        record = bytearray(encode_record(b"t", 0, b"body", b"", 1, bytes(8)))
        record[20:28] = offset.to_bytes(8, "big")
        parts.append(bytes(record))
    return memoryview(b"".join(parts))


def process(offset: int = 0) -> ProcessQueue:
    return ProcessQueue(QUEUE, 1, offset, 1)


def test_the_floor_is_below_everything_unfinished() -> None:
    queue = process(10)
    queue.put(records(10, 11, 12), 3, 13, 1)
    assert [queue.take().offset for _ in range(3)] == [10, 11, 12]  # type: ignore[union-attr]
    assert queue.take() is None
    assert (queue.floor, queue.unfinished) == (10, 3)
    queue.finish(12)
    queue.finish(11)
    assert (queue.floor, queue.unfinished) == (10, 1)
    queue.finish(10)
    assert (queue.floor, queue.unfinished, queue.waiting_bytes) == (13, 0, 0)


def test_what_a_filter_passed_over_moves_the_floor() -> None:
    queue = process()
    queue.put(memoryview(b""), 0, 7, 1)
    assert queue.floor == 7
    queue.put(records(9), 1, 20, 1)
    assert queue.floor == 7
    taken = queue.take()
    assert taken is not None
    assert queue.floor == 9
    queue.finish(taken.offset)
    assert queue.floor == 20


def test_what_is_discarded_is_pulled_again() -> None:
    queue = process()
    queue.put(records(0, 1, 2), 3, 3, 1)
    assert queue.take() is not None
    turn = queue.turn
    queue.discard()
    assert (queue.waiting, queue.waiting_bytes, queue.next_offset) == (0, 0, 1)
    assert queue.turn != turn
    assert queue.floor == 0


def test_one_slow_message_lets_only_so_many_pass() -> None:
    queue = process()
    count = SPAN_MAX + 10
    queue.put(records(*range(count)), count, count, 1)
    first = queue.take()
    assert first is not None
    while (taken := queue.take()) is not None:
        queue.finish(taken.offset)
    assert queue.next_offset == count
    assert queue.waiting == 10
    queue.finish(first.offset)
    assert queue.has_next


def test_a_fresh_queue_is_so_until_something_was_read() -> None:
    queue = ProcessQueue(QUEUE, 1, 0, 0, is_fresh=True)
    queue.put(memoryview(b""), 0, 0, 1)
    assert queue.is_fresh
    queue.put(memoryview(b""), 0, 5, 1)
    assert not queue.is_fresh


@given(gaps=st.lists(st.integers(1, 3), max_size=30), data=st.data())
def test_whatever_finishes_first_the_floor_is_the_lowest_unfinished(
    gaps: list[int], data: st.DataObject
) -> None:
    offsets = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    end = (offsets[-1] if offsets else 0) + 1
    queue = process()
    queue.put(records(*offsets), len(offsets), end, 1)
    running: list[int] = []
    while running or queue.has_next:
        if queue.has_next and (not running or data.draw(st.booleans())):
            taken = queue.take()
            assert taken is not None
            running.append(taken.offset)
        else:
            done = data.draw(st.sampled_from(running))
            running.remove(done)
            queue.finish(done)
        assert queue.unfinished == len(running)
        if running:
            assert queue.floor == min(running)
    assert queue.floor == end
