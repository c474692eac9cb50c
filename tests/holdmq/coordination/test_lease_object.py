"""What a Lease of a shard has in it, and when its holder is gone."""

from __future__ import annotations

import datetime as dt
import re

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.coordination.api import ShardState
from holdmq.coordination.lease_object import (
    SHARD,
    STATE,
    STATE_VERSION,
    UNKNOWN_DURATION_S,
    LeaseHolding,
    LeaseObserver,
    held_by,
    holding_of,
    name_of,
    new_identity,
    new_lease,
    patch_of,
    released,
    replica_of,
    state_of,
    version_of,
    with_state,
)
from holdmq.errors import ShardStateError

STATE_1 = ShardState(1, "a", ("a", "b"), 1)
OWNER = "holdmq/broker-0"
NOON = dt.datetime(2030, 1, 2, 12, 0, 0, 5, tzinfo=dt.UTC)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


def test_usual_names_stay_readable() -> None:
    assert name_of("holdmq", "broker-0") == "holdmq.broker-0"
    assert re.fullmatch(r"holdmq\.broker-a-[0-9a-f]{16}", name_of("holdmq", "Broker_A"))


@given(NAMES, NAMES)
def test_every_name_is_one_that_kubernetes_takes(cluster: str, shard: str) -> None:
    name = name_of(cluster, shard)
    assert len(name) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_no_two_shards_have_one_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (name_of(*one) == name_of(*other)) == (one == other)


def test_a_state_is_read_as_it_was_put() -> None:
    lease, version = with_state(new_lease("x", OWNER), 0, STATE_1)
    assert state_of(lease, OWNER) == (version, STATE_1)
    again, later = with_state(lease, version, STATE_1)
    assert later == version + 1
    assert version_of(again, OWNER) == later
    assert version_of(new_lease("x", OWNER), OWNER) == 0


def test_an_object_that_was_made_again_does_not_repeat_versions() -> None:
    assert len({with_state(new_lease("x", OWNER), 0, STATE_1)[1] for _ in range(50)}) == 50


def test_what_others_wrote_stays() -> None:
    lease = new_lease("x", OWNER)
    lease["metadata"] |= {"labels": {"team": "iot"}, "finalizers": ["x/y"]}
    lease["metadata"]["annotations"]["theirs"] = "1"
    lease["spec"] = {"strategy": "OldestEmulationVersion", "preferredHolder": "b", "future": [1]}
    changed = released(held_by(with_state(lease, 0, STATE_1)[0], new_identity("a"), 9, NOON))
    assert changed["metadata"]["labels"] == {"team": "iot"}
    assert changed["metadata"]["finalizers"] == ["x/y"]
    assert changed["metadata"]["annotations"]["theirs"] == "1"
    assert changed["spec"].items() >= lease["spec"].items()
    assert "holdmq/state" not in lease["metadata"]["annotations"], "the object that was given is as it was"


def test_a_patch_has_what_changed_and_the_version_that_it_is_good_for() -> None:
    lease = new_lease("x", OWNER)
    lease["metadata"] |= {"resourceVersion": "7", "labels": {"team": "iot"}}
    lease["spec"] = {"strategy": "OldestEmulationVersion", "leaseDurationSeconds": 9}
    changed, version = with_state(lease, 0, STATE_1)
    state = {STATE: STATE_1.encode().decode(), STATE_VERSION: str(version)}
    assert patch_of(lease, changed) == {
        "metadata": {"resourceVersion": "7", "annotations": state},
        "spec": {},
    }
    spec = patch_of(lease, held_by(lease, "a_1", 9, NOON))["spec"]
    assert spec.keys() == {"holderIdentity", "renewTime", "acquireTime", "leaseTransitions"}


def test_an_object_is_one_that_kubernetes_takes() -> None:
    lease = held_by(with_state(new_lease("x", OWNER), 0, STATE_1)[0], new_identity("a"), 8.1, NOON)
    kubernetes_validate.validate(lease, kubernetes_validate.latest_version(), strict=True)
    assert lease["spec"]["leaseDurationSeconds"] == 9
    assert lease["spec"]["renewTime"] == "2030-01-02T12:00:00.000005Z"


