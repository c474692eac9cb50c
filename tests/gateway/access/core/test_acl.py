from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.access.core.acl import (
    ANY_ID,
    MAY_TAKE,
    OWNS,
    REPLAY,
    AclError,
    AclRules,
    covers,
    filter_of,
    overlaps,
)
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


@pytest.mark.parametrize("name", ["$SYS", "$share", "$delayed"])
def test_a_name_that_begins_with_a_dollar_opens_nothing_of_the_systems(name: str) -> None:
    rules = AclRules.parse("pattern %c/#\npattern %u/#\npattern %c%u/#\npattern %u%c/#")
    assert not rules.may_publish(name, name, f"{name}/a")
    assert not rules.may_publish(name, name, f"{name}{name}/a")
    assert rules.may_subscribe(name, name, f"{name}/#") is None
    assert rules.may_subscribe("ada", name, f"{name}/+") is None
    assert rules.may_publish(name, "c", f"c{name}/a"), "only as the first character"
    named = AclRules.parse("pattern read $SYS/clients/%c/#\npattern devices/%c")
    assert named.may_subscribe("ada", name, f"$SYS/clients/{name}/#") == (), "the line says so itself"
    assert named.may_publish("ada", name, f"devices/{name}")


@pytest.mark.parametrize("name", ["a/b", "$a", "a%c", "%u"])
def test_a_name_does_not_lift_what_a_pattern_denies(name: str) -> None:
    rules = AclRules.parse(
        "user x\npattern deny users/%u/locked\npattern deny %c/locked\npattern #\npattern $a/#"
    )
    assert not rules.may_publish(name, "c", f"users/{name}/locked")
    assert not rules.may_publish("u", name, f"{name}/locked")
    assert rules.is_denied("u", name, f"{name}/locked")
    assert rules.may_publish(name, "c", "users/eve/locked")
    assert rules.may_publish("", "c", "users//locked"), "who has no name is not meant"


def test_one_name_is_not_put_into_the_other() -> None:
    rules = AclRules.parse("pattern deny %u/locked\npattern #")
    assert rules.may_publish("%c", "eve", "eve/locked")
    assert not rules.may_publish("%c", "eve", "%c/locked")


IDS = AclRules.parse(
    """
clientid public-*
user ada
clientid dash-*
clientid *.ada
clientid exactly
user root
clientid *
user grace
topic #
pattern clientid %u:*
pattern clientid dev-%u
pattern clientid everybodys-*
"""
)


@pytest.mark.parametrize(
    ("user", "client_id", "right"),
    [
        ("", "public-1", MAY_TAKE),
        ("ada", "public-1", None),
        ("", ":1", None),
        ("", "dev-", None),
        ("", "everybodys-1", MAY_TAKE),
        ("ada", "dash-", OWNS),
        ("ada", "Dash-1", None),
        ("ada", "7.ada", OWNS),
        ("ada", "exactly", OWNS),
        ("ada", "exactly1", None),
        ("ada", "ada:1", OWNS),
        ("ada", "dev-ada", OWNS),
        ("ada", "dev-adam", None),
        ("ada", "everybodys-1", MAY_TAKE),
        ("ada", "other", None),
        ("grace", "dash-1", None),
        ("grace", "grace:1", OWNS),
        ("eve", "ada:1", None),
        ("root", "ada:1", OWNS),
        ("*", "ada:1", None),
        ("*", "*:1", OWNS),
        ("%u", "%u:1", OWNS),
        ("a*", "ada:1", None),
    ],
)
def test_which_client_ids_are_whose(user: str, client_id: str, right: int | None) -> None:
    assert IDS.id_right(user, client_id) == right


def test_without_a_line_about_client_ids_all_are_everybodys() -> None:
    assert RULES.id_right("eve", "anything") == ANY_ID
    assert RULES.id_right("", "anything") == ANY_ID
    assert AclRules.parse("user ada\nclientid a").id_right("eve", "b") is None, "one line is enough"


def test_beginning_and_end_of_a_client_id_are_not_the_same_characters() -> None:
    rules = AclRules.parse("pattern clientid aba*ba")
    assert rules.id_right("x", "aba") is None
    assert rules.id_right("x", "ababa") == MAY_TAKE


@given(st.text("*?[]%u:a", min_size=1, max_size=6), st.text("*?[]%u:a", min_size=1, max_size=9))
def test_a_user_name_is_put_in_as_it_is(user: str, client_id: str) -> None:
    rules = AclRules.parse("pattern clientid <%u>*")
    assert (rules.id_right(user, client_id) is None) == (not client_id.startswith(f"<{user}>"))
    assert rules.id_right(user, f"<{user}>{client_id}") == OWNS


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("user", "line 1: user without a name"),
        ("topic a\ntopics b", "line 2: 'topics' is not user, topic, pattern or clientid"),
        ("user ada\nclientid", "line 2: clientid without a client id"),
        ("pattern clientid", "line 1: clientid without a client id"),
        ("pattern clientid a*b*", "line 1: 'a\\*b\\*' has more than one \\*"),
        ("pattern clientid %c-1", "line 1: %c in a clientid line"),
        ("clientid %u-1", "line 1: %u above the first user line.* `pattern clientid %u-1`"),
        ("topic read a/#/b", "line 1: .* has # before its last level"),
        ("topic", "line 1: .* is empty"),
    ],
)
def test_a_line_that_says_nothing_is_named(text: str, what: str) -> None:
    with pytest.raises(AclError, match=what):
        AclRules.parse(text)


def test_a_file_of_too_many_rules_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.access.core.acl.RULES_MAX", 2)
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
