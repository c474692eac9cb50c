"""The topic table under any order of requests, writes that fail, and restarts: its rules always hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.topics.core import changes as topic_changes
from broker.topics.core.table import NOT_DELETING, PAUSES_MAX, Topic, TopicTable
from holdmq.errors import Code, RemoteError, StoreFormatError
from holdmq.wire.headers import TopicCreateRequest
from holdmq.wire.topic_headers import TopicUpdateRequest

NAMES = ("a", "a", "b#tmp")
QUEUES = st.integers(0, 4)
STEPS = ("producers", "consumers", "delete")
QUEUE_IDS = st.integers(0, 3)
name_of = st.sampled_from(NAMES)


def tried(plan: Callable[[], Topic | None]) -> Topic | RemoteError | None:
    try:
        return plan()
    except RemoteError as error:
        return error


class Model(RuleBasedStateMachine):
    """One table; what groups have left in each queue; the log's end; what topic.json holds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TopicTable(2, 2)
        self.file: dict[str, object] = {}
        self.backlog: dict[tuple[str, int], int] = {}
        self.held: dict[tuple[str, int], int] = {}
        self.position = 0

    def undrained(self, name: str) -> topic_changes.Undrained:
        def reason(queue_id: int) -> str | None:
            left = self.backlog.get((name, queue_id), 0)
            return topic_changes.why_undrained(queue_id, left, [("g", 0)] if left else [], False)

        return reason

    def take(self, topic: Topic) -> None:
        """A change was planned: write it and make it."""
        self.file = json.loads(json.dumps(self.table.content({topic.name: topic})))
        self.table.add(topic)

    def known(self, name: str) -> Topic | None:
        return self.table.get(name)

    @initialize(order=st.booleans())
    def begin(self, order: bool) -> None:
        """Most of what there is to see needs a topic with some queues."""
        self.create("a", 4, order)

    @rule(name=name_of, queues=st.integers(1, 4), order=st.booleans())
    def create_one(self, name: str, queues: int, order: bool) -> None:
        self.create(name, queues, order)

    def create(self, name: str, queues: int, order: bool) -> None:
        known = self.table.find(name)
        if known is not None and known.is_leaving:
            return
        request = TopicCreateRequest(name, queues, order=order)
        topic = tried(lambda: topic_changes.new_topic(known, request, 2))
        if isinstance(topic, RemoteError):
            assert topic.code == Code.TOPIC_EXISTS
            assert known is not None
        elif topic is not None and len(self.table) < self.table.topics_max:
            self.take(topic)

    @rule(name=name_of, perm=st.integers(0, 7), retention_ms=st.integers(0, 5))
    def update(self, name: str, perm: int, retention_ms: int) -> None:
        topic = self.known(name)
        if topic is None:
            return
        request = TopicUpdateRequest(name, perm, retention_ms=retention_ms)
        after = tried(lambda: topic_changes.update(topic, request))
        if isinstance(after, RemoteError):
            assert after.code == Code.KIND_UNFIT
            assert topic.is_temporary
            return
        assert after is not None
        assert replace(after, perm=topic.perm, retention_ms=topic.retention_ms) == topic
        self.take(after)

    @rule(name=name_of, queue_ids=st.lists(QUEUE_IDS, min_size=1, max_size=4))
    def produce_some(self, name: str, queue_ids: list[int]) -> None:
        for queue_id in queue_ids:
            self.produce(name, queue_id)

    def produce(self, name: str, queue_id: int) -> None:
        topic = self.known(name)
        if topic is not None and self.table.takes_records(topic, queue_id, 0.0):
            assert queue_id < topic.write_queues
            self.backlog[name, queue_id] = self.backlog.get((name, queue_id), 0) + 1
            self.held[name, queue_id] = self.held.get((name, queue_id), 0) + 1
            self.position += 1

    @rule(name=name_of, queue_id=QUEUE_IDS)
    def consume_one(self, name: str, queue_id: int) -> None:
        self.consume(name, queue_id)

    def consume(self, name: str, queue_id: int) -> None:
        topic = self.known(name)
        if topic is not None and queue_id < topic.read_queues and not topic.is_paused:
            self.backlog.pop((name, queue_id), None)

    @rule(name=name_of)
    def consume_all(self, name: str) -> None:
        for queue_id in range(4):
            self.consume(name, queue_id)

    @rule(name=name_of, queues=QUEUES)
    def grow(self, name: str, queues: int) -> None:
        topic = self.known(name)
        if topic is None:
            return
        try:
            after = topic_changes.grow(topic, queues, self.undrained(name))
        except RemoteError as error:
            if error.code == Code.TOPIC_IN_USE and topic.deleting_to == NOT_DELETING:
                assert topic.order
                assert any(self.backlog.get((name, q)) for q in range(topic.read_queues))
            return
        if topic.order and after != topic:
            assert not any(self.backlog.get((name, q)) for q in range(topic.read_queues))
        self.take(after)

    @rule(name=name_of, queues=QUEUES, step=st.sampled_from(STEPS))
    def remove_one(self, name: str, queues: int, step: str) -> None:
        self.remove(name, queues, step)

    @rule(name=name_of, queues=st.integers(0, 3), steps=st.integers(2, 3))
    def remove_in_order(self, name: str, queues: int, steps: int) -> None:
        for step in STEPS[:steps]:
            self.remove(name, queues, step)

    def remove(self, name: str, queues: int, step: str) -> None:
        topic = self.known(name)
        if topic is None:
            return
        undrained = self.undrained(name)
        after = tried(
            {
                "producers": lambda: topic_changes.hide_from_producers(topic, queues, undrained),
                "consumers": lambda: topic_changes.hide_from_consumers(topic, queues, undrained, 0.0),
                "delete": lambda: topic_changes.delete_queues(topic, queues),
            }[step]
        )
        if isinstance(after, RemoteError):
            assert after.code in (Code.TOPIC_IN_USE, Code.TOPIC_INVALID, Code.KIND_UNFIT)
            return
        assert after is not None
        gone = range(after.read_queues, topic.read_queues)
        assert not any(self.backlog.get((name, q)) for q in gone), "hidden with messages to consume"
        self.take(after)

    @rule(name=name_of, force=st.booleans())
    def delete(self, name: str, force: bool) -> None:
        topic = self.known(name)
        if topic is None:
            return
        try:
            after = topic_changes.delete_topic(topic, force)
        except RemoteError:
            assert not force
            assert topic.read_queues
            return
        if topic.is_temporary:
            self.table.remove(name)
            self.forget(name, range(4))
        else:
            self.take(after)

    @rule(name=name_of)
    def finish_deletion(self, name: str) -> None:
        topic = self.table.find(name)
        if topic is None or topic.deleting_to == NOT_DELETING:
            return
        self.forget(name, range(topic.deleting_to, topic.queues_in_store))
        after = topic_changes.deleted(topic)
        self.file = json.loads(json.dumps(self.table.content({name: after})))
        if after is None:
            self.table.remove(name)
        else:
            self.table.add(after)

    def forget(self, name: str, queue_ids: range) -> None:
        for queue_id in queue_ids:
            self.held.pop((name, queue_id), None)
            self.backlog.pop((name, queue_id), None)

    @rule(name=name_of, pause=st.booleans(), first_position=st.integers(0, 3))
    def pause(self, name: str, pause: bool, first_position: int) -> None:
        topic = self.known(name)
        if topic is None:
            return
        if pause:
            self.take(topic_changes.pause(topic, self.position))
        else:
            self.take(topic_changes.resume(topic, self.position, first_position))

    @precondition(lambda self: self.file)
    @rule()
    def restart(self) -> None:
        before = {topic.name: topic for topic in [*self.table.all(), *self.table.leaving()]}
        again = TopicTable(2, 2)
        again.load(self.file, self.table.data_version, "topic.json")
        found = {topic.name: topic for topic in [*again.all(), *again.leaving()]}
        assert found == {n: t for n, t in before.items() if not t.is_temporary}
        for name in before.keys() - found.keys():
            self.forget(name, range(4))
        self.table = again

    @invariant()
    def counts_are_in_order(self) -> None:
        for topic in [*self.table.all(), *self.table.leaving()]:
            assert 0 <= topic.write_queues <= topic.read_queues <= topic.queues_in_store
            assert topic.deleting_to == NOT_DELETING or topic.deleting_to >= topic.read_queues
            assert len(topic.pauses) <= PAUSES_MAX
            assert all(first < end for first, end in topic.pauses)

    @invariant()
    def what_a_queue_holds_belongs_to_a_queue_that_is_there(self) -> None:
        for (name, queue_id), count in self.held.items():
            topic = self.table.find(name)
            assert count
            assert topic is not None
            assert queue_id < topic.queues_in_store

    @invariant()
    def nobody_waits_for_a_queue_that_consumers_do_not_see(self) -> None:
        for name, queue_id in self.backlog:
            topic = self.table.get(name)
            if topic is not None:
                assert queue_id < topic.read_queues

    @invariant()
    def routes_and_listings_agree_with_the_table(self) -> None:
        assert [row.topic for row in self.table.rows()] == sorted(topic.name for topic in self.table.all())
        assert {t.name for t in self.table.pausing()} == {
            t.name for t in self.table.all() if t.is_paused or t.pauses
        }


