"""Filter sets: no message that matches is ever refused."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kernel.core.filters import STEPS_MAX, FilterSet
from holdmq.errors import WireError
from holdmq.mqtt.filters import matches
from holdmq.names.topics import filter_terms, join_mqtt_topic
from holdmq.record.tags import tag_hash
from holdmq.wire.headers import FilterTerm, TermKind


def filter_set(*terms: FilterTerm) -> FilterSet:
    wanted = FilterSet()
    wanted.change(terms, ())
    return wanted


def passes(wanted: FilterSet, topic: str, tag: str | None, key_levels: int = 1) -> bool:
    h = tag_hash(None if tag is None else tag.encode(), key_levels)
    hashes = None if h == 0 else np.array([h], dtype=np.uint64)
    return any(
        part.all or part.indices_by_hash(hashes, 1) or part.passes_tag(tag) for part in wanted.of_topic(topic)
    )


def test_a_topic_term_passes_everything_of_its_topic() -> None:
    wanted = filter_set(FilterTerm(TermKind.TOPIC, "a", 0, ""))
    assert passes(wanted, "a", "x")
    assert passes(wanted, "a", None)
    assert not passes(wanted, "b", "x")


def test_terms_for_every_topic_leave_system_topics_out() -> None:
    wanted = filter_set(FilterTerm(TermKind.TOPIC, "", 0, ""))
    assert passes(wanted, "a", None)
    assert not passes(wanted, "%RETAIN", "a")


def test_terms_for_every_topic_of_a_tenant_pass_its_topics_alone() -> None:
    wanted = filter_set(FilterTerm(TermKind.TOPIC, "acme%", 0, ""))
    assert passes(wanted, "acme%orders", None)
    assert not passes(wanted, "orders", None)
    assert not passes(wanted, "acme2%orders", None)
    assert not passes(wanted, "%RETRY%acme%g", None)
    everybody = filter_set(FilterTerm(TermKind.TOPIC, "", 0, ""))
    assert passes(everybody, "orders", None)
    assert not passes(everybody, "acme%orders", None)


def test_a_term_added_twice_is_removed_twice() -> None:
    term = FilterTerm(TermKind.TAG, "a", 9, "")
    wanted = filter_set(term, term)
    wanted.change((), [term])
    assert wanted.may_pass_any("a", np.array([9], dtype=np.uint64))
    wanted.change((), [term])
    assert not wanted.may_pass_any("a", np.array([9], dtype=np.uint64))
    assert len(wanted) == 0
    wanted.change((), [term])
    assert len(wanted) == 0


def test_an_unknown_kind_is_refused_by_number() -> None:
    with pytest.raises(WireError, match="kind 17"):
        filter_set(FilterTerm(17, "a", 0, ""))


def test_filters_over_the_tag_treat_dollar_as_any_character() -> None:
    wanted = filter_set(FilterTerm(TermKind.MQTT, "a", 0, "+/x"))
    assert passes(wanted, "a", "$sys/x")
    assert not passes(wanted, "a", "x")


def test_what_is_no_mqtt_filter_is_refused_and_can_be_taken_away() -> None:
    term = FilterTerm(TermKind.MQTT, "a", 0, "x/#/y")
    with pytest.raises(WireError, match="x/#/y"):
        filter_set(term)
    wanted = FilterSet()
    wanted.change((), [term])
    assert len(wanted) == 0


def test_mqtt_filters_that_many_share_go_with_the_last_one() -> None:
    term = FilterTerm(TermKind.MQTT, "a", 0, "+/x")
    wanted = filter_set(term, term)
    wanted.change((), [term])
    assert (len(wanted), passes(wanted, "a", "1/x")) == (1, True)
    wanted.change((), [term])
    assert (len(wanted), passes(wanted, "a", "1/x")) == (0, False)


def test_deep_filters_cost_a_tag_what_is_bounded_and_then_let_it_pass() -> None:
    choose = Random(1)
    terms = [
        FilterTerm(TermKind.MQTT, "", 0, "/".join([*choose.choices("+a", k=126), "end"]))
        for _ in range(1_000)
    ]
    wanted = filter_set(*terms)
    (part,) = wanted.of_topic("a")
    nearly, matching = "/".join("a" * 127), "/".join(["a"] * 126 + ["end"])
    assert part.passes_tag(matching)
    assert part.passes_tag(nearly)  # perhaps: it took too long to know
    assert part.steps <= STEPS_MAX + 128
    assert not part.passes_tag("b/a")
    assert part.steps <= 20  # nothing of what follows is looked at
    wanted.change((), terms[20:])
    assert not part.passes_tag(nearly)


LEVEL = st.sampled_from(["a", "b", "", "$s", "é"])
FILTER_LEVEL = st.sampled_from(["a", "b", "", "+", "é", "$s"])


@given(
    st.lists(LEVEL, min_size=1, max_size=4),
    st.lists(FILTER_LEVEL, min_size=1, max_size=4),
    st.booleans(),
)
def test_every_mqtt_filter_lets_through_what_it_matches(
    topic_levels: list[str], filter_levels: list[str], ends_open: bool
) -> None:
    from holdmq.names.topics import split_mqtt_topic

    mqtt_topic = "/".join(topic_levels)
    mqtt_filter = "/".join([*filter_levels, "#"] if ends_open else filter_levels)
    if not mqtt_topic or not mqtt_filter:
        return
    topic, tag = split_mqtt_topic(mqtt_topic)
    assert join_mqtt_topic(topic, tag) == mqtt_topic
    wanted = FilterSet()
    terms = filter_terms(mqtt_filter)
    wanted.change(terms, ())
    if matches(mqtt_filter, mqtt_topic):
        assert passes(wanted, topic, tag)
    wanted.change((), terms)
    assert len(wanted) == 0


def test_terms_are_bounded_and_a_refused_change_changes_nothing() -> None:
    wanted = FilterSet(terms_max=3)
    wanted.change([FilterTerm(TermKind.TAG, "a", h, "") for h in (1, 2)], ())
    wanted.change([FilterTerm(TermKind.MQTT, "", 0, "+/x")], ())
    assert len(wanted) == 3
    with pytest.raises(WireError, match="more than 3"):
        wanted.change([FilterTerm(TermKind.TAG, "a", 9, "")], ())
    assert len(wanted) == 3
    assert not wanted.may_pass_any("%a", np.array([9], dtype=np.uint64))
    wanted.change((), [FilterTerm(TermKind.TAG, "a", 1, "")])
    wanted.change([FilterTerm(TermKind.TAG, "a", 9, "")], ())
    assert len(wanted) == 3
