from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.acl import REPLAY, AclError, AclRules, covers, filter_of, overlaps
from holdmq.mqtt.filters import matches

LEVELS = ["", "a", "b", "$a"]
TOPICS = ["/".join(parts) for count in (1, 2, 3) for parts in itertools.product(LEVELS, repeat=count)][1:]


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(["", "a", "b", "$a", "+"]), min_size=1, max_size=3))
    if draw(st.booleans()):
        levels = [*levels[:2], "#"]
    text = "/".join(levels)
    return text or "a"


@given(filters(), filters())
def test_a_filter_covers_another_exactly_if_it_matches_all_its_topics(wide: str, narrow: str) -> None:
    inside = [topic for topic in TOPICS if matches(narrow, topic)]
    if covers(wide, narrow):
        assert all(matches(wide, topic) for topic in inside)
    elif "+" not in narrow and "#" not in narrow:
        assert not matches(wide, narrow)


@given(filters(), filters())
@example("/#", "+")
def test_filters_overlap_exactly_if_a_topic_is_in_both(one: str, other: str) -> None:
    both = [topic for topic in TOPICS if matches(one, topic) and matches(other, topic)]
    assert overlaps(one, other) == bool(both)
    assert overlaps(one, other) == overlaps(other, one)


@pytest.mark.parametrize(
    ("wide", "narrow", "is_covered"),
    [
        ("#", "#", True),
        ("#", "$SYS/#", False),
        ("+/#", "$SYS/a", False),
        ("$SYS/#", "$SYS/#", True),
        ("a/#", "a", True),
        ("a/#", "#", False),
        ("a/+", "a/#", False),
        ("a/+/c", "a/b/c", True),
        ("a/b", "a/+", False),
    ],
)
def test_what_a_filter_covers(wide: str, narrow: str, is_covered: bool) -> None:
    assert covers(wide, narrow) is is_covered


RULES = AclRules.parse(
    """
# nobody in particular
topic read public/#
topic denyread public/plans

user ada lovelace
topic devices/#
topic deny devices/42/secret
topic replay history/#
topic write read
topic read write/it

pattern readwrite users/%u/#
pattern write clients/%c/telemetry
"""
)
ADA = "ada lovelace"


@pytest.mark.parametrize(
    ("user", "topic", "may"),
    [
        (ADA, "devices/1/temp", True),
        (ADA, "devices/42/secret", False),
        (ADA, "public/news", False),
        (ADA, "history/1", False),
        (ADA, "read", True),
        (ADA, "write/it", False),
        (ADA, f"users/{ADA}/x", True),
        (ADA, "users/eve/x", False),
        (ADA, "clients/c1/telemetry", True),
        (ADA, "clients/c2/telemetry", False),
        ("eve", "devices/1/temp", False),
        ("eve", "users/eve/x", True),
        ("", "public/news", False),
        ("", "users//x", False),
        ("", "clients/c1/telemetry", True),
    ],
)
def test_who_may_publish_where(user: str, topic: str, may: bool) -> None:
    assert RULES.may_publish(user, "c1", topic) is may


@pytest.mark.parametrize(
    ("user", "topic_filter", "left_out"),
    [
        (ADA, "devices/+/temp", ()),
        (ADA, "devices/#", ("devices/42/secret",)),
        (ADA, "devices/42/+", ("devices/42/secret",)),
        (ADA, "devices/42/secret", None),
        (ADA, "#", None),
        (ADA, "public/#", None),
        ("", "public/#", ("public/plans",)),
        ("", "public/plans", None),
        ("eve", "users/eve/#", ()),
        ("eve", "users/+/x", None),
    ],
)
def test_who_may_subscribe_to_what_and_what_is_left_out(
    user: str, topic_filter: str, left_out: tuple[str, ...] | None
) -> None:
    assert RULES.may_subscribe(user, "c1", topic_filter) == left_out


def test_reading_the_past_needs_a_word_of_its_own() -> None:
    assert RULES.may_subscribe(ADA, "c1", "history/1", REPLAY) == ()
    assert RULES.may_subscribe(ADA, "c1", "devices/1/temp", REPLAY) is None


@pytest.mark.parametrize("name", ["a/b", "+", "#", "%c", "a+"])
def test_a_name_that_means_more_topics_gets_nothing_from_a_pattern(name: str) -> None:
    rules = AclRules.parse("pattern users/%u/#\npattern clients/%c/#")
    assert not rules.may_publish(name, "c", f"users/{name}/x")
    assert not rules.may_publish("u", name, f"clients/{name}/x")
    assert rules.may_subscribe(name, name, f"users/{name}/x") is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("user", "line 1: user without a name"),
        ("topic a\ntopics b", "line 2: 'topics' is not user, topic or pattern"),
        ("topic read a/#/b", "line 1: .* has # before its last level"),
        ("topic", "line 1: .* is empty"),
    ],
)
def test_a_line_that_says_nothing_is_named(text: str, what: str) -> None:
    with pytest.raises(AclError, match=what):
        AclRules.parse(text)


def test_a_file_of_too_many_rules_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.core.acl.RULES_MAX", 2)
    with pytest.raises(AclError, match="line 3: more than 2 rules"):
        AclRules.parse("topic a\ntopic b\ntopic c")


def test_a_rule_without_a_word_may_name_a_topic_with_spaces() -> None:
    rules = AclRules.parse("topic my topic/#\ntopic read a b")
    assert rules.may_publish("", "c", "my topic/x")
    assert rules.may_subscribe("", "c", "a b") == ()
    assert not rules.may_publish("", "c", "a b")


def test_a_share_stands_for_its_filter() -> None:
    assert filter_of("$share/group/a/+") == "a/+"
    assert filter_of("$SYS/#") == "$SYS/#"
