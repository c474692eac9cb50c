"""The least size of messages when it changes."""

from __future__ import annotations

from broker.produce.core.least_size import GRACE_S, LeastSize


def test_a_higher_least_size_is_enforced_after_the_grace_and_a_lower_one_at_once() -> None:
    least = LeastSize(2)
    assert least.enforced(0.0) == 2
    least.change(5, 100.0)
    assert least.bytes_min == 5
    assert least.enforced(100.0 + GRACE_S - 0.1) == 2
    assert least.enforced(100.0 + GRACE_S) == 5
    least.change(1, 200.0)
    assert least.enforced(200.0) == 1


def test_a_change_within_the_grace_of_another_refuses_nothing_that_was_allowed_before() -> None:
    least = LeastSize(0)
    least.change(9, 100.0)
    least.change(4, 110.0)
    assert least.enforced(111.0) == 0
    assert least.enforced(110.0 + GRACE_S) == 4