def test_a_renewal_differs_from_the_one_before_even_if_the_clock_does_not_move() -> None:
    first = held_by(new_lease("x", OWNER), "a_1", 9, NOON)
    second = held_by(first, "a_1", 9, NOON)
    assert holding_of(first).renewal != holding_of(second).renewal
    assert second["spec"]["acquireTime"] == first["spec"]["acquireTime"]
    assert second["spec"]["leaseTransitions"] == 1
    assert held_by(second, "b_1", 9, NOON)["spec"]["leaseTransitions"] == 2


def test_who_holds_it() -> None:
    identity = new_identity("broker_0")
    assert replica_of(identity) == "broker_0"
    assert new_identity("broker_0") != identity
    assert replica_of("somebody_else") == "somebody_else"
    assert replica_of("") == ""
    assert holding_of(new_lease("x", OWNER)).identity == ""
    assert holding_of({"metadata": {}}).identity == ""
    assert holding_of(released(held_by(new_lease("x", OWNER), identity, 9, NOON))).identity == ""


@pytest.mark.parametrize("duration", [None, 0, -1, "9", 1.5, True])
def test_a_holder_without_a_duration_has_the_longest(duration: object) -> None:
    lease = {"spec": {"holderIdentity": "x", "leaseDurationSeconds": duration}}
    assert holding_of(lease).duration_s == UNKNOWN_DURATION_S


def test_an_object_of_another_shard_is_refused() -> None:
    with pytest.raises(ShardStateError, match=r"is of 'holdmq/broker-0' .* not of 'holdmq/broker-1'"):
        version_of(new_lease("x", OWNER), "holdmq/broker-1")
    with pytest.raises(ShardStateError, match="is of 'None'"):
        version_of({"metadata": {"name": "x"}}, OWNER)


@pytest.mark.parametrize("version", ["", "0", "-1", "x", "1.0", "9" * 20, " 1", None])
def test_a_version_that_is_none_is_refused(version: str | None) -> None:
    lease = new_lease("x", OWNER)
    lease["metadata"]["annotations"] |= {STATE: STATE_1.encode().decode(), STATE_VERSION: version}
    with pytest.raises(ShardStateError, match="no version"):
        version_of(lease, OWNER)


def test_a_state_without_a_version_and_a_version_without_a_state_are_refused() -> None:
    for key, value in ((STATE, STATE_1.encode().decode()), (STATE_VERSION, "5")):
        lease = new_lease("x", OWNER)
        lease["metadata"]["annotations"][key] = value
        with pytest.raises(ShardStateError):
            state_of(lease, OWNER)
    assert lease["metadata"]["annotations"][SHARD] == OWNER


def test_a_holder_is_gone_after_a_whole_duration_without_a_renewal() -> None:
    observer = LeaseObserver()
    observer.saw(LeaseHolding("a", ("1", "1"), 9), 100)
    observer.saw(LeaseHolding("a", ("1", "1"), 9), 108)
    assert observer.holder(108.9) == "a"
    assert observer.ends_at_s() == 109
    assert observer.holder(109) == ""
    observer.saw(LeaseHolding("a", ("1", "2"), 9), 110)
    assert observer.holder(118.9) == "a"
    observer.saw(LeaseHolding("b", ("1", "2"), 9), 118.9)
    assert observer.holder(127.8) == "b"
    observer.saw(LeaseHolding("", ("1", "2"), 9), 119)
    assert observer.holder(119) == ""


def test_an_older_renewal_that_is_seen_late_only_lengthens() -> None:
    observer = LeaseObserver()
    observer.saw(LeaseHolding("a", ("1", "2"), 9), 100)
    observer.saw(LeaseHolding("a", ("1", "1"), 9), 101)
    assert observer.holder(109.5) == "a"


def test_who_has_seen_nothing_knows_no_holder() -> None:
    assert LeaseObserver().holder(0) == ""
