"""Whom a reader asks: the leader, the replica that it names for a while, and the leader after a doubt."""

from __future__ import annotations

from holdmq.client.replica_choice import BACK_S, PLACES_MAX, REST_S, STAY_S, ReadSource, ReplicaChoice
from holdmq.errors import Code
from holdmq.message import TopicQueue
from holdmq.wire.headers import PulledQueue
from holdmq.wire.replica_reads import ReplicaReads

QUEUE = TopicQueue("t", "broker", 0)
OTHER = TopicQueue("t", "broker", 1)
ALLOW, PREFER, NEVER = ReplicaReads.ALLOW, ReplicaReads.PREFER, ReplicaReads.NEVER
LEADER = ReadSource("broker", "", ALLOW)
REPLICA = ReadSource("broker", "b:1", ALLOW)
LEADER_ALONE = ReadSource("broker", "", NEVER)


def sent_to_replica(at: float = 0.0) -> ReplicaChoice:
    choice = ReplicaChoice(ALLOW)
    choice.answered(LEADER, QUEUE, "b:1", at)
    return choice


def test_the_leader_is_asked_first_in_the_readers_own_words() -> None:
    for wanted in (NEVER, ALLOW, PREFER):
        assert ReplicaChoice(wanted).source(QUEUE, 0.0) == ReadSource("broker", "", wanted)


def test_a_replica_is_asked_for_the_queue_it_was_named_for_until_the_leader_is_to_be_heard_again() -> None:
    choice = sent_to_replica()
    assert choice.source(QUEUE, 0.0) == REPLICA
    assert choice.source(OTHER, 0.0) == LEADER
    choice.answered(REPLICA, QUEUE, "b:1", STAY_S - 0.1)
    assert choice.source(QUEUE, STAY_S - 0.01) == REPLICA
    assert choice.source(QUEUE, STAY_S) == LEADER, "its own word does not keep the reader longer"
    choice.answered(LEADER, QUEUE, "c:1", STAY_S)
    assert choice.source(QUEUE, STAY_S).replica == "c:1"


def test_a_queue_that_is_sent_back_is_the_leaders_alone_for_a_moment() -> None:
    choice = ReplicaChoice(PREFER)
    choice.answered(ReadSource("broker", "b:1", PREFER), QUEUE, "", 0.0)
    assert choice.source(QUEUE, 0.0) == LEADER_ALONE
    choice.answered(LEADER_ALONE, QUEUE, "", 0.5)
    assert choice.source(QUEUE, BACK_S - 0.01) == LEADER_ALONE
    assert choice.source(QUEUE, BACK_S) == ReadSource("broker", "", PREFER)


def test_a_replica_that_brings_nothing_sends_back_even_if_it_names_itself() -> None:
    def row(records: int, next_offset: int, status: int = Code.OK) -> PulledQueue:
        return PulledQueue("t", 0, status, next_offset, 0, 100, records, 0)

    for nothing in (row(0, 10), row(0, 11, Code.OFFSET_AHEAD), row(0, 11, Code.CORRUPT)):
        choice = sent_to_replica()
        choice.took(REPLICA, QUEUE, 10, nothing, "b:1", 1.0)
        assert choice.source(QUEUE, 1.0) == LEADER_ALONE
    for something in (row(1, 11), row(0, 20)):
        choice = sent_to_replica()
        choice.took(REPLICA, QUEUE, 10, something, "b:1", 1.0)
        assert choice.source(QUEUE, 1.0) == REPLICA
    choice = ReplicaChoice(PREFER)
    choice.took(ReadSource("broker", "", PREFER), QUEUE, 10, row(0, 10), "b:1", 1.0)
    assert choice.source(QUEUE, 1.0).replica == "b:1", "a leader's answer may be the name alone"


def test_a_replica_that_fails_gives_all_its_queues_back_and_is_not_asked_for_a_while() -> None:
    choice = sent_to_replica()
    choice.answered(LEADER, OTHER, "b:1", 0.0)
    third = TopicQueue("t", "broker", 2)
    choice.failed("b:1", 1.0)
    assert choice.source(QUEUE, 1.0) == LEADER_ALONE, "the leader has not noticed, and would name it again"
    assert choice.source(OTHER, 1.0) == LEADER_ALONE
    choice.answered(LEADER, third, "b:1", 1.1)
    assert choice.source(third, 1.1) == LEADER_ALONE
    choice.answered(LEADER, third, "c:1", 1.1)
    assert choice.source(third, 1.1).replica == "c:1"
    assert choice.source(QUEUE, 1.0 + REST_S) == LEADER
    choice.answered(LEADER, QUEUE, "b:1", 1.0 + REST_S)
    assert choice.source(QUEUE, 1.0 + REST_S) == REPLICA


def test_the_leader_takes_a_queue_back_by_naming_nobody() -> None:
    choice = sent_to_replica()
    assert choice.source(QUEUE, STAY_S) == LEADER
    choice.answered(LEADER, QUEUE, "", STAY_S)
    assert choice.source(QUEUE, STAY_S) == LEADER


def test_a_queue_that_is_forgotten_begins_at_the_leader() -> None:
    choice = sent_to_replica()
    choice.forget(QUEUE)
    choice.forget(OTHER)
    assert choice.source(QUEUE, 0.0) == LEADER


def test_what_is_remembered_of_queues_is_bounded() -> None:
    choice = ReplicaChoice(ALLOW)
    for number in range(3 * PLACES_MAX):
        choice.answered(LEADER, TopicQueue("t", "broker", number), "b:1", number * STAY_S / PLACES_MAX)
    assert len(choice._places) <= 2 * PLACES_MAX
