"""Offsets: reports only raise, resets set, snapshots stay as they were."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.groups.core.offsets import GroupOffset, OffsetTable, Reported, clamp, positions
from holdmq.errors import StoreFormatError


def test_a_report_raises_an_offset_and_never_lowers_it() -> None:
    table = OffsetTable()
    assert table.get("g", "t", 0) == -1
    assert table.report("g", "t", 0, 5) is Reported.FIRST
    assert table.report("g", "t", 0, 9) is Reported.RAISED
    assert table.report("g", "t", 0, 7) is Reported.KEPT
    assert table.get("g", "t", 0) == 9


def test_a_reset_alone_lowers_an_offset() -> None:
    table = OffsetTable()
    table.report("g", "t", 0, 9)
    assert table.reset("g", "t", 0, 2)
    assert table.get("g", "t", 0) == 2


def test_a_snapshot_is_what_the_file_says_and_stays_as_it_was() -> None:
    table = OffsetTable()
    table.report("g", "t", 1, 3)
    table.report("g", "t", 0, 38)
    before = table.snapshot()
    assert before == {"t@g": {"0": 38, "1": 3}}
    table.report("g", "t", 0, 40)
    table.report("h", "%RETRY%h", 0, 1)
    assert before == {"t@g": {"0": 38, "1": 3}}
    assert table.snapshot() == {"t@g": {"0": 40, "1": 3}, "%RETRY%h@h": {"0": 1}}


def test_what_is_temporary_is_kept_in_memory_and_not_saved() -> None:
    table = OffsetTable()
    table.report("g#tmp", "t", 0, 5)
    table.report("g", "t#tmp", 0, 6)
    assert (table.get("g#tmp", "t", 0), table.get("g", "t#tmp", 0)) == (5, 6)
    assert table.snapshot() == {}
    assert table.change == 0


def test_read_from_store_gives_what_was_saved() -> None:
    table = OffsetTable()
    table.report("g", "t", 0, 5)
    table.saved = table.snapshot()
    table.report("g", "t", 0, 6)
    assert table.get_saved("g", "t", 0) == 5
    assert table.get_saved("g", "t", 1) == -1
    assert table.get("g", "t", 0) == 6


def test_deleted_groups_and_queues_leave_nothing() -> None:
    table = OffsetTable()
    table.report("g", "t", 0, 5)
    table.report("g", "u", 0, 5)
    table.report("h", "t", 0, 5)
    table.report("h", "t", 1, 5)
    assert table.drop_queue("t", 0) == ["g", "h"]
    assert table.snapshot() == {"u@g": {"0": 5}, "t@h": {"1": 5}}
    assert table.topics("g") == ["u"]
    assert table.drop_group("g") == 1
    assert table.snapshot() == {"t@h": {"1": 5}}
    assert table.size == 1
    assert table.groups_in("t") == ["h"]


def test_offsets_are_bounded_and_old_ones_still_rise_at_the_bound() -> None:
    table = OffsetTable(offsets_max=1)
    table.report("g", "t", 0, 5)
    assert table.report("g", "t", 1, 5) is Reported.FULL
    assert not table.reset("g", "t", 1, 5)
    assert table.report("g", "t", 0, 6) is Reported.RAISED
    assert (table.size, table.room) == (1, 0)


def test_a_file_is_loaded_as_it_was_saved() -> None:
    table = OffsetTable()
    table.load({"t@g": {"0": 38}, "%RETRY%g@g": {"0": 0}}, "path")
    assert table.get("g", "t", 0) == 38
    assert table.snapshot() == table.saved == {"t@g": {"0": 38}, "%RETRY%g@g": {"0": 0}}
    assert set(positions(table.saved, ["g"])) == {
        GroupOffset("g", "t", 0, 38),
        GroupOffset("g", "%RETRY%g", 0, 0),
    }


@pytest.mark.parametrize(
    "content",
    [
        {"no-group": {"0": 1}},
        {"@g": {"0": 1}},
        {"t@g": [1]},
        {"t@g": {"x": 1}},
        {"t@g": {"0": -1}},
        {"t@g": {"0": True}},
        {"t@g": {"0": "1"}},
        {"t@" + "g" * 200: {"0": 1}},
    ],
)
def test_an_entry_that_is_none_is_named(content: dict[str, object]) -> None:
    with pytest.raises(StoreFormatError, match=r"consumerOffset\.json.*no group's offsets"):
        OffsetTable().load(content, "consumerOffset.json")


def test_an_offset_outside_of_a_queue_becomes_the_nearer_bound() -> None:
    assert (clamp(5, 10, 20), clamp(15, 10, 20), clamp(99, 10, 20)) == (10, 15, 20)


class OffsetMachine(RuleBasedStateMachine):
    """Reports, resets, deletions in any order: an offset falls by a reset alone, snapshots are exact."""

    groups = st.sampled_from(["g", "h", "i#tmp"])
    topics = st.sampled_from(["t", "u"])
    queue_ids = st.integers(0, 2)
    offsets = st.integers(0, 50)

    def __init__(self) -> None:
        super().__init__()
        self.table = OffsetTable()
        self.model: dict[tuple[str, str, int], int] = {}
        self.taken: list[tuple[object, object]] = []

    @rule(group=groups, topic=topics, queue_id=queue_ids, offset=offsets)
    def report(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = (group, topic, queue_id)
        self.table.report(group, topic, queue_id, offset)
        self.model[key] = max(self.model.get(key, -1), offset)

    @rule(group=groups, topic=topics, queue_id=queue_ids, offset=offsets)
    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.table.reset(group, topic, queue_id, offset)
        self.model[group, topic, queue_id] = offset

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        self.table.drop_group(group)
        self.model = {k: v for k, v in self.model.items() if k[0] != group}

    @rule(topic=topics, queue_id=queue_ids)
    def delete_queue(self, topic: str, queue_id: int) -> None:
        self.table.drop_queue(topic, queue_id)
        self.model = {k: v for k, v in self.model.items() if k[1:] != (topic, queue_id)}

    @rule()
    def save(self) -> None:
        content = self.table.snapshot()
        wanted: dict[str, dict[str, int]] = {}
        for (group, topic, queue_id), offset in self.model.items():
            if not group.endswith("#tmp"):
                wanted.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
        assert content == wanted
        self.taken.append((content, wanted))

    @invariant()
    def it_is_what_was_done(self) -> None:
        assert {(p.group, p.topic, p.queue_id): p.offset for p in self.table} == self.model
        assert self.table.size == len(self.model)

    @invariant()
    def snapshots_stay_as_they_were(self) -> None:
        assert all(content == wanted for content, wanted in self.taken)


OffsetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestOffsetMachine = OffsetMachine.TestCase
