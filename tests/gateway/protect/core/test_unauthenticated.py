from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.protect.core.unauthenticated import UnauthenticatedBytes


def test_who_holds_most_is_one_too_many_and_not_who_came_last() -> None:
    held: UnauthenticatedBytes[str] = UnauthenticatedBytes(1_000)
    held.add("greedy", 600)
    held.add("large", 300)
    assert held.one_too_many() is None
    held.add("small", 101)
    assert held.one_too_many() == "greedy"
    held.forget("greedy")
    assert held.one_too_many() is None
    assert (held.total, len(held)) == (401, 2)


def test_of_those_that_hold_about_the_same_the_first_goes() -> None:
    held: UnauthenticatedBytes[str] = UnauthenticatedBytes(0)
    held.add("a", 500)
    held.add("b", 510)
    assert held.one_too_many() == "a"
    held.add("a", 100)
    assert held.one_too_many() == "a"  # it holds most now
    held.add("a", -599)
    assert held.one_too_many() == "b"


def test_what_is_given_back_is_not_held() -> None:
    held: UnauthenticatedBytes[str] = UnauthenticatedBytes(10)
    held.add("a", 11)
    held.add("a", -11)
    held.forget("a")
    held.forget("nobody")
    assert (held.total, len(held), held.one_too_many()) == (0, 0, None)
    assert held._sizes == {}


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-5_000, 5_000)), max_size=60))
def test_the_sum_is_that_of_the_holders_and_nobody_holds_twice_what_the_one_too_many_does(
    changes: list[tuple[str, int]],
) -> None:
    held: UnauthenticatedBytes[str] = UnauthenticatedBytes(4_000)
    model: dict[str, int] = {}
    for holder, change in changes:
        change = max(change, -model.get(holder, 0))
        held.add(holder, change)
        model[holder] = model.get(holder, 0) + change
        assert held.total == sum(model.values())
        found = held.one_too_many()
        assert (found is None) == (held.total <= 4_000)
        if found is not None:
            assert max(model.values()) < 2 * model[found]
            held.forget(found)
            del model[found]
    assert len(held) == sum(1 for value in model.values() if value)
