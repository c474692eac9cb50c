"""S as JSON: what is written is read again, and everything else is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.coordination.api import REPLICAS_MAX, STATE_MAX_BYTES, ShardState, is_replica_id
from holdmq.errors import CoordinatorError, ShardStateError

STATE = ShardState(7, "a", ("a", "b"), 1, 5_242_880)
FIELDS: dict[str, Any] = json.loads(STATE.encode())

IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
NUMBERS = st.integers(0, 2**63 - 1)
STATES = st.builds(
    ShardState,
    epoch=st.integers(1, 2**63 - 1),
    leader=IDS,
    in_sync=st.lists(IDS, min_size=1, max_size=REPLICAS_MAX, unique=True).map(tuple),
    format_level=NUMBERS,
    confirmed=NUMBERS,
)


@given(STATES)
def test_what_is_written_is_read_again(state: ShardState) -> None:
    assert ShardState.decode(state.encode()) == state
    assert len(state.encode()) <= STATE_MAX_BYTES


def test_golden_bytes() -> None:
    assert STATE.encode() == (
        b'{"epoch":7,"leader":"a","in_sync":["a","b"],"format_level":1,"confirmed":5242880}'
    )


def test_a_state_without_confirmed_is_read() -> None:
    del (fields := dict(FIELDS))["confirmed"]
    assert ShardState.decode(json.dumps(fields)) == replace(STATE, confirmed=0)


def test_the_leader_of_record_may_have_left_the_set() -> None:
    left = replace(STATE, in_sync=("b",))
    assert ShardState.decode(left.encode()) == left


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"witness": "c"}, "a field that is not known here, 'witness'"),
        ({"epoch": 0}, "epoch = 0"),
        ({"epoch": -1}, "epoch = -1"),
        ({"epoch": 1.0}, "epoch = 1.0"),
        ({"epoch": True}, "epoch = True"),
        ({"epoch": "7"}, "epoch = '7'"),
        ({"epoch": 2**63}, "epoch = 9223372036854775808"),
        ({"format_level": None}, "format_level = None"),
        ({"confirmed": -1}, "confirmed = -1"),
        ({"leader": ""}, "names a replica ''"),
        ({"leader": "a b"}, "names a replica 'a b'"),
        ({"leader": 1}, "names a replica 1"),
        ({"in_sync": []}, "no list of 1 to"),
        ({"in_sync": "ab"}, "no list of 1 to"),
        ({"in_sync": ["a", "a"]}, "twice in in_sync"),
        ({"in_sync": ["a", None]}, "names a replica None"),
        ({"in_sync": [["a"]]}, "names a replica ['a']"),
        ({"in_sync": [f"r{i}" for i in range(REPLICAS_MAX + 1)]}, "no list of 1 to"),
    ],
)
def test_what_is_no_state_is_refused_with_what_is_wrong(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ShardStateError) as caught:
        ShardState.decode(json.dumps(FIELDS | change), "/holdmq/shard/state")
    assert said in str(caught.value)
    assert str(caught.value).startswith("/holdmq/shard/state ")
    assert "upgrade this replica" in str(caught.value)
    assert not caught.value.retriable


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - {"confirmed"}))
def test_a_field_that_is_missing_is_named(name: str) -> None:
    del (fields := dict(FIELDS))[name]
    with pytest.raises(ShardStateError, match=f"has no field '{name}'"):
        ShardState.decode(json.dumps(fields))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b'"epoch"', STATE.encode() + b"x",
        STATE.encode().replace(b'"epoch":7', b'"epoch":7,"epoch":8'), b"[" * 10_000,
        b" " * (STATE_MAX_BYTES + 1),
        STATE.encode().replace(b"7", b"9" * 5000),
    ],
)  # fmt: skip
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(ShardStateError):
        ShardState.decode(data)


@given(st.integers(0, 80), st.binary(max_size=4))
def test_a_damaged_state_is_refused_or_is_another_whole_one(at: int, damage: bytes) -> None:
    data = bytearray(STATE.encode())
    data[at : at + len(damage)] = damage
    try:
        read = ShardState.decode(bytes(data))
    except ShardStateError:
        return
    assert ShardState.decode(read.encode()) == read


@pytest.mark.parametrize(
    "state",
    [
        replace(STATE, epoch=0),
        replace(STATE, in_sync=()),
        replace(STATE, leader="-"),
        replace(STATE, confirmed=-1),
    ],
)
def test_a_state_that_nobody_could_read_is_not_written(state: ShardState) -> None:
    with pytest.raises(ShardStateError, match="would be written"):
        state.encode()


def test_names_of_replicas() -> None:
    assert all(map(is_replica_id, ("a", "broker-0", "10.0.0.1", "x" * 64, "Rack_2.b-1")))
    assert not any(map(is_replica_id, ("", "x" * 65, "a/b", "ä", "a\n", "-a", ".", "a b")))


def test_a_failed_call_is_retriable_and_says_what_to_do() -> None:
    error = CoordinatorError("no answer within 2 s", operation="hold", hint="look at etcd")
    assert error.retriable
    assert str(error) == "hold at the coordinator has an unknown outcome: no answer within 2 s; look at etcd"
