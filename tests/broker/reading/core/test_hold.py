"""Parked pulls: who is woken, when, and what it costs to leave."""

from __future__ import annotations

import numpy as np

from broker.kernel.core.filters import FilterSet
from broker.reading.core.hold import Hold, ParkedPull
from holdmq.wire.headers import FilterTerm, TermKind


def parked(
    owner: str, *queues: tuple[str, int], tag: int | None = None, deadline: float = 10.0
) -> ParkedPull[str]:
    wanted = None
    if tag is not None:
        wanted = FilterSet()
        wanted.change([FilterTerm(TermKind.TAG, "t", tag, "")], ())
    return ParkedPull(owner, queues, wanted, deadline)


def hashes(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(values, dtype=np.uint64)


def test_an_arrival_wakes_only_the_pulls_of_its_queue() -> None:
    hold: Hold[str] = Hold()
    hold.park(parked("a", ("t", 0)))
    hold.park(parked("b", ("t", 1)))
    assert [p.owner for p in hold.arrived("t", 0, None)] == ["a"]
    assert hold.size == 1
    assert hold.arrived("t", 0, None) == []


def test_a_pull_of_many_queues_is_woken_once() -> None:
    hold: Hold[str] = Hold()
    hold.park(parked("a", ("t", 0), ("t", 1)))
    assert len(hold.arrived("t", 1, None)) == 1
    assert hold.arrived("t", 0, None) == []
    assert hold.size == 0


def test_a_filtered_pull_sleeps_through_foreign_messages() -> None:
    hold: Hold[str] = Hold()
    hold.park(parked("a", ("t", 0), tag=5))
    assert hold.arrived("t", 0, hashes(1, 2)) == []
    assert hold.arrived("t", 0, None) == []
    assert len(hold.arrived("t", 0, hashes(1, 5))) == 1


def test_deadlines_come_in_order_and_skip_the_answered() -> None:
    hold: Hold[str] = Hold()
    first = parked("first", ("t", 0), deadline=1.0)
    hold.park(parked("late", ("t", 1), deadline=3.0))
    hold.park(first)
    assert hold.next_deadline() == 1.0
    hold.cancel(first)
    assert hold.next_deadline() == 3.0
    assert hold.expire(2.0) == []
    assert [p.owner for p in hold.expire(3.0)] == ["late"]
    assert hold.next_deadline() is None
    assert hold.size == 0


def test_a_full_table_says_so() -> None:
    hold: Hold[str] = Hold(parked_max=1)
    assert hold.park(parked("a", ("t", 0)))
    assert not hold.park(parked("b", ("t", 0)))
    assert hold.size == 1


def test_cancelled_pulls_leave_nothing_behind() -> None:
    hold: Hold[str] = Hold()
    for _ in range(10_000):
        p = parked("a", ("t", 0))
        hold.park(p)
        hold.cancel(p)
        hold.cancel(p)
    assert hold.size == 0
    assert len(hold._deadlines) <= 128
    assert not hold._by_queue
