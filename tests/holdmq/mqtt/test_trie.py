from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import UsageError
from holdmq.mqtt import FilterTrie, matches

levels = st.sampled_from(["a", "b", "", "$s"])
topics = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.one_of(levels, st.just("+")), max_size=4), st.sampled_from(["", "a", "+", "#"]))
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(bool)
)


def keys(trie: FilterTrie[str, str], topic: str) -> list[str]:
    return sorted(value for _, value in trie.match(topic.encode()))


@pytest.mark.mqtt("MQTT-4.7.3-4", "MQTT-3.10.4-1")
@given(st.lists(st.tuples(filters, st.sampled_from("xyz")), max_size=25), st.lists(topics, max_size=8))
def test_the_trie_agrees_with_matching_one_by_one(pairs: list[tuple[str, str]], asked: list[str]) -> None:
    trie: FilterTrie[str, str] = FilterTrie()
    kept: set[tuple[str, str]] = set()
    for topic_filter, key in pairs:
        is_new = trie.add(topic_filter, key, topic_filter)
        assert is_new == all(topic_filter != known for known, _ in kept)
        kept.add((topic_filter, key))
    for topic in asked:
        assert keys(trie, topic) == sorted(known for known, _ in kept if matches(known, topic))
    assert sorted(trie.filters()) == sorted({known for known, _ in kept})
    while kept:
        topic_filter, key = kept.pop()
        is_gone = trie.remove(topic_filter, key)
        assert is_gone == all(topic_filter != known for known, _ in kept)
        assert trie.get(topic_filter, key) is None
        for topic in asked[:3]:
            assert keys(trie, topic) == sorted(known for known, _ in kept if matches(known, topic))
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
    assert trie._root.is_empty()
