"""A bounded number of names that say who carried most."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.core.heavy_hitters import HeavyHitters, Traffic


def messages(count: int) -> Traffic:
    return Traffic(1, count, 0, 10 * count, 0)


def test_up_to_its_capacity_all_names_are_counted_exactly() -> None:
    found = HeavyHitters(2)
    found.add("a", messages(3))
    found.add("b", Traffic(1, 0, 5, 0, 70))
    found.add("a", messages(4))
    assert {name: (traffic, error) for name, traffic, error in found} == {
        "a": (Traffic(2, 7, 0, 70, 0), 0),
        "b": (Traffic(1, 0, 5, 0, 70), 0),
    }


def test_past_it_a_new_name_takes_the_place_of_the_one_with_the_fewest_and_says_so() -> None:
    found = HeavyHitters(2)
    found.add("a", messages(3))
    found.add("b", messages(5))
    found.add("a", messages(9))
    found.add("c", messages(1))
    assert {name: (traffic.messages_in, error) for name, traffic, error in found} == {
        "a": (12, 0), "c": (6, 5),
    }  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 20)), max_size=200), st.integers(1, 5))
def test_nobody_is_said_to_have_fewer_and_who_has_more_than_his_share_is_there(
    sent: list[tuple[str, int]], capacity: int
) -> None:
    found, truth = HeavyHitters(capacity), Counter[str]()
    for name, count in sent:
        found.add(name, messages(count))
        truth[name] += count
    assert len(found) <= capacity
    told = {name: (traffic.messages_in, error) for name, traffic, error in found}
    for name, (count, error) in told.items():
        assert count - error <= truth[name] <= count
    for name, count in truth.items():
        assert name in told or count * capacity <= truth.total()
