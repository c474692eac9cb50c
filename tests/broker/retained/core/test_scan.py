from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.retained.core.scan import COMPILED_FROM, NEXT, RetainedScan
from holdmq.mqtt.filters import matches
from storage.api.tables import END_OF_WALK, TAKE


def walk(topic_filter: str, topics: list[str]) -> tuple[list[str], int]:
    """What a walk over sorted topics takes, and how many it looks at."""
    keys = sorted(topic.encode() for topic in topics)
    scan = RetainedScan(topic_filter)
    taken: list[str] = []
    looked_at = 0
    at = bisect_left(keys, scan.begin)
    while at < len(keys):
        looked_at += 1
        judged = scan.judge(keys[at])
        if judged is END_OF_WALK:
            break
        if judged is TAKE:
            taken.append(keys[at].decode())
            at += 1
        else:
            assert isinstance(judged, bytes)
            assert judged == NEXT or judged > keys[at], "no way forward"
            at = max(at + 1, bisect_left(keys, judged))
    return taken, looked_at


# Bytes that sort before and behind `/`, which is where order by bytes and order by levels differ.
LEVEL = st.text(st.sampled_from("ab!/-0$é"), max_size=2).map(lambda text: text.replace("/", ""))
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTER_LEVEL = st.one_of(LEVEL, st.just("+"), st.just("a"))
FILTER = st.builds(
    lambda levels, ends_open: "/".join([*levels, "#"] if ends_open else levels),
    st.lists(FILTER_LEVEL, min_size=1, max_size=4),
    st.booleans(),
).filter(bool)


@settings(deadline=None)
@given(FILTER, st.lists(TOPIC, max_size=40, unique=True))
@example("#", ["$a", "a", "$", "%"])
@example("+/b", ["$SYS/b", "a/b", "!/b", "/b"])
@example("a/+/b", ["a/1", "a/1!/b", "a/1/b", "a/1/b/c", "a/10/b"])
@example("a/b/#", ["a/b", "a/b!", "a/b!/c", "a/b/c", "a/b0"])
@example("a/+/b/+", ["a/1/b", "a/1/b!/x", "a/1/b/x", "a/1/c", "a/2/b/"])
@example("+/a/#", ["b/a!", "b/a", "b/a/x", "b/a0"])
def test_a_walk_takes_what_matches_and_nothing_else(topic_filter: str, topics: list[str]) -> None:
    taken, _ = walk(topic_filter, topics)
    assert sorted(taken) == sorted(topic for topic in topics if matches(topic_filter, topic))


@settings(deadline=None)
@given(FILTER, st.lists(TOPIC, min_size=1, max_size=8, unique=True))
def test_the_compiled_pattern_says_the_same(topic_filter: str, topics: list[str]) -> None:
    fresh = [RetainedScan(topic_filter).judge(topic.encode()) for topic in topics]
    scan = RetainedScan(topic_filter)
    for _ in range(COMPILED_FROM):
        scan.judge(b"a")
    assert [scan.judge(topic.encode()) for topic in topics] == fresh


def many(*tails: str, count: int = 1000) -> list[str]:
    return [f"a/{n}{tail}" for n in range(count) for tail in tails]


@pytest.mark.parametrize(
    ("topic_filter", "topics", "wanted", "looked_at_max"),
    [
        # Each sibling is met, and one topic behind what is wanted of it.
        ("a/+/b", many("/b"), 1000, 1000),
        ("a/+/b", many("/a", "/b", *(f"/c{n}" for n in range(20))), 1000, 3000),
        ("a/+/b", many(*(f"/x/{n}" for n in range(20))), 0, 1000),
        ("a/+/b/#", many("/a", "/b", "/b/1", "/b/2", "/c/1"), 3000, 5000),
        # What lies before the filter's first level and behind it is not looked at at all.
        ("a/7", many("", "/b"), 1, 2),
        ("a/#", [*many(""), *(f"b/{n}" for n in range(1000))], 1000, 1001),
        ("b/#", [*many(""), "b", "b/1", *(f"c/{n}" for n in range(1000))], 2, 3),
        ("+/b", [*(f"$SYS/{n}" for n in range(1000)), "a/b", "b/b"], 2, 3),
        ("#", [*(f"$SYS/{n}" for n in range(1000)), "a/b", "b"], 2, 3),
        ("+/7", many(""), 1, 4),
        ("x/y/z", many(""), 0, 0),
    ],
)
def test_what_cannot_match_is_passed_over(
    topic_filter: str, topics: list[str], wanted: int, looked_at_max: int
) -> None:
    taken, looked_at = walk(topic_filter, topics)
    assert len(taken) == wanted
    assert looked_at <= looked_at_max


@pytest.mark.parametrize(
    ("topic_filter", "is_exact"), [("a/b", True), ("a//", True), ("a/+", False), ("#", False), ("a/#", False)]
)
def test_a_filter_without_wildcards_is_one_topic(topic_filter: str, is_exact: bool) -> None:
    assert RetainedScan(topic_filter).is_exact is is_exact
