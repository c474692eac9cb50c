from __future__ import annotations

from typing import Any

import pytest

from holdmq.client import choice as module
from holdmq.client.choice import Choice
from holdmq.client.faults import Faults
from holdmq.client.route import RouteTable, TopicRoute
from holdmq.errors import RemoteError
from holdmq.message import TopicQueue
from holdmq.names.topics import rank_queues


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def choice(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Choice:
    """A choice over a table without registries; `connect` says which brokers are there."""
    routes = RouteTable(["127.0.0.1:1"], "me")
    up = {"a": True, "b": True, "c": True}
    monkeypatch.setattr(routes, "is_available", lambda broker: up.get(broker, False))
    found = Choice(routes, Faults(), clock)
    found.up = up  # type: ignore[attr-defined]
    set_route(found, "t")
    return found


def set_route(choice: Choice, topic: str, brokers: str = "abc", order: bool = False) -> TopicRoute:
    queues = tuple(TopicQueue(topic, broker, i) for broker in brokers for i in range(4))
    route = TopicRoute(topic, "log", 1, queues, queues, order)
    choice._routes._routes[topic] = route
    choice._routes_changed(frozenset({topic}))
    return route


def ranking(choice: Choice, key: str) -> list[TopicQueue]:
    route = choice._routes.get("t")
    assert route is not None
    return [
        TopicQueue("t", *q) for q in rank_queues(key, [(q.broker, q.queue_id) for q in route.write_queues])
    ]


def test_a_key_s_queue_is_its_first_in_rank_as_everybody_ranks(choice: Choice) -> None:
    for i in range(200):
        assert choice.of_key("t", f"k{i}") == ranking(choice, f"k{i}")[0]
        assert choice.of_key("t", f"k{i}".encode()) == ranking(choice, f"k{i}")[0]


def test_keys_of_a_broker_that_is_away_go_to_the_next_in_rank_and_come_back(choice: Choice) -> None:
    own = {f"k{i}": choice.of_key("t", f"k{i}") for i in range(200)}
    choice._faults.of("b").is_away = True
    for key, queue in own.items():
        expected = next(q for q in ranking(choice, key) if q.broker != "b")
        assert choice.of_key("t", key) == expected
        assert queue.broker == "b" or expected == queue
    choice._faults.of("b").is_away = False
    assert {key: choice.of_key("t", key) for key in own} == own


def test_keys_of_an_ordered_topic_wait_and_so_do_those_that_have_nowhere_to_go(choice: Choice) -> None:
    own = {f"k{i}": choice.of_key("t", f"k{i}") for i in range(50)}
    set_route(choice, "t", order=True)
    choice._faults.of("b").is_away = True
    assert {key: choice.of_key("t", key) for key in own} == own
    set_route(choice, "t")
    for broker in "abc":
        choice._faults.of(broker).is_away = True
    assert {key: choice.of_key("t", key) for key in own} == own
    assert not choice.has_refuge(TopicQueue("t", "a", 0))


def test_turns_go_round_and_leave_out_who_is_gone_or_rests(choice: Choice, clock: Clock) -> None:
    assert len({choice.in_turn("t") for _ in range(12)}) == 12
    choice._faults.observe("a", 600, clock.now)
    assert {choice.in_turn("t").broker for _ in range(12)} == {"b", "c"}
    choice.up["b"] = False  # type: ignore[attr-defined]
    assert {choice.in_turn("t").broker for _ in range(12)} == {"c"}
    clock.now += 2.1
    assert {choice.in_turn("t").broker for _ in range(12)} == {"a", "c"}


def test_when_all_rest_the_fastest_is_taken_and_when_all_are_gone_any(choice: Choice, clock: Clock) -> None:
    for broker, latency_ms in (("a", 2000), ("b", 700), ("c", 9000)):
        choice._faults.observe(broker, latency_ms, clock.now)
    assert {choice.in_turn("t").broker for _ in range(12)} == {"b"}
    assert not choice.has_other(TopicQueue("t", "a", 0))
    choice.up.clear()  # type: ignore[attr-defined]
    assert len({choice.in_turn("t") for _ in range(12)}) == 12


def test_a_topic_without_queues_is_said(choice: Choice) -> None:
    with pytest.raises(RemoteError, match="TOPIC_UNKNOWN"):
        choice.in_turn("none")
    assert not choice.has_other(TopicQueue("none", "a", 0))


def test_remembered_keys_are_bounded_and_forgotten_with_their_route(
    choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEYS_CACHED_MAX", 10)
    for i in range(100):
        choice.of_key("t", str(i))
        known: Any = choice._topics["t"].known
        assert len(known) <= 10
    set_route(choice, "t", "x")
    assert choice.of_key("t", "1").broker == "x"
