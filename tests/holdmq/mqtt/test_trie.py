from __future__ import annotations

import gc
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import UsageError
from holdmq.mqtt import FilterTrie, matches
from holdmq.mqtt.trie import STEPS_BUDGET

levels = st.sampled_from(["a", "b", "", "$s"])
topics = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.one_of(levels, st.just("+")), max_size=4), st.sampled_from(["", "a", "+", "#"]))
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(bool)
)


def keys(trie: FilterTrie[str, str], topic: str) -> list[str]:
    return sorted(value for _, value in trie.match(topic.encode()))


def nodes_of(trie: FilterTrie[str, str]) -> int:
    """Nodes in the tree, the root among them."""
    waiting = [trie._root]
    count = 0
    while waiting:
        count += 1
        waiting += [child for _, child in waiting.pop().named()]
    return count


def deep_filters(count: int, levels: int) -> list[str]:
    """Different filters that all match `a/a/a…` of so many levels, whatever each of them has in a level."""
    choose = Random(1)
    found: set[str] = set()
    while len(found) < count:
        found.add("/".join(["+", *choose.choices("+a", k=levels - 1)]))
    return sorted(found)


def test_deep_filters_cost_a_match_two_nodes_each_and_none_of_their_levels_twice() -> None:
    trie: FilterTrie[str, str] = FilterTrie()
    filters = deep_filters(200, 128)
    for topic_filter in filters:
        trie.add(topic_filter, "x", topic_filter)
    assert nodes_of(trie) <= 2 * len(filters)
    assert keys(trie, "/".join("a" * 128)) == filters
    assert trie.steps <= 200 * 128
    assert keys(trie, "/".join("a" * 127)) == []
    # A topic that is too short is known by that: the long rests are not compared.
    assert trie.steps <= 2 * len(filters) + 200


def test_what_cost_more_than_the_budget_is_remembered_until_a_filter_with_plus_changes() -> None:
    trie: FilterTrie[str, str] = FilterTrie()
    filters = deep_filters(100, 100)
    for topic_filter in filters:
        trie.add(topic_filter, "x", topic_filter)
    topic = "/".join("a" * 100)
    assert keys(trie, topic) == filters
    assert trie.steps > STEPS_BUDGET
    trie.add(topic, "x", topic)
    trie.add("#", "x", "#")
    assert keys(trie, topic) == sorted([*filters, topic, "#"])
    assert trie.steps == 0
    trie.add(filters[0], "y", filters[0])
    assert len(trie.match(topic.encode())) == 103
    assert trie.steps > STEPS_BUDGET
    trie.remove(filters[0], "y")
    assert len(trie.match(topic.encode())) == 102


@pytest.mark.interpreted
def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdmq.mqtt.trie.DEAR_TOPICS_MAX", 3)
    monkeypatch.setattr("holdmq.mqtt.trie.DEAR_PAIRS_MAX", 5)
    trie: FilterTrie[int, int] = FilterTrie(0)
    for key in range(2):
        trie.add("+/b", key, key)
    for number in range(9):
        trie.add("+", number, number)
        for topic in (b"1/b", b"2/b", b"3/b", b"x", b"1/b", b"5", b"6"):
            assert len(trie.match(topic)) == (2 if topic.endswith(b"/b") else number + 1)
            assert len(trie._dear) <= 3
            assert sum(map(len, trie._dear.values())) == trie._dear_pairs <= 5


def test_what_no_topic_shares_is_not_looked_at() -> None:
    trie: FilterTrie[str, str] = FilterTrie()
    for number in range(1_000):
        trie.add(f"cmd/{number}/+/set", "x", "")
    assert len(trie.match(b"cmd/7/valve/set")) == 1
    assert trie.steps <= 5
    assert trie.match(b"cmd/1001/valve/set") == []
    assert trie.steps <= 2


