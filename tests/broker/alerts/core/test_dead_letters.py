from __future__ import annotations

from broker.alerts.core.dead_letters import DeadLetterCounts


def test_dead_letters_count_until_none_comes_for_a_while() -> None:
    counts = DeadLetterCounts(10.0, groups_max=2)
    counts.add("a", 2, 0)
    counts.add("a", 1, 9)
    counts.add("b", 1, 9)
    counts.add("c", 1, 9)
    assert counts.take(18) == {"a": 3, "b": 1}
    counts.add("b", 1, 18.5)
    assert counts.take(19) == {"b": 2}
    counts.add("a", 1, 20)
    assert counts.take(20) == {"a": 1, "b": 2}