TestTopicTable = Model.TestCase
TestTopicTable.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize(
    "entry",
    [
        {"read_queues": 1, "write_queues": 2},
        {"read_queues": 4, "write_queues": 4, "stored_queues": 2000},
        {"read_queues": 4, "write_queues": 4, "paused_at": -2},
        {"read_queues": 4, "write_queues": 4, "pauses": [[1]]},
        {"read_queues": 4, "write_queues": 4, "pauses": "no"},
        {"read_queues": 4, "write_queues": 4, "kind": "temporary"},
        {"read_queues": 4, "write_queues": True},
        {"read_queues": 4, "write_queues": 4, "order": 1},
        {"read_queues": 4},
        [],
    ],
)
def test_an_entry_that_is_no_topic_is_named(entry: object) -> None:
    content = {"t": {"name": "t", **entry} if isinstance(entry, dict) else entry}
    with pytest.raises(StoreFormatError, match="the entry 't' is no topic"):
        TopicTable(10, 4).load(content, 1, "topic.json")


def test_a_file_of_the_version_before_is_read() -> None:
    old = {
        "name": "t", "read_queues": 4, "write_queues": 4, "perm": 6, "filter_type": "tag", "sys_flag": 0,
        "order": False, "kind": "log", "key_levels": 1,
    }  # fmt: skip
    table = TopicTable(10, 4)
    table.load({"t": old}, 1, "topic.json")
    topic = table.get("t")
    assert topic is not None
    assert (topic.queues_in_store, topic.deleting_to, topic.is_paused) == (4, NOT_DELETING, False)


