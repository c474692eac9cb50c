from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.session import owed_retained as retained
from gateway.session.owed_retained import RetainedDue, restored
from holdmq.wire.retained_headers import LOG_END, RetainedRow, retained_owner
from holdmq.wire.session_state import (
    FilterOptions,
    RetainedPlace,
    RetainedRest,
    RetainedState,
    SessionState,
    decode_options,
    decode_state,
)

BROKERS = ["b0", "b1", "b2"]


def places(due: RetainedDue, broker: str) -> dict[str, RetainedPlace]:
    return {answer.topic_filter: place for answer, place in due.at(broker)}


def test_nothing_is_sent_before_the_suback() -> None:
    due = RetainedDue()
    due.owe("a/#", 1)
    assert list(due.brokers()) == []
    due.begin(["other"], BROKERS)
    assert list(due.brokers()) == []
    due.begin(["a/#"], BROKERS)
    assert list(due.brokers()) == BROKERS


@pytest.mark.parametrize("topic_filter", ["a/+/b", "#", "+", "a/#", "+/b"])
def test_wildcards_are_asked_of_every_broker(topic_filter: str) -> None:
    due = RetainedDue()
    due.owe(topic_filter, 1).begin(BROKERS)
    assert list(due.brokers()) == BROKERS


def test_one_topic_is_asked_of_its_owner_alone() -> None:
    for topic in (f"a/{n}" for n in range(20)):
        due = RetainedDue()
        due.owe(topic, 1).begin(BROKERS)
        assert list(due.brokers()) == [retained_owner(topic, BROKERS)]


def test_nobody_waits_for_a_broker_that_was_given_up() -> None:
    due = RetainedDue()
    due.owe("a/#", 1)
    due.owe("a/+", 2).begin(["b0"])
    due.begin(["a/#"], BROKERS)
    due.brokers_known([])
    assert list(due.brokers()) == [*BROKERS, "b0"], "none is known for a moment"
    due.brokers_known(["b1", "b2"])
    assert list(due.brokers()) == ["b1", "b2"]
    assert [answer.topic_filter for answer in due.answers] == ["a/#"], "the other one is answered"


def test_an_answer_goes_on_where_it_stands_and_ends_with_its_last_broker() -> None:
    due = RetainedDue()
    answer = due.owe("a/#", 1)
    answer.begin(["b0", "b1"])
    assert places(due, "b0") == {"a/#": RetainedPlace(LOG_END, "")}
    answer.advance("b0", 500, "a/7")
    assert places(due, "b0") == {"a/#": RetainedPlace(500, "a/7")}
    answer.advance("b0", 500, None)
    answer.advance("b0", 500, "too late")
    assert (list(due.brokers()), answer.is_over) == (["b1"], False)
    answer.advance("b1", 9, None)
    due.drop_finished()
    assert due.answers == []


def test_an_answer_begins_when_brokers_are_known() -> None:
    due = RetainedDue()
    due.owe("a/#", 1)
    due.owe("held", 1)
    due.begin(["a/#"], [])
    assert list(due.brokers()) == []
    due.brokers_known([])
    due.brokers_known(["b0"])
    due.brokers_known(["b0", "b1"])
    assert list(due.brokers()) == ["b0"]
    assert places(due, "b0") == {"a/#": RetainedPlace(LOG_END, "")}


def test_subscribing_again_begins_anew_and_unsubscribing_ends_it() -> None:
    due = RetainedDue()
    due.owe("a/#", 1).begin(["b0"])
    due.owe("b", 1).begin(["b0"])
    due.answers[0].advance("b0", 500, "a/7")
    due.owe("a/#", 2)
    assert [(answer.topic_filter, answer.number, answer.places) for answer in due.answers] == [
        ("b", 1, {"b0": RetainedPlace(LOG_END, "")}), ("a/#", 2, None),
    ]  # fmt: skip
    due.forget("b")
    assert [answer.topic_filter for answer in due.answers] == ["a/#"]


