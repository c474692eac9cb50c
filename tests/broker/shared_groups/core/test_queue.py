from __future__ import annotations

from broker.shared_groups.core.acknowledged import bits
from broker.shared_groups.core.queue import QueueKey, SharedQueue


def queue_at(floor: int, window: int = 100) -> SharedQueue:
    return SharedQueue(QueueKey("g", "t", 0), floor, window)


def test_what_waits_goes_before_what_is_new() -> None:
    queue = queue_at(0)
    claim = queue.claim(10, 6, False)
    assert claim is not None
    queue.finish(claim, 6, bits(6))
    queue.put_back(2, 2, 1)
    found = queue.claim(10, 5, False)
    assert found is not None
    assert (found.first, found.end, found.attempts, found.is_fresh) == (2, 4, 1, False)
    found = queue.claim(10, 5, False)
    assert found is not None
    assert (found.first, found.end, found.attempts, found.is_fresh) == (6, 10, 0, True)
    assert queue.claim(10, 5, False) is None


def test_what_a_read_did_not_reach_waits_or_is_still_new() -> None:
    queue = queue_at(0)
    first = queue.claim(10, 4, False)
    second = queue.claim(10, 4, False)
    assert first is not None
    assert second is not None
    queue.finish(first, 1, bits(1))
    assert queue.waiting == [(1, 3, 0)]
    queue.finish(second, 5, bits(1))
    assert queue.next_offset == 5


def test_one_read_with_a_filter_looks_for_new_messages_at_a_time() -> None:
    queue = queue_at(0)
    claim = queue.claim(50, 3, True)
    assert claim is not None
    assert (claim.first, claim.end, claim.count) == (0, 50, 3)
    assert queue.claim(50, 3, True) is None
    assert not queue.has_any(50)
    queue.finish(claim, 20, 0b10001)
    assert (queue.next_offset, queue.floor) == (20, 0)
    assert queue.has_any(50)
    queue.acknowledge(0, 0b10001)
    assert queue.floor == 20


def test_the_window_ends_new_claims_until_the_floor_moves() -> None:
    queue = queue_at(0, window=4)
    claim = queue.claim(10, 10, False)
    assert claim is not None
    queue.finish(claim, 4, bits(4))
    assert queue.claim(10, 10, False) is None
    assert queue.is_full
    queue.acknowledge(0, 0b11)
    claim = queue.claim(10, 10, False)
    assert claim is not None
    assert (claim.first, claim.end) == (4, 6)


def test_what_retention_took_does_not_wait_any_more() -> None:
    queue = queue_at(0)
    claim = queue.claim(10, 10, False)
    assert claim is not None
    queue.finish(claim, 10, bits(10))
    queue.acknowledge(3, 0b1)
    queue.put_back(0, 3, 1)
    assert queue.pass_by(2) == 2
    found = queue.claim(10, 10, False)
    assert found is not None
    assert (found.first, found.end, found.attempts) == (2, 3, 1)
