from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.client.allocation import (
    STRATEGIES,
    average,
    circle,
    consistent_hash,
    machine_room,
    queues_of_member,
    strategy_of,
)
from holdmq.errors import UsageError
from holdmq.message import TopicQueue


def queues(count: int, broker: str = "b", topic: str = "t") -> list[TopicQueue]:
    return [TopicQueue(topic, broker, i) for i in range(count)]


def ids(shares: dict[str, list[TopicQueue]]) -> dict[str, list[int]]:
    return {member: [q.queue_id for q in share] for member, share in shares.items()}


def test_average_gives_runs_and_the_first_members_one_more() -> None:
    assert ids(average(queues(8), ["a", "b", "c"])) == {"a": [0, 1, 2], "b": [3, 4, 5], "c": [6, 7]}
    assert ids(average(queues(2), ["a", "b", "c"])) == {"a": [0], "b": [1], "c": []}


def test_circle_gives_in_turn() -> None:
    assert ids(circle(queues(5), ["a", "b"])) == {"a": [0, 2, 4], "b": [1, 3]}


def test_consistent_hash_moves_only_what_a_leaving_member_had() -> None:
    members = [f"m{i}" for i in range(10)]
    before = consistent_hash(queues(500), members)
    after = consistent_hash(queues(500), members[1:])
    for member in members[1:]:
        assert set(before[member]) <= set(after[member])
    assert max(map(len, before.values())) < 2 * 500 / len(members)


def test_machine_rooms_keep_to_themselves_and_a_room_without_members_is_shared() -> None:
    strategy = machine_room()
    everything = [*queues(4, "east@b1"), *queues(4, "west@b2"), *queues(4, "north@b3"), *queues(2, "b4")]
    shares = strategy.allocate(everything, ["east@x", "east@y", "west@z"])
    rooms = {member: {q.broker for q in share} for member, share in shares.items()}
    assert "west@b2" not in rooms["east@x"] | rooms["east@y"]
    assert "east@b1" not in rooms["west@z"]
    assert sum(map(len, shares.values())) == len(everything)
    assert len([q for q in shares["west@z"] if q.broker == "west@b2"]) == 4


@given(
    name=st.sampled_from(sorted(STRATEGIES)),
    count=st.integers(0, 40),
    members=st.sets(st.text("abc@", min_size=1, max_size=4), min_size=1, max_size=8),
    brokers=st.lists(st.sampled_from(["b1", "a@b2", "c@b3"]), min_size=1, max_size=3, unique=True),
)
def test_every_queue_has_exactly_one_member(
    name: str, count: int, members: set[str], brokers: list[str]
) -> None:
    everything = {q for broker in brokers for topic in ("t", "u") for q in queues(count, broker, topic)}
    members_at = dict.fromkeys(brokers, sorted(members))
    shares = [queues_of_member(m, strategy_of(name), everything, members_at) for m in sorted(members)]
    assert sum(map(len, shares)) == len(everything)
    assert set().union(*shares) == everything


@given(
    count=st.integers(1, 30),
    here=st.sets(st.integers(0, 5), min_size=1),
    there=st.sets(st.integers(0, 5), min_size=1),
)
def test_a_queue_goes_to_a_member_that_its_broker_knows(count: int, here: set[int], there: set[int]) -> None:
    members_at = {"b1": [f"m{i}" for i in sorted(here)], "b2": [f"m{i}" for i in sorted(there)]}
    everything = {*queues(count, "b1"), *queues(count, "b2")}
    owners: dict[TopicQueue, str] = {}
    for i in here | there:
        for queue in queues_of_member(f"m{i}", strategy_of("average"), everything, members_at):
            assert owners.setdefault(queue, f"m{i}") == f"m{i}"
    assert owners.keys() == everything
    assert all(owner in members_at[queue.broker] for queue, owner in owners.items())


def test_who_is_no_member_gets_nothing() -> None:
    assert queues_of_member("x", strategy_of("average"), queues(4), {"b": ["a"]}) == set()
    assert queues_of_member("x", strategy_of("average"), queues(4), {}) == set()


def test_an_own_function_is_a_strategy_and_is_checked() -> None:
    everything = queues(2)
    members_at = {"b": ["a", "b"]}

    def all_to_last(of_topic, members):  # type: ignore[no-untyped-def]
        return {members[-1]: of_topic}

    assert strategy_of(all_to_last).name == "all_to_last"
    assert queues_of_member("b", strategy_of(all_to_last), everything, members_at) == set(everything)
    with pytest.raises(UsageError, match="gives b/t/0 to 'a' and 'b'"):
        queues_of_member("a", strategy_of(lambda q, m: dict.fromkeys(m, q)), everything, members_at)
    with pytest.raises(UsageError, match="'x', who is no member"):
        queues_of_member("a", strategy_of(lambda q, m: {"x": q}), everything, members_at)
    with pytest.raises(UsageError, match="not asked about"):
        queues_of_member("a", strategy_of(lambda q, m: {"a": queues(3)}), everything, members_at)


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match="'avg' is not one of average, circle"):
        strategy_of("avg")
