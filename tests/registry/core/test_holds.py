from __future__ import annotations

import random

from registry.core.holds import Held, Holds


def held(name: str, topics: tuple[str, ...] | None, deadline: float = 10.0) -> Held[str]:
    return Held(name, name, topics, deadline)


def names(found: list[Held[str]]) -> list[str]:
    return sorted(h.owner for h in found)


def test_a_change_wakes_who_names_the_topic_or_all() -> None:
    holds: Holds[str] = Holds()
    for h in (held("a", ("t", "u")), held("b", ("u",)), held("c", None)):
        assert holds.hold(h)
    assert names(holds.wake(["t"], False)) == ["a", "c"]
    assert names(holds.wake(["t"], False)) == []
    assert names(holds.wake([], True)) == ["b"]
    assert (len(holds), holds.names) == (0, 0)


def test_deadlines_come_in_order() -> None:
    holds: Holds[str] = Holds()
    for name, deadline in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        holds.hold(held(name, ("t",), deadline))
    assert holds.next_deadline() == 1.0
    assert names(holds.expire(2.0)) == ["b", "c"]
    assert holds.next_deadline() == 3.0
    of_a = holds.of("a")
    assert of_a is not None
    holds.cancel(of_a)
    holds.cancel(of_a)
    assert holds.next_deadline() is None
    assert holds.expire(9.0) == []


def test_held_requests_and_their_names_are_bounded() -> None:
    holds: Holds[str] = Holds(held_max=2, names_max=3)
    assert holds.hold(held("a", ("t", "u")))
    assert not holds.hold(held("b", ("t", "u")))
    assert holds.hold(held("b", ("t",)))
    assert not holds.hold(held("c", None))


def test_the_table_stays_consistent_and_its_heap_bounded() -> None:
    rng = random.Random(5)
    holds: Holds[str] = Holds()
    for step in range(5000):
        name = str(rng.randrange(20))
        known = holds.of(name)
        if known is not None:
            holds.cancel(known)
        holds.hold(held(name, tuple(rng.sample("tuv", rng.randrange(4))) or None, step + 50.0))
        if rng.randrange(5) == 0:
            holds.wake(rng.sample("tuv", 1), False)
    assert len(holds._deadlines) <= 4 * 20 + 65
    holds.wake([], True)
    assert (len(holds), holds.names) == (0, 0)
    assert holds._by_topic == {}