def test_a_pause_of_which_the_log_has_nothing_any_more_is_forgotten() -> None:
    topic = Topic("t", 1, 1)
    for start in range(0, 100, 10):
        topic = topic_changes.resume(topic_changes.pause(topic, start), start + 5, 45)
    assert topic.pauses == tuple((start, start + 5) for start in range(50, 100, 10))
    for start in range(100, 400, 10):
        topic = topic_changes.resume(topic_changes.pause(topic, start), start + 5, 45)
    assert len(topic.pauses) == PAUSES_MAX


def test_a_pause_does_not_begin_beyond_a_log_that_was_cut() -> None:
    paused = topic_changes.pause(Topic("t", 1, 1), 500)
    assert topic_changes.clamp_pause(paused, 300).paused_at == 300
    assert topic_changes.clamp_pause(paused, 800) is paused


def test_a_refusal_names_the_group_that_is_furthest_behind() -> None:
    reason = topic_changes.why_undrained(3, 100, [("near", 99), ("far", 10), ("middle", 50)], False)
    assert reason == "group 'far' is 90 messages behind in queue 3 and 2 more groups"


def test_growing_over_some_of_the_hidden_queues_forgets_none_of_the_others() -> None:
    hidden = Topic("t", 1, 1, stored_queues=4)
    grown = topic_changes.grow(hidden, 2, lambda _queue_id: None)
    assert (grown.write_queues, grown.read_queues, grown.stored_queues) == (2, 2, 4)
