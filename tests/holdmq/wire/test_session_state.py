from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import WireError
from holdmq.wire.session_headers import Content, decode_content, session_owner
from holdmq.wire.session_state import (
    FilterOptions,
    LogPlace,
    PlannedRow,
    RetainedPlace,
    RetainedRest,
    RetainedState,
    SessionState,
    decode_options,
    decode_state,
)

STATE = SessionState(
    {"b1": LogPlace(3, 1 << 40), "b2": LogPlace(1, 0)},
    [PlannedRow(7, "b1", 99, 5, [1, 268_435_455], True), PlannedRow(65_535, "b2", 0, 2, [], False)],
    8,
)
OPTIONS = FilterOptions(2, True, False, 1, None, {"b1": LogPlace(1, 5)})


def test_a_state_comes_back_as_it_was() -> None:
    assert decode_state(STATE.encode()) == STATE
    assert decode_options(OPTIONS.encode()) == OPTIONS
    assert decode_options(OPTIONS._replace(identifier=9).encode()).identifier == 9


def test_no_state_is_that_of_a_new_session() -> None:
    assert decode_state(b"") == SessionState({}, [], 1)


@pytest.mark.parametrize(
    "fields",
    [
        [2, {}, [], 1],
        [1, [], [], 1],
        [1, {"b": [1]}, [], 1],
        [1, {"b": ["1", 2]}, [], 1],
        [1, {}, 5, 1],
        [1, {}, [[0, "b", 1, 2, [], False]], 1],
        [1, {}, [[1, "b", "x", 2, [], False]], 1],
        [1, {}, [[1, "b", 1, 2, [], False, 7]], 1],
        [1, {}, [], 1, None, [1]],
        [1, {}, [], 1, None, [1, [["a", {"b": [1]}]]]],
        [1, {}, [], 1, None, ["x", []]],
        [1, {}, [], 0],
        [1, {}],
        7,
    ],
)
def test_what_is_no_state_is_refused(fields: object) -> None:
    with pytest.raises(WireError):
        decode_state(msgpack.packb(fields))


def test_what_is_owed_of_retained_messages_comes_back_too() -> None:
    rests = [RetainedRest("a/#", {"b1": RetainedPlace(-1, ""), "b2": RetainedPlace(1 << 50, "a/é")})]
    planned = [PlannedRow(7, "b1", 99, 3, [], False, "a/b")]
    state = STATE._replace(planned=planned, retained=RetainedState(4, [*rests, RetainedRest("b", {})]))
    assert decode_state(state.encode()) == state
    assert decode_options(OPTIONS._replace(number=4).encode()).number == 4


@pytest.mark.parametrize(
    "fields",
    [
        [1, 3, 0, 0, 0, None, {}],
        [1, 1, 0, 0, 0, "x", {}],
        [1, 1, 0, 0, 0, None, {}, "x"],
        [1, 1],
        [9] * 7,
    ],
)
def test_what_are_no_options_is_refused(fields: object) -> None:
    with pytest.raises(WireError):
        decode_options(msgpack.packb(fields))


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_in_one_way(value: bytes) -> None:
    for decode in (decode_state, decode_options, decode_content):
        try:
            decode(value)
        except WireError:
            continue


def test_contents_come_back_as_they_were() -> None:
    content = Content(b"s", [("a/+", b"1"), ("", b"")])
    assert decode_content(memoryview(content.encode())) == content
    with pytest.raises(WireError):
        decode_content(msgpack.packb([b"s", [[1, b"x"]]]))


def test_an_owner_is_one_of_the_brokers_and_stays_it() -> None:
    owners = {client: session_owner(client, ["b1", "b2", "b3"]) for client in map(str, range(100))}
    assert set(owners.values()) == {"b1", "b2", "b3"}
    assert all(owner == "b1" or session_owner(c, ["b2", "b3"]) == owner for c, owner in owners.items())
    assert session_owner("x", ["b9"]) == "b9"
