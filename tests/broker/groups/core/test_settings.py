"""Groups without sockets: the table of settings and its file, members and their silence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.groups.core.members import Members
from broker.groups.core.settings import GroupSetting, GroupTable
from holdmq.errors import Code, RemoteError, StoreFormatError
from holdmq.wire.group_headers import BROADCAST, CLUSTERING, GroupUpdateRequest

EXPIRY_S = 60.0


# Settings


def planned(table: GroupTable, **header: Any) -> GroupSetting:
    groups = dict(table.groups)
    table.plan_update(groups, GroupUpdateRequest("g", **header))
    table.take(groups)
    return table.groups["g"]


def test_what_a_change_leaves_out_stays_as_it_was() -> None:
    table = GroupTable(10, True)
    planned(table, retry_max_times=3, delay_levels_ms=[1000])
    changed = planned(table, consume_enable=False)
    assert (changed.retry_max_times, changed.delay_levels_ms, changed.consume_enable) == (3, (1000,), False)
    assert planned(table, delay_levels_ms=[]).delay_levels_ms == ()
    assert table.data_version == 3


def test_a_file_is_loaded_as_it_was_written_and_names_are_those_that_operators_know() -> None:
    table = GroupTable(10, True)
    planned(table, retry_max_times=3, delay_levels_ms=[1000, 5000], which_broker_when_consume_slowly=2)
    groups = dict(table.groups)
    table.plan_join(groups, "g", CLUSTERING)
    table.plan_pause(groups, "g", True)
    content = json.loads(json.dumps(table.content(groups)))
    assert content["g"] == {
        "mode": "clustering",
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 3,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 2,
        "pause": True,
        "delayLevelsMs": [1000, 5000],
    }
    loaded = GroupTable(10, True)
    loaded.load(content, 7, "path")
    assert (loaded.groups, loaded.data_version) == (groups, 7)
    # What a later version adds, and an earlier one left out, is no damage.
    loaded.load({"g": {"retryMaxTimes": 2, "colour": "red"}}, 8, "path")
    assert loaded.groups == {"g": GroupSetting("g", retry_max_times=2)}


@pytest.mark.parametrize(
    "content",
    [
        {"g": []},
        {"%g": {}},
        {"g": {"retryMaxTimes": "3"}},
        {"g": {"retryMaxTimes": True}},
        {"g": {"consumeEnable": 1}},
        {"g": {"mode": "sharded"}},
        {"g": {"delayLevelsMs": {}}},
        {"g": {"delayLevelsMs": [0]}},
        {"g": {"delayLevelsMs": [1] * 65}},
    ],
)
def test_an_entry_that_is_no_group_is_named(content: dict[str, Any]) -> None:
    with pytest.raises(StoreFormatError, match=r"subscriptionGroup\.json.*is no group"):
        GroupTable(10, True).load(content, 1, "subscriptionGroup.json")


def test_the_table_is_bounded_for_new_groups_only() -> None:
    table = GroupTable(1, True)
    planned(table)
    groups = dict(table.groups)
    for plan in (lambda: table.plan_join(groups, "h", CLUSTERING), lambda: table.plan_create(groups, "h")):
        with pytest.raises(RemoteError, match="groups_max") as refused:
            plan()
        assert refused.value.code == Code.LIMIT_EXCEEDED
    table.plan_join(groups, "g", BROADCAST)
    assert groups["g"].mode == BROADCAST


# Members


def join(
    members: Members[str], owner: str, group: str = "g", mode: str = CLUSTERING, now: float = 0.0
) -> None:
    members.join(owner, owner, group, mode, "average", [], now, 0)


def test_all_members_together_are_bounded_and_renew_at_the_bound() -> None:
    members: Members[str] = Members(EXPIRY_S, 10, members_max=2)
    join(members, "a")
    join(members, "b", "h")
    with pytest.raises(RemoteError) as refused:
        join(members, "c", "i")
    assert refused.value.code == Code.LIMIT_EXCEEDED
    assert list(members.groups()) == ["g", "h"]
    join(members, "a", now=5.0)
    assert len(members) == 2


def test_who_was_silent_longest_expires_first() -> None:
    members: Members[str] = Members(EXPIRY_S, 10)
    join(members, "a")
    join(members, "b", now=1.0)
    assert members.renew("a", "g", 2.0)
    assert members.next_deadline() == 61.0
    assert [m.owner for m in members.expire(61.0)] == ["b"]
    assert not members.renew("b", "g", 61.0)
    members.postpone(10.0)
    assert members.expire(62.0) == []
    assert [m.owner for m in members.expire(72.0)] == ["a"]
    assert members.next_deadline() is None
    assert members.expired == 2


def test_versions_never_repeat_also_of_a_group_that_ended_and_began_again() -> None:
    members: Members[str] = Members(EXPIRY_S, 10)
    members.start_above(100)
    join(members, "a")
    first = members.version("g")
    members.leave("a", "g")
    assert members.version("g") == 0
    join(members, "a")
    assert members.version("g") > first > 100


class MemberMachine(RuleBasedStateMachine):
    """Joins, leaves, closed connections and silence in any order, against the plainest model."""

    owners = st.sampled_from(["a", "b", "c", "d"])
    groups = st.sampled_from(["g", "h"])
    modes = st.sampled_from([CLUSTERING, BROADCAST])

    def __init__(self) -> None:
        super().__init__()
        self.members: Members[str] = Members(EXPIRY_S, 3)
        self.now = 0.0
        self.model: dict[tuple[str, str], tuple[str, str, float]] = {}
        """(owner, group) → client id, mode, last sign of life."""
        self.versions: dict[str, int] = {"g": 0, "h": 0}

    @rule(owner=owners, client_id=st.sampled_from(["x", "y", "z"]), group=groups, mode=modes)
    def join(self, owner: str, client_id: str, group: str, mode: str) -> None:
        known = self.model.get((owner, group))
        client_id = known[0] if known is not None else client_id
        others = {
            o: found
            for (o, g), found in self.model.items()
            if g == group and o != owner and found[0] != client_id
        }
        is_refused = any(found[1] != mode for found in others.values()) or (
            known is None and len(others) >= 3
        )
        taken = [
            (o, g) for (o, g), f in self.model.items() if g == group and o != owner and f[0] == client_id
        ]
        try:
            self.members.join(owner, client_id, group, mode, "", [], self.now, 0)
        except RemoteError:
            assert is_refused
        else:
            assert not is_refused
            self.model[owner, group] = (client_id, mode, self.now)
            for key in taken:
                self.model.pop(key)

    @rule(owner=owners, group=groups)
    def leave(self, owner: str, group: str) -> None:
        left = self.members.leave(owner, group)
        assert (left is not None) == (self.model.pop((owner, group), None) is not None)

    @rule(owner=owners)
    def close(self, owner: str) -> None:
        left = {(m.owner, m.group) for m in self.members.close(owner)}
        assert left == {key for key in self.model if key[0] == owner}
        self.model = {key: found for key, found in self.model.items() if key[0] != owner}

    @rule(owner=owners, group=groups)
    def renew(self, owner: str, group: str) -> None:
        is_member = self.members.renew(owner, group, self.now)
        assert is_member == ((owner, group) in self.model)
        if is_member:
            self.model[owner, group] = (*self.model[owner, group][:2], self.now)

    @rule(seconds=st.sampled_from([1.0, 30.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        late = {(m.owner, m.group) for m in self.members.expire(self.now)}
        assert late == {key for key, found in self.model.items() if found[2] + EXPIRY_S <= self.now}
        self.model = {key: found for key, found in self.model.items() if key not in late}

    @invariant()
    def members_are_those_of_the_model(self) -> None:
        for group in ("g", "h"):
            found = {key[0]: value for key, value in self.model.items() if key[1] == group}
            listed = self.members.of(group)
            assert {m.owner: (m.client_id, m.mode) for m in listed} == {o: v[:2] for o, v in found.items()}
            assert len({m.client_id for m in listed}) == len(listed)
            assert len({m.mode for m in listed}) <= 1
            assert self.members.count(group) == len(found)
        assert set(self.members.groups()) == {group for _, group in self.model}
        assert len(self.members) == len(self.model)

    @invariant()
    def versions_only_rise(self) -> None:
        for group, before in self.versions.items():
            version = self.members.version(group)
            assert version == 0 or version >= before
            self.versions[group] = max(before, version)


MemberMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMemberMachine = MemberMachine.TestCase