def test_topics_that_come_live_are_remembered_while_a_slice_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retained, "MET_MAX", 3)
    due = RetainedDue()
    due.came(b"a", "b0", 5)
    assert due.met is None
    due.ask()
    for topic, broker, position in ((b"a", "b0", 5), (b"b", "b0", 9), (b"a", "b0", 6), (b"a", "b1", 2)):
        due.came(topic, broker, position)
    due.came(b"a", "b0", 4)
    assert due.met == {b"a": {"b0": 6, "b1": 2}, b"b": {"b0": 9}}
    assert not due.is_outdated
    for topic in (b"c", b"a", b"d"):
        due.came(topic, "b0", 10)
    assert due.is_outdated
    due.ask()
    assert (due.met, due.is_outdated) == ({}, False)


def test_what_came_live_replaces_a_row_that_the_same_log_has_before_it() -> None:
    """What a broker had before it was away comes late: the row that is newer is the last word."""
    due = RetainedDue()
    row = RetainedRow("a", 500, 0)
    assert not due.is_replaced("owner", row)
    assert not due.is_in_doubt("owner", row)
    due.ask()
    due.came(b"b", "owner", 900)
    due.came(b"b", "other", 900)
    due.came(b"a", "owner", 499)
    assert not due.is_replaced("owner", row)
    assert not due.is_in_doubt("owner", row)
    due.came(b"a", "other", 900)
    assert not due.is_replaced("owner", row)
    assert due.is_in_doubt("owner", row)
    due.came(b"a", "owner", 501)
    assert due.is_replaced("owner", row)


def test_an_answer_that_is_in_doubt_is_asked_for_again_from_its_place_and_to_its_end() -> None:
    due = RetainedDue()
    answer = due.owe("a/#", 1)
    answer.hold_at("b0", 900)
    assert answer.places is None
    due.begin(["a/#"], ["b0", "b1"])
    answer.hold_at("b0", 900)
    answer.advance("b1", 700, "a/3")
    answer.hold_at("b1", 700)
    answer.hold_at("gone", 1)
    assert answer.places == {"b0": RetainedPlace(900, ""), "b1": RetainedPlace(700, "a/3")}


FILTERS = ["a", "a/#", "+/b", "#"]
ANSWERS = st.dictionaries(
    st.sampled_from(FILTERS),
    st.one_of(
        st.none(),
        st.dictionaries(
            st.sampled_from(BROKERS),
            st.builds(RetainedPlace, st.integers(-1, 1 << 60), st.text(max_size=5)),
            min_size=1,
        ),
    ),
)


@settings(deadline=None)
@given(ANSWERS, st.integers(1, 1000), st.dictionaries(st.sampled_from(FILTERS), st.integers(0, 2000)))
def test_what_is_owed_comes_back_from_a_sessions_rows(
    answers: dict[str, dict[str, RetainedPlace] | None], number: int, numbers: dict[str, int]
) -> None:
    due = RetainedDue()
    for topic_filter, owed in answers.items():
        due.owe(topic_filter, number).places = owed
    state = SessionState({}, [], 1, None, RetainedState(number, due.rest()))
    options = {name: FilterOptions(1, False, False, 0, None, {}, count) for name, count in numbers.items()}
    read = {name: decode_options(each.encode()).number for name, each in options.items()}
    back = restored(decode_state(state.encode()).retained, read)
    found = {} if back is None else {answer.topic_filter: answer.places for answer in back.answers}
    assert found == {
        # What the state does not know of begins; what it knows goes on; what it knows nothing of is over.
        name: answers.get(name) if count <= number else None
        for name, count in numbers.items()
        if count > number or name in answers
    }
    assert back is None or back.is_held


def test_rows_of_before_say_that_nothing_is_owed() -> None:
    old = SessionState({}, [], 1)
    assert decode_state(old.encode()).retained is None
    assert restored(None, {"a": 0}) is None
    assert restored(RetainedState(5, [RetainedRest("gone", {})]), {"a": 5}) is None