@pytest.mark.mqtt("MQTT-4.7.3-4", "MQTT-3.10.4-1")
@given(
    st.lists(st.tuples(filters, st.sampled_from("xyz")), max_size=25),
    st.lists(topics, max_size=8),
    st.sampled_from([0, 3, STEPS_BUDGET]),
)
def test_the_trie_agrees_with_matching_one_by_one(
    pairs: list[tuple[str, str]], asked: list[str], steps_budget: int
) -> None:
    trie: FilterTrie[str, str] = FilterTrie(steps_budget)
    kept: set[tuple[str, str]] = set()
    for topic_filter, key in pairs:
        is_new = trie.add(topic_filter, key, topic_filter)
        assert is_new == all(topic_filter != known for known, _ in kept)
        kept.add((topic_filter, key))
        for topic in asked[:2]:
            assert keys(trie, topic) == sorted(known for known, _ in kept if matches(known, topic))
    levels_in_tree = sum(f.count("/") + 1 for f in {known for known, _ in kept} if "+" in f)
    for topic in asked:
        assert keys(trie, topic) == sorted(known for known, _ in kept if matches(known, topic))
        assert trie.steps <= levels_in_tree + 1
    assert nodes_of(trie) <= 2 * len(trie) + 1
    assert sorted(trie.filters()) == sorted({known for known, _ in kept})
    while kept:
        topic_filter, key = kept.pop()
        is_gone = trie.remove(topic_filter, key)
        assert is_gone == all(topic_filter != known for known, _ in kept)
        assert trie.get(topic_filter, key) is None
        for topic in asked[:3]:
            assert keys(trie, topic) == sorted(known for known, _ in kept if matches(known, topic))
        assert nodes_of(trie) <= 2 * len(trie) + 1  # what parted is one again
    assert len(trie) == 0
    assert list(trie.filters()) == []
    assert trie._depths == []  # or every topic goes on paying for filters that are gone


@pytest.mark.mqtt("MQTT-3.8.4-3")
@pytest.mark.parametrize("topic_filter", ["a/b", "a/#", "#", "+/b", "a/+/#", "+"])
def test_adding_again_replaces_the_value(topic_filter: str) -> None:
    trie: FilterTrie[str, int] = FilterTrie()
    assert trie.add(topic_filter, "x", 1)
    assert not trie.add(topic_filter, "x", 2)
    assert not trie.add(topic_filter, "y", 3)
    assert not trie.add(topic_filter, "y", 4)
    assert (trie.get(topic_filter, "x"), trie.get(topic_filter, "y"), len(trie)) == (2, 4, 1)
    assert not trie.remove(topic_filter, "x")
    assert trie.get(topic_filter, "y") == 4
    assert trie.remove(topic_filter, "y")
    assert len(trie) == 0


def test_removing_what_is_not_there_changes_nothing() -> None:
    trie: FilterTrie[str, int] = FilterTrie()
    trie.add("a/+/c", "x", 1)
    for topic_filter in ("a/+/c", "a/+/d", "b/+/c", "a/+", "a/#", "#", "a", "a/+/c/#"):
        assert not trie.remove(topic_filter, "y")
    assert trie.get("a/+", "x") is None
    assert trie.match(b"a/b/c") == [("x", 1)]


def test_a_key_comes_once_for_each_of_its_filters() -> None:
    trie: FilterTrie[str, str] = FilterTrie()
    for topic_filter in ("a/b", "a/#", "#", "+/b", "a/+/#"):
        trie.add(topic_filter, "x", topic_filter)
    assert keys(trie, "a/b") == ["#", "+/b", "a/#", "a/+/#", "a/b"]


@pytest.mark.parametrize("text", ["", "a/#/b", "a+", "\ud800"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        FilterTrie[str, int]().add(text, "x", 1)


def test_removed_filters_leave_no_memory_behind() -> None:
    trie: FilterTrie[int, int] = FilterTrie()
    shapes = ["d/{}/cmd", "d/{}/#", "+/{}/cmd", "d/{}/+/#"]
    tracemalloc.start()
    try:
        for round_number in range(3):
            for index in range(2_000):
                for shape in shapes:
                    trie.add(shape.format(index + 10_000 * round_number), index, 1)
            for index in range(2_000):
                for shape in shapes:
                    assert trie.remove(shape.format(index + 10_000 * round_number), index)
        trie.add("last", 1, 1)
        gc.collect()
        kept = sum(
            trace.size
            for trace in tracemalloc.take_snapshot()
            .filter_traces([tracemalloc.Filter(True, "*/holdmq/mqtt/trie.py")])
            .statistics("filename")
        )
    finally:
        tracemalloc.stop()
    assert len(trie) == 1
    # The two dictionaries keep the slots of their largest time, about 100 bytes per filter.
    assert kept < 1_000_000
    assert trie._root.named() == []
