"""What a leader knows of a copy."""

from __future__ import annotations

from broker.replication.core.copies import CopyProgress
from broker.replication.core.messages import CopyFetch


def fetch(acknowledged: int) -> CopyFetch:
    return CopyFetch(2, 1, acknowledged, acknowledged)


def test_a_copy_that_keeps_up_with_a_moving_end_is_not_behind() -> None:
    copy = CopyProgress("b", 1, True, 1, 0.0, 100, 0.0)
    end = 100
    for second in range(1, 20):
        copy.fetched(fetch(end - 50), end, float(second))
        end += 50
    assert not copy.is_behind(20.0, 3.0)


def test_a_copy_that_falls_back_or_is_silent_is_behind() -> None:
    copy = CopyProgress("b", 1, True, 1, 0.0, 100, 0.0)
    copy.fetched(fetch(100), 100, 1.0)
    for second in range(2, 10):
        copy.fetched(fetch(100 + second), 1000 * second, float(second))
    assert copy.is_behind(9.0, 3.0)
    level = CopyProgress("c", 1, True, 1, 0.0, 100, 0.0)
    level.fetched(fetch(100), 100, 1.0)
    assert not level.is_behind(4.0, 3.0)
    assert level.is_behind(4.1, 3.0)
